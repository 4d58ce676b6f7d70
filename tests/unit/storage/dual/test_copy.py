"""A whole store is copied while servers work on both: whatever comes between what, by seed."""

import asyncio
import inspect
import random
from collections.abc import AsyncIterator, Iterator, Sequence
from typing import Any

import msgspec

from tests.pipeline.server_actions import KnownState, ServerActions, differences
from waystation.base.clock import ManualClock
from waystation.push.model import ChannelId, Notification, Uaid, UserAgent
from waystation.push.store import PushStore
from waystation.storage.bulk import BulkStore
from waystation.storage.bulk_rows import Bounds, StoredNotification, UserAgentSnapshot
from waystation.storage.dual.copy import Copied, Copy
from waystation.storage.dual.push import DualPushStore
from waystation.storage.dual.url import parse_dual_url
from waystation.storage.memory.push import MemoryPushStore
from waystation.testing.conformance.push_samples import new_channel, topic_notification

SEEDS = 52
SEEDS_BESIDE = 20
AGENTS = 6
TURNS_MIN = 40
PAGE = 3


class UnevenStore(MemoryPushStore):
    """Answers after as many turns of the loop as chance wants, before and after the work."""

    def __init__(self, clock: ManualClock, rng: random.Random) -> None:
        super().__init__(clock)
        self._rng = rng

    def __getattribute__(self, name: str) -> Any:
        found = super().__getattribute__(name)
        if name.startswith("_") or not inspect.iscoroutinefunction(found):
            return found

        async def call(*args: Any, **kwargs: Any) -> Any:
            await turns(self._rng)
            result = await found(*args, **kwargs)
            await turns(self._rng)
            return result

        return call


async def turns(rng: random.Random) -> None:
    for _ in range(rng.choice((0, 0, 1, 2, 5))):
        await asyncio.sleep(0)


class MemoryBulk(BulkStore):
    """A memory store as jobs read one: what a page holds may be old when it is written."""

    def __init__(self, store: MemoryPushStore, rng: random.Random) -> None:
        self._store = store
        self._rng = rng

    async def user_agents(
        self, part: bytes, bounds: Bounds, *, whole: bool
    ) -> AsyncIterator[Sequence[UserAgentSnapshot]]:
        least, _ = bounds.get("connected_at_ms", (None, None))
        for uaids in pages(list(self._store._agents)):
            found = [one for uaid in uaids if (one := self._user_agent(uaid)) is not None]
            await turns(self._rng)
            yield [one for one in found if one.record.connected_at_ms >= (least or 0)]

    async def notifications(
        self, part: bytes, bounds: Bounds, *, whole: bool
    ) -> AsyncIterator[Sequence[StoredNotification]]:
        for uaids in pages(list(self._store._notifications)):
            rows = [
                (uaid, row)
                for uaid in uaids
                for row in self._store._notifications.get(uaid, {}).values()
            ]
            await turns(self._rng)
            yield rows

    async def read_user_agents(self, uaids: Sequence[Uaid]) -> Sequence[UserAgentSnapshot]:
        await turns(self._rng)
        return [one for uaid in uaids if (one := self._user_agent(uaid)) is not None]

    def _user_agent(self, uaid: Uaid) -> UserAgentSnapshot | None:
        agent = self._store._agents.get(uaid)
        if agent is None:
            return None
        return UserAgentSnapshot(record=agent.record, channels=frozenset(agent.channels))


def pages(uaids: list[Uaid]) -> Iterator[list[Uaid]]:
    for at in range(0, len(uaids), PAGE):
        yield uaids[at : at + PAGE]


class World:
    """Two stores, servers on both of them, and a copy, all on one loop."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.clock = ManualClock()
        self.source = UnevenStore(self.clock, self.rng)
        self.target = UnevenStore(self.clock, self.rng)
        self.url = parse_dual_url("dual:?primary=memory:&secondary=memory:&tombstones=1")
        self.acts = ServerActions(self.rng, self.clock.now_ms)
        self.copied: list[Copied] = []
        self.ended = False

    async def main(self, *, posts_beside: bool = False) -> None:
        uaids = [await self._of_before() for _ in range(AGENTS)]
        began_ms = self.clock.now_ms()
        async with asyncio.TaskGroup() as group:
            for at in range(2):
                group.create_task(self._work(uaids[at::2]))
                if posts_beside:
                    group.create_task(self._post(uaids[at::2]))
            await self._copy(0)
            await self._copy(began_ms)
            self.ended = True

    async def _of_before(self) -> Uaid:
        uaid = Uaid(self.rng.randbytes(16))
        route = self.rng.choice((None, "http://10.0.0.1:8081"))
        record = UserAgent(uaid=uaid, connected_at_ms=self.clock.now_ms() - 5000, node_id=route)
        known = self.acts.known[uaid] = KnownState(set(), {}, set())
        assert await self.source.add_user_agent(record)
        for _ in range(self.rng.randrange(1, 4)):
            await self.acts.subscribe(self.source, uaid, known)
            await self.acts.post(self.source, uaid, known)
        return uaid

    async def _work(self, uaids: list[Uaid]) -> None:
        store = DualPushStore(self.target, self.source, self.url, self.clock)
        async for _ in self._turns():
            if self.rng.random() < 0.03:
                uaids.append(await self.acts.arrive(store))
            uaid = self.rng.choice(uaids)
            if not self.acts.known[uaid].removed:
                await self.acts.one(store, uaid)

    async def _post(self, uaids: list[Uaid]) -> None:
        """Another node, which only posts."""
        store = DualPushStore(self.target, self.source, self.url, self.clock)
        async for _ in self._turns():
            uaid = self.rng.choice(uaids)
            known = self.acts.known[uaid]
            if not known.leaves:
                await self.acts.post(store, uaid, known, "warm")

    async def _turns(self) -> AsyncIterator[int]:
        """As many as there are until the copy has ended, and forty at least."""
        number = 0
        while number < TURNS_MIN or not self.ended:
            number += 1
            self.clock.advance(0.001)
            yield number
            await turns(self.rng)

    async def _copy(self, since_ms: int) -> None:
        bulk = MemoryBulk(self.source, self.rng)
        copy = Copy(bulk, self.target, bulk, self.clock)
        for pages_ in (copy.records(b"", since_ms), copy.notifications(b"", since_ms)):
            self.copied += [page async for page in pages_]

    def left(self) -> list[tuple[Uaid, Notification]]:
        """Rows that the source alone has, of user agents that it knows."""
        return [
            (uaid, row)
            for uaid, rows in self.source._notifications.items()
            for row in rows.values()
            if uaid in self.source._agents
            and row.sort_key not in self.target._notifications.get(uaid, {})
        ]

    def missing(self) -> list[tuple[Uaid, Notification]]:
        """As `verify` tells them: without what nobody can fetch."""
        agents = self.target._agents
        return [
            (uaid, row)
            for uaid, row in self.left()
            if uaid not in agents or row.channel_id in agents[uaid].channels
        ]

    def check_that_nothing_was_lost(self) -> None:
        assert self.acts.again == []
        assert sum(page.refused for page in self.copied) == 0
        assert asyncio.run(differences(self.target, self.acts.known, self.clock.now_ms())) == []
        assert self.missing() == []


def test_nothing_is_lost_and_nothing_comes_again_while_servers_work() -> None:
    """Seeds 36, 46 and 51 left a topic in the source whose subscription was gone."""
    for seed in range(SEEDS):
        world = World(seed)
        asyncio.run(world.main())

        world.check_that_nothing_was_lost()
        assert world.left() == [], f"seed {seed}"


def test_nothing_is_lost_while_another_node_posts_to_who_acks_and_unsubscribes() -> None:
    """A topic that is posted while its subscription goes may be left, where nobody fetches it."""
    for seed in range(SEEDS_BESIDE):
        world = World(seed)
        asyncio.run(world.main(posts_beside=True))

        world.check_that_nothing_was_lost()


class Replaceable:
    """A user agent that has moved, with a topic waiting in the secondary."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.primary = MemoryPushStore(self.clock)
        self.secondary = MemoryPushStore(self.clock)
        url = parse_dual_url("dual:?primary=memory:&secondary=memory:&tombstones=1")
        self.store = DualPushStore(self.primary, self.secondary, url, self.clock)
        self.uaid = Uaid(bytes(16))
        self.channel = new_channel()
        self.old = self.topic(self.channel, -500)

    def topic(self, channel: ChannelId, at_ms: int) -> Notification:
        return topic_notification(channel, "t", accepted_at_ms=self.clock.now_ms() + at_ms)

    async def set_up(self) -> None:
        record = UserAgent(uaid=self.uaid, connected_at_ms=self.clock.now_ms() - 1000)
        assert await self.secondary.add_user_agent(record)
        assert await self.secondary.add_channel(self.uaid, self.channel, channels_max=9)
        await self.secondary.save(self.uaid, self.old)


async def test_a_topic_replaces_what_waits_in_the_secondary_and_says_so() -> None:
    pair = Replaceable()
    await pair.set_up()
    first, second = pair.topic(pair.channel, 0), pair.topic(pair.channel, 1)

    replaced = await pair.store.save(pair.uaid, first)
    assert replaced is not None
    assert replaced.message_id == pair.old.message_id
    replaced = await pair.store.save(pair.uaid, second)
    assert replaced is not None
    assert replaced.message_id == first.message_id
    assert await pair.store.forget(pair.uaid, [(second.sort_key, second.message_id)]) == 1
    assert await pair.store.save(pair.uaid, pair.topic(pair.channel, 2)) is None  # a tombstone


async def test_a_topic_of_a_newer_subscription_is_the_primarys_alone() -> None:
    """In the secondary it would stay when the subscription goes, and be copied or missed."""
    pair = Replaceable()
    await pair.set_up()
    newer = new_channel()
    assert await pair.store.add_channel(pair.uaid, newer, channels_max=9)

    await pair.store.save(pair.uaid, pair.topic(newer, 0))
    assert await pair.store.remove_channel(pair.uaid, newer)

    left = [*pair.secondary._notifications[pair.uaid].values()]
    assert left == [pair.old]
    assert pair.uaid not in pair.primary._notifications


async def test_who_is_removed_while_its_copy_ends_stays_removed() -> None:
    """A claim where there is no record makes one; seed 1862 found it."""
    pair = Replaceable()
    await pair.set_up()
    record = await pair.secondary.get_user_agent(pair.uaid)
    assert record is not None
    connected = msgspec.structs.replace(
        record, node_id="http://10.0.0.1:8081", connected_at_ms=record.connected_at_ms + 1
    )
    assert await pair.secondary.claim_route(connected)
    bulk = MemoryBulk(pair.secondary, random.Random(1))

    class Late(MemoryBulk):
        async def set_routes(
            self, store: PushStore, begun: Sequence[UserAgent], records: Sequence[UserAgent]
        ) -> None:
            assert await pair.store.remove_user_agent(pair.uaid)
            await super().set_routes(store, begun, records)

    copy = Copy(bulk, pair.primary, Late(pair.primary, random.Random(1)), pair.clock)
    (copied,) = [page async for page in copy.records(b"", 0)]

    assert (copied.read, copied.written, copied.gone) == (1, 0, 1)
    assert await pair.primary.get_user_agent(pair.uaid) is None
    assert await pair.store.get_user_agent(pair.uaid) is None
