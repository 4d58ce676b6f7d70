"""The slot map of a queue cluster in memory, for one process and for tests."""

from collections.abc import Mapping

from waystation.base.clock import Clock
from waystation.queue.cluster.slot_map import NodeId, SlotMap


class MemoryClusterStore:
    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._map = SlotMap()
        self._renewed: dict[NodeId, float] = {}
        self._leader = ""
        self._leads_until = float("-inf")

    async def read(self) -> SlotMap:
        return self._map

    async def epoch(self) -> int:
        return self._map.epoch

    async def commit(self, slot_map: SlotMap) -> bool:
        if slot_map.epoch != self._map.epoch + 1:
            return False
        self._map = slot_map
        return True

    async def renew(self, node_id: NodeId) -> None:
        self._renewed[node_id] = self._clock.mono()

    async def ages(self) -> Mapping[NodeId, float]:
        mono = self._clock.mono()
        return {node_id: mono - at for node_id, at in self._renewed.items()}

    async def lead(self, holder: str, ttl_s: float) -> bool:
        mono = self._clock.mono()
        if self._leader not in ("", holder) and mono < self._leads_until:
            return False
        self._leader, self._leads_until = holder, mono + ttl_s
        return True

    async def resign(self, holder: str) -> None:
        if self._leader == holder:
            self._leader = ""

    async def close(self) -> None:
        """Nothing to close."""
