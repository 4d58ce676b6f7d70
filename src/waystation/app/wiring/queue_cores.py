"""Builds the cores of a queue server: subscribers, delivery, notifications, dispatch, moderation.

A single server, a cluster member and a simulated server use the same cores with different
signature checks, id generators and stores, which are passed in.
"""

from waystation.base.clock import Clock
from waystation.queue.server.checks import Checks
from waystation.queue.server.delivery import Delivery
from waystation.queue.server.dispatch import Dispatch
from waystation.queue.server.ids import IdMaker
from waystation.queue.server.moderation import Moderation
from waystation.queue.server.notifications import Notifications
from waystation.queue.server.notifiers import Notifiers
from waystation.queue.server.observer import Observer
from waystation.queue.server.subscribers import Subscribers
from waystation.queue.settings import Queue as QueueSettings
from waystation.queue.store import QueueStore


class QueueCores:
    def __init__(
        self,
        *,
        settings: QueueSettings,
        store: QueueStore,
        checks: Checks,
        ids: IdMaker,
        observer: Observer,
        clock: Clock,
    ) -> None:
        self.settings = settings
        self.store = store
        self.checks = checks
        self.subscribers = Subscribers()
        self.delivery = Delivery(store, self.subscribers, observer, clock)
        self.notifications = Notifications(
            total_max=settings.ntfs_max, per_notifier_max=settings.ntfs_per_notifier_max
        )
        self.notifiers = Notifiers(
            store=store,
            subscribers=self.subscribers,
            notifications=self.notifications,
            ids=ids,
            observer=observer,
            clock=clock,
        )
        self.dispatch = Dispatch(
            store=store,
            subscribers=self.subscribers,
            delivery=self.delivery,
            notifiers=self.notifiers,
            ids=ids,
            checks=checks,
            settings=settings,
            observer=observer,
            clock=clock,
        )
        self.moderation = Moderation(
            store=store,
            dispatch=self.dispatch,
            subscribers=self.subscribers,
            clock=clock,
            daily_block_quota=settings.daily_block_quota,
        )
