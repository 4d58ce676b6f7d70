"""A user agent moves when it is met, whole or not at all, and what was removed stays removed."""

import asyncio
import inspect
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
import pytest

from waystation.base.clock import ManualClock
from waystation.base.errors import StoreUnavailableError
from waystation.base.ids import new_uuid4
from waystation.push.model import (
    ChannelId,
    Milestone,
    MilestoneNote,
    Route,
    Uaid,
    Update,
    UserAgent,
)
from waystation.storage.dual.moves import MOVING, TRIES_MAX
from waystation.storage.dual.push import DualPushStore
from waystation.storage.dual.url import parse_dual_url
from waystation.storage.memory.push import MemoryPushStore
from waystation.testing.conformance.push_samples import (
    NODE_A,
    NODE_B,
    fetch_all,
    new_channel,
    new_message_id,
    timed_notification,
    topic_notification,
)

Hook = Callable[[], Awaitable[Any]]


class HookedStore(MemoryPushStore):
    """Something may happen before or instead of a call; and every call lets others run."""

    def __init__(self, clock: ManualClock) -> None:
        super().__init__(clock)
        self.before: dict[str, Hook] = {}
        self.after: dict[str, Hook] = {}
        self.down: set[str] = set()

    def __getattribute__(self, name: str) -> Any:
        found = super().__getattribute__(name)
        if name.startswith("_") or not inspect.iscoroutinefunction(found):
            return found

        async def call(*args: Any, **kwargs: Any) -> Any:
            await asyncio.sleep(0)
            if name in self.down or "*" in self.down:
                raise StoreUnavailableError("down")
            if hook := self.before.pop(name, None):
                await hook()
            result = await found(*args, **kwargs)
            if hook := self.after.pop(name, None):
                await hook()
            return result

        return call


class Pair:
    def __init__(self, options: str = "") -> None:
        self.clock = ManualClock()
        self.primary = HookedStore(self.clock)
        self.secondary = HookedStore(self.clock)
        self.store = self.node(options)
        self.uaid = Uaid(new_uuid4())
        self.channels = [new_channel() for _ in range(3)]

    def node(self, options: str = "") -> DualPushStore:
        """Another process on the same two stores."""
        url = parse_dual_url(f"dual:?primary=memory:&secondary=memory:{options}")
        return DualPushStore(self.primary, self.secondary, url, self.clock)

    @property
    def now_ms(self) -> int:
        return self.clock.now_ms()

    async def with_old_record(self, node_id: str | None = NODE_A) -> UserAgent:
        """A user agent of before: in the secondary, with three subscriptions."""
        record = UserAgent(
            uaid=self.uaid,
            connected_at_ms=self.now_ms - 5000,
            node_id=node_id,
            router_data={"creds": 1},
            current_timestamp_ms=7,
        )
        assert await self.secondary.add_user_agent(record)
        for channel_id in self.channels:
            assert await self.secondary.add_channel(self.uaid, channel_id, channels_max=9)
        return record


@pytest.fixture
def pair() -> Pair:
    return Pair()


# Moving


@pytest.mark.parametrize("node_id", [NODE_A, None])
async def test_who_is_met_is_copied_with_its_subscriptions(pair: Pair, node_id: str | None) -> None:
    record = await pair.with_old_record(node_id)
    update = Update(pair.channels[0], 4, accepted_at_ms=pair.now_ms)
    await pair.secondary.save_update(pair.uaid, update)

    assert await pair.store.get_user_agent(pair.uaid) == record
    assert await pair.primary.get_user_agent(pair.uaid) == record
    assert await pair.primary.get_channels(pair.uaid) == {*pair.channels}
    assert list(await pair.primary.fetch_updates(pair.uaid, limit=9)) == [update]
    assert pair.store.stats().migrated == 1
    assert await pair.store.get_user_agent(pair.uaid) == record
    assert pair.store.stats().migrated == 1, "once"


async def test_a_post_moves_too(pair: Pair) -> None:
    record = await pair.with_old_record()
    recipient = await pair.store.look_up(pair.uaid, pair.channels[1])

    assert recipient is not None
    assert recipient.user_agent == record
    assert recipient.subscribed
    assert await pair.primary.get_user_agent(pair.uaid) == record


async def test_of_somebody_unknown_nothing_is_made(pair: Pair) -> None:
    assert await pair.store.look_up(pair.uaid, new_channel()) is None
    assert await pair.store.get_user_agent(pair.uaid) is None
    assert await pair.primary.get_user_agent(pair.uaid) is None


async def test_after_the_move_the_primary_alone_is_written(pair: Pair) -> None:
    record = await pair.with_old_record()
    await pair.store.get_user_agent(pair.uaid)
    added = new_channel()

    assert await pair.store.add_channel(pair.uaid, added, channels_max=9)
    claim = UserAgent(uaid=pair.uaid, connected_at_ms=pair.now_ms, node_id=NODE_B)
    assert await pair.store.claim_route(claim)
    assert await pair.store.get_channels(pair.uaid) == {*pair.channels, added}
    assert await pair.secondary.get_user_agent(pair.uaid) == record
    assert added not in await pair.secondary.get_channels(pair.uaid)


async def test_a_claim_of_somebody_who_was_not_met_yet_keeps_the_subscriptions(pair: Pair) -> None:
    await pair.with_old_record()
    claim = UserAgent(uaid=pair.uaid, connected_at_ms=pair.now_ms, node_id=NODE_B)

    assert await pair.store.claim_route(claim)
    assert await pair.store.get_channels(pair.uaid) == {*pair.channels}


async def test_many_who_meet_it_at_once_move_it_once(pair: Pair) -> None:
    record = await pair.with_old_record()
    nodes = [pair.store, pair.node(), pair.node()]

    seen = await asyncio.gather(
        *(node.get_user_agent(pair.uaid) for node in nodes for _ in range(5)),
        *(node.look_up(pair.uaid, pair.channels[0]) for node in nodes),
    )
    assert seen[:15] == [record] * 15
    assert all(recipient is not None and recipient.subscribed for recipient in seen[15:])  # type: ignore[union-attr]
    assert await pair.primary.get_channels(pair.uaid) == {*pair.channels}
    assert sum(node.stats().migrated for node in nodes) >= 1
    assert sum(node.stats().already_migrated for node in nodes) >= 1


async def test_nobody_sees_a_record_whose_subscriptions_are_not_there_yet(pair: Pair) -> None:
    """The other process comes in the middle: it finishes what the first one began."""
    record = await pair.with_old_record()
    other = pair.node()

    async def meet() -> None:
        begun = await pair.primary.get_user_agent(pair.uaid)
        assert begun is not None
        assert begun.node_id == MOVING
        recipient = await other.look_up(pair.uaid, pair.channels[2])
        assert recipient is not None
        assert recipient.subscribed
        assert recipient.user_agent == record

    pair.primary.after["add_user_agent"] = meet

    assert await pair.store.get_user_agent(pair.uaid) == record
    assert await pair.primary.get_channels(pair.uaid) == {*pair.channels}


@pytest.mark.parametrize("at", ["add_channel", "claim_route", "get_status"])
async def test_a_move_that_was_cut_off_is_finished_by_the_next(pair: Pair, at: str) -> None:
    record = await pair.with_old_record()
    pair.primary.down.add(at)
    with pytest.raises(StoreUnavailableError):
        await pair.store.get_user_agent(pair.uaid)
    pair.primary.down.clear()

    assert await pair.node().get_user_agent(pair.uaid) == record
    assert await pair.primary.get_channels(pair.uaid) == {*pair.channels}


async def test_a_move_that_always_loses_is_given_up(pair: Pair) -> None:
    await pair.with_old_record()

    async def lose() -> None:
        await pair.primary.remove_user_agent(pair.uaid)
        pair.primary.after["add_user_agent"] = lose

    pair.primary.after["add_user_agent"] = lose
    with pytest.raises(StoreUnavailableError):
        await pair.store.get_user_agent(pair.uaid)

    assert pair.store.stats().errors == {"move": 1, "get_user_agent": 1}
    assert TRIES_MAX < 100


async def test_who_cannot_be_asked_for_is_not_taken_for_unknown(pair: Pair) -> None:
    await pair.with_old_record()
    pair.secondary.down.add("*")

    with pytest.raises(StoreUnavailableError):
        await pair.store.get_user_agent(pair.uaid)
    with pytest.raises(StoreUnavailableError):
        await pair.store.look_up(pair.uaid, pair.channels[0])
    assert pair.store.stats().errors == {"get_user_agent": 1, "look_up": 1}


# Removals


async def test_a_removal_reaches_both(pair: Pair) -> None:
    await pair.with_old_record()
    await pair.store.get_user_agent(pair.uaid)

    assert await pair.store.remove_user_agent(pair.uaid)
    assert not await pair.store.remove_user_agent(pair.uaid)
    assert await pair.primary.get_user_agent(pair.uaid) is None
    assert await pair.secondary.get_user_agent(pair.uaid) is None


@pytest.mark.parametrize("at", ["add_user_agent", "add_channel", "claim_route"])
async def test_who_is_removed_during_the_move_does_not_come_back(pair: Pair, at: str) -> None:
    await pair.with_old_record()
    other = pair.node()
    pair.primary.before[at] = lambda: other.remove_user_agent(pair.uaid)

    assert await pair.store.get_user_agent(pair.uaid) is None
    assert await pair.primary.get_user_agent(pair.uaid) is None
    assert await pair.primary.get_channels(pair.uaid) == frozenset()


async def test_a_removal_that_was_cut_off_is_finished_and_nobody_is_copied(pair: Pair) -> None:
    await pair.with_old_record()
    waiting = timed_notification(pair.channels[0], accepted_at_ms=pair.now_ms)
    await pair.secondary.save(pair.uaid, waiting)
    pair.secondary.down.add("remove_user_agent")
    with pytest.raises(StoreUnavailableError):
        await pair.store.remove_user_agent(pair.uaid)
    pair.secondary.down.clear()

    assert await pair.node().get_user_agent(pair.uaid) is None
    assert await pair.secondary.get_user_agent(pair.uaid) is None


async def test_a_younger_record_than_the_tombstone_is_moved(pair: Pair) -> None:
    await pair.with_old_record()
    await pair.store.remove_user_agent(pair.uaid)
    pair.clock.advance(1)
    anew = UserAgent(uaid=pair.uaid, connected_at_ms=pair.now_ms, node_id=NODE_B)
    await pair.secondary.add_user_agent(anew)

    assert await pair.store.get_user_agent(pair.uaid) == anew


@pytest.mark.parametrize("at", ["add_user_agent", "add_channel", "claim_route"])
async def test_a_channel_that_is_removed_during_the_move_stays_removed(pair: Pair, at: str) -> None:
    await pair.with_old_record()
    gone = pair.channels[0]
    other = pair.node()
    pair.primary.before[at] = lambda: other.remove_channel(pair.uaid, gone)
    await pair.store.get_user_agent(pair.uaid)

    assert await pair.store.get_channels(pair.uaid) == {*pair.channels[1:]}
    assert await pair.secondary.get_channels(pair.uaid) == {*pair.channels[1:]}


# Notifications


async def test_what_waits_in_the_secondary_is_found_after_the_move(pair: Pair) -> None:
    await pair.with_old_record()
    rows = [timed_notification(pair.channels[0], accepted_at_ms=pair.now_ms + n) for n in range(25)]
    for row in rows[::2]:
        await pair.secondary.save(pair.uaid, row)
    await pair.store.get_user_agent(pair.uaid)
    for row in rows[1::2]:
        await pair.store.save(pair.uaid, row)

    assert await fetch_all(pair.store, pair.uaid, now_ms=pair.now_ms) == rows
    acked = [(row.sort_key, row.message_id) for row in rows]
    assert await pair.store.forget(pair.uaid, acked) == len(rows)
    assert not await fetch_all(pair.secondary, pair.uaid, now_ms=pair.now_ms)
    assert not await fetch_all(pair.primary, pair.uaid, now_ms=pair.now_ms)


async def test_what_another_process_still_saves_in_the_secondary_is_found(pair: Pair) -> None:
    await pair.with_old_record()
    await pair.store.get_user_agent(pair.uaid)
    late = timed_notification(pair.channels[0], accepted_at_ms=pair.now_ms)
    await pair.secondary.save(pair.uaid, late)

    assert await fetch_all(pair.store, pair.uaid, now_ms=pair.now_ms) == [late]


async def test_a_replaced_topic_of_the_secondary_does_not_come_back(pair: Pair) -> None:
    await pair.with_old_record()
    old = topic_notification(pair.channels[0], "t", accepted_at_ms=pair.now_ms)
    await pair.secondary.save(pair.uaid, old)
    await pair.store.get_user_agent(pair.uaid)
    new = topic_notification(pair.channels[0], "t", accepted_at_ms=pair.now_ms + 1)
    await pair.store.save(pair.uaid, new)

    assert await pair.store.forget(pair.uaid, [(new.sort_key, new.message_id)]) == 1
    assert not await fetch_all(pair.store, pair.uaid, now_ms=pair.now_ms)


async def test_a_topic_that_was_handed_back_does_not_hide_a_newer_one(pair: Pair) -> None:
    await pair.with_old_record()
    await pair.store.get_user_agent(pair.uaid)
    old, new = (
        topic_notification(pair.channels[0], "t", accepted_at_ms=pair.now_ms + n) for n in (0, 1)
    )
    await pair.secondary.save(pair.uaid, new)
    await pair.store.save_if_newer(pair.uaid, [old])

    assert await fetch_all(pair.store, pair.uaid, now_ms=pair.now_ms) == [new]
    assert not await fetch_all(pair.primary, pair.uaid, now_ms=pair.now_ms), "it was forgotten"


async def test_an_ack_that_reaches_one_store_only_has_failed(pair: Pair) -> None:
    await pair.with_old_record()
    row = timed_notification(pair.channels[0], accepted_at_ms=pair.now_ms)
    await pair.secondary.save(pair.uaid, row)
    await pair.store.get_user_agent(pair.uaid)
    pair.secondary.down.add("forget")

    with pytest.raises(StoreUnavailableError):
        await pair.store.forget(pair.uaid, [(row.sort_key, row.message_id)])
    assert pair.store.stats().errors == {"forget": 1}


async def test_a_fetch_without_the_secondary_gives_what_there_is_but_never_nothing(
    pair: Pair,
) -> None:
    await pair.with_old_record()
    await pair.store.get_user_agent(pair.uaid)
    row = timed_notification(pair.channels[0], accepted_at_ms=pair.now_ms)
    await pair.store.save(pair.uaid, row)
    pair.secondary.down.add("fetch")

    found = await pair.store.fetch(pair.uaid, now_ms=pair.now_ms, after=None, limit=9)
    assert list(found) == [row]
    with pytest.raises(StoreUnavailableError):
        await pair.store.fetch(pair.uaid, now_ms=pair.now_ms, after=row.sort_key, limit=9)
    pair.primary.down.add("fetch")
    with pytest.raises(StoreUnavailableError):
        await pair.store.fetch(pair.uaid, now_ms=pair.now_ms, after=None, limit=9)


# write_to_secondary


async def test_with_write_to_secondary_there_is_a_way_back() -> None:
    pair = Pair("&write_to_secondary=1")
    record = UserAgent(uaid=pair.uaid, connected_at_ms=pair.now_ms, node_id=NODE_A)
    channel_id = pair.channels[0]
    assert await pair.store.add_user_agent(record)
    assert await pair.store.add_channel(pair.uaid, channel_id, channels_max=9)
    rows = [
        topic_notification(channel_id, "t", accepted_at_ms=pair.now_ms),
        timed_notification(channel_id, accepted_at_ms=pair.now_ms),
    ]
    await pair.store.save(pair.uaid, rows[0])
    await pair.store.save_if_newer(pair.uaid, rows[1:])

    assert await pair.secondary.get_user_agent(pair.uaid) == record
    assert await fetch_all(pair.secondary, pair.uaid, now_ms=pair.now_ms) == rows
    assert await fetch_all(pair.store, pair.uaid, now_ms=pair.now_ms) == rows, "each once"


async def test_updates_take_the_way_back_too() -> None:
    pair = Pair("&write_to_secondary=1")
    await pair.with_old_record()
    await pair.store.get_user_agent(pair.uaid)
    update = Update(pair.channels[0], 7)
    assert (await pair.store.save_update(pair.uaid, update)).applied

    assert await pair.secondary.fetch_updates(pair.uaid, limit=9) == [update]
    assert await pair.store.forget_update(pair.uaid, update.channel_id, 7)
    assert not await pair.secondary.fetch_updates(pair.uaid, limit=9)


@pytest.mark.parametrize("taken_in", ["primary", "secondary"])
async def test_a_key_that_is_taken_in_one_of_them_is_taken(taken_in: str) -> None:
    """Written to both, or the way back would lose one of the two."""
    pair = Pair("&write_to_secondary=1")
    await pair.with_old_record()
    await pair.store.get_user_agent(pair.uaid)
    first, second = (
        timed_notification(pair.channels[0], accepted_at_ms=pair.now_ms) for _ in range(2)
    )
    assert first.sort_key == second.sort_key
    await getattr(pair, taken_in).save(pair.uaid, first)

    assert not await pair.store.save_new(pair.uaid, second)
    assert await fetch_all(pair.store, pair.uaid, now_ms=pair.now_ms) == [first]
    assert await pair.store.save_new(pair.uaid, first), "the same message is no other"
    for store in (pair.primary, pair.secondary):
        assert await fetch_all(store, pair.uaid, now_ms=pair.now_ms) == [first]


async def test_a_secondary_that_is_down_does_not_refuse_what_the_primary_took() -> None:
    pair = Pair("&write_to_secondary=1")
    await pair.with_old_record()
    await pair.store.get_user_agent(pair.uaid)
    row = timed_notification(pair.channels[0], accepted_at_ms=pair.now_ms)
    pair.secondary.down.add("*")
    await pair.store.save(pair.uaid, row)

    assert await fetch_all(pair.primary, pair.uaid, now_ms=pair.now_ms) == [row]
    assert pair.store.stats().errors == {"save": 1}


# Medians


async def test_who_is_not_allotted_stays_in_the_secondary() -> None:
    pair = Pair("&median=none")
    record = await pair.with_old_record()
    new = UserAgent(uaid=Uaid(new_uuid4()), connected_at_ms=pair.now_ms)

    assert await pair.store.get_user_agent(pair.uaid) == record
    assert await pair.store.add_user_agent(new)
    assert await pair.secondary.get_user_agent(new.uaid) == new
    assert await pair.primary.get_user_agent(new.uaid) is None
    assert await pair.primary.get_user_agent(pair.uaid) is None


async def test_who_was_moved_by_another_process_is_found_whatever_our_medians_say() -> None:
    pair = Pair("&median=none")
    await pair.with_old_record()
    await pair.node().get_user_agent(pair.uaid)
    added = ChannelId(new_uuid4())

    assert await pair.store.add_channel(pair.uaid, added, channels_max=9)
    assert added in await pair.primary.get_channels(pair.uaid)
    recipient = await pair.store.look_up(pair.uaid, added)
    assert recipient is not None
    assert recipient.subscribed
    row = timed_notification(added, accepted_at_ms=pair.now_ms)
    await pair.store.save(pair.uaid, row)
    assert await fetch_all(pair.node(), pair.uaid, now_ms=pair.now_ms) == [row]


@pytest.mark.parametrize("when", ["before", "after"])
async def test_what_is_written_while_another_process_moves_it_is_in_the_primary(when: str) -> None:
    pair = Pair("&median=none")
    await pair.with_old_record()
    other = pair.node()
    hooks: dict[str, Hook] = getattr(pair.secondary, when)
    added, update = new_channel(), Update(pair.channels[0], 9)

    hooks["add_channel"] = lambda: other.get_user_agent(pair.uaid)
    assert await pair.store.add_channel(pair.uaid, added, channels_max=9)
    assert added in await other.get_channels(pair.uaid)
    assert (await pair.store.save_update(pair.uaid, update)).applied
    assert list(await other.fetch_updates(pair.uaid, limit=9)) == [update]


async def test_a_claim_while_another_process_moves_it_is_in_the_primary() -> None:
    pair = Pair("&median=none")
    await pair.with_old_record()
    other = pair.node()
    pair.secondary.before["claim_route"] = lambda: other.get_user_agent(pair.uaid)
    claim = UserAgent(uaid=pair.uaid, connected_at_ms=pair.now_ms, node_id=NODE_B)

    assert await pair.store.claim_route(claim)
    assert await other.get_user_agent(pair.uaid) == claim


# The rest


async def test_the_route_is_cleared_where_the_user_agent_lives(pair: Pair) -> None:
    record = await pair.with_old_record()
    assert record.route is not None

    assert not await pair.store.clear_route(pair.uaid, Route(NODE_B, 1))
    assert await pair.store.clear_route(pair.uaid, record.route)
    found = await pair.store.get_user_agent(pair.uaid)
    assert found is not None
    assert found.node_id is None


async def test_an_update_that_was_acked_does_not_come_back(pair: Pair) -> None:
    await pair.with_old_record()
    update = Update(pair.channels[0], 3)
    await pair.secondary.save_update(pair.uaid, update)
    other = pair.node()
    pair.primary.before["save_update"] = lambda: other.forget_update(
        pair.uaid, update.channel_id, update.version
    )
    await pair.store.get_user_agent(pair.uaid)

    assert not await pair.store.fetch_updates(pair.uaid, limit=9)


async def test_an_update_that_was_acked_and_sent_again_is_not_lost(pair: Pair) -> None:
    await pair.with_old_record()
    update = Update(pair.channels[0], 3, accepted_at_ms=pair.now_ms)
    again = msgspec.structs.replace(update, accepted_at_ms=pair.now_ms + 5000)
    await pair.secondary.save_update(pair.uaid, update)

    async def ack_and_send_again() -> None:
        await pair.secondary.forget_update(pair.uaid, update.channel_id, update.version)
        await pair.secondary.save_update(pair.uaid, again)

    pair.primary.before["save_update"] = ack_and_send_again
    await pair.store.get_user_agent(pair.uaid)

    (waiting,) = await pair.store.fetch_updates(pair.uaid, limit=9)
    assert waiting.version == update.version


async def test_broadcasts_of_both_are_known(pair: Pair) -> None:
    await pair.secondary.publish_broadcast("a", "1")

    assert not await pair.store.publish_broadcast("a", "2")
    assert await pair.store.publish_broadcast("b", "1")
    assert await pair.store.get_broadcasts() == {"a": "2", "b": "1"}
    assert await pair.secondary.get_broadcasts() == {"a": "2", "b": "1"}


async def test_a_status_is_put_together(pair: Pair) -> None:
    message_id = new_message_id()

    def note(milestone: Milestone, at_ms: int) -> MilestoneNote:
        return MilestoneNote(message_id, bytes(32), milestone, at_ms, pair.now_ms + 5000)

    await pair.secondary.note_milestones([note(Milestone.RECEIVED, 1)])
    await pair.store.note_milestones([note(Milestone.STORED, 2)])
    status = await pair.store.get_status(message_id, now_ms=pair.now_ms)

    assert status is not None
    assert status.milestones == {"received": 1, "stored": 2}


async def test_a_store_without_months_has_nobody_behind(pair: Pair) -> None:
    assert await pair.store.switch_month(pair.uaid, connected_at_ms=1)
