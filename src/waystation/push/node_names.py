"""Names of nodes in events: `<name>.<role>.<k>`, never an address.

Rule 1: workers of this node have this node's name.
Rule 2: another Waystation node sends its name when a link to it is opened.
Rule 3: a node that has not sent a name (another server, or no link yet) is named by a keyed hash of
        its address.
"""

from collections.abc import Callable
from typing import Final
from urllib.parse import urlsplit

from waystation.base.limits import BoundedLru
from waystation.telemetry.hashes import EventHashes

NAMES_MAX: Final = 1_024


class NodeNames:
    """Maps a route's node id to the name in that node's own events."""

    def __init__(
        self,
        hashes: EventHashes,
        *,
        own: str = "",
        relay_url: str = "",
        told: Callable[[str], str | None] = lambda _: None,
    ) -> None:
        """`own` is this worker's name if it has the connect role; `told` asks the relay."""
        self._hashes = hashes
        self._own_base, _, own_index = own.rpartition(".")
        self._told = told
        self._relay_url = relay_url.rstrip("/")
        self._own_index = own_index or "0"
        self._hashed: BoundedLru[str, str] = BoundedLru(NAMES_MAX)

    def of(self, node_id: str) -> str:
        base, _, index = node_id.rpartition("/w/")
        if not base or not index.isdecimal():
            base, index = node_id, ""
        if self._own_base and base == self._relay_url:
            return f"{self._own_base}.{index[:4] or self._own_index}"
        return self._told(node_id) or self._by_hash(node_id, base, index[:4] or "0")

    def worker(self, index: str) -> str:
        """A worker of this node; this worker if `index` is empty."""
        return f"{self._own_base}.{index or self._own_index}"

    def _by_hash(self, node_id: str, base: str, index: str) -> str:
        name = self._hashed.get(node_id)
        if name is None:
            where = self._hashes.iph("node " + urlsplit(base).netloc, 0) & 0xFFFF_FFFF_FFFF_FFFF
            name = f"node-{where:016x}.connect.{index}"
            self._hashed.put(node_id, name)
        return name
