"""The store that all members of a cluster share: one map, leases, one leader.

Rule 1: `commit` is the only way to change the map. It is applied only if the map in force has the
        epoch before the new one's; this is how members agree.
Rule 2: ages of leases are measured by the store's own clock, so the members' clocks may differ.
Rule 3: a store that cannot be reached raises an `UnavailableError` (`waystation.base.errors`).
        Whether a commit was applied is then unknown; `read` shows it.
"""

from collections.abc import Mapping
from typing import Protocol

from .slot_map import NodeId, SlotMap


class ClusterStore(Protocol):
    async def read(self) -> SlotMap:
        """The map in force; an empty one at epoch 0 before a cluster is made."""
        ...

    async def epoch(self) -> int:
        """Of the map in force; cheaper than reading the map."""
        ...

    async def commit(self, slot_map: SlotMap) -> bool:
        """Applied only if the map in force has the epoch before this one's."""
        ...

    async def renew(self, node_id: NodeId) -> None:
        """Renews the lease of this server."""
        ...

    async def ages(self) -> Mapping[NodeId, float]:
        """Seconds since each server's last renewal."""
        ...

    async def lead(self, holder: str, ttl_s: float) -> bool:
        """Takes or renews the controllers' lead: true if `holder` has it for `ttl_s` more."""
        ...

    async def resign(self, holder: str) -> None:
        """Gives the lead up, so that another controller need not wait until it expires."""
        ...

    async def close(self) -> None: ...
