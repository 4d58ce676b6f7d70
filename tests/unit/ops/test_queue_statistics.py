"""When rows and events are written, and what a restart remembers."""

import datetime as dt
from pathlib import Path

import pytest
import structlog

from waystation.base.clock import ManualClock
from waystation.ops.queue_statistics import COUNTERS, ROWS, QueueStatistics
from waystation.queue.errors import QueueStoreUnavailableError
from waystation.queue.model import Message, MessageId, Slot
from waystation.queue.store import Counts, QueueStore, SlotLoad
from waystation.telemetry.events import QueueDeliver, QueueSend, RecordedEvents
from waystation.telemetry.events import SlotLoad as SlotLoadEvent
from waystation.telemetry.metrics import Metrics

NOON = int(dt.datetime(2026, 6, 2, 12, tzinfo=dt.UTC).timestamp() * 1000)
HOUR_S = 3600


class Store:
    """A store of which only the size is asked."""

    available = True

    async def counts(self) -> Counts:
        if not self.available:
            raise QueueStoreUnavailableError
        return Counts(queues=7, messages=11, notifiers=3)

    async def slot_load(self, slot: Slot) -> SlotLoad:
        return SlotLoad(queues=slot, messages=2, stored_bytes=2000)


class World:
    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.clock = ManualClock(now_ms=NOON)
        self.sink = RecordedEvents()
        self.store: QueueStore = Store()  # pyright: ignore[reportAttributeAccessIssue]
        self.start()

    def start(self) -> None:
        self.metrics = Metrics()
        self.statistics = QueueStatistics(
            self.directory,
            metrics=self.metrics,
            sink=self.sink,
            clock=self.clock,
            log=structlog.get_logger(),
        )

    async def tick(self, after_s: float) -> None:
        self.clock.advance(after_s)
        await self.statistics.tick(self.store, 2)

    def rows(self) -> list[list[str]]:
        path = self.directory / ROWS
        return [line.split(",") for line in path.read_text().splitlines()] if path.exists() else []


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path / "statistics")


async def test_a_row_is_written_when_a_day_is_over(world: World) -> None:
    """Q-111"""
    world.statistics.observer.taken_in()

    await world.tick(11 * HOUR_S)
    assert world.rows() == []
    await world.tick(HOUR_S)
    await world.tick(10)
    await world.tick(24 * HOUR_S)

    first, second = world.rows()
    assert len(first) == len(second) == 96
    assert (first[0], second[0]) == ("2026-06-02", "2026-06-03")
    assert (first[39], second[39]) == ("1", "0")
    assert (first[14], first[15], first[66], first[75]) == ("7", "11", "3", "2")


async def test_a_restart_remembers_and_makes_up_for_a_row(world: World) -> None:
    """Q-105"""
    world.statistics.observer.taken_in()
    world.statistics.close()
    world.clock.advance(24 * HOUR_S)

    world.start()
    world.statistics.observer.taken_in()
    await world.tick(10)

    (row,) = world.rows()
    assert row[0] == "2026-06-02"
    assert row[39] == "2"
    world.start()
    assert "pMsgFwdsRecv: 0" in world.statistics.lines()


async def test_a_kill_loses_minutes_at_most(world: World) -> None:
    world.statistics.observer.taken_in()
    await world.tick(299)
    assert not (world.directory / COUNTERS).exists()
    await world.tick(1)

    world.start()

    assert "pMsgFwdsRecv: 1" in world.statistics.lines()
    assert (world.directory / COUNTERS).stat().st_mode & 0o077 == 0


async def test_totals_of_slots_are_told_with_each_tick(world: World) -> None:
    message = Message(MessageId(b"m" * 24), 1, False, b"four")
    for _ in range(2):
        world.statistics.observer.delivered(Slot(5), message, waited=False)

    assert world.sink.events == []
    await world.tick(10)
    assert world.sink.events == [QueueDeliver(slot=5, n=2, size=8)]


async def test_what_is_stored_is_a_gauge(world: World) -> None:
    world.statistics.watch(
        connections=lambda: 4, subscriptions=lambda: (5, 6), relay_links=lambda: 1
    )
    await world.tick(60)
    world.metrics.snapshot("test", 0)

    assert world.metrics.gauge("queue_stored", kind="message").value == 11
    assert world.metrics.gauge("queue_stored", kind="notification").value == 2
    assert world.metrics.gauge("queue_connections").value == 4
    assert world.metrics.gauge("queue_subscribed", kind="notifier").value == 6


async def test_a_store_that_is_away_delays_the_row(world: World) -> None:
    Store.available = False
    try:
        await world.tick(13 * HOUR_S)
        assert world.rows() == []
    finally:
        Store.available = True
    await world.tick(10)

    assert len(world.rows()) == 1


async def test_files_that_cannot_be_used_stop_nobody(tmp_path: Path) -> None:
    (tmp_path / "statistics").write_text("in the way")
    world = World(tmp_path / "statistics")

    await world.tick(24 * HOUR_S)
    world.statistics.close()

    assert (tmp_path / "statistics").read_text() == "in the way"


async def test_counters_that_are_not_ours_are_passed_over(world: World) -> None:
    world.statistics.close()
    (world.directory / COUNTERS).write_text("nonsense\nmsgSent=5\nqCreated=many\n")

    world.start()

    assert "msgSent: 5" in world.statistics.lines()
    assert "qCreated: 0" in world.statistics.lines()


async def test_slots_in_which_something_happened_tell_their_load_once_a_minute(
    world: World,
) -> None:
    totals = world.statistics._totals
    totals.add(QueueSend, Slot(7), size=100)
    totals.add(QueueSend, Slot(7), size=100)
    totals.add(QueueDeliver, Slot(7), size=100)

    await world.tick(30)
    assert not [one for one in world.sink.events if isinstance(one, SlotLoadEvent)]
    await world.tick(31)
    await world.tick(61)

    told = [one for one in world.sink.events if isinstance(one, SlotLoadEvent)]
    assert [(one.slot, one.n, one.size) for one in told] == [(7, 7, 2000)]
    assert (told[0].attrs.messages, told[0].attrs.ops_in, told[0].attrs.ops_out) == (2, 2, 1)
