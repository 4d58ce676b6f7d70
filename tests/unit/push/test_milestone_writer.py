import asyncio
from collections.abc import Sequence

from tests.unit.waiting import until
from waystation.base.clock import ManualClock
from waystation.base.errors import StoreUnavailableError
from waystation.push.milestone_writer import BATCH_MAX, MilestoneWriter, reliability_lines
from waystation.push.model import (
    ChannelId,
    MessageId,
    Milestone,
    MilestoneNote,
    Notification,
    SortKey,
)
from waystation.storage.memory.push import MemoryPushStore

SENDER = b"s" * 32


class SlowStore(MemoryPushStore):
    def __init__(self, clock: ManualClock) -> None:
        super().__init__(clock)
        self.batches: list[int] = []
        self.gate: asyncio.Event | None = None
        self.broken = False

    async def note_milestones(self, notes: Sequence[MilestoneNote]) -> None:
        self.batches.append(len(notes))
        if self.gate is not None:
            await self.gate.wait()
        if self.broken:
            raise StoreUnavailableError("down")
        await super().note_milestones(notes)


def message(n: int, *, signed: bool = True, tracked: bool = False) -> Notification:
    return Notification(
        ChannelId(bytes(16)),
        MessageId(f"m{n}"),
        SortKey("02:1:x"),
        1_700_000_000_000,
        60,
        sender=SENDER if signed else None,
        reliability_id=f"r{n}" if tracked else None,
    )


def writer_on(store: SlowStore, clock: ManualClock, **limits: float) -> MilestoneWriter:
    return MilestoneWriter(store, clock, asyncio.get_running_loop(), **limits)  # type: ignore[arg-type]


async def test_milestones_of_many_messages_reach_the_store_in_batches() -> None:
    clock = ManualClock()
    store = SlowStore(clock)
    writer = writer_on(store, clock, interval_s=3600)
    for n in range(BATCH_MAX + 1):
        writer.note(message(n), Milestone.RECEIVED)
    assert not store.batches
    await writer.close()

    assert store.batches == [BATCH_MAX, 1]
    status = await store.get_status(MessageId("m7"), now_ms=clock.now_ms())
    assert status is not None
    assert status.milestones == {"received": clock.now_ms()}
    assert status.keep_until_ms == 1_700_000_060_000 + 3_600_000


async def test_unsigned_and_untracked_messages_leave_nothing() -> None:
    clock = ManualClock()
    store = SlowStore(clock)
    writer = writer_on(store, clock)
    writer.note(message(1, signed=False), Milestone.RECEIVED)
    await writer.close()

    assert not store.batches


async def test_the_setting_turns_statuses_off_but_not_tracking() -> None:
    clock = ManualClock()
    store = SlowStore(clock)
    writer = MilestoneWriter(store, clock, asyncio.get_running_loop(), message_status=False)
    writer.note(message(1, tracked=True), Milestone.RECEIVED)
    await writer.close()

    assert not store.batches
    assert (await store.count_milestones(now_ms=clock.now_ms()))["received"] == 1


async def test_notes_beyond_the_limit_are_dropped_and_counted() -> None:
    clock = ManualClock()
    store = SlowStore(clock)
    writer = writer_on(store, clock, notes_max=10, interval_s=3600)
    for n in range(15):
        writer.note(message(n), Milestone.RECEIVED)
    await writer.close()

    assert (store.batches, writer.dropped) == ([10], 5)


async def test_many_statuses_do_not_push_out_tracked_messages() -> None:
    clock = ManualClock()
    store = SlowStore(clock)
    writer = writer_on(store, clock, notes_max=10, interval_s=3600)
    for n in range(20):
        writer.note(message(n), Milestone.RECEIVED)
    writer.note(message(50, signed=False, tracked=True), Milestone.RECEIVED)
    await writer.close()

    assert writer.dropped == 10
    assert (await store.count_milestones(now_ms=clock.now_ms()))["received"] == 1


async def test_the_steps_of_a_tracked_message_keep_their_order() -> None:
    clock = ManualClock()
    store = SlowStore(clock)
    writer = writer_on(store, clock, interval_s=3600)
    steps = (Milestone.RECEIVED, Milestone.INT_TRANSMITTED, Milestone.RECEIVED, Milestone.STORED)
    for milestone in steps:
        for n in range(100):
            writer.note(message(n, signed=False, tracked=True), milestone)
    await writer.close()
    counts = await store.count_milestones(now_ms=clock.now_ms())

    assert {state: count for state, count in counts.items() if count} == {"stored": 100}


async def test_a_slow_store_sees_one_write_at_a_time() -> None:
    clock = ManualClock()
    store = SlowStore(clock)
    store.gate = asyncio.Event()
    writer = writer_on(store, clock, interval_s=0.001)
    writer.note(message(1), Milestone.RECEIVED)
    await until(lambda: store.batches)
    writer.note(message(1), Milestone.STORED)
    await asyncio.sleep(0.02)

    assert store.batches == [1]
    store.gate.set()
    await until(lambda: len(store.batches) == 2)
    assert store.batches == [1, 1]
    await writer.close()


async def test_a_store_that_fails_costs_the_notes_and_nothing_else() -> None:
    clock = ManualClock()
    store = SlowStore(clock)
    store.broken = True
    writer = writer_on(store, clock)
    writer.note(message(1), Milestone.RECEIVED)
    await writer.close()

    assert writer.failed == 1


def test_the_counters_are_shown_as_autopush_shows_them() -> None:
    text = reliability_lines({"received": 12, "delivered": 3})

    assert 'autopush_reliability{state="received"} 12\n' in text
    assert text.endswith("# EOF\n")
