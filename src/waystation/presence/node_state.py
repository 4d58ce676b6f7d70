"""Whether this node may take sessions and change the store; read before each such step."""

from collections.abc import Callable

from .store import Owner


class NodeState:
    """One object per node, shared by the broker, its collaborators and the server."""

    __slots__ = ("draining", "fenced", "overloaded", "owner", "shared")

    def __init__(self, owner: Owner) -> None:
        self.owner = owner
        self.draining = False
        self.overloaded = False
        self.shared = False  # other nodes serve the same parties from the same store
        # True while the lease is not renewed: then the node joins, ends and expires no session.
        self.fenced: Callable[[], bool] = lambda: False

    @property
    def node_id(self) -> str:
        return self.owner.node_id
