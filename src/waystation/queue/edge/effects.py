"""Effects of the edge's core, performed by the driver."""

import enum
from collections.abc import Callable
from typing import Protocol

from waystation.queue.cluster.slot_map import NodeId
from waystation.queue.edge.client_session import ClientSession
from waystation.queue.wire.link import Body


class Budget(enum.Enum):
    """What a client may do so often in a minute, and more slowly from then on."""

    CREATIONS = "creations"
    REFUSALS = "refusals"  # of its authorisation


class Effects(Protocol):
    """What the core calls; `EdgeDriver` implements it."""

    def send(self, node_id: NodeId, stream: int, body: Body) -> None:
        """On the link to that server, which is up."""
        ...

    def answer(self, session: ClientSession, item: bytes) -> None: ...

    def hang_up(self, session: ClientSession) -> None: ...

    def refresh(self) -> None:
        """Read the map again; `learned` follows."""
        ...

    def spent(self, session: ClientSession, budget: Budget) -> None:
        """It has done this once more."""
        ...

    def after_a_hop(self, then: Callable[[], None]) -> None:
        """When about as much time has passed as a server takes to answer."""
        ...
