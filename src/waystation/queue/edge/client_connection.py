"""A client's connection at an edge: passes commands and answers on unchanged."""

from typing import Final

from waystation.base.limits import TokenBucket
from waystation.queue.edge.client_session import ClientSession
from waystation.queue.edge.effects import Budget
from waystation.queue.errors import RefusedError
from waystation.queue.server.client import Client, Line, Work
from waystation.queue.server.session import Session
from waystation.queue.wire.fields import FieldError
from waystation.queue.wire.handshake import ServerHandshake
from waystation.queue.wire.transmission import split_batch


class EdgeSession(Session):
    """The session of a storage server, without decoding commands."""

    __slots__ = ()

    def __init__(self, handshake: ServerHandshake) -> None:
        super().__init__(handshake)

    def items(self, block: bytes) -> list[bytes] | None:
        """The transmissions of a block; None if the block is malformed."""
        try:
            return split_batch(self.agreement.blocks.open(block))
        except (RefusedError, FieldError):
            return None


_ELSEWHERE: Final = Work()


class EdgeClient(Client):
    __slots__ = ("buckets", "client_session", "link_congested", "paused", "slow", "slowed")

    def __init__(
        self, line: Line, session: EdgeSession, *, out_blocks_max: int, mono: float
    ) -> None:
        super().__init__(line, session, out_blocks_max=out_blocks_max, mono=mono)
        self.client_session: ClientSession | None = None
        self.paused = False  # too many commands in flight: reading is paused
        self.slowed = False  # a budget is used up: reading is delayed
        self.buckets: dict[Budget, TokenBucket] | None = None
        self.link_congested = False  # its dedicated link is congested
        self.slow = False  # servers got `SPAUSE` for it

    @property
    def work(self) -> Work | None:
        """Not None while answers of servers are pending: a stop waits for them."""
        client_session = self.client_session
        return None if client_session is None or not client_session.pending else _ELSEWHERE

    @work.setter
    def work(self, _: Work | None) -> None:  # pyright: ignore[reportIncompatibleVariableOverride]
        """Ignored: the work is done by the storage servers."""

    @property
    def is_idle(self) -> bool:
        client_session = self.client_session
        return client_session is None or not (
            client_session.subscriptions or client_session.pending
        )
