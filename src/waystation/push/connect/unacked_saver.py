"""Saves unacked notifications to the store when a connection ends, and after a crash.

The saver stores first, then tells the node where the user agent is now to check storage. If the
store is down or full it retries until the store accepts or the process stops; meanwhile the
in-flight journal keeps the notifications. A stopping process does not wait for a full store, which
has written nothing. It does wait for a store that is down, because that may have written.

With Autopush's three-part keys (`fresh_keys`), a notification without topic is saved under a key of
the current time, as Autopush's nodes do: their read cursor may have passed the old key, and another
message may use it by now. The message id stays. The key is chosen once for all attempts and only
moves past keys in use, so an attempt that failed after writing is repeated on the same row.

The observer is told once everything is saved, with the messages that were replaced by newer ones of
their topic.
"""

import asyncio
import contextlib
import random
from collections.abc import Callable, Sequence

import msgspec

from waystation.base.clock import Clock
from waystation.base.errors import BusyError, StoreFullError, UnavailableError
from waystation.push.model import ChannelId, Notification, Replaced, Uaid, Update
from waystation.push.store import PushStore
from waystation.push.token import fresh_key, key_ms
from waystation.push.wire.relay import Relay

from .observer import Observer

RETRY_FIRST_S = 0.5
RETRY_LAST_S = 5.0
KEYS_TRIED_MAX = 1000  # for one notification, in one attempt


class UnackedSaver:
    """Saves unacked notifications of at most `concurrency` user agents at a time."""

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
        self._slots = asyncio.Semaphore(concurrency)
        self._fresh_keys = fresh_keys
        self._jitter = jitter
        self.troubled = asyncio.Event()  # while the last attempt failed
        self._ending = asyncio.Event()

    def end(self) -> None:
        """The process stops: do not retry a full store, the journal keeps its notifications."""
        self._ending.set()

    async def save(
        self,
        uaid: Uaid,
        notifications: Sequence[Notification | Update],
        *,
        connected_at_ms: int | None,
    ) -> Sequence[Notification | Update]:
        """Save them and tell the user agent's node. Returns what could not be saved before the
        process stops; usually nothing. `connected_at_ms` is that of the ended connection; None
        tells any connection of the user agent."""
        delay_s = RETRY_FIRST_S
        owed = list(notifications)
        if self._fresh_keys:
            self._renew_keys(owed)
        saved = False
        replaced: list[Replaced] = []
        while True:
            try:
                async with self._slots:
                    if not saved:
                        await self._save(uaid, owed, replaced)
                        saved = True  # never twice: saved rows may be acked from now on
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
        """Sleep; cut short when the process stops, for one last attempt."""
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
        """Give each a key of the current time in order; one millisecond per row of a channel."""
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
        # Saved rows may be acked at once, so a later attempt must not save them again.
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
        raise UnavailableError(f"the next {KEYS_TRIED_MAX} sort keys are in use")

    async def _tell(self, uaid: Uaid, connected_at_ms: int | None) -> None:
        user_agent = await self._store.get_user_agent(uaid)
        if user_agent is None or user_agent.node_id is None:
            return
        if user_agent.connected_at_ms != connected_at_ms:
            await self._relay.check_stored(user_agent.node_id, uaid)
