"""What servers do with user agents, and what they know for certain of them: plain Python.

A user agent belongs to one task, which does one thing after the other with it, and to one other at
most, which posts to it, with a topic of its own; so what must be true of it is always known.
"""

import asyncio
import random
from collections.abc import Callable, Mapping

import msgspec

from waystation.base.ids import dashed
from waystation.push.model import ChannelId, MessageId, Notification, SortKey, Uaid, UserAgent
from waystation.push.store import PushStore

NODE = "http://10.9.9.9:1"


class KnownState(msgspec.Struct):
    """What is true of one user agent."""

    channels: set[ChannelId]
    waiting: dict[MessageId, tuple[ChannelId, SortKey]]
    acked: set[MessageId]
    going: ChannelId | None = None  # is being removed
    leaves: bool = False
    removed: bool = False

    def may_lack(self, channel: ChannelId) -> bool:
        """Whether somebody may find it gone."""
        return self.leaves or channel == self.going or channel not in self.channels


class ServerActions:
    """`again` are notifications that came after their ack."""

    def __init__(self, rng: random.Random, now_ms: Callable[[], int]) -> None:
        self._rng = rng
        self._now_ms = now_ms
        self.known: dict[Uaid, KnownState] = {}
        self.done: dict[str, int] = {}
        self.again: list[MessageId] = []

    async def one(self, store: PushStore, uaid: Uaid) -> None:
        """Anything that may happen to a user agent that is there."""
        acts = [self.post] * 6 + [self._connect] * 5 + [self.subscribe, self._unsubscribe]
        act = self._rng.choice([*acts, self._leave])
        await act(store, uaid, self.known[uaid])
        name = act.__name__.strip("_")
        self.done[name] = self.done.get(name, 0) + 1

    async def arrive(self, store: PushStore) -> Uaid:
        """A user agent that nobody has seen before."""
        uaid = Uaid(self._rng.randbytes(16))
        record = UserAgent(uaid=uaid, connected_at_ms=self._now_ms(), node_id=NODE)
        assert await store.add_user_agent(record), "a new user agent is not new"
        self.known[uaid] = KnownState(set(), {}, set())
        await self.subscribe(store, uaid, self.known[uaid])
        return uaid

    async def post(self, store: PushStore, uaid: Uaid, known: KnownState, hot: str = "hot") -> None:
        if not known.channels:
            return
        channel = self._rng.choice(sorted(known.channels))
        recipient = await store.look_up(uaid, channel)
        if recipient is None or not recipient.subscribed:
            assert known.may_lack(channel), "a user agent or a subscription is not found"
            return
        now_ms = self._now_ms()
        message_id = MessageId(f"gAAA-load-{self._rng.getrandbits(64):016x}")
        topic = hot if self._rng.random() < 0.2 else None
        key = f"01:{dashed(channel)}:{topic}" if topic else f"02:{now_ms}:{dashed(channel)}"
        key += "" if topic else f":{self._rng.getrandbits(32):08x}"
        sort_key = SortKey(key)
        note = Notification(channel, message_id, sort_key, now_ms, 86_400, topic=topic, data="AA")
        for other, (_, other_key) in list(known.waiting.items()):
            if other_key == sort_key:
                del known.waiting[other]  # from now on it may be replaced
        await store.save(uaid, note)
        if channel in known.channels and not known.removed and message_id not in known.acked:
            known.waiting[message_id] = (channel, sort_key)

    async def _connect(self, store: PushStore, uaid: Uaid, known: KnownState) -> None:
        held = await store.get_user_agent(uaid)
        assert held is not None, "a user agent is not found"
        now_ms = max(self._now_ms(), held.connected_at_ms + 1)
        claim = msgspec.structs.replace(held, connected_at_ms=now_ms, node_id=NODE)
        assert await store.claim_route(claim), "a route cannot be claimed"
        after: SortKey | None = None
        seen: list[Notification] = []
        waiting = set(known.waiting)
        while rows := await store.fetch(uaid, now_ms=now_ms, after=after, limit=10):
            seen += rows
            after = rows[-1].sort_key
        ids = {row.message_id for row in seen}
        self.again += [one for one in ids if one in known.acked]
        assert waiting & known.waiting.keys() <= ids, "a notification is not delivered"
        acked = [row for row in seen if self._rng.random() < 0.7]
        await store.forget(uaid, [(row.sort_key, row.message_id) for row in acked])
        for row in acked:
            known.acked.add(row.message_id)
            known.waiting.pop(row.message_id, None)

    async def subscribe(self, store: PushStore, uaid: Uaid, known: KnownState) -> None:
        channel = ChannelId(self._rng.randbytes(16))
        assert await store.add_channel(uaid, channel, channels_max=1000)
        known.channels.add(channel)

    async def _unsubscribe(self, store: PushStore, uaid: Uaid, known: KnownState) -> None:
        if len(known.channels) < 2:
            return
        channel = self._rng.choice(sorted(known.channels))
        known.going = channel
        assert await store.remove_channel(uaid, channel)
        known.channels.discard(channel)
        known.waiting = {one: at for one, at in known.waiting.items() if at[0] != channel}

    async def _leave(self, store: PushStore, uaid: Uaid, known: KnownState) -> None:
        if self._rng.random() < 0.9:
            return
        known.leaves = True
        assert await store.remove_user_agent(uaid)
        known.removed = True
        known.waiting.clear()


async def differences(store: PushStore, known: Mapping[Uaid, KnownState], now_ms: int) -> list[str]:
    """What a store has otherwise than it must be."""
    wrong: list[str] = []
    uaids = list(known)
    for at in range(0, len(uaids), 50):
        found = await asyncio.gather(
            *(_difference(store, uaid, known[uaid], now_ms) for uaid in uaids[at : at + 50])
        )
        wrong += [one for ones in found for one in ones]
    return wrong


async def _difference(store: PushStore, uaid: Uaid, known: KnownState, now_ms: int) -> list[str]:
    held = await store.get_user_agent(uaid)
    if known.removed:
        return [] if held is None else ["one that was removed is there"]
    if held is None:
        return ["a user agent is lost"]
    wrong: list[str] = []
    channels = await store.get_channels(uaid)
    if channels != known.channels:
        lost, more = known.channels - channels, channels - known.channels
        wrong.append(f"subscriptions: {len(lost)} lost, {len(more)} too many")
    ids: set[MessageId] = set()
    after: SortKey | None = None
    while rows := await store.fetch(uaid, now_ms=now_ms, after=after, limit=100):
        ids |= {row.message_id for row in rows if not row.message_id.startswith("~")}
        after = rows[-1].sort_key
    if ids != known.waiting.keys():
        lost, more = known.waiting.keys() - ids, ids - known.waiting.keys()
        wrong.append(f"notifications: lost {sorted(lost)}, too many {sorted(more)}")
    return wrong
