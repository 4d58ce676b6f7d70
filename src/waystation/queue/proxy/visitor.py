"""A client's connection at an edge: commands leave it as they came, answers enter as they are."""

from typing import Final

from waystation.base.limits import TokenBucket
from waystation.queue.errors import RefusedError
from waystation.queue.proxy.guest import Guest
from waystation.queue.proxy.outlet import Budget
from waystation.queue.server.client import Client, Line, Work
from waystation.queue.server.session import Session
from waystation.queue.wire.fields import FieldError
from waystation.queue.wire.handshake import ServerHandshake
from waystation.queue.wire.transmission import split_batch


class EdgeSession(Session):
    """As a storage server has it, except that nobody reads what is said."""

    __slots__ = ()

    def __init__(self, handshake: ServerHandshake) -> None:
        super().__init__(handshake)

    def items(self, block: bytes) -> list[bytes] | None:
        """The transmissions of a block; None for what is no block of them."""
        try:
            return split_batch(self.agreement.blocks.open(block))
        except (RefusedError, FieldError):
            return None


_ELSEWHERE: Final = Work()


class Visitor(Client):
    __slots__ = ("buckets", "guest", "paused", "pressed", "slow", "slowed")

    def __init__(
        self, line: Line, session: EdgeSession, *, out_blocks_max: int, mono: float
    ) -> None:
        super().__init__(line, session, out_blocks_max=out_blocks_max, mono=mono)
        self.guest: Guest | None = None
        self.paused = False  # it has so much under way that nothing more is read
        self.slowed = False  # it has spent a budget, and is read again in a while
        self.buckets: dict[Budget, TokenBucket] | None = None
        self.pressed = False  # a link of its own takes no more at the moment
        self.slow = False  # servers were told that it does not read

    @property
    def work(self) -> Work | None:
        """Something, while servers owe it answers: a stop waits for them."""
        guest = self.guest
        return None if guest is None or not guest.pending else _ELSEWHERE

    @work.setter
    def work(self, _: Work | None) -> None:  # pyright: ignore[reportIncompatibleVariableOverride]
        """It is the servers' work, not ours."""

    @property
    def is_idle(self) -> bool:
        guest = self.guest
        return guest is None or not (guest.subscriptions or guest.pending)
