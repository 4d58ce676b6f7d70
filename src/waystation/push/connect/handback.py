"""Handing back what a user agent did not ack: when its connection ends, and after a crash.

Store first, then tell: the node where the user agent is now looks in storage once more. A
store that is down is tried again until it answers or we stop; until then the in-flight
journal keeps the notifications.

With Autopush's three-part keys (`fresh_keys`) what has no topic is saved under a key of this
moment, as its nodes do: they read from a cursor on, which may have passed the old key, and somebody
else may have that key by now. Its id stays. A key is chosen once for all attempts, and moves on
only past one that is taken: an attempt that failed after its effect is repeated on the same row.

An observer is told as soon as everything is saved: what was handed back, and which messages a newer
one of their topic has replaced on this occasion.
"""

import asyncio
import random
from collections import defaultdict
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec

from waystation.base.clock import Clock
from waystation.base.errors import BusyError, UnavailableError
from waystation.push.connect.journal import Abandoned, JournalHeldError
from waystation.push.connect.observer import Observer
from waystation.push.model import ChannelId, Notification, Replaced, Uaid, Update
from waystation.push.store import PushStore
from waystation.push.token import fresh_key, key_ms
from waystation.push.wire.relay import Relay

RETRY_FIRST_S = 0.5
RETRY_LAST_S = 30.0
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

    async def hand_back(
        self,
        uaid: Uaid,
        notifications: Sequence[Notification | Update],
        *,
        connected_at_ms: int | None,
    ) -> None:
        """`connected_at_ms` names the connection that ended; None tells whoever is there."""
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
                return
            except (UnavailableError, BusyError):
                await asyncio.sleep(delay_s * (0.5 + self._jitter()))
                delay_s = min(delay_s * 2, RETRY_LAST_S)

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
                await self._store.save_update(uaid, notification)
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


async def replay(path: Path, hand_back: HandBack, *, remove: bool = False) -> int:
    """Hand back what the journal of a dead worker still owes. How many; 0 if it is alive.

    `remove`: nobody will use this journal again."""
    try:
        abandoned = Abandoned(path)
    except JournalHeldError:
        return 0
    try:
        owed: dict[Uaid, list[Notification | Update]] = defaultdict(list)
        for entry in abandoned.unsettled():
            notification = entry.notification or entry.update
            assert notification is not None
            owed[Uaid(entry.uaid)].append(notification)
        for uaid, notifications in owed.items():
            await hand_back.hand_back(uaid, notifications, connected_at_ms=None)
        abandoned.done()
        if remove:
            abandoned.remove()
        return sum(len(notifications) for notifications in owed.values())
    finally:
        abandoned.close()
