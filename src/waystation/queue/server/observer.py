"""The observer of a queue server, for metrics. Never blocks or raises; contains no ids."""

from collections.abc import Sequence
from typing import Protocol

from waystation.queue.model import Message, Queue, ServiceRole, Slot
from waystation.queue.statistics import Belonging
from waystation.queue.wire.commands import Command
from waystation.queue.wire.responses import Response
from waystation.queue.wire.transmission import Received, Transmission


class Observer(Protocol):
    def answered(self, sent: Transmission, queue: Queue | None, response: Response) -> None:
        """A command was answered; `queue` is the one that its id named."""
        ...

    def delivered(self, slot: Slot, message: Message, *, waited: bool) -> None:
        """A message was sent to a subscriber, as an event or as the answer to ACK or GET; `waited`
        if it was stored before the queue was subscribed to."""
        ...

    def repeated(self, command: Command) -> None:
        """The connection sent SUB, GET or NSUB once more."""
        ...

    def worked_through(self, batch: Sequence[Received]) -> None:
        """All commands of a block are answered or running."""
        ...

    def acknowledged(
        self, queue: Queue, message: Message | None, waited_s: float, *, got: bool
    ) -> None:
        """A message was removed from its queue (None: it had been removed before); `got` if it was
        fetched by GET."""
        ...

    def subscription_ended(self, slot: Slot) -> None:
        """Another connection replaced a subscription."""
        ...

    def notified(self, *, sent: int = 0, lost: int = 0, expired: int = 0, kept: int = 0) -> None:
        """Notifications delivered, dropped at a limit, expired, kept for later."""
        ...

    def expired(self, slot: Slot, count: int) -> None:
        """Messages expired."""
        ...

    def belongs(self, role: ServiceRole, belonging: Belonging) -> None:
        """A service gained or lost the subscription to a queue or a notifier."""
        ...

    def served(self, role: ServiceRole, count: int, *, repeated: bool) -> None:
        """A service subscribed to all of its queues; `repeated` on the same connection."""
        ...

    def service_ended(self, role: ServiceRole) -> None:
        """Another connection of a service replaced this one."""
        ...

    def opened(self) -> None: ...

    def closed(self) -> None: ...


class NoObserver:
    """The default observer; it discards every call."""

    def answered(self, sent: Transmission, queue: Queue | None, response: Response) -> None:
        pass

    def delivered(self, slot: Slot, message: Message, *, waited: bool) -> None:
        pass

    def repeated(self, command: Command) -> None:
        pass

    def worked_through(self, batch: Sequence[Received]) -> None:
        pass

    def acknowledged(
        self, queue: Queue, message: Message | None, waited_s: float, *, got: bool
    ) -> None:
        pass

    def subscription_ended(self, slot: Slot) -> None:
        pass

    def notified(self, *, sent: int = 0, lost: int = 0, expired: int = 0, kept: int = 0) -> None:
        pass

    def expired(self, slot: Slot, count: int) -> None:
        pass

    def belongs(self, role: ServiceRole, belonging: Belonging) -> None:
        pass

    def served(self, role: ServiceRole, count: int, *, repeated: bool) -> None:
        pass

    def service_ended(self, role: ServiceRole) -> None:
        pass

    def opened(self) -> None:
        pass

    def closed(self) -> None:
        pass
