import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec
import pytest

from tests.unit.push.connect.talk import (
    CHANNEL,
    NODE,
    NOW_MS,
    OTHER_CHANNEL,
    UAID,
    notification,
    record,
    update,
)
from waystation.base.clock import ManualClock
from waystation.base.errors import StoreFullError, UnavailableError, WaystationError
from waystation.push.connect import unacked_saver
from waystation.push.connect.journal import Journal
from waystation.push.connect.journal_replay import replay, replayed_or_troubled
from waystation.push.connect.observer import Observer
from waystation.push.connect.unacked_saver import UnackedSaver
from waystation.push.model import HandedBack, Notification, Replaced, Uaid, Update, UserAgent
from waystation.push.token import fresh_key
from waystation.push.wire.relay import Answer
from waystation.storage.memory.push import MemoryPushStore

GONE = Uaid(b"\x33" * 16)


class Told:
    """A relay that records whom it was to tell."""

    def __init__(self) -> None:
        self.checks: list[tuple[str, Uaid]] = []

    async def push(self, node_id: str, uaid: Uaid, notification: Notification | Update) -> Answer:
        raise AssertionError("nobody pushes here")

    async def check_stored(self, node_id: str, uaid: Uaid) -> Answer:
        self.checks.append((node_id, uaid))
        return Answer.TAKEN

    async def displace(self, node_id: str, uaid: Uaid, connected_at_ms: int) -> Answer:
        raise AssertionError("nobody is displaced here")


class Trying(MemoryPushStore):
    """A store that fails as often as it is told to, call by call."""

    def __init__(self, clock: ManualClock) -> None:
        super().__init__(clock)
        self.save_failures = self.read_failures = self.saves = 0

    async def save_if_newer(self, uaid: Uaid, notifications: Sequence[Notification]) -> HandedBack:
        if self.save_failures:
            self.save_failures -= 1
            raise UnavailableError("down")
        self.saves += 1
        return await super().save_if_newer(uaid, notifications)

    async def get_user_agent(self, uaid: Uaid) -> UserAgent | None:
        if self.read_failures:
            self.read_failures -= 1
            raise UnavailableError("down")
        return await super().get_user_agent(uaid)


class Listening(Observer):
    def __init__(self) -> None:
        self.reports: list[tuple[str, Sequence[str]]] = []
        self.failures: list[str] = []

    def hand_back_failed(self, error: WaystationError) -> None:
        self.failures.append(str(error))

    def handed_back(self, uaid: Uaid, notifications: Sequence[Notification | Update]) -> None:
        ids = [row.message_id for row in notifications if isinstance(row, Notification)]
        self.reports.append(("handed back", ids))

    def superseded(self, replaced: Replaced) -> None:
        self.reports.append(("superseded", [replaced.message_id]))

    @property
    def superseded_ids(self) -> list[str]:
        return [ids[0] for kind, ids in self.reports if kind == "superseded"]


class House:
    def __init__(self) -> None:
        self.clock = ManualClock(now_ms=NOW_MS)
        self.store = Trying(self.clock)
        self.relay = Told()
        self.observer = Listening()
        self.saver = UnackedSaver(
            self.store,
            self.relay,
            self.clock,
            concurrency=2,
            observer=self.observer,
            jitter=lambda: 0.0,
        )

    async def stored(self, uaid: Uaid = UAID) -> list[Notification]:
        now_ms = self.clock.now_ms()
        return list(await self.store.fetch(uaid, now_ms=now_ms, after=None, limit=100))


@pytest.fixture
async def house(monkeypatch: pytest.MonkeyPatch) -> House:
    monkeypatch.setattr(unacked_saver, "RETRY_FIRST_S", 0.001)
    house = House()
    await house.store.claim_route(record(node_id=NODE, connected_at_ms=NOW_MS))
    await house.store.add_channel(UAID, CHANNEL, channels_max=10)
    return house


async def test_what_was_not_acked_is_stored(house: House) -> None:
    """C-040, C-090"""
    both = [notification(1), notification(2)]
    await house.saver.save(UAID, both, connected_at_ms=NOW_MS)

    assert await house.stored() == both
    assert house.relay.checks == []


async def test_the_node_where_the_user_agent_is_now_is_told(house: House) -> None:
    """C-080"""
    await house.store.claim_route(record(node_id="http://b:8081", connected_at_ms=NOW_MS + 5))
    await house.saver.save(UAID, [notification(1)], connected_at_ms=NOW_MS)

    assert house.relay.checks == [("http://b:8081", UAID)]


async def test_whoever_has_no_route_is_not_told(house: House) -> None:
    held = await house.store.get_user_agent(UAID)
    assert held is not None
    assert held.route is not None
    await house.store.clear_route(UAID, held.route)
    await house.saver.save(UAID, [notification(1)], connected_at_ms=None)

    assert await house.stored() == [notification(1)]
    assert house.relay.checks == []


async def test_what_is_over_is_not_stored(house: House) -> None:
    house.clock.advance(300)
    await house.saver.save(UAID, [notification(1)], connected_at_ms=NOW_MS)
    house.clock.set_wall_ms(NOW_MS)

    assert await house.stored() == []


async def test_nothing_is_written_for_a_user_agent_or_channel_that_is_gone(house: House) -> None:
    stray = notification(1, channel_id=OTHER_CHANNEL)
    await house.saver.save(UAID, [stray], connected_at_ms=NOW_MS)
    await house.saver.save(GONE, [notification(2)], connected_at_ms=NOW_MS)

    assert await house.stored() == []
    assert await house.stored(GONE) == []
    assert house.relay.checks == []


async def test_a_newer_message_of_the_topic_is_not_overwritten(house: House) -> None:
    """C-086"""
    older = notification("old", topic="t")
    newer = notification("new", topic="t", accepted_at_ms=NOW_MS + 1)
    await house.store.save(UAID, newer)
    await house.saver.save(UAID, [older], connected_at_ms=NOW_MS)

    assert await house.stored() == [newer]


async def test_versions_of_simplepush_are_stored_without_their_data(house: House) -> None:
    """C-151"""
    await house.saver.save(UAID, [update(5, data="hi")], connected_at_ms=NOW_MS)

    assert await house.store.fetch_updates(UAID, limit=10) == [Update(CHANNEL, 5)]


async def test_a_store_that_is_down_is_tried_until_it_answers(house: House) -> None:
    house.store.save_failures = 4
    await house.saver.save(UAID, [notification(1)], connected_at_ms=NOW_MS)

    assert await house.stored() == [notification(1)]


async def test_what_is_saved_is_not_saved_again_because_telling_failed(house: House) -> None:
    """It may have been delivered and acked meanwhile."""
    house.store.read_failures = 3
    await house.saver.save(UAID, [notification(1)], connected_at_ms=None)

    assert house.store.saves == 1
    assert house.relay.checks == [(NODE, UAID)]


async def test_no_more_than_so_many_are_under_way_at_once(house: House) -> None:
    inside, most = 0, 0
    release = asyncio.Event()

    async def slow(uaid: Uaid, notifications: object) -> HandedBack:
        nonlocal inside, most
        inside += 1
        most = max(most, inside)
        await release.wait()
        inside -= 1
        return HandedBack(1)

    house.store.save_if_newer = slow
    tasks = [
        asyncio.ensure_future(house.saver.save(UAID, [notification(n)], connected_at_ms=NOW_MS))
        for n in range(6)
    ]
    await asyncio.sleep(0)
    release.set()
    await asyncio.gather(*tasks)

    assert most == 2


def of_topic(name: str, age_ms: int) -> Notification:
    return notification(name, topic="t", accepted_at_ms=NOW_MS + age_ms)


class TestSuperseded:
    """Of each topic one message stays; what became of the others is told."""

    async def test_two_of_one_topic_that_were_not_acked(self, house: House) -> None:
        both = [of_topic("new", 1), of_topic("old", 0)]
        await house.saver.save(UAID, both, connected_at_ms=NOW_MS)

        assert await house.stored() == both[:1]
        assert house.observer.reports == [
            ("handed back", ["m-new", "m-old"]),
            ("superseded", ["m-old"]),
        ]

    async def test_one_that_a_newer_one_in_storage_keeps_out(self, house: House) -> None:
        await house.store.save(UAID, of_topic("new", 1))
        await house.saver.save(UAID, [of_topic("old", 0)], connected_at_ms=NOW_MS)

        assert house.observer.superseded_ids == ["m-old"]

    async def test_an_older_one_in_storage(self, house: House) -> None:
        await house.store.save(UAID, of_topic("old", 0))
        await house.saver.save(UAID, [of_topic("new", 1)], connected_at_ms=NOW_MS)

        assert house.observer.superseded_ids == ["m-old"]

    async def test_it_is_told_once_however_often_it_was_tried(self, house: House) -> None:
        house.store.save_failures = house.store.read_failures = 2
        both = [of_topic("old", 0), of_topic("new", 1)]
        await house.saver.save(UAID, both, connected_at_ms=NOW_MS)

        assert house.store.saves == 1
        assert house.observer.superseded_ids == ["m-old"]

    async def test_nobody_is_told_of_what_a_failed_attempt_may_not_have_done(
        self, house: House
    ) -> None:
        house.store.save_failures = 10**6
        both = [of_topic("old", 0), of_topic("new", 1)]
        trying = asyncio.ensure_future(house.saver.save(UAID, both, connected_at_ms=NOW_MS))
        await asyncio.sleep(0.01)
        trying.cancel()
        await asyncio.wait([trying])

        assert house.observer.reports == []

    async def test_those_of_a_dead_worker(self, house: House, tmp_path: Path) -> None:
        path = tmp_path / "0.log"
        journal = Journal(path, mode="write", bytes_max=2**20)
        for row in (of_topic("old", 0), of_topic("new", 1)):
            await journal.accept(UAID, row)
        journal.close()

        assert await replay(path, house.saver) == 2
        assert house.observer.reports == [
            ("handed back", ["m-old", "m-new"]),
            ("superseded", ["m-old"]),
        ]


class TestFreshKeys:
    """With Autopush's keys what is handed back gets a key of this moment."""

    @pytest.fixture
    async def house(self, house: House) -> House:
        house.saver = UnackedSaver(
            house.store,
            house.relay,
            house.clock,
            concurrency=2,
            observer=house.observer,
            fresh_keys=True,
            jitter=lambda: 0.0,
        )
        house.clock.advance(5)
        return house

    async def test_rows_are_at_this_moment_in_their_order_and_keep_their_ids(
        self, house: House
    ) -> None:
        owed = [notification(1), notification(2), notification("t", topic="t")]
        await house.saver.save(UAID, owed, connected_at_ms=NOW_MS)

        topic, first, second = await house.stored()
        now_ms = house.clock.now_ms()
        assert topic == owed[2], "a topic has its place already"
        assert first.sort_key == fresh_key(CHANNEL, now_ms)
        assert second.sort_key == fresh_key(CHANNEL, now_ms + 1)
        assert [first.message_id, second.message_id] == [n.message_id for n in owed[:2]]
        assert first.accepted_at_ms == owed[0].accepted_at_ms

    async def test_a_taken_key_is_passed_by(self, house: House) -> None:
        key = fresh_key(CHANNEL, house.clock.now_ms())
        taken = msgspec.structs.replace(notification(9), sort_key=key)
        assert await house.store.save_new(UAID, taken)
        await house.saver.save(UAID, [notification(1)], connected_at_ms=NOW_MS)

        assert [row.message_id for row in await house.stored()] == [
            taken.message_id,
            notification(1).message_id,
        ]

    async def test_what_was_saved_before_a_failure_is_not_saved_again(self, house: House) -> None:
        """It may have been acked meanwhile: here it has been."""
        save_new = house.store.save_new
        calls = 0

        async def failing(uaid: Uaid, row: Notification) -> bool:
            nonlocal calls
            calls += 1
            if calls == 2:
                (first,) = await house.stored()
                await house.store.forget(uaid, [(first.sort_key, first.message_id)])
                raise UnavailableError("down")
            return await save_new(uaid, row)

        house.store.save_new = failing  # type: ignore[method-assign]
        owed = [notification(1), notification(2)]
        await house.saver.save(UAID, owed, connected_at_ms=NOW_MS)

        assert [row.message_id for row in await house.stored()] == [owed[1].message_id]

    async def test_topics_are_told_of_in_the_same_way(self, house: House) -> None:
        await house.store.save(UAID, of_topic("first", 0))
        owed = [of_topic("second", 1), notification(1), of_topic("third", 2)]
        await house.saver.save(UAID, owed, connected_at_ms=NOW_MS)

        assert house.observer.superseded_ids == ["m-first", "m-second"]

    async def test_nothing_is_written_for_a_channel_that_is_gone(self, house: House) -> None:
        stray = notification(1, channel_id=OTHER_CHANNEL)
        await house.saver.save(UAID, [stray], connected_at_ms=NOW_MS)
        await house.saver.save(GONE, [notification(2)], connected_at_ms=NOW_MS)

        assert await house.stored() == []
        assert await house.stored(GONE) == []


class TestReplay:
    async def left_by_a_dead_worker(
        self, path: Path, leave: Callable[[Journal], object] = lambda journal: None
    ) -> None:
        journal = Journal(path, mode="write", bytes_max=2**20)
        await journal.accept(UAID, notification(1))
        await journal.accept(UAID, notification(2))
        await journal.accept(UAID, update(7))
        await journal.accept(GONE, notification(3))
        leave(journal)
        journal.close()

    async def test_what_a_dead_worker_owed_is_handed_back_and_told(
        self, house: House, tmp_path: Path
    ) -> None:
        """C-089"""
        path = tmp_path / "0.log"
        await self.left_by_a_dead_worker(path, lambda one: one.settle(UAID, notification(1)))

        assert await replay(path, house.saver) == 3
        assert await house.stored() == [notification(2)]
        assert await house.store.fetch_updates(UAID, limit=10) == [Update(CHANNEL, 7)]
        assert house.relay.checks == [(NODE, UAID)]
        assert list(tmp_path.iterdir()) == []
        assert await replay(path, house.saver) == 0

    async def test_the_journal_of_a_worker_that_is_alive_is_left_alone(
        self, house: House, tmp_path: Path
    ) -> None:
        path = tmp_path / "0.log"
        journal = Journal(path, mode="write", bytes_max=2**20)
        await journal.accept(UAID, notification(1))

        assert await replay(path, house.saver) == 0
        assert await house.stored() == []
        assert path.stat().st_size > 0
        journal.close()

    async def test_a_replay_that_is_broken_off_leaves_everything_for_the_next(
        self, house: House, tmp_path: Path
    ) -> None:
        path = tmp_path / "0.log"
        await self.left_by_a_dead_worker(path)
        house.store.save_failures = 10**6
        broken_off = asyncio.ensure_future(replay(path, house.saver))
        await asyncio.sleep(0.01)
        broken_off.cancel()
        await asyncio.wait([broken_off])
        house.store.save_failures = 0

        assert await replay(path, house.saver) == 4
        assert await house.stored() == [notification(1), notification(2)]

    async def test_a_store_that_takes_nothing_leaves_the_name_free_for_a_new_journal(
        self, house: House, tmp_path: Path
    ) -> None:
        """Nothing of it is lost by a second death; all is handed back, the oldest first."""
        path = tmp_path / "0.log"
        house.store.save_failures = 10**6
        trying: list[asyncio.Task[int]] = []
        for n in (1, 2):
            journal = Journal(path, mode="write", bytes_max=2**20)
            await journal.accept(UAID, notification(n))
            journal.close()
            trying.append(asyncio.ensure_future(replay(path, house.saver)))
            assert not await asyncio.wait_for(replayed_or_troubled(trying[-1], house.saver), 10)
            trying[-1].cancel()
            await asyncio.wait(trying)
            house.saver.troubled.clear()
        assert sorted(one.name for one in tmp_path.iterdir()) == ["0.1.owed", "0.2.owed"]
        house.store.save_failures = 0

        assert await replay(path, house.saver) == 2
        assert await house.stored() == [notification(1), notification(2)]
        assert list(tmp_path.iterdir()) == []

    async def test_a_replay_that_meets_no_trouble_is_waited_for(
        self, house: House, tmp_path: Path
    ) -> None:
        await self.left_by_a_dead_worker(tmp_path / "0.log")
        replaying = asyncio.ensure_future(replay(tmp_path / "0.log", house.saver))

        assert await asyncio.wait_for(replayed_or_troubled(replaying, house.saver), 10)
        assert replaying.result() == 4

    async def test_at_the_end_a_full_store_is_not_waited_for(
        self, house: House, tmp_path: Path
    ) -> None:
        path = tmp_path / "0.log"
        await self.left_by_a_dead_worker(path)

        async def full(_uaid: Uaid, _rows: Sequence[Notification]) -> HandedBack:
            raise StoreFullError("full")

        house.store.save_if_newer = full  # type: ignore[method-assign]
        replaying = asyncio.ensure_future(replay(path, house.saver))
        await replayed_or_troubled(replaying, house.saver)
        house.saver.end()

        assert await asyncio.wait_for(replaying, 10) == 0
        assert [one.name for one in tmp_path.iterdir()] == ["0.1.owed"]

    async def test_at_the_end_a_store_that_is_down_is_tried_until_it_answers(
        self, house: House
    ) -> None:
        """What it did with the attempt that failed is not known."""
        house.store.save_failures = 3
        house.saver.end()

        assert not await house.saver.save(UAID, [notification(1)], connected_at_ms=NOW_MS)
        assert await house.stored() == [notification(1)]

    async def test_trouble_is_told_and_forgotten_when_it_is_over(self, house: House) -> None:
        house.store.save_failures = 1
        await house.saver.save(UAID, [notification(1)], connected_at_ms=NOW_MS)

        assert house.observer.failures == ["down"]
        assert not house.saver.troubled.is_set()
