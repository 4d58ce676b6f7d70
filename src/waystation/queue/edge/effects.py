"""Effects of the edge's core, performed by the driver."""

import enum
from collections.abc import Callable
from typing import Protocol

from waystation.queue.cluster.slot_map import NodeId
from waystation.queue.edge.client_session import ClientSession
from waystation.queue.wire.link import Body


class Budget(enum.Enum):
    """Actions of a client that are counted per minute; above the limit its reading is slowed."""

    CREATIONS = "creations"
    REFUSALS = "refusals"  # authorisations refused


class Effects(Protocol):
    """What the core calls; `EdgeDriver` implements it."""

    def send(self, node_id: NodeId, stream: int, body: Body) -> None:
        """Sends on the link to that server, which is up."""
        ...

    def answer(self, session: ClientSession, item: bytes) -> None: ...

    def disconnect(self, session: ClientSession) -> None: ...

    def refresh(self) -> None:
        """Reads the map again; `learned` follows."""
        ...

    def spent(self, session: ClientSession, budget: Budget) -> None:
        """Counts one such action of the client."""
        ...

    def after_a_hop(self, then: Callable[[], None]) -> None:
        """Calls `then` after about the time that a server takes to answer."""
        ...
