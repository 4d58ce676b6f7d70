"""Conformance suite for push stores: save, fetch, forget and hand back notifications."""

import asyncio

import pytest

from waystation.base.clock import ManualClock
from waystation.base.ids import new_uuid4
from waystation.push.model import (
    ChannelId,
    HandedBack,
    MessageId,
    Replaced,
    SortKey,
    Uaid,
    Update,
    Urgency,
)
from waystation.push.store import PushStore
from waystation.testing.conformance.push_samples import (
    PushStoreSuite,
    by_key,
    expiring,
    fetch_all,
    new_channel,
    new_message_id,
    save_many,
    timed_notification,
    topic_notification,
)


class NotificationConformance(PushStoreSuite):
    # Notifications

    async def test_a_notification_is_read_back_as_it_was_saved(
        self, store: PushStore, uaid: Uaid, subscribed: ChannelId, clock: ManualClock
    ) -> None:
        now_ms = clock.now_ms()
        whole = timed_notification(
            subscribed,
            accepted_at_ms=now_ms,
            n="x1",
            data="A" * 5462,
            headers={"encoding": "aesgcm", "encryption": "salt=abc", "crypto_key": "dh=def"},
            urgency=Urgency.VERY_LOW,
            sender=bytes(range(32)),
            reliability_id="r-1",
            reliable_state="stored",
        )
        bare = topic_notification(subscribed, "t" * 32, accepted_at_ms=now_ms)
        await store.save(uaid, whole)
        await store.save(uaid, bare)

        assert await fetch_all(store, uaid, now_ms=now_ms) == [bare, whole]

    async def test_topics_come_first_then_the_oldest(
        self, store: PushStore, uaid: Uaid, subscribed: ChannelId, clock: ManualClock
    ) -> None:
        """C-058"""
        now_ms = clock.now_ms()
        timed = [timed_notification(subscribed, accepted_at_ms=now_ms + n) for n in range(3)]
        topics = [
            topic_notification(subscribed, topic, accepted_at_ms=now_ms + 9) for topic in "abc"
        ]
        await save_many(
            store, uaid, [timed[2], topics[1], timed[0], topics[2], timed[1], topics[0]]
        )

        assert await fetch_all(store, uaid, now_ms=now_ms) == topics + timed

    async def test_a_topic_replaces_its_predecessor(
        self, store: PushStore, uaid: Uaid, subscribed: ChannelId, clock: ManualClock
    ) -> None:
        """C-050"""
        now_ms = clock.now_ms()
        old = topic_notification(subscribed, "t", accepted_at_ms=now_ms)
        new = topic_notification(subscribed, "t", accepted_at_ms=now_ms + 1, ttl_s=9)
        await store.save(uaid, old)
        await store.save(uaid, new)

        assert await fetch_all(store, uaid, now_ms=now_ms) == [new]

    async def test_whoever_saves_a_topic_learns_which_one_it_replaced(
        self, store: PushStore, uaid: Uaid, subscribed: ChannelId, clock: ManualClock
    ) -> None:
        now_ms = clock.now_ms()
        old = topic_notification(subscribed, "t", accepted_at_ms=now_ms)
        new = topic_notification(subscribed, "t", accepted_at_ms=now_ms + 1)
        timed = timed_notification(subscribed, accepted_at_ms=now_ms)
        told = Replaced(old.message_id, old.accepted_at_ms, old.expires_at_ms)

        assert await store.save(uaid, old) is None
        assert await store.save(uaid, new) == told
        assert await store.save(uaid, new) is None, "a repeated save replaces nothing"
        assert await store.save(uaid, timed) is None

    async def test_other_topics_and_other_channels_are_not_replaced(
        self, store: PushStore, uaid: Uaid, subscribed: ChannelId, clock: ManualClock
    ) -> None:
        """C-052"""
        now_ms = clock.now_ms()
        other = new_channel()
        await store.add_channel(uaid, other, channels_max=100)
        rows = [
            topic_notification(subscribed, "t", accepted_at_ms=now_ms),
            topic_notification(subscribed, "u", accepted_at_ms=now_ms),
            topic_notification(other, "t", accepted_at_ms=now_ms),
        ]
        await save_many(store, uaid, rows)

        assert by_key(await fetch_all(store, uaid, now_ms=now_ms)) == by_key(rows)

    async def test_two_hundred_of_one_millisecond_are_all_kept(
        self, store: PushStore, uaid: Uaid, subscribed: ChannelId, clock: ManualClock
    ) -> None:
        """C-085"""
        now_ms = clock.now_ms()
        rows = [timed_notification(subscribed, accepted_at_ms=now_ms, n=n) for n in range(200)]
        await save_many(store, uaid, rows)

        assert by_key(await fetch_all(store, uaid, now_ms=now_ms)) == by_key(rows)

    async def test_what_is_stored_late_with_an_older_stamp_is_still_found(
        self, store: PushStore, uaid: Uaid, subscribed: ChannelId, clock: ManualClock
    ) -> None:
        """C-087, R11: a pass begins at the beginning, wherever the last one ended."""
        now_ms = clock.now_ms()
        newer = timed_notification(subscribed, accepted_at_ms=now_ms + 5)
        await store.save(uaid, newer)
        assert await fetch_all(store, uaid, now_ms=now_ms) == [newer]
        await store.forget(uaid, [(newer.sort_key, newer.message_id)])
        older = timed_notification(subscribed, accepted_at_ms=now_ms)
        await store.save(uaid, older)

        assert await fetch_all(store, uaid, now_ms=now_ms) == [older]

    async def test_a_fetch_keeps_its_limit_and_goes_on_after_a_position(
        self, store: PushStore, uaid: Uaid, subscribed: ChannelId, clock: ManualClock
    ) -> None:
        """C-059"""
        now_ms = clock.now_ms()
        rows = [timed_notification(subscribed, accepted_at_ms=now_ms + n) for n in range(25)]
        await save_many(store, uaid, rows)

        first = await store.fetch(uaid, now_ms=now_ms, after=None, limit=10)
        assert list(first) == rows[:10]
        second = await store.fetch(uaid, now_ms=now_ms, after=first[-1].sort_key, limit=10)
        assert list(second) == rows[10:20]
        after_a_gap = await store.fetch(uaid, now_ms=now_ms, after=SortKey("02:"), limit=10)
        assert list(after_a_gap) == rows[:10], "a position need not be a row"

    async def test_the_neighbours_rows_are_not_fetched(
        self, store: PushStore, uaid: Uaid, subscribed: ChannelId, clock: ManualClock
    ) -> None:
        now_ms = clock.now_ms()
        for change in (1, -1):
            number = (int.from_bytes(uaid, "big") + change) % (1 << 128)
            neighbour = Uaid(number.to_bytes(16, "big"))
            await store.add_user_agent(self.agent(neighbour, clock))
            await store.add_channel(neighbour, subscribed, channels_max=100)
            await store.save(neighbour, timed_notification(subscribed, accepted_at_ms=now_ms))

        assert not await fetch_all(store, uaid, now_ms=now_ms)

    async def test_a_notification_is_expired_from_its_last_second_on(
        self, store: PushStore, uaid: Uaid, subscribed: ChannelId, clock: ManualClock
    ) -> None:
        """C-055: expired when now >= accept time in seconds + ttl."""
        row = timed_notification(subscribed, accepted_at_ms=clock.now_ms() + 999, ttl_s=60)
        await store.save(uaid, row)

        assert await fetch_all(store, uaid, now_ms=row.expires_at_ms - 1) == [row]
        assert not await fetch_all(store, uaid, now_ms=row.expires_at_ms)

    async def test_a_topic_that_expired_makes_room_for_a_new_one(
        self, store: PushStore, uaid: Uaid, subscribed: ChannelId, clock: ManualClock
    ) -> None:
        """C-053"""
        old = topic_notification(subscribed, "t", accepted_at_ms=clock.now_ms(), ttl_s=60)
        await store.save(uaid, old)
        later_ms = old.expires_at_ms
        new = topic_notification(subscribed, "t", accepted_at_ms=later_ms)
        await store.save(uaid, new)

        assert await fetch_all(store, uaid, now_ms=later_ms) == [new]

    async def test_a_portion_that_is_all_expired_is_passed_over(
        self, store: PushStore, uaid: Uaid, subscribed: ChannelId, clock: ManualClock
    ) -> None:
        """C-056: twelve expired ones, then a good one."""
        now_ms = clock.now_ms()
        await save_many(store, uaid, expiring(subscribed, now_ms, range(12)))
        good = timed_notification(subscribed, accepted_at_ms=now_ms + 12)
        await store.save(uaid, good)

        later_ms = now_ms + 120_000
        assert list(await store.fetch(uaid, now_ms=later_ms, after=None, limit=10)) == [good]

    async def test_a_portion_is_counted_in_rows_not_in_live_ones(
        self, store: PushStore, uaid: Uaid, subscribed: ChannelId, clock: ManualClock
    ) -> None:
        """C-057: six good, six expired, one good; six come, the seventh in the next portion."""
        self.needs_our_clock()
        now_ms = clock.now_ms()
        good = [timed_notification(subscribed, accepted_at_ms=now_ms + n) for n in (*range(6), 12)]
        await save_many(store, uaid, good)
        await save_many(store, uaid, expiring(subscribed, now_ms, range(6, 12)))

        later_ms = now_ms + 120_000
        first = await store.fetch(uaid, now_ms=later_ms, after=None, limit=10)
        assert list(first) == good[:6]
        second = await store.fetch(uaid, now_ms=later_ms, after=first[-1].sort_key, limit=10)
        assert list(second) == good[6:]

    async def test_notifications_of_a_removed_channel_are_not_fetched(
        self, store: PushStore, uaid: Uaid, subscribed: ChannelId, clock: ManualClock
    ) -> None:
        """T-23"""
        now_ms = clock.now_ms()
        gone = new_channel()
        await store.add_channel(uaid, gone, channels_max=100)
        kept = timed_notification(subscribed, accepted_at_ms=now_ms + 50)
        lost = [timed_notification(gone, accepted_at_ms=now_ms + n) for n in range(30)]
        await save_many(store, uaid, [*lost, kept])
        await store.save(uaid, topic_notification(gone, "t", accepted_at_ms=now_ms))

        await store.remove_channel(uaid, gone)
        await store.save(uaid, timed_notification(gone, accepted_at_ms=now_ms, n="late"))
        assert await fetch_all(store, uaid, now_ms=now_ms) == [kept]

    async def test_notifications_do_not_come_back_with_their_channel(
        self, store: PushStore, uaid: Uaid, subscribed: ChannelId, clock: ManualClock
    ) -> None:
        if not self.capabilities.clears_with_channel:
            pytest.skip("this backend only hides them")
        now_ms = clock.now_ms()
        await save_many(
            store,
            uaid,
            [timed_notification(subscribed, accepted_at_ms=now_ms, n=n) for n in range(1200)],
        )
        await store.save_update(uaid, Update(subscribed, 4))
        await store.remove_channel(uaid, subscribed)
        await store.add_channel(uaid, subscribed, channels_max=100)

        assert not await fetch_all(store, uaid, now_ms=now_ms)
        assert not await store.fetch_updates(uaid, limit=10)

    # Forgetting

    async def test_forgetting_counts_what_was_there(
        self, store: PushStore, uaid: Uaid, subscribed: ChannelId, clock: ManualClock
    ) -> None:
        """C-051"""
        now_ms = clock.now_ms()
        rows = [timed_notification(subscribed, accepted_at_ms=now_ms, n=n) for n in range(3)]
        rows.append(topic_notification(subscribed, "t", accepted_at_ms=now_ms))
        await save_many(store, uaid, rows)
        acked = [(row.sort_key, row.message_id) for row in (rows[0], rows[3])]
        unknown = (SortKey("02:1:nobody"), new_message_id())

        assert await store.forget(uaid, [*acked, unknown]) == 2
        assert await store.forget(uaid, acked) == 0
        assert await store.forget(uaid, []) == 0
        assert await fetch_all(store, uaid, now_ms=now_ms) == rows[1:3]

    async def test_forgetting_an_old_message_spares_the_one_that_replaced_it(
        self, store: PushStore, uaid: Uaid, subscribed: ChannelId, clock: ManualClock
    ) -> None:
        """C-086, T-3"""
        now_ms = clock.now_ms()
        old = topic_notification(subscribed, "t", accepted_at_ms=now_ms)
        new = topic_notification(subscribed, "t", accepted_at_ms=now_ms + 1)
        await store.save(uaid, old)
        await store.save(uaid, new)

        assert await store.forget(uaid, [(old.sort_key, old.message_id)]) == 0
        assert await fetch_all(store, uaid, now_ms=now_ms) == [new]

    # Inserting

    async def test_what_is_inserted_under_a_free_key_is_there(
        self, store: PushStore, uaid: Uaid, subscribed: ChannelId, clock: ManualClock
    ) -> None:
        row = timed_notification(subscribed, accepted_at_ms=clock.now_ms())

        assert await store.save_new(uaid, row)
        assert await store.save_new(uaid, row), "the same message is no other"
        assert await fetch_all(store, uaid, now_ms=clock.now_ms()) == [row]

    async def test_an_insert_never_takes_the_key_of_another_message(
        self, store: PushStore, uaid: Uaid, subscribed: ChannelId, clock: ManualClock
    ) -> None:
        """Autopush's keys consist of millisecond and channel, so two messages may have one key."""
        now_ms = clock.now_ms()
        first = timed_notification(subscribed, accepted_at_ms=now_ms)
        second = timed_notification(subscribed, accepted_at_ms=now_ms)
        assert await store.save_new(uaid, first)

        assert not await store.save_new(uaid, second)
        assert await fetch_all(store, uaid, now_ms=now_ms) == [first]
        assert await store.forget(uaid, [(first.sort_key, first.message_id)]) == 1
        assert await store.save_new(uaid, second), "the key is free again"

    async def test_of_many_inserts_under_one_key_exactly_one_is_applied(
        self, store: PushStore, uaid: Uaid, subscribed: ChannelId, clock: ManualClock
    ) -> None:
        now_ms = clock.now_ms()
        rows = [timed_notification(subscribed, accepted_at_ms=now_ms) for _ in range(8)]

        applied = await asyncio.gather(*(store.save_new(uaid, row) for row in rows))
        assert sum(applied) == 1
        assert await fetch_all(store, uaid, now_ms=now_ms) == [rows[applied.index(True)]]

    async def test_an_insert_does_not_ask_who_it_is_for(
        self, store: PushStore, uaid: Uaid, clock: ManualClock
    ) -> None:
        row = timed_notification(new_channel(), accepted_at_ms=clock.now_ms())

        assert await store.save_new(uaid, row)

    # Handing back

    async def test_what_was_not_acked_is_handed_back(
        self, store: PushStore, uaid: Uaid, subscribed: ChannelId, clock: ManualClock
    ) -> None:
        now_ms = clock.now_ms()
        rows = [
            topic_notification(subscribed, "t", accepted_at_ms=now_ms),
            timed_notification(subscribed, accepted_at_ms=now_ms, n=1),
            timed_notification(subscribed, accepted_at_ms=now_ms, n=2),
        ]

        assert await store.save_if_newer(uaid, rows) == HandedBack(3)
        assert await fetch_all(store, uaid, now_ms=now_ms) == rows
        assert await store.save_if_newer(uaid, []) == HandedBack()

    async def test_handing_back_never_overwrites_a_newer_message_of_the_topic(
        self, store: PushStore, uaid: Uaid, subscribed: ChannelId, clock: ManualClock
    ) -> None:
        now_ms = clock.now_ms()
        older = topic_notification(subscribed, "t", accepted_at_ms=now_ms)
        newer = topic_notification(subscribed, "t", accepted_at_ms=now_ms + 1)
        await store.save(uaid, newer)

        handed_back = await store.save_if_newer(uaid, [older])
        assert handed_back == HandedBack(0, (Replaced.of(older),)), "the older one ends here"
        assert await fetch_all(store, uaid, now_ms=now_ms) == [newer]

    async def test_handing_back_replaces_an_older_message_of_the_topic(
        self, store: PushStore, uaid: Uaid, subscribed: ChannelId, clock: ManualClock
    ) -> None:
        now_ms = clock.now_ms()
        older = topic_notification(subscribed, "t", accepted_at_ms=now_ms)
        newer = topic_notification(subscribed, "t", accepted_at_ms=now_ms + 1)
        await store.save(uaid, older)

        handed_back = await store.save_if_newer(uaid, [newer])
        assert handed_back == HandedBack(1, (Replaced.of(older),))
        assert await fetch_all(store, uaid, now_ms=now_ms) == [newer]

    async def test_of_two_topics_of_one_millisecond_the_greater_message_id_stays(
        self, store: PushStore, uaid: Uaid, subscribed: ChannelId, clock: ManualClock
    ) -> None:
        now_ms = clock.now_ms()
        low, high = (
            topic_notification(subscribed, "t", accepted_at_ms=now_ms, message_id=MessageId(text))
            for text in ("gAAA-1", "gAAA-2")
        )

        assert await store.save_if_newer(uaid, [low, high]) == HandedBack(2, (Replaced.of(low),))
        assert await store.save_if_newer(uaid, [low, high]) == HandedBack(0, (Replaced.of(low),))
        assert await fetch_all(store, uaid, now_ms=now_ms) == [high]

    async def test_of_those_of_one_topic_that_are_handed_back_together_all_but_one_end(
        self, store: PushStore, uaid: Uaid, subscribed: ChannelId, clock: ManualClock
    ) -> None:
        """In any order; messages without a topic, and of other topics, are not concerned."""
        now_ms = clock.now_ms()
        first, second, last, stored, other = (
            topic_notification(subscribed, topic, accepted_at_ms=now_ms + age_ms)
            for topic, age_ms in (("t", 1), ("t", 2), ("t", 3), ("t", 0), ("u", 0))
        )
        timed = timed_notification(subscribed, accepted_at_ms=now_ms)
        await store.save(uaid, stored)

        told = (await store.save_if_newer(uaid, [second, timed, last, first, other])).replaced
        assert sorted(told, key=lambda one: one.accepted_at_ms) == [
            Replaced.of(row) for row in (stored, first, second)
        ]
        assert await fetch_all(store, uaid, now_ms=now_ms) == [last, other, timed]

    async def test_handing_back_once_more_tells_of_nobody_who_is_there(
        self, store: PushStore, uaid: Uaid, subscribed: ChannelId, clock: ManualClock
    ) -> None:
        """A repeated hand-back does not report its own rows as replaced."""
        now_ms = clock.now_ms()
        topic = topic_notification(subscribed, "t", accepted_at_ms=now_ms + 1)
        timed = timed_notification(subscribed, accepted_at_ms=now_ms)
        await store.save(uaid, topic_notification(subscribed, "t", accepted_at_ms=now_ms))
        await store.save_if_newer(uaid, [topic, timed])

        assert await store.save_if_newer(uaid, [topic, timed]) == HandedBack()
        assert await store.save_if_newer(uaid, [topic]) == HandedBack()
        assert await fetch_all(store, uaid, now_ms=now_ms) == [topic, timed]

    async def test_what_had_expired_in_its_place_makes_room_for_what_is_handed_back(
        self, store: PushStore, uaid: Uaid, subscribed: ChannelId, clock: ManualClock
    ) -> None:
        """The expired row may be reported as replaced or not."""
        expired = topic_notification(subscribed, "t", accepted_at_ms=clock.now_ms(), ttl_s=1)
        await store.save(uaid, expired)
        clock.advance(2)
        row = topic_notification(subscribed, "t", accepted_at_ms=clock.now_ms())

        handed_back = await store.save_if_newer(uaid, [row])
        assert handed_back.written == 1
        assert handed_back.replaced in ((), (Replaced.of(expired),))
        assert await fetch_all(store, uaid, now_ms=clock.now_ms()) == [row]

    async def test_nothing_is_handed_back_for_what_is_gone(
        self, store: PushStore, uaid: Uaid, subscribed: ChannelId, clock: ManualClock
    ) -> None:
        now_ms = clock.now_ms()
        gone = new_channel()
        there = timed_notification(subscribed, accepted_at_ms=now_ms)
        lost = timed_notification(gone, accepted_at_ms=now_ms)
        topic = topic_notification(gone, "t", accepted_at_ms=now_ms)
        nobody = Uaid(new_uuid4())

        assert await store.save_if_newer(uaid, [lost, topic, there]) == HandedBack(1)
        assert await store.save_if_newer(nobody, [lost, topic]) == HandedBack()
        await store.add_channel(uaid, gone, channels_max=100)
        assert await fetch_all(store, uaid, now_ms=now_ms) == [there]
