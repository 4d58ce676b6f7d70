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
        """A command was looked at and answered; `queue` is where its id led."""
        ...

    def delivered(self, slot: Slot, message: Message, *, waited: bool) -> None:
        """A message was handed to a subscriber, by itself or as the answer to ACK or GET; `waited`
        if it was there already when its queue was subscribed to."""
        ...

    def repeated(self, command: Command) -> None:
        """The connection has already what it asks for: SUB, GET or NSUB once more."""
        ...

    def worked_through(self, batch: Sequence[Received]) -> None:
        """All commands of a block are answered, or under way."""
        ...

    def acknowledged(
        self, queue: Queue, message: Message | None, waited_s: float, *, got: bool
    ) -> None:
        """A message was taken off its queue (None: another call did so before); `got` if it was
        fetched by GET."""
        ...

    def subscription_ended(self, slot: Slot) -> None:
        """Another connection took a subscription over."""
        ...

    def notified(self, *, sent: int = 0, lost: int = 0, expired: int = 0, kept: int = 0) -> None:
        """Notifications handed over, forgotten for want of room, too old, kept for later."""
        ...

    def expired(self, slot: Slot, count: int) -> None:
        """Messages grew too old."""
        ...

    def belongs(self, role: ServiceRole, belonging: Belonging) -> None:
        """A service gained or lost the subscription to a queue or a notifier."""
        ...

    def served(self, role: ServiceRole, count: int, *, repeated: bool) -> None:
        """A service asked for everything that is its; `repeated` on the same connection."""
        ...

    def service_ended(self, role: ServiceRole) -> None:
        """Another connection took a service over."""
        ...

    def opened(self) -> None: ...

    def closed(self) -> None: ...


class NoObserver:
    """For those who do not count."""

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
