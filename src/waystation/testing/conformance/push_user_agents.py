"""Conformance suite for push stores: user agents, routes, lifetimes and subscriptions."""

import asyncio

import msgspec
import pytest

from waystation.base.clock import ManualClock
from waystation.push.model import (
    USER_AGENT_LIFETIME_S,
    ChannelId,
    Recipient,
    Route,
    Uaid,
    Update,
    UserAgent,
)
from waystation.push.store import CursorStore, PushStore
from waystation.testing.conformance.push_samples import (
    NODE_A,
    NODE_B,
    PushStoreSuite,
    fetch_all,
    new_channel,
    replaced,
    save_many,
    sweep_all,
    timed_notification,
    without_row_version,
)


class UserAgentConformance(PushStoreSuite):
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

    async def test_autopushs_cursor_moves_on_and_never_back(
        self, store: PushStore, uaid: Uaid, subscribed: ChannelId, clock: ManualClock
    ) -> None:
        """A hello that has read the record before is not refused because of it."""
        if not self.capabilities.cursor:
            pytest.skip("this backend has no cursor")
        assert isinstance(store, CursorStore)
        before = await self.seen(store, uaid)
        later_ms = clock.now_ms()

        assert await store.advance_cursor(uaid, later_ms)
        assert not await store.advance_cursor(uaid, later_ms - 1)
        assert (await self.seen(store, uaid)).current_timestamp_ms == later_ms
        assert await store.get_channels(uaid) == {subscribed}
        assert await store.claim_route(replaced(before, node_id=NODE_B, later_ms=1))
        assert await store.remove_user_agent(uaid)
        assert not await store.advance_cursor(uaid, later_ms + 1), (
            "it must not restore a removed user agent"
        )
        assert await store.get_user_agent(uaid) is None

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

    async def test_a_bridged_user_agent_keeps_its_data_and_renews_it_by_a_claim(
        self, store: PushStore, uaid: Uaid, clock: ManualClock
    ) -> None:
        """It never connects: registration, a new device token and the daily check renew it."""
        aps = {"alert": {"title": "\u00e4", "args": [1, None, {"x": True}]}, "mutable-content": 1}
        data = {"token": "first", "rel_channel": "release", "aps": aps}
        bridged = UserAgent(
            uaid=uaid, connected_at_ms=clock.now_ms(), router_type="apns", router_data=data
        )
        channel_id = new_channel()

        assert await store.add_user_agent(bridged)
        assert await store.add_channel(uaid, channel_id, channels_max=1)
        recipient = await store.look_up(uaid, channel_id)
        assert recipient is not None
        assert recipient.subscribed
        assert without_row_version(recipient.user_agent) == bridged

        seen = await self.seen(store, uaid)
        later = msgspec.structs.replace(
            seen,
            connected_at_ms=seen.connected_at_ms + 1,
            router_data={**data, "token": "second"},
        )

        assert await store.claim_route(later)
        assert without_row_version(await self.seen(store, uaid)) == without_row_version(later)
        assert await store.get_channels(uaid) == {channel_id}
        assert await store.remove_user_agent(uaid)
        assert await store.look_up(uaid, channel_id) is None

    async def test_a_bridged_user_agent_lives_while_it_looks_in(
        self, store: PushStore, uaid: Uaid, clock: ManualClock
    ) -> None:
        self.needs_our_clock()
        channel_id = new_channel()
        bridged = UserAgent(
            uaid=uaid,
            connected_at_ms=clock.now_ms(),
            router_type="fcm",
            router_data={"token": "first", "app_id": "app"},
        )
        assert await store.add_user_agent(bridged)
        assert await store.add_channel(uaid, channel_id, channels_max=1)
        for _ in range(3):
            clock.advance(USER_AGENT_LIFETIME_S - 1)
            seen = await self.seen(store, uaid)
            assert await store.claim_route(
                msgspec.structs.replace(seen, connected_at_ms=clock.now_ms())
            )
            await sweep_all(store, now_ms=clock.now_ms())

            recipient = await store.look_up(uaid, channel_id)
            assert recipient is not None
            assert recipient.subscribed

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
        """User agents choose their channel ids, which need not be random."""
        second = new_channel()
        await store.add_channel(uaid, second, channels_max=100)

        for first_part, second_part in ((subscribed, second), (second, subscribed)):
            across = ChannelId(first_part[8:] + second_part[:8])
            recipient = await store.look_up(uaid, across)
            assert recipient is not None
            assert not recipient.subscribed
            assert not await store.remove_channel(uaid, across)
