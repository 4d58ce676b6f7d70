"""Handing back what a user agent did not ack: when its connection ends, and after a crash.

Store first, then tell: the node where the user agent is now looks in storage once more. A
store that is down or full is tried again until it takes them or we stop; until then the in-flight
journal keeps the notifications. A process that ends does not wait for a full store: whether one
that is down has taken something is not known, but one that is full has taken nothing.

With Autopush's three-part keys (`fresh_keys`) what has no topic is saved under a key of this
moment, as its nodes do: they read from a cursor on, which may have passed the old key, and somebody
else may have that key by now. Its id stays. A key is chosen once for all attempts, and moves on
only past one that is taken: an attempt that failed after its effect is repeated on the same row.

An observer is told as soon as everything is saved: what was handed back, and which messages a newer
one of their topic has replaced on this occasion.
"""

import asyncio
import contextlib
import random
from collections import defaultdict
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec

from waystation.base.clock import Clock
from waystation.base.errors import BusyError, StoreFullError, UnavailableError
from waystation.push.connect.journal import (
    Abandoned,
    JournalHeldError,
    owed_files,
    set_aside,
)
from waystation.push.connect.observer import Observer
from waystation.push.model import ChannelId, Notification, Replaced, Uaid, Update
from waystation.push.store import PushStore
from waystation.push.token import fresh_key, key_ms
from waystation.push.wire.relay import Relay

RETRY_FIRST_S = 0.5
RETRY_LAST_S = 5.0
KEYS_TRIED_MAX = 1000  # for one notification, in one attempt


class HandBack:
    """Saves what was not acked, at most `concurrency` user agents at a time."""

    def __init__(
        self,
        store: PushStore,
        relay: Relay,
        clock: Clock,
        *,
        concurrency: int,
        observer: Observer | None = None,
        fresh_keys: bool = False,
        jitter: Callable[[], float] = random.random,
    ) -> None:
        self._store = store
        self._relay = relay
        self._clock = clock
        self._observer = observer or Observer()
        self._turnstile = asyncio.Semaphore(concurrency)
        self._fresh_keys = fresh_keys
        self._jitter = jitter
        self.troubled = asyncio.Event()  # while the last attempt failed
        self._ending = asyncio.Event()

    def end(self) -> None:
        """From now on a full store is not tried again: the journal keeps what is owed."""
        self._ending.set()

    async def hand_back(
        self,
        uaid: Uaid,
        notifications: Sequence[Notification | Update],
        *,
        connected_at_ms: int | None,
    ) -> Sequence[Notification | Update]:
        """What could not be handed back before the end; usually nothing. `connected_at_ms` names
        the connection that ended; None tells whoever is there."""
        delay_s = RETRY_FIRST_S
        owed = list(notifications)
        if self._fresh_keys:
            self._renew_keys(owed)
        saved = False
        replaced: list[Replaced] = []
        while True:
            try:
                async with self._turnstile:
                    if not saved:
                        await self._save(uaid, owed, replaced)
                        saved = True  # once: from now on it may be acked, and must not come again
                        self._report(uaid, notifications, replaced)
                    await self._tell(uaid, connected_at_ms)
                self.troubled.clear()
                return ()
            except (UnavailableError, BusyError) as exc:
                self.troubled.set()
                self._observer.hand_back_failed(exc)
                if self._ending.is_set() and isinstance(exc, StoreFullError):
                    return owed
                await self._pause(delay_s * (0.5 + self._jitter()))
                delay_s = min(delay_s * 2, RETRY_LAST_S)

    async def _pause(self, pause_s: float) -> None:
        """Shorter for those who wait when the end comes: they try once more."""
        if self._ending.is_set():
            await asyncio.sleep(pause_s)
            return
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(pause_s):
                await self._ending.wait()

    def _report(
        self,
        uaid: Uaid,
        notifications: Sequence[Notification | Update],
        replaced: Sequence[Replaced],
    ) -> None:
        self._observer.handed_back(uaid, notifications)
        for each in replaced:
            self._observer.superseded(each)

    def _renew_keys(self, owed: list[Notification | Update]) -> None:
        """In their order; two of one channel in two milliseconds."""
        now_ms = self._clock.now_ms()
        taken: dict[ChannelId, int] = {}
        for place, notification in enumerate(owed):
            if isinstance(notification, Notification) and notification.topic is None:
                channel_id = notification.channel_id
                at_ms = taken[channel_id] = taken.get(channel_id, now_ms - 1) + 1
                owed[place] = msgspec.structs.replace(
                    notification, sort_key=fresh_key(channel_id, at_ms)
                )

    async def _save(
        self, uaid: Uaid, owed: list[Notification | Update], replaced: list[Replaced]
    ) -> None:
        now_ms = self._clock.now_ms()
        alive: list[Notification] = []
        for notification in owed:
            if isinstance(notification, Update):
                saved = await self._store.save_update(uaid, notification)
                if saved.replaced is not None:
                    replaced.append(saved.replaced)
            elif not notification.expired(now_ms):
                alive.append(notification)
        if not self._fresh_keys:
            if alive:
                replaced += (await self._store.save_if_newer(uaid, alive)).replaced
            return
        # What has been saved may be acked from then on, and a later attempt must not save it again.
        if topics := [row for row in alive if row.topic is not None]:
            replaced += (await self._store.save_if_newer(uaid, topics)).replaced
            owed[:] = [row for row in owed if row not in topics]
        others = [row for row in alive if row.topic is None]
        channels = await self._store.get_channels(uaid) if others else frozenset[ChannelId]()
        for notification in others:
            if notification.channel_id in channels:
                await self._save_new(uaid, notification)
            owed.remove(notification)

    async def _save_new(self, uaid: Uaid, notification: Notification) -> None:
        first_ms = key_ms(notification.sort_key)
        for at_ms in range(first_ms, first_ms + KEYS_TRIED_MAX):
            key = fresh_key(notification.channel_id, at_ms)
            row = msgspec.structs.replace(notification, sort_key=key)
            if await self._store.save_new(uaid, row):
                return
        raise UnavailableError("every sort key near this moment is taken")

    async def _tell(self, uaid: Uaid, connected_at_ms: int | None) -> None:
        user_agent = await self._store.get_user_agent(uaid)
        if user_agent is None or user_agent.node_id is None:
            return
        if user_agent.connected_at_ms != connected_at_ms:
            await self._relay.check_stored(user_agent.node_id, uaid)


async def replay(path: Path, hand_back: HandBack) -> int:
    """Hand back what the journals of dead workers at `path` still owe, the oldest first. How many;
    0 while the worker is alive."""
    try:
        set_aside(path)
    except JournalHeldError:
        return 0
    return sum([await _replay_one(owed, hand_back) for owed in owed_files(path)])


async def _replay_one(path: Path, hand_back: HandBack) -> int:
    try:
        abandoned = Abandoned(path)
    except (FileNotFoundError, JournalHeldError):
        return 0  # somebody else replays it, or has
    try:
        owed: dict[Uaid, list[Notification | Update]] = defaultdict(list)
        for entry in abandoned.unsettled():
            notification = entry.notification or entry.update
            assert notification is not None
            owed[Uaid(entry.uaid)].append(notification)
        for uaid, notifications in owed.items():
            if await hand_back.hand_back(uaid, notifications, connected_at_ms=None):
                return 0  # the store is full, and we end: the next of us begins anew
        abandoned.done()
        return sum(len(notifications) for notifications in owed.values())
    finally:
        abandoned.close()


async def replayed_or_troubled(replaying: "asyncio.Task[Any]", hand_back: HandBack) -> bool:
    """Whether the replay is over. A store that takes nothing now is not waited for: what is owed
    stays where it is, and the replay goes on."""
    troubled = asyncio.ensure_future(hand_back.troubled.wait())
    try:
        await asyncio.wait({replaying, troubled}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        troubled.cancel()
    return replaying.done()
