"""The journal beside a dictionary: whatever is accepted, settled, compacted or torn off."""

import asyncio
import tempfile
from pathlib import Path
from typing import Literal

from hypothesis import given, settings
from hypothesis import strategies as st

from waystation.push.connect.journal import Accepted, Journal, read_unsettled
from waystation.push.model import ChannelId, MessageId, Notification, SortKey, Uaid, Update

UAID = Uaid(bytes(16))
Step = tuple[Literal["accept", "settle", "turn", "compact"], int]

STEPS = st.lists(
    st.tuples(
        st.sampled_from(["accept", "accept", "settle", "turn", "compact"]), st.integers(0, 7)
    ),
    max_size=40,
)


def item(number: int) -> Notification | Update:
    """Some are Web Push, some SimplePush."""
    if number % 3 == 0:
        return Update(ChannelId(bytes([number]) * 16), number)
    return Notification(
        channel_id=ChannelId(bytes(16)),
        message_id=MessageId(f"m{number}"),
        sort_key=SortKey(f"02:{number}"),
        accepted_at_ms=1,
        ttl_s=60,
        data="x" * number,
    )


def items(entries: list[Accepted]) -> list[Notification | Update | None]:
    return [entry.notification or entry.update for entry in entries]


class Run:
    """What happened, and after each write the file's size and what was owed then."""

    def __init__(self) -> None:
        self.owed: dict[int, None] = {}
        self.states: list[tuple[int, set[int]]] = [(0, set())]
        self.data = b""
        self.compacted = False


async def run(
    path: Path, steps: list[Step], mode: Literal["write", "fsync"], *, mapped: bool = False
) -> Run:
    journal = Journal(path, mode=mode, bytes_max=2**20, mapped=mapped)
    done, waiters = Run(), []

    def wrote() -> None:
        done.data = path.read_bytes()
        done.states.append((len(done.data), set(done.owed)))

    async def turn() -> None:
        assert all(await asyncio.gather(*waiters))
        waiters.clear()
        for _ in range(3):
            await asyncio.sleep(0)
        wrote()

    for what, number in steps:
        match what:
            case "accept":
                written = asyncio.ensure_future(journal.accept(UAID, item(number)))
                done.owed.pop(number, None)
                done.owed[number] = None
                await asyncio.sleep(0)
                if written.done():
                    assert written.result()
                    wrote()
                else:
                    waiters.append(written)
            case "settle":
                journal.settle(UAID, item(number))
                done.owed.pop(number, None)
            case "turn":
                await turn()
            case "compact":
                await turn()
                assert journal._compact()
                done.compacted = True
                await turn()
    await turn()
    assert journal.unsettled == len(done.owed)
    journal.close()
    return done


@settings(max_examples=80, deadline=None)
@given(STEPS, st.sampled_from(["write", "mapped", "mapped", "fsync"]))
def test_the_file_owes_what_was_accepted_and_not_settled(
    steps: list[Step], mode: Literal["write", "mapped", "fsync"]
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "0.log"
        mapped = mode == "mapped"
        done = asyncio.run(run(path, steps, "write" if mode == "mapped" else mode, mapped=mapped))
        wanted = [item(number) for number in done.owed]

        assert items(read_unsettled(done.data)) == wanted
        assert items(read_unsettled(path.read_bytes())) == wanted


@settings(max_examples=60, deadline=None)
@given(STEPS, st.data())
def test_any_beginning_of_the_file_is_a_moment_of_its_past(
    steps: list[Step], data: st.DataObject
) -> None:
    """A kill or a torn write leaves a beginning: records up to there, and nothing made up."""
    steps = [step for step in steps if step[0] != "compact"]
    with tempfile.TemporaryDirectory() as folder:
        done = asyncio.run(run(Path(folder) / "0.log", steps, "write"))
    cut = data.draw(st.integers(0, len(done.data)))
    found = items(read_unsettled(done.data[:cut]))

    written = [state for state in done.states if state[0] <= cut]
    size, owed = written[-1]
    if size == cut:
        assert {repr(one) for one in found} == {repr(item(number)) for number in owed}
    everything = [repr(item(number)) for number in range(8)]
    assert all(repr(one) in everything for one in found)
    later = [state for state in done.states if state[0] > cut]
    if later:  # what was owed before and after the cut is owed at the cut
        lasting = owed & later[0][1]
        settled_between = {number for what, number in steps if what == "settle"}
        for number in lasting - settled_between:
            assert item(number) in found


@settings(max_examples=60, deadline=None)
@given(STEPS, st.integers(0, 10_000), st.integers(1, 255))
def test_a_damaged_byte_ends_the_reading_and_nothing_is_made_up(
    steps: list[Step], where: int, change: int
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        done = asyncio.run(run(Path(folder) / "0.log", steps, "write"))
    if not done.data:
        assert read_unsettled(done.data) == []
        return
    damaged = bytearray(done.data)
    damaged[where % len(damaged)] ^= change
    everything = [item(number) for number in range(8)]

    assert all(one in everything for one in items(read_unsettled(bytes(damaged))))


@settings(max_examples=60, deadline=None)
@given(STEPS, st.integers(0, 2**14), st.integers(1, 255))
def test_a_damaged_byte_of_a_mapped_file_makes_nothing_up(
    steps: list[Step], where: int, change: int
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        done = asyncio.run(run(Path(folder) / "0.log", steps, "write", mapped=True))
    damaged = bytearray(done.data)
    damaged[where % len(damaged)] ^= change
    everything = [item(number) for number in range(8)]

    assert all(one in everything for one in items(read_unsettled(bytes(damaged))))
