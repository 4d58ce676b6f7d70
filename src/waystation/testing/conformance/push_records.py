"""Conformance suite for push stores: updates, broadcasts, statuses, tracking and the sweep."""

import asyncio
import os
from operator import attrgetter

from waystation.base.clock import ManualClock
from waystation.base.ids import new_uuid4
from waystation.push.model import (
    ChannelId,
    Milestone,
    MilestoneNote,
    Replaced,
    SavedUpdate,
    Uaid,
    Update,
)
from waystation.push.store import PushStore
from waystation.testing.conformance.push_samples import (
    HOUR_S,
    NODE_B,
    PushStoreSuite,
    expiring,
    fetch_all,
    new_channel,
    new_message_id,
    replaced,
    save_many,
    sweep_all,
    timed_notification,
    topic_notification,
)

AT_MS = 1_794_000_000_123  # when an update was accepted


class RecordConformance(PushStoreSuite):
    # SimplePush

    async def test_only_a_higher_version_is_saved(
        self, store: PushStore, uaid: Uaid, subscribed: ChannelId
    ) -> None:
        assert (await store.save_update(uaid, Update(subscribed, 0))).applied
        assert (await store.save_update(uaid, Update(subscribed, 5, data="not kept"))).applied

        assert not (await store.save_update(uaid, Update(subscribed, 5))).applied
        assert not (await store.save_update(uaid, Update(subscribed, 4))).applied
        assert list(await store.fetch_updates(uaid, limit=10)) == [Update(subscribed, 5)]

    async def test_an_update_comes_back_with_its_time(
        self, store: PushStore, uaid: Uaid, subscribed: ChannelId
    ) -> None:
        update = Update(subscribed, 5, accepted_at_ms=AT_MS)
        saved = await store.save_update(uaid, update)
        (waiting,) = await store.fetch_updates(uaid, limit=10)

        assert saved == SavedUpdate(True)
        assert waiting == update
        assert await store.forget_update(uaid, subscribed, 5)
        assert (await store.save_update(uaid, Update(subscribed, 5))).applied
        assert list(await store.fetch_updates(uaid, limit=10)) == [Update(subscribed, 5)]

    async def test_of_two_versions_the_one_that_is_not_stored_is_told(
        self, store: PushStore, uaid: Uaid, subscribed: ChannelId
    ) -> None:
        older, old, new = (
            Update(subscribed, version, accepted_at_ms=AT_MS + version * 1000)
            for version in (4, 5, 6)
        )
        first = await store.save_update(uaid, old)
        again = await store.save_update(uaid, old)
        overtaken = await store.save_update(uaid, older)
        overtaking = await store.save_update(uaid, new)

        assert first == SavedUpdate(True)
        assert again == SavedUpdate(False)
        assert overtaken == SavedUpdate(False, Replaced.of(older))
        assert overtaking == SavedUpdate(True, Replaced.of(old))

    async def test_the_time_of_an_update_does_not_become_that_of_the_next(
        self, store: PushStore, uaid: Uaid, subscribed: ChannelId
    ) -> None:
        timed = Update(subscribed, 5, accepted_at_ms=AT_MS)
        await store.save_update(uaid, timed)
        overtaking = await store.save_update(uaid, Update(subscribed, 6))

        assert overtaking == SavedUpdate(True, Replaced.of(timed))
        assert list(await store.fetch_updates(uaid, limit=10)) == [Update(subscribed, 6)]
        later = Update(subscribed, 7, accepted_at_ms=AT_MS + 7000)
        assert await store.save_update(uaid, later) == SavedUpdate(True)
        assert list(await store.fetch_updates(uaid, limit=10)) == [later]

    async def test_an_update_that_was_acked_may_come_again_at_another_time(
        self, store: PushStore, uaid: Uaid, subscribed: ChannelId
    ) -> None:
        await store.save_update(uaid, Update(subscribed, 5, accepted_at_ms=AT_MS))
        await store.forget_update(uaid, subscribed, 5)
        again = Update(subscribed, 5, accepted_at_ms=AT_MS + 9000)

        assert await store.save_update(uaid, again) == SavedUpdate(True)
        assert list(await store.fetch_updates(uaid, limit=10)) == [again]

    async def test_an_update_keeps_its_time_when_its_user_agent_connects(
        self, store: PushStore, uaid: Uaid, subscribed: ChannelId, clock: ManualClock
    ) -> None:
        update = Update(subscribed, 5, accepted_at_ms=AT_MS)
        await store.save_update(uaid, update)
        clock.advance(1)
        hello = replaced(await self.seen(store, uaid), node_id=NODE_B, later_ms=1000)

        assert await store.claim_route(hello)
        assert list(await store.fetch_updates(uaid, limit=10)) == [update]

    async def test_of_many_versions_at_once_each_but_the_highest_is_told_once(
        self, store: PushStore, uaid: Uaid, subscribed: ChannelId
    ) -> None:
        updates = [
            Update(subscribed, version, accepted_at_ms=AT_MS + version * 1000)
            for version in range(8)
        ]
        saves = await asyncio.gather(*(store.save_update(uaid, update) for update in updates))

        told = [saved.replaced for saved in saves if saved.replaced is not None]
        assert sorted(told, key=attrgetter("accepted_at_ms")) == [
            Replaced.of(update) for update in updates[:-1]
        ]
        assert list(await store.fetch_updates(uaid, limit=10)) == updates[-1:]

    async def test_updates_come_in_channel_order_and_within_the_limit(
        self, store: PushStore, uaid: Uaid, subscribed: ChannelId
    ) -> None:
        channels = sorted([subscribed, *(new_channel() for _ in range(4))])
        for version, channel_id in enumerate(channels):
            await store.add_channel(uaid, channel_id, channels_max=100)
            await store.save_update(uaid, Update(channel_id, version))

        everything = [Update(channel_id, version) for version, channel_id in enumerate(channels)]
        assert list(await store.fetch_updates(uaid, limit=10)) == everything
        assert list(await store.fetch_updates(uaid, limit=2)) == everything[:2]

    async def test_an_update_is_forgotten_only_at_its_version(
        self, store: PushStore, uaid: Uaid, subscribed: ChannelId
    ) -> None:
        await store.save_update(uaid, Update(subscribed, 5))

        assert not await store.forget_update(uaid, subscribed, 4)
        assert not await store.forget_update(uaid, subscribed, 6)
        assert await store.forget_update(uaid, subscribed, 5)
        assert not await store.forget_update(uaid, subscribed, 5)
        assert not await store.fetch_updates(uaid, limit=10)

    async def test_updates_of_a_channel_that_is_gone_are_neither_kept_nor_fetched(
        self, store: PushStore, uaid: Uaid, subscribed: ChannelId
    ) -> None:
        await store.save_update(uaid, Update(subscribed, 5))
        await store.remove_channel(uaid, subscribed)

        assert not await store.fetch_updates(uaid, limit=10)
        assert not (await store.save_update(uaid, Update(new_channel(), 1))).applied
        assert not (await store.save_update(Uaid(new_uuid4()), Update(subscribed, 1))).applied

    # Broadcasts

    async def test_a_published_broadcast_is_new_once_and_changes_after(
        self, store: PushStore
    ) -> None:
        broadcast_id = f"test/{new_uuid4().hex()}"

        assert await store.publish_broadcast(broadcast_id, "v1")
        assert not await store.publish_broadcast(broadcast_id, "v2")
        assert (await store.get_broadcasts())[broadcast_id] == "v2"

    # Statuses

    async def test_milestones_are_merged_and_the_first_time_counts(
        self, store: PushStore, clock: ManualClock
    ) -> None:
        now_ms = clock.now_ms()
        message_id, sender = new_message_id(), os.urandom(32)

        def note(milestone: Milestone, at_ms: int, keep_s: int = HOUR_S) -> MilestoneNote:
            return MilestoneNote(message_id, sender, milestone, at_ms, now_ms + keep_s * 1000)

        await store.note_milestones([note(Milestone.RECEIVED, now_ms)])
        await store.note_milestones(
            [note(Milestone.STORED, now_ms + 1), note(Milestone.RECEIVED, now_ms + 2)]
        )
        await store.note_milestones([note(Milestone.RETRIEVED, now_ms + 3, keep_s=2 * HOUR_S)])
        await store.note_milestones([])

        status = await store.get_status(message_id, now_ms=now_ms)
        assert status is not None
        assert status.sender == sender
        assert status.milestones == {
            "received": now_ms,
            "stored": now_ms + 1,
            "retrieved": now_ms + 3,
        }
        assert status.keep_until_ms == now_ms + 2 * HOUR_S * 1000

    async def test_a_status_is_kept_until_its_time_and_no_longer(
        self, store: PushStore, clock: ManualClock
    ) -> None:
        self.needs_our_clock()
        now_ms = clock.now_ms()
        first, second = new_message_id(), new_message_id()
        for message_id in (first, second):
            await store.note_milestones(
                [MilestoneNote(message_id, bytes(32), Milestone.RECEIVED, now_ms, now_ms + 5000)]
            )
        await store.note_milestones(
            [MilestoneNote(second, bytes(32), Milestone.STORED, now_ms, now_ms + 9000)]
        )

        assert await store.get_status(first, now_ms=now_ms + 4999) is not None
        assert await store.get_status(first, now_ms=now_ms + 5000) is None
        assert await sweep_all(store, now_ms=now_ms + 5000) == 1
        assert await store.get_status(first, now_ms=now_ms) is None
        assert await store.get_status(second, now_ms=now_ms + 8999) is not None
        assert await sweep_all(store, now_ms=now_ms + 9000) == 1

    async def test_of_an_unknown_message_there_is_no_status(
        self, store: PushStore, clock: ManualClock
    ) -> None:
        assert await store.get_status(new_message_id(), now_ms=clock.now_ms()) is None

    # Tracking

    async def test_a_tracked_message_is_counted_in_one_state_only(
        self, store: PushStore, clock: ManualClock
    ) -> None:
        counts = Counts(store, clock.now_ms())
        await counts.begin()
        for n in range(3):
            await counts.track(f"r{n}", Milestone.RECEIVED)
        await counts.track("r0", Milestone.STORED)
        await counts.track("r1", Milestone.STORED)
        await counts.track("r1", Milestone.RETRIEVED)

        assert await counts.changes() == {"received": 1, "stored": 1, "retrieved": 1}

    async def test_a_terminal_state_is_never_left(
        self, store: PushStore, clock: ManualClock
    ) -> None:
        counts = Counts(store, clock.now_ms())
        await counts.begin()
        await counts.track("r" * 300, Milestone.DELIVERED)
        await counts.track("r" * 300, Milestone.RECEIVED)
        await counts.track("r" * 300, Milestone.ERRORED)

        assert await counts.changes() == {"delivered": 1}

    async def test_tracked_messages_past_their_time_are_counted_as_expired(
        self, store: PushStore, clock: ManualClock
    ) -> None:
        counts = Counts(store, clock.now_ms())
        await counts.begin()
        await counts.track("open", Milestone.STORED, expires_s=60)
        await counts.track("ended", Milestone.DELIVERED, expires_s=60)
        await counts.track("long", Milestone.STORED, expires_s=600)

        assert await counts.changes(later_s=59) == {"stored": 2, "delivered": 1}
        assert await counts.changes(later_s=60) == {"stored": 1, "delivered": 1, "expired": 1}
        await counts.track("open", Milestone.RETRIEVED, expires_s=600)
        assert await counts.changes(later_s=61) == {"stored": 1, "delivered": 1, "expired": 1}

    async def test_what_was_counted_stays_counted_when_rows_are_swept(
        self, store: PushStore, clock: ManualClock
    ) -> None:
        counts = Counts(store, clock.now_ms())
        await counts.begin()
        for n in range(5):
            await counts.track(f"r{n}", Milestone.STORED, expires_s=60)
        await counts.track("d", Milestone.DELIVERED, expires_s=60)
        await sweep_all(store, now_ms=clock.now_ms() + 3 * 86_400_000, limit=2)

        assert await counts.changes(later_s=3 * 86_400) == {"expired": 5, "delivered": 1}

    # Upkeep

    async def test_the_sweep_removes_what_is_over_and_nothing_else(
        self, store: PushStore, uaid: Uaid, subscribed: ChannelId, clock: ManualClock
    ) -> None:
        self.needs_our_clock()
        now_ms = clock.now_ms()
        await sweep_all(store, now_ms=now_ms)
        kept = timed_notification(subscribed, accepted_at_ms=now_ms + 30)
        await save_many(store, uaid, [*expiring(subscribed, now_ms, range(25)), kept])

        assert await store.sweep(now_ms=now_ms + 59_000, limit=100) == 0
        later_ms = now_ms + 120_000
        assert await store.sweep(now_ms=later_ms, limit=10) == 10
        assert await store.sweep(now_ms=later_ms, limit=10) == 10
        assert await store.sweep(now_ms=later_ms, limit=10) == 5
        assert await store.sweep(now_ms=later_ms, limit=10) == 0
        assert await fetch_all(store, uaid, now_ms=now_ms) == [kept]

    async def test_the_sweep_goes_by_the_newest_row_of_a_topic(
        self, store: PushStore, uaid: Uaid, subscribed: ChannelId, clock: ManualClock
    ) -> None:
        """The expiry of a replaced row has no effect, whether earlier or later."""
        self.needs_our_clock()
        now_ms = clock.now_ms()
        longer = topic_notification(subscribed, "l", accepted_at_ms=now_ms, ttl_s=600)
        shorter = topic_notification(subscribed, "s", accepted_at_ms=now_ms, ttl_s=60)
        for row in (longer, shorter):
            first_ttl_s = 60 if row is longer else 600
            first = topic_notification(
                subscribed, row.topic or "", accepted_at_ms=now_ms - 1000, ttl_s=first_ttl_s
            )
            await store.save(uaid, first)
            await store.save(uaid, row)

        later_ms = now_ms + 61_000
        assert await sweep_all(store, now_ms=later_ms) == 1
        assert await fetch_all(store, uaid, now_ms=later_ms) == [longer]

    async def test_forgotten_rows_are_not_swept_again(
        self, store: PushStore, uaid: Uaid, subscribed: ChannelId, clock: ManualClock
    ) -> None:
        self.needs_our_clock()
        now_ms = clock.now_ms()
        rows = expiring(subscribed, now_ms, range(5))
        await save_many(store, uaid, rows)
        await store.forget(uaid, [(row.sort_key, row.message_id) for row in rows])

        assert await sweep_all(store, now_ms=now_ms + 120_000) == 0

    async def test_a_store_that_works_passes_its_check(self, store: PushStore) -> None:
        assert await store.check() is None


class Counts:
    """Changes of the counts of tracked messages, independent of earlier tests."""

    def __init__(self, store: PushStore, now_ms: int) -> None:
        self._store = store
        self._now_ms = now_ms
        self._mark = new_uuid4().hex()
        self._before: dict[str, int] = {}

    async def begin(self) -> None:
        self._before = dict(await self._store.count_milestones(now_ms=self._now_ms))

    async def track(self, name: str, milestone: Milestone, *, expires_s: int = HOUR_S) -> None:
        await self._store.track(
            f"{self._mark}-{name}",
            milestone,
            at_ms=self._now_ms,
            expires_at_ms=self._now_ms + expires_s * 1000,
        )

    async def changes(self, *, later_s: int = 0) -> dict[str, int]:
        now = await self._store.count_milestones(now_ms=self._now_ms + later_s * 1000)
        changes = {state: now.get(state, 0) - self._before.get(state, 0) for state in now}
        return {state: change for state, change in changes.items() if change}
