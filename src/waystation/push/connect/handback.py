"""Handing back what a user agent did not ack: when its connection ends, and after a crash.

Store first, then tell: the node where the user agent is now looks in storage once more. A
store that is down is tried again until it answers or we stop; until then the in-flight
journal keeps the notifications.
"""

import asyncio
import random
from collections import defaultdict
from collections.abc import Callable, Sequence
from pathlib import Path

from waystation.base.clock import Clock
from waystation.base.errors import BusyError, UnavailableError
from waystation.push.connect.journal import Abandoned, JournalHeldError
from waystation.push.model import Notification, Uaid, Update
from waystation.push.store import PushStore
from waystation.push.wire.relay import Relay

RETRY_FIRST_S = 0.5
RETRY_LAST_S = 30.0


class HandBack:
    """Saves what was not acked, at most `concurrency` user agents at a time."""

    def __init__(
        self,
        store: PushStore,
        relay: Relay,
        clock: Clock,
        *,
        concurrency: int,
        jitter: Callable[[], float] = random.random,
    ) -> None:
        self._store = store
        self._relay = relay
        self._clock = clock
        self._turnstile = asyncio.Semaphore(concurrency)
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
        saved = False
        while True:
            try:
                async with self._turnstile:
                    if not saved:
                        await self._save(uaid, notifications)
                        saved = True  # once: from now on it may be acked, and must not come again
                    await self._tell(uaid, connected_at_ms)
                return
            except (UnavailableError, BusyError):
                await asyncio.sleep(delay_s * (0.5 + self._jitter()))
                delay_s = min(delay_s * 2, RETRY_LAST_S)

    async def _save(self, uaid: Uaid, notifications: Sequence[Notification | Update]) -> None:
        now_ms = self._clock.now_ms()
        alive: list[Notification] = []
        for notification in notifications:
            if isinstance(notification, Update):
                await self._store.save_update(uaid, notification)
            elif not notification.expired(now_ms):
                alive.append(notification)
        if alive:
            await self._store.save_if_newer(uaid, alive)

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
