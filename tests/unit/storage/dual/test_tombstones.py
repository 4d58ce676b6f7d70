"""Tombstones: what was acked while it is copied does not come again."""

import asyncio
from collections.abc import Awaitable, Callable

import msgspec

from waystation.base.clock import ManualClock
from waystation.push.model import MessageId, Notification, Uaid, UserAgent
from waystation.storage.dual.copy import FRESH_S
from waystation.storage.dual.push import DualPushStore
from waystation.storage.dual.tombstones import KEPT_S
from waystation.storage.dual.url import parse_dual_url
from waystation.storage.memory.push import MemoryPushStore
from waystation.testing.conformance.push_samples import (
    new_channel,
    timed_notification,
    topic_notification,
)

NOW_MS = 1_794_000_000_000
UAID = Uaid(bytes(range(16)))
CHANNEL = new_channel()


class Pair:
    """A user agent that has moved, with one notification left in the secondary."""

    def __init__(self, waiting: Notification) -> None:
        self.clock = ManualClock(now_ms=NOW_MS)
        self.primary = MemoryPushStore(self.clock)
        self.secondary = MemoryPushStore(self.clock)
        url = parse_dual_url("dual:?primary=memory:&secondary=memory:&tombstones=1")
        self.store = DualPushStore(self.primary, self.secondary, url, self.clock)
        self.waiting = waiting

    async def set_up(self) -> None:
        record = UserAgent(uaid=UAID, connected_at_ms=NOW_MS - 1000)
        assert await self.secondary.add_user_agent(record)
        assert await self.secondary.add_channel(UAID, CHANNEL, channels_max=10)
        await self.secondary.save(UAID, self.waiting)
        assert await self.store.get_user_agent(UAID) is not None

    async def fetched(self) -> list[MessageId]:
        now_ms = self.clock.now_ms()
        rows = await self.store.fetch(UAID, now_ms=now_ms, after=None, limit=1)
        found: list[MessageId] = []
        while rows:
            found += [row.message_id for row in rows]
            after = rows[-1].sort_key
            rows = await self.store.fetch(UAID, now_ms=now_ms, after=after, limit=1)
        return found

    async def ack(self, row: Notification) -> int:
        return await self.store.forget(UAID, [(row.sort_key, row.message_id)])


def run(waiting: Notification, scene: Callable[[Pair], Awaitable[None]]) -> None:
    async def play() -> None:
        pair = Pair(waiting)
        await pair.set_up()
        await scene(pair)

    asyncio.run(play())


def test_a_copy_that_comes_after_the_ack_is_refused() -> None:
    old = timed_notification(CHANNEL, accepted_at_ms=NOW_MS - 500)

    async def scene(pair: Pair) -> None:
        assert await pair.fetched() == [old.message_id]
        assert await pair.ack(old) == 1

        assert not await pair.primary.save_new(UAID, old)
        assert await pair.fetched() == []

    run(old, scene)


def test_a_copy_that_came_before_the_ack_is_removed_by_it() -> None:
    old = timed_notification(CHANNEL, accepted_at_ms=NOW_MS - 500)

    async def scene(pair: Pair) -> None:
        assert await pair.primary.save_new(UAID, old)
        assert await pair.fetched() == [old.message_id]
        assert await pair.ack(old) == 1

        assert not await pair.primary.save_new(UAID, old)
        assert await pair.fetched() == []

    run(old, scene)


def test_others_are_delivered_behind_a_tombstone() -> None:
    old = timed_notification(CHANNEL, accepted_at_ms=NOW_MS - 500)
    later = timed_notification(CHANNEL, accepted_at_ms=NOW_MS - 400)

    async def scene(pair: Pair) -> None:
        await pair.store.save(UAID, later)
        assert await pair.ack(old) == 1

        assert await pair.fetched() == [later.message_id]
        assert await pair.ack(later) == 1  # it was the primary's alone: no tombstone for it
        assert await pair.primary.save_new(UAID, later)

    run(old, scene)


def test_a_topic_that_is_handed_back_takes_the_place_of_a_tombstone() -> None:
    """Its predecessor was acked after it had been accepted; nothing may be lost by that."""
    old = topic_notification(CHANNEL, "t", accepted_at_ms=NOW_MS - 500)
    new = topic_notification(CHANNEL, "t", accepted_at_ms=NOW_MS - 400)

    async def scene(pair: Pair) -> None:
        assert await pair.ack(old) == 1
        assert (await pair.store.save_if_newer(UAID, [new])).written == 1

        assert await pair.fetched() == [new.message_id]

    run(old, scene)


def test_a_tombstone_outlives_every_copy_and_goes_by_itself() -> None:
    old = timed_notification(CHANNEL, accepted_at_ms=NOW_MS - 500)
    assert KEPT_S > 2 * FRESH_S

    async def scene(pair: Pair) -> None:
        assert await pair.ack(old) == 1
        pair.clock.advance(KEPT_S - 1)
        assert len(await pair.primary.fetch(UAID, now_ms=pair.clock.now_ms(), after=None, limit=9))
        pair.clock.advance(2)

        assert not await pair.primary.fetch(UAID, now_ms=pair.clock.now_ms(), after=None, limit=9)

    run(msgspec.structs.replace(old), scene)
