"""State of one connected client: its subscriptions and its unsent answers.

Most connections of a server are idle, so this holds nothing that an idle connection does not need.
"""

import asyncio
from collections import deque
from typing import Protocol

from waystation.base.limits import TokenBucket
from waystation.base.tasks import Done
from waystation.queue.model import NO_CORR_ID, CorrId, EntityId, NotifierId, RecipientId
from waystation.queue.server.services import ServiceSession
from waystation.queue.server.session import Session
from waystation.queue.server.subscribers import Subscription
from waystation.queue.wire.block import BLOCK_BYTES
from waystation.queue.wire.responses import Response
from waystation.queue.wire.transmission import Received


class Line(Protocol):
    """The socket of a client, as other modules use it."""

    origin: str  # `base.origins`

    def touch(self) -> None:
        """There is something to send: `next_block` is called in this loop turn."""
        ...

    def pause(self) -> None:
        """Stops reading until `resume`."""
        ...

    def resume(self) -> None: ...

    def finish(self) -> None:
        """Sends what is queued, then closes."""
        ...

    def abort(self) -> None:
        """Closes at once."""
        ...


class Pending:
    """A command in progress and its answer when there is one."""

    __slots__ = ("corr_id", "entity_id", "outcome", "queue_id")

    def __init__(
        self,
        corr_id: CorrId,
        entity_id: EntityId,
        outcome: "Done[Response] | asyncio.Task[Response]",
        queue_id: RecipientId | None,
    ) -> None:
        self.corr_id = corr_id
        self.entity_id = entity_id
        self.outcome = outcome
        self.queue_id = queue_id


class Work:
    """A client's commands in progress; exists only while there are any."""

    __slots__ = ("idle", "inbox", "pending", "queues")

    def __init__(self) -> None:
        self.inbox: deque[list[Received]] = deque()
        self.pending: deque[Pending] = deque()  # in the order of their answers
        self.queues: dict[RecipientId, int] = {}  # running SENDs, or -1 for any other command
        self.idle: asyncio.Future[None] | None = (
            None  # set while a task waits for fewer pending commands
        )


class Client:
    __slots__ = (
        "_congested_bytes",
        "active_at",
        "bucket",
        "deferred",
        "forwarding",
        "gone",
        "line",
        "notifiers",
        "offering",
        "room",
        "service",
        "session",
        "slowed_until",
        "subscriptions",
        "work",
    )

    def __init__(self, line: Line, session: Session, *, out_blocks_max: int, mono: float) -> None:
        self.line = line
        self.session = session
        self.subscriptions: dict[RecipientId, Subscription] = {}
        self.notifiers: dict[NotifierId, None] = {}
        self.deferred: dict[RecipientId, Subscription] = {}
        self.work: Work | None = None
        self.service: ServiceSession | None = None
        self.room: asyncio.Future[None] | None = (
            None  # set while a task waits until the client reads again
        )
        self.bucket: TokenBucket | None = None  # of refused authorisations
        self.slowed_until = 0.0  # mono; after too many refused authorisations
        self.forwarding = 0  # commands forwarded to other servers and not answered
        self.offering = False
        self.gone = False
        self.active_at = mono
        self._congested_bytes = out_blocks_max * BLOCK_BYTES

    @property
    def congested(self) -> bool:
        return self.session.said_bytes >= self._congested_bytes

    def say(self, corr_id: bytes, entity_id: bytes, response: Response) -> None:
        if not self.gone:
            self.session.say(corr_id, entity_id, response)
            self.line.touch()

    def tell(self, entity_id: bytes, response: Response) -> None:
        self.say(NO_CORR_ID, entity_id, response)

    def wake(self) -> None:
        self.line.touch()

    @property
    def is_idle(self) -> bool:
        """Whether it may be disconnected when inactive: it waits for nothing."""
        waits = self.subscriptions or self.notifiers or self.service is not None
        return not waits and self.work is None
