"""The relay: what an endpoint node tells a connection node, and what it hears back.

`endpoint` and `connect` meet here and in `PushStore`, nowhere else. The same
three requests travel as a function call inside a worker, as link frames between
our own workers and nodes, and as HTTP (`PUT /push/{uaid}`, `PUT /notif/{uaid}`,
`DELETE /notif/{uaid}/{connected_at}`) for everyone else.
"""

import enum
from typing import Protocol

from waystation.push.model import Notification, Uaid, Update


class Answer(enum.IntEnum):
    """A connection node's answer; the numbers are the statuses of the HTTP form."""

    TAKEN = 200  # placed with the client, or the storage check has begun
    FLAGGED = 202  # busy; storage will be checked later
    ABSENT = 404  # no such client here
    BUSY = 503  # the client is here but cannot take it now
    UNREACHABLE = 0  # no connection node answered at that address
    ODD = 1  # it answered, but with something else


class Node(Protocol):
    """One connection worker, as the relay sees it."""

    async def push(self, uaid: Uaid, notification: Notification | Update) -> Answer:
        """TAKEN only when a kill of the node cannot lose it any more."""
        ...

    async def check_stored(self, uaid: Uaid) -> Answer: ...

    async def displace(self, uaid: Uaid, connected_at_ms: int) -> Answer:
        """Close the client if it connected at exactly that time."""
        ...


class Relay(Protocol):
    """All connection nodes, by their node id. Never raises for a node that is gone."""

    async def push(
        self, node_id: str, uaid: Uaid, notification: Notification | Update
    ) -> Answer: ...

    async def check_stored(self, node_id: str, uaid: Uaid) -> Answer: ...

    async def displace(self, node_id: str, uaid: Uaid, connected_at_ms: int) -> Answer: ...
