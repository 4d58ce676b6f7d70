"""What every push store passes: the contract of `waystation.push.store`, line by line.

A backend writes a subclass with its `capabilities` and the fixture `store`:

    class TestRedis(PushStoreConformance):
        capabilities = RedisPushStore.capabilities

        @pytest.fixture
        async def store(self, clock: ManualClock) -> AsyncIterator[PushStore]: ...

Ids are random in every test, so a store that other tests have used will do. Time is `clock`; tests
that must let it pass are left out where the backend forgets by its own clock.
"""

import asyncio
import os
from collections.abc import Sequence
from typing import Any, ClassVar

import pytest

from waystation.base.clock import ManualClock
from waystation.base.ids import dashed, new_uuid4
from waystation.push.model import (
    USER_AGENT_LIFETIME_S,
    ChannelId,
    MessageId,
    Milestone,
    MilestoneNote,
    Notification,
    Recipient,
    Route,
    SortKey,
    Uaid,
    Update,
    Urgency,
    UserAgent,
)
from waystation.push.store import PushStore
from waystation.storage.capabilities import Capabilities

NODE_A = "http://a.example:8081"
NODE_B = "http://b.example:8081/w/1"
HOUR_S = 3_600


def new_channel() -> ChannelId:
    return ChannelId(new_uuid4())


def new_message_id() -> MessageId:
    return MessageId("gAAAAAB" + os.urandom(30).hex())


def topic_notification(
    channel_id: ChannelId, topic: str, *, accepted_at_ms: int, ttl_s: int = HOUR_S, **fields: Any
) -> Notification:
    return Notification(
        channel_id,
        fields.pop("message_id", None) or new_message_id(),
        SortKey(f"01:{dashed(channel_id)}:{topic}"),
        accepted_at_ms,
        ttl_s,
        topic=topic,
        **fields,
    )


def timed_notification(
    channel_id: ChannelId,
    *,
    accepted_at_ms: int,
    n: int | str = 0,
    ttl_s: int = HOUR_S,
    **fields: Any,
) -> Notification:
    return Notification(
        channel_id,
        fields.pop("message_id", None) or new_message_id(),
        SortKey(f"02:{accepted_at_ms}:{dashed(channel_id)}:{n}"),
        accepted_at_ms,
        ttl_s,
        **fields,
    )


async def fetch_all(
    store: PushStore, uaid: Uaid, *, now_ms: int, limit: int = 10
) -> list[Notification]:
    """One whole pass, as a session makes it."""
    found: list[Notification] = []
    after: SortKey | None = None
    while portion := await store.fetch(uaid, now_ms=now_ms, after=after, limit=limit):
        assert len(portion) <= limit
        found += portion
        after = portion[-1].sort_key
    return found


async def sweep_all(store: PushStore, *, now_ms: int, limit: int = 100) -> int:
    removed = 0
    while True:
        now = await store.sweep(now_ms=now_ms, limit=limit)
        assert 0 <= now <= limit
        removed += now
        if now < limit:
            return removed


class PushStoreConformance:
    capabilities: ClassVar[Capabilities]

    # Fixtures that a backend may replace

    @pytest.fixture
    def clock(self) -> ManualClock:
        return ManualClock()

    @pytest.fixture
    def store(self) -> PushStore:
        raise AssertionError("a backend's suite brings its own store")

    @pytest.fixture
    def uaid(self) -> Uaid:
        return Uaid(new_uuid4())

    @pytest.fixture
    async def subscribed(self, store: PushStore, uaid: Uaid, clock: ManualClock) -> ChannelId:
        """The one subscription of the user agent `uaid`."""
        channel_id = new_channel()
        assert await store.add_user_agent(self.agent(uaid, clock))
        assert await store.add_channel(uaid, channel_id, channels_max=100)
        return channel_id

    def agent(
        self, uaid: Uaid, clock: ManualClock, *, node_id: str | None = NODE_A, later_ms: int = 0
    ) -> UserAgent:
        return UserAgent(uaid=uaid, connected_at_ms=clock.now_ms() + later_ms, node_id=node_id)

    def needs_our_clock(self) -> None:
        if self.capabilities.native_expiry:
            pytest.skip("this backend forgets by its own clock")

    async def seen(self, store: PushStore, uaid: Uaid) -> UserAgent:
        """The record as a claim must carry it: with the row version that was read."""
        record = await store.get_user_agent(uaid)
        assert record is not None
        return record

    # User agents

    async def test_of_an_unknown_user_agent_there_is_nothing(
        self, store: PushStore, uaid: Uaid, clock: ManualClock
    ) -> None:
        assert await store.get_user_agent(uaid) is None
        assert await store.look_up(uaid, new_channel()) is None
        assert await store.get_channels(uaid) == frozenset()
        assert not await store.fetch(uaid, now_ms=clock.now_ms(), after=None, limit=10)
        assert not await store.fetch_updates(uaid, limit=10)
        assert not await store.remove_user_agent(uaid)

    async def test_a_record_is_read_back_as_it_was_added(
        self, store: PushStore, uaid: Uaid, clock: ManualClock
    ) -> None:
        whole = UserAgent(
            uaid=uaid,
            connected_at_ms=clock.now_ms(),
            router_type="fcm",
            router_data={"app_id": "ä", "creds": {"n": [1, 2.5, None, True]}},
            node_id=NODE_B,
            record_version=None,
            current_timestamp_ms=clock.now_ms() - 5,
        )

        assert await store.add_user_agent(whole)
        assert without_row_version(await self.seen(store, uaid)) == whole

    async def test_adding_a_user_agent_that_exists_changes_nothing(
        self, store: PushStore, uaid: Uaid, clock: ManualClock
    ) -> None:
        assert await store.add_user_agent(self.agent(uaid, clock))

        assert not await store.add_user_agent(self.agent(uaid, clock, node_id=NODE_B, later_ms=9))
        assert (await self.seen(store, uaid)).node_id == NODE_A

    async def test_one_look_up_tells_record_and_subscription(
        self, store: PushStore, uaid: Uaid, subscribed: ChannelId
    ) -> None:
        record = await self.seen(store, uaid)

        assert await store.look_up(uaid, subscribed) == Recipient(record, subscribed=True)
        assert await store.look_up(uaid, new_channel()) == Recipient(record, subscribed=False)

    # Routes

    async def test_a_claim_where_there_is_no_record_makes_one(
        self, store: PushStore, uaid: Uaid, clock: ManualClock
    ) -> None:
        assert await store.claim_route(self.agent(uaid, clock))
        assert (await self.seen(store, uaid)).node_id == NODE_A

    async def test_a_later_claim_takes_the_route(
        self, store: PushStore, uaid: Uaid, subscribed: ChannelId, clock: ManualClock
    ) -> None:
        claim = replaced(await self.seen(store, uaid), node_id=NODE_B, later_ms=1)

        assert await store.claim_route(claim)
        assert without_row_version(await self.seen(store, uaid)) == without_row_version(claim)
        assert await store.get_channels(uaid) == {subscribed}

    async def test_a_claim_older_than_the_record_is_refused_and_changes_nothing(
        self, store: PushStore, uaid: Uaid, subscribed: ChannelId
    ) -> None:
        """C-014"""
        before = await self.seen(store, uaid)

        assert not await store.claim_route(replaced(before, node_id=NODE_B, later_ms=-1))
        assert await store.get_user_agent(uaid) == before

    async def test_a_claim_in_the_same_millisecond_is_refused(
        self, store: PushStore, uaid: Uaid, subscribed: ChannelId
    ) -> None:
        before = await self.seen(store, uaid)

        assert not await store.claim_route(replaced(before, node_id=NODE_B))
        assert await store.get_user_agent(uaid) == before

    async def test_of_several_hellos_in_one_millisecond_exactly_one_wins(
        self, store: PushStore, uaid: Uaid, clock: ManualClock
    ) -> None:
        nodes = [f"http://{n}.example:8081" for n in range(8)]
        claims = [self.agent(uaid, clock, node_id=node) for node in nodes]

        won = await asyncio.gather(*(store.claim_route(claim) for claim in claims))
        assert sum(won) == 1
        assert (await self.seen(store, uaid)).node_id == nodes[won.index(True)]

    async def test_a_record_without_a_route_can_be_claimed_whatever_its_age(
        self, store: PushStore, uaid: Uaid, clock: ManualClock
    ) -> None:
        assert await store.add_user_agent(self.agent(uaid, clock, node_id=None))
        claim = replaced(await self.seen(store, uaid), node_id=NODE_B, later_ms=-1000)

        assert await store.claim_route(claim)
        assert (await self.seen(store, uaid)).node_id == NODE_B

    async def test_a_claim_on_a_row_that_was_written_since_is_refused(
        self, store: PushStore, uaid: Uaid, subscribed: ChannelId
    ) -> None:
        if not self.capabilities.row_versions:
            pytest.skip("this backend has no row versions")
        read_before = await self.seen(store, uaid)
        assert await store.claim_route(replaced(read_before, node_id=NODE_B, later_ms=1))

        assert not await store.claim_route(replaced(read_before, node_id=NODE_A, later_ms=2))
        assert (await self.seen(store, uaid)).node_id == NODE_B

    async def test_clearing_a_route_leaves_the_rest_of_the_record(
        self, store: PushStore, uaid: Uaid, subscribed: ChannelId
    ) -> None:
        before = await self.seen(store, uaid)
        assert before.route is not None

        assert await store.clear_route(uaid, before.route)
        after = await self.seen(store, uaid)
        assert after.node_id is None
        assert after.connected_at_ms == before.connected_at_ms
        assert await store.get_channels(uaid) == {subscribed}

    async def test_clearing_a_route_that_moved_on_does_nothing(
        self, store: PushStore, uaid: Uaid, subscribed: ChannelId
    ) -> None:
        """clear_route compares before it clears, so a reconnect is never undone (R3)."""
        first = await self.seen(store, uaid)
        assert first.route is not None
        assert await store.claim_route(replaced(first, node_id=NODE_B, later_ms=10))

        assert not await store.clear_route(uaid, first.route)
        assert (await self.seen(store, uaid)).node_id == NODE_B

    async def test_clearing_compares_the_time_of_the_connection_too(
        self, store: PushStore, uaid: Uaid, subscribed: ChannelId
    ) -> None:
        """The same node, another connection."""
        first = await self.seen(store, uaid)
        assert first.route is not None
        assert await store.claim_route(replaced(first, node_id=NODE_A, later_ms=1))

        assert not await store.clear_route(uaid, first.route)
        assert (await self.seen(store, uaid)).node_id == NODE_A

    async def test_a_route_is_cleared_once(
        self, store: PushStore, uaid: Uaid, subscribed: ChannelId
    ) -> None:
        route = (await self.seen(store, uaid)).route
        assert route is not None

        assert await store.clear_route(uaid, route)
        assert not await store.clear_route(uaid, route)

    async def test_there_is_no_route_to_clear_of_an_unknown_user_agent(
        self, store: PushStore, uaid: Uaid
    ) -> None:
        assert not await store.clear_route(uaid, Route(NODE_A, 1))

    # Removal

    async def test_removing_a_user_agent_removes_all_of_it(
        self, store: PushStore, uaid: Uaid, subscribed: ChannelId, clock: ManualClock
    ) -> None:
        await store.save(uaid, timed_notification(subscribed, accepted_at_ms=clock.now_ms()))
        await store.save_update(uaid, Update(subscribed, 7))

        assert await store.remove_user_agent(uaid)
        assert not await store.remove_user_agent(uaid)
        assert await store.get_user_agent(uaid) is None
        assert await store.get_channels(uaid) == frozenset()
        assert not await fetch_all(store, uaid, now_ms=clock.now_ms())
        assert not await store.fetch_updates(uaid, limit=10)

    async def test_nothing_of_a_removed_user_agent_is_inherited(
        self, store: PushStore, uaid: Uaid, subscribed: ChannelId, clock: ManualClock
    ) -> None:
        await store.save(uaid, timed_notification(subscribed, accepted_at_ms=clock.now_ms()))
        await store.save_update(uaid, Update(subscribed, 7))
        await store.remove_user_agent(uaid)
        await store.add_user_agent(self.agent(uaid, clock))
        await store.add_channel(uaid, subscribed, channels_max=100)

        assert not await fetch_all(store, uaid, now_ms=clock.now_ms())
        assert not await store.fetch_updates(uaid, limit=10)

    async def test_removal_takes_many_notifications_and_only_the_right_ones(
        self, store: PushStore, uaid: Uaid, subscribed: ChannelId, clock: ManualClock
    ) -> None:
        now_ms = clock.now_ms()
        neighbour = Uaid(uaid[:15] + bytes([uaid[15] ^ 1]))
        await store.add_user_agent(self.agent(neighbour, clock))
        await store.add_channel(neighbour, subscribed, channels_max=100)
        kept = timed_notification(subscribed, accepted_at_ms=now_ms)
        await store.save(neighbour, kept)
        await save_many(
            store,
            uaid,
            [timed_notification(subscribed, accepted_at_ms=now_ms, n=n) for n in range(2100)],
        )

        assert await store.remove_user_agent(uaid)
        assert await fetch_all(store, neighbour, now_ms=now_ms) == [kept]
        assert not await fetch_all(store, uaid, now_ms=now_ms)

    # Lifetime

    async def test_a_record_older_than_its_lifetime_is_none(
        self, store: PushStore, uaid: Uaid, subscribed: ChannelId, clock: ManualClock
    ) -> None:
        self.needs_our_clock()
        route = (await self.seen(store, uaid)).route
        assert route is not None
        clock.advance(USER_AGENT_LIFETIME_S - 1)
        assert await store.get_user_agent(uaid) is not None
        clock.advance(1)

        assert await store.get_user_agent(uaid) is None
        assert await store.look_up(uaid, subscribed) is None
        assert await store.get_channels(uaid) == frozenset()
        assert not await store.clear_route(uaid, route)
        assert not await store.add_channel(uaid, new_channel(), channels_max=100)
        assert not await store.remove_user_agent(uaid)

    async def test_a_claim_renews_the_lifetime_of_record_and_subscriptions(
        self, store: PushStore, uaid: Uaid, subscribed: ChannelId, clock: ManualClock
    ) -> None:
        self.needs_our_clock()
        clock.advance(USER_AGENT_LIFETIME_S - 1)
        assert await store.claim_route(self.agent(uaid, clock))
        clock.advance(USER_AGENT_LIFETIME_S - 1)
        await sweep_all(store, now_ms=clock.now_ms())

        assert await store.get_user_agent(uaid) is not None
        assert await store.get_channels(uaid) == {subscribed}

    async def test_who_comes_back_after_the_lifetime_starts_anew(
        self, store: PushStore, uaid: Uaid, subscribed: ChannelId, clock: ManualClock
    ) -> None:
        self.needs_our_clock()
        await store.save_update(uaid, Update(subscribed, 3))
        clock.advance(USER_AGENT_LIFETIME_S)

        assert await store.claim_route(self.agent(uaid, clock, later_ms=-USER_AGENT_LIFETIME_S))
        assert await store.get_channels(uaid) == frozenset()
        assert await store.add_channel(uaid, subscribed, channels_max=1)
        assert not await store.fetch_updates(uaid, limit=10)

    async def test_the_sweep_removes_user_agents_whose_lifetime_is_over(
        self, store: PushStore, uaid: Uaid, subscribed: ChannelId, clock: ManualClock
    ) -> None:
        self.needs_our_clock()
        long = timed_notification(
            subscribed, accepted_at_ms=clock.now_ms(), ttl_s=2 * USER_AGENT_LIFETIME_S
        )
        await store.save(uaid, long)
        clock.advance(USER_AGENT_LIFETIME_S)

        assert await sweep_all(store, now_ms=clock.now_ms()) >= 2
        assert await store.sweep(now_ms=clock.now_ms(), limit=10) == 0

    # Subscriptions

    async def test_adding_a_channel_again_changes_nothing(
        self, store: PushStore, uaid: Uaid, subscribed: ChannelId
    ) -> None:
        assert await store.add_channel(uaid, subscribed, channels_max=100)
        assert await store.get_channels(uaid) == {subscribed}

    async def test_there_are_at_most_channels_max(
        self, store: PushStore, uaid: Uaid, subscribed: ChannelId
    ) -> None:
        second, third = new_channel(), new_channel()
        assert await store.add_channel(uaid, second, channels_max=2)

        assert not await store.add_channel(uaid, third, channels_max=2)
        assert await store.add_channel(uaid, second, channels_max=2), "it is there already"
        assert await store.get_channels(uaid) == {subscribed, second}

    async def test_channels_added_at_once_do_not_pass_the_limit(
        self, store: PushStore, uaid: Uaid, subscribed: ChannelId
    ) -> None:
        added = await asyncio.gather(
            *(store.add_channel(uaid, new_channel(), channels_max=5) for _ in range(12))
        )

        assert sum(added) == 4
        assert len(await store.get_channels(uaid)) == 5

    async def test_an_unknown_user_agent_gets_no_channel(
        self, store: PushStore, uaid: Uaid
    ) -> None:
        assert not await store.add_channel(uaid, new_channel(), channels_max=5)
        assert await store.get_channels(uaid) == frozenset()

    async def test_removing_a_channel_tells_whether_it_was_there(
        self, store: PushStore, uaid: Uaid, subscribed: ChannelId
    ) -> None:
        assert not await store.remove_channel(uaid, new_channel())
        assert await store.remove_channel(uaid, subscribed)
        assert not await store.remove_channel(uaid, subscribed)
        assert await store.get_channels(uaid) == frozenset()

    async def test_a_channel_made_of_two_halves_is_not_subscribed(
        self, store: PushStore, uaid: Uaid, subscribed: ChannelId
    ) -> None:
        """User agents choose their channel ids, so nothing may rest on their being random."""
        second = new_channel()
        await store.add_channel(uaid, second, channels_max=100)

        for first_part, second_part in ((subscribed, second), (second, subscribed)):
            across = ChannelId(first_part[8:] + second_part[:8])
            recipient = await store.look_up(uaid, across)
            assert recipient is not None
            assert not recipient.subscribed
            assert not await store.remove_channel(uaid, across)

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

        assert await store.save_if_newer(uaid, rows) == 3
        assert await fetch_all(store, uaid, now_ms=now_ms) == rows
        assert await store.save_if_newer(uaid, []) == 0

    async def test_handing_back_never_overwrites_a_newer_message_of_the_topic(
        self, store: PushStore, uaid: Uaid, subscribed: ChannelId, clock: ManualClock
    ) -> None:
        now_ms = clock.now_ms()
        older = topic_notification(subscribed, "t", accepted_at_ms=now_ms)
        newer = topic_notification(subscribed, "t", accepted_at_ms=now_ms + 1)
        await store.save(uaid, newer)

        assert await store.save_if_newer(uaid, [older]) == 0
        assert await fetch_all(store, uaid, now_ms=now_ms) == [newer]

    async def test_handing_back_replaces_an_older_message_of_the_topic(
        self, store: PushStore, uaid: Uaid, subscribed: ChannelId, clock: ManualClock
    ) -> None:
        now_ms = clock.now_ms()
        older = topic_notification(subscribed, "t", accepted_at_ms=now_ms)
        newer = topic_notification(subscribed, "t", accepted_at_ms=now_ms + 1)
        await store.save(uaid, older)

        assert await store.save_if_newer(uaid, [newer]) == 1
        assert await fetch_all(store, uaid, now_ms=now_ms) == [newer]

    async def test_of_two_topics_of_one_millisecond_the_greater_message_id_stays(
        self, store: PushStore, uaid: Uaid, subscribed: ChannelId, clock: ManualClock
    ) -> None:
        now_ms = clock.now_ms()
        low, high = (
            topic_notification(subscribed, "t", accepted_at_ms=now_ms, message_id=MessageId(text))
            for text in ("gAAA-1", "gAAA-2")
        )

        assert await store.save_if_newer(uaid, [low, high]) == 2
        assert await store.save_if_newer(uaid, [low, high]) == 0
        assert await fetch_all(store, uaid, now_ms=now_ms) == [high]

    async def test_nothing_is_handed_back_for_what_is_gone(
        self, store: PushStore, uaid: Uaid, subscribed: ChannelId, clock: ManualClock
    ) -> None:
        now_ms = clock.now_ms()
        gone = new_channel()
        there = timed_notification(subscribed, accepted_at_ms=now_ms)
        lost = timed_notification(gone, accepted_at_ms=now_ms)
        nobody = Uaid(new_uuid4())

        assert await store.save_if_newer(uaid, [lost, there]) == 1
        assert await store.save_if_newer(nobody, [lost]) == 0
        await store.add_channel(uaid, gone, channels_max=100)
        assert await fetch_all(store, uaid, now_ms=now_ms) == [there]

    # SimplePush

    async def test_only_a_higher_version_is_saved(
        self, store: PushStore, uaid: Uaid, subscribed: ChannelId
    ) -> None:
        assert await store.save_update(uaid, Update(subscribed, 0))
        assert await store.save_update(uaid, Update(subscribed, 5, data="not kept"))

        assert not await store.save_update(uaid, Update(subscribed, 5))
        assert not await store.save_update(uaid, Update(subscribed, 4))
        assert list(await store.fetch_updates(uaid, limit=10)) == [Update(subscribed, 5)]

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
        assert not await store.save_update(uaid, Update(new_channel(), 1))
        assert not await store.save_update(Uaid(new_uuid4()), Update(subscribed, 1))

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
        """A replaced row's own end means nothing any more, whichever comes first."""
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
    """How the counts of tracked messages change, whoever else has used the store."""

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


def expiring(channel_id: ChannelId, now_ms: int, numbers: Sequence[int]) -> list[Notification]:
    """Notifications that live for a minute."""
    return [timed_notification(channel_id, accepted_at_ms=now_ms + n, ttl_s=60) for n in numbers]


async def save_many(store: PushStore, uaid: Uaid, rows: Sequence[Notification]) -> None:
    await asyncio.gather(*(store.save(uaid, row) for row in rows))


def by_key(rows: Sequence[Notification]) -> dict[SortKey, Notification]:
    found = {row.sort_key: row for row in rows}
    assert len(found) == len(rows), "a row came twice"
    return found


def replaced(record: UserAgent, *, node_id: str, later_ms: int = 0) -> UserAgent:
    """The record as a hello writes it, with what it read as its fence."""
    return UserAgent(
        uaid=record.uaid,
        connected_at_ms=record.connected_at_ms + later_ms,
        node_id=node_id,
        row_version=record.row_version,
    )


def without_row_version(record: UserAgent) -> UserAgent:
    return UserAgent(
        uaid=record.uaid,
        connected_at_ms=record.connected_at_ms,
        router_type=record.router_type,
        router_data=record.router_data,
        node_id=record.node_id,
        record_version=record.record_version,
        current_timestamp_ms=record.current_timestamp_ms,
    )
