"""Operator actions on queues, and the server's status for operators."""

import os
import threading
import time
from collections.abc import Callable, Mapping, Sequence

from waystation.base.errors import WaystationError
from waystation.net.loop import Port
from waystation.queue.control import Outcome
from waystation.queue.server.moderation import Moderation
from waystation.queue.server.notifications import Notifications
from waystation.queue.server.notifiers import Notifiers
from waystation.queue.server.subscribers import Subscribers


class ServerOperations:
    """The `Operations` of the control port."""

    def __init__(
        self,
        *,
        moderation: Moderation,
        subscribers: Subscribers,
        notifications: Notifications,
        notifiers: Notifiers,
        port: Port,
        stats: Callable[[], Sequence[str]],
        about: Callable[[], Sequence[str]],
    ) -> None:
        self.status = moderation.status
        self.block = moderation.block
        self.unblock = moderation.unblock
        self.delete = moderation.delete
        self._subscribers = subscribers
        self._notifications = notifications
        self._notifiers = notifiers
        self._port = port
        self.stats = stats
        self.about = about

    # Read

    def process(self) -> Mapping[str, object]:
        return {
            "pid": os.getpid(),
            "threads": threading.active_count(),
            "cpu_s": round(time.process_time(), 3),
        }

    def connections(self) -> Mapping[str, object]:
        return {
            "accepted": self._port.accepted,
            "refused": self._port.refused,
            "connections": self._port.descriptors,
            "subscriptions": len(self._subscribers),
            "notifierSubscriptions": self._subscribers.notifier_count,
            "notificationsWaiting": self._notifications.count,
        }

    # Change

    async def save(self) -> Outcome:
        try:
            await self._notifiers.save()
        except WaystationError:
            return Outcome.NOT_NOW
        return Outcome.DONE
