"""Servers at work on a store, as a thread, and what they know for certain: plain Python.

A user agent belongs to one of a few tasks, which does one thing after the other with it; so what
must be true of it is always known.
"""

import asyncio
import random
import threading
import time
from pathlib import Path

import msgspec

from tests.pipeline.crowd import Crowd
from tests.pipeline.places import PATIENT
from waystation.base.clock import SystemClock
from waystation.base.ids import dashed
from waystation.push.model import ChannelId, MessageId, Notification, SortKey, Uaid
from waystation.push.store import PushStore
from waystation.storage.open import open_push_store

TASKS = 4
PAUSE_S = 0.02


class Known(msgspec.Struct):
    """What is true of one user agent."""

    channels: set[ChannelId]
    waiting: dict[MessageId, tuple[ChannelId, SortKey]]
    acked: set[MessageId]
    removed: bool = False


class Load(threading.Thread):
    """Until `stop`; `again` are notifications that came after their ack."""

    def __init__(self, url: str, folder: Path, crowd: Crowd, active: int, seed: int) -> None:
        super().__init__(daemon=True)
        self._url = url
        self._folder = folder
        self._active = active
        self._stopped = threading.Event()
        self._rng = random.Random(seed)
        self.begun = threading.Event()
        self.known: dict[Uaid, Known] = {}
        self.done: dict[str, int] = {}
        self.again: list[MessageId] = []
        self.failure: BaseException | None = None
        for number in range(crowd.size):
            member = crowd.member(number)
            own = set(member.channels)
            waiting = {
                one.message_id: (one.channel_id, one.sort_key)
                for one in member.messages
                if one.channel_id in own
            }
            self.known[member.record.uaid] = Known(own, waiting, set())

    def stop(self) -> None:
        self._stopped.set()
        self.join(120)
        assert not self.is_alive(), "the load does not end"
        if self.failure is not None:
            raise self.failure

    def run(self) -> None:
        try:
            asyncio.run(self._run())
        except BaseException as exc:
            self.failure = exc
        finally:
            self.begun.set()

    async def _run(self) -> None:
        store = await open_push_store(
            self._url, data_dir=self._folder, settings=PATIENT, clock=SystemClock()
        )
        uaids = list(self.known)[: self._active]
        try:
            async with asyncio.TaskGroup() as group:
                for task in range(TASKS):
                    group.create_task(self._work(store, uaids[task::TASKS]))
        finally:
            await store.close()

    async def _work(self, store: PushStore, uaids: list[Uaid]) -> None:
        acts = [self._post] * 6 + [self._connect] * 5 + [self._subscribe, self._unsubscribe]
        acts += [self._leave] if self._rng.random() < 0.5 else []
        while not self._stopped.is_set():
            uaid = self._rng.choice(uaids)
            known = self.known[uaid]
            if known.removed:
                await asyncio.sleep(0)
                continue
            act = self._rng.choice(acts)
            await act(store, uaid, known)
            name = act.__name__.strip("_")
            self.done[name] = self.done.get(name, 0) + 1
            self.begun.set()
            await asyncio.sleep(PAUSE_S)  # a load, not a flood: others share the machine

    async def _post(self, store: PushStore, uaid: Uaid, known: Known) -> None:
        if not known.channels:
            return
        channel = self._rng.choice(sorted(known.channels))
        recipient = await store.look_up(uaid, channel)
        assert recipient is not None, "a user agent is not found"
        assert recipient.subscribed, "a subscription is not found"
        now_ms = int(time.time() * 1000)
        message_id = MessageId(f"gAAA-load-{self._rng.getrandbits(64):016x}")
        topic = "hot" if self._rng.random() < 0.2 else None
        key = f"01:{dashed(channel)}:{topic}" if topic else f"02:{now_ms}:{dashed(channel)}"
        key += "" if topic else f":{self._rng.getrandbits(32):08x}"
        sort_key = SortKey(key)
        note = Notification(channel, message_id, sort_key, now_ms, 86_400, topic=topic, data="AA")
        await store.save(uaid, note)
        if topic:
            for other, (_, other_key) in list(known.waiting.items()):
                if other_key == sort_key:
                    del known.waiting[other]
        known.waiting[message_id] = (channel, sort_key)

    async def _connect(self, store: PushStore, uaid: Uaid, known: Known) -> None:
        held = await store.get_user_agent(uaid)
        assert held is not None, "a user agent is not found"
        now_ms = max(int(time.time() * 1000), held.connected_at_ms + 1)
        claim = msgspec.structs.replace(held, connected_at_ms=now_ms, node_id="http://10.9.9.9:1")
        assert await store.claim_route(claim), "a route cannot be claimed"
        after: SortKey | None = None
        seen: list[Notification] = []
        while rows := await store.fetch(uaid, now_ms=now_ms, after=after, limit=10):
            seen += rows
            after = rows[-1].sort_key
        ids = {row.message_id for row in seen}
        self.again += [one for one in ids if one in known.acked]
        assert known.waiting.keys() <= ids, "a notification is not delivered"
        acked = [row for row in seen if self._rng.random() < 0.7]
        await store.forget(uaid, [(row.sort_key, row.message_id) for row in acked])
        for row in acked:
            known.acked.add(row.message_id)
            known.waiting.pop(row.message_id, None)

    async def _subscribe(self, store: PushStore, uaid: Uaid, known: Known) -> None:
        channel = ChannelId(self._rng.randbytes(16))
        assert await store.add_channel(uaid, channel, channels_max=1000)
        known.channels.add(channel)

    async def _unsubscribe(self, store: PushStore, uaid: Uaid, known: Known) -> None:
        if len(known.channels) < 2:
            return
        channel = self._rng.choice(sorted(known.channels))
        assert await store.remove_channel(uaid, channel)
        known.channels.discard(channel)
        known.waiting = {one: at for one, at in known.waiting.items() if at[0] != channel}

    async def _leave(self, store: PushStore, uaid: Uaid, known: Known) -> None:
        if self._rng.random() < 0.8:
            return
        assert await store.remove_user_agent(uaid)
        known.removed = True
        known.waiting.clear()


async def differences(store: PushStore, known: dict[Uaid, Known]) -> list[str]:
    """What a store has otherwise than it must be."""
    wrong: list[str] = []
    uaids = list(known)
    for at in range(0, len(uaids), 50):
        found = await asyncio.gather(
            *(_difference(store, uaid, known[uaid]) for uaid in uaids[at : at + 50])
        )
        wrong += [one for ones in found for one in ones]
    return wrong


async def _difference(store: PushStore, uaid: Uaid, known: Known) -> list[str]:
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
    now_ms = int(time.time() * 1000)
    ids: set[MessageId] = set()
    after: SortKey | None = None
    while rows := await store.fetch(uaid, now_ms=now_ms, after=after, limit=100):
        ids |= {row.message_id for row in rows if not row.message_id.startswith("~")}
        after = rows[-1].sort_key
    if ids != known.waiting.keys():
        lost, more = known.waiting.keys() - ids, ids - known.waiting.keys()
        wrong.append(f"notifications: lost {sorted(lost)}, too many {sorted(more)}")
    return wrong
