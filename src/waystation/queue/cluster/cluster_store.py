"""The store that all members of a cluster share: one map, leases, one leader.

Rule 1: `commit` is the only way to change the map, and it counts only over the epoch before the
        new one; this is where the cluster agrees.
Rule 2: ages of leases are measured by the store's own clock, so the members' clocks may differ.
Rule 3: a store that cannot be reached raises an `UnavailableError` (`waystation.base.errors`);
        whether a commit counted is then unknown, and only `read` tells.
"""

from collections.abc import Mapping
from typing import Protocol

from .slot_map import NodeId, SlotMap


class ClusterStore(Protocol):
    async def read(self) -> SlotMap:
        """The map in force; an empty one at epoch 0 before a cluster was made."""
        ...

    async def epoch(self) -> int:
        """Of the map in force; cheaper than the map, so it can be asked often."""
        ...

    async def commit(self, slot_map: SlotMap) -> bool:
        """Whether it counted: it did if the map in force had the epoch before this one's."""
        ...

    async def renew(self, node_id: NodeId) -> None:
        """This server is alive."""
        ...

    async def ages(self) -> Mapping[NodeId, float]:
        """Seconds since each server's last renewal."""
        ...

    async def lead(self, holder: str, ttl_s: float) -> bool:
        """Take the controllers' lead, or keep it: true while it is `holder`'s for `ttl_s` more."""
        ...

    async def resign(self, holder: str) -> None:
        """Give the lead up, so that another need not wait for it to run out."""
        ...

    async def close(self) -> None: ...
