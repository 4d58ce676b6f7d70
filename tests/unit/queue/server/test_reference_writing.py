"""References of queues older than their cluster: written once, with progress in the map."""

from collections.abc import Sequence

import msgspec
import pytest

from waystation.base.clock import ManualClock
from waystation.queue.cluster.slot_map import Node, NodeId, SlotMap
from waystation.queue.errors import QueueStoreUnavailableError
from waystation.queue.model import SLOTS, RecipientId, Slot
from waystation.queue.server import reference_writing
from waystation.queue.server.reference_writing import ReferenceWriting
from waystation.queue.store import Referenced
from waystation.storage.memory.cluster_store import MemoryClusterStore

HERE = NodeId(1)


class Rows:
    """A store with queues in some slots, which may fail at its next call."""

    def __init__(self, *held: int) -> None:
        self.held = [Slot(slot) for slot in held]
        self.asked: list[tuple[int, bytes | None]] = []
        self.fails_at: int | None = None

    async def held_slots(self) -> Sequence[Slot]:
        return self.held

    async def write_refs(self, slot: Slot, *, after: RecipientId | None, limit: int) -> Referenced:
        if slot == self.fails_at:
            self.fails_at = None
            raise QueueStoreUnavailableError("the disk is full")
        self.asked.append((slot, after))
        more = RecipientId(b"more") if after is None else None
        return Referenced(limit, more)


class Lines:
    def __init__(self) -> None:
        self.told: list[dict[str, object]] = []

    def info(self, event: str, /, **fields: object) -> None:
        self.told.append(fields)

    def warning(self, event: str, /, **fields: object) -> None:
        self.told.append(fields)


async def begun(left: int = SLOTS) -> MemoryClusterStore:
    maps = MemoryClusterStore(ManualClock())
    node = Node(node_id=HERE, host="h", port=1, fingerprint=b"", references_left=left)
    made = SlotMap().with_node(node).claimed(range(SLOTS), HERE)
    assert await maps.commit(made.as_one_change(SlotMap()))
    return maps


async def written(rows: Rows, maps: MemoryClusterStore, lines: Lines) -> ReferenceWriting:
    known = await maps.read()
    work = ReferenceWriting(
        HERE,
        refs=rows,  # pyright: ignore[reportArgumentType]
        rows=rows,  # pyright: ignore[reportArgumentType]
        maps=maps,
        known=lambda: known,
        mono=ManualClock().mono,
        lines=lines,
    )
    await work.run()
    return work


async def left_of(maps: MemoryClusterStore) -> int:
    return (await maps.read()).nodes[HERE].references_left


async def test_every_page_of_every_slot_with_queues_is_written_and_the_map_says_so() -> None:
    rows, maps, lines = Rows(5, SLOTS - 1), await begun(), Lines()
    work = await written(rows, maps, lines)

    assert rows.asked == [(5, None), (5, b"more"), (SLOTS - 1, None), (SLOTS - 1, b"more")]
    assert await left_of(maps) == 0
    assert lines.told[-1] == {"slots_done": SLOTS, "slots": SLOTS, "written": work.written}
    assert work.written == 4 * reference_writing.PAGE


async def test_it_goes_on_where_the_map_says_that_it_was() -> None:
    rows, maps = Rows(5, 3000), await begun(left=SLOTS - 1000)

    await written(rows, maps, Lines())

    assert {slot for slot, _ in rows.asked} == {3000}


async def test_a_server_without_older_queues_writes_nothing() -> None:
    rows, maps = Rows(5), await begun(left=0)

    await written(rows, maps, Lines())

    assert rows.asked == []
    assert (await maps.read()).epoch == 1


async def test_progress_is_reported_while_references_are_written(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(reference_writing, "REPORT_S", 0.0)
    rows, maps, lines = Rows(), await begun(left=3), Lines()

    await written(rows, maps, lines)

    assert [one["slots_done"] for one in lines.told] == [SLOTS - 2, SLOTS - 1, SLOTS]


async def test_a_failing_store_is_logged_and_retried(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(reference_writing, "AGAIN_S", 0.0)
    rows, maps, lines = Rows(5), await begun(), Lines()
    rows.fails_at = 5

    await written(rows, maps, lines)

    assert lines.told[0] == {"reason": "the disk is full"}
    assert {slot for slot, _ in rows.asked} == {5}
    assert await left_of(maps) == 0


async def test_concurrent_changes_of_the_map_are_kept() -> None:
    class Contested(MemoryClusterStore):
        async def commit(self, slot_map: SlotMap) -> bool:
            if slot_map.epoch == 2:
                before = await self.read()
                quiet = msgspec.structs.replace(before.nodes[HERE], weight_new=7)
                assert await super().commit(before.with_node(quiet))
            return await super().commit(slot_map)

    maps = Contested(ManualClock())
    node = Node(node_id=HERE, host="h", port=1, fingerprint=b"", references_left=1)
    assert await maps.commit(SlotMap().with_node(node))

    await written(Rows(), maps, Lines())

    assert (await maps.read()).nodes[HERE] == msgspec.structs.replace(
        node, weight_new=7, references_left=0
    )
