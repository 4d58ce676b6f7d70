"""Notifications that wait for a subscriber of their notifier.

Rule 1: notifications with a subscriber are delivered and removed periodically. The others wait, up
        to an age and two limits; above a limit the oldest are removed.
Rule 2: a notification only announces a message, which is stored in its queue. A lost notification
        delays a recipient and loses no message.

A core: time is an argument.
"""

from collections import deque
from collections.abc import Callable, Iterable

import msgspec

from waystation.queue.model import NotifierId, ServiceId
from waystation.queue.store import PendingNotification


class Notifications:
    def __init__(self, *, total_max: int, per_notifier_max: int) -> None:
        self._total_max = total_max
        self._per_notifier_max = per_notifier_max
        self._waiting: dict[NotifierId, deque[PendingNotification]] = {}  # oldest notifier first
        self._services: dict[NotifierId, ServiceId] = {}  # of waiting notifications
        self.count = 0
        self.lost = 0  # dropped at a limit, since the start

    def add(self, notification: PendingNotification) -> None:
        waiting = self._waiting.setdefault(notification.notifier_id, deque())
        if len(waiting) >= self._per_notifier_max:
            waiting.popleft()
            self.count -= 1
            self.lost += 1
        waiting.append(notification)
        self.count += 1
        self.belongs(notification.notifier_id, notification.service_id)
        if self.count > self._total_max:
            self._drop_oldest()

    def hand_over(
        self, deliver: Callable[[PendingNotification], bool], notifier_ids: Iterable[NotifierId]
    ) -> int:
        """Passes what waits for these notifiers to `deliver`, which returns whether it was sent."""
        handed = 0
        for notifier_id in notifier_ids:
            waiting = self._waiting.get(notifier_id)
            while waiting and deliver(waiting[0]):
                waiting.popleft()
                handed += 1
            if waiting is not None and not waiting:
                self._emptied(notifier_id)
        self.count -= handed
        return handed

    def belongs(self, notifier_id: NotifierId, service_id: ServiceId | None) -> None:
        """Changes the service of a notifier with waiting notifications."""
        if service_id is None or notifier_id not in self._waiting:
            self._services.pop(notifier_id, None)
        else:
            self._services[notifier_id] = service_id

    def service_of(self, notifier_id: NotifierId) -> ServiceId | None:
        return self._services.get(notifier_id)

    def forget(self, notifier_id: NotifierId) -> None:
        self.count -= len(self._waiting.get(notifier_id, ()))
        self._emptied(notifier_id)

    def expire(self, before_s: int) -> int:
        """Removes notifications older than this; returns how many."""
        gone = 0
        for notifier_id in list(self._waiting):
            waiting = self._waiting[notifier_id]
            while waiting and waiting[0].accepted_at_s < before_s:
                waiting.popleft()
                gone += 1
            if not waiting:
                self._emptied(notifier_id)
        self.count -= gone
        return gone

    def notifier_ids(self) -> list[NotifierId]:
        """Notifiers with waiting notifications."""
        return list(self._waiting)

    def all(self) -> list[PendingNotification]:
        return [
            msgspec.structs.replace(one, service_id=self._services.get(notifier_id))
            for notifier_id, waiting in self._waiting.items()
            for one in waiting
        ]

    def _drop_oldest(self) -> None:
        notifier_id = next(iter(self._waiting))
        waiting = self._waiting[notifier_id]
        waiting.popleft()
        if not waiting:
            self._emptied(notifier_id)
        self.count -= 1
        self.lost += 1

    def _emptied(self, notifier_id: NotifierId) -> None:
        self._waiting.pop(notifier_id, None)
        self._services.pop(notifier_id, None)
