"""The slot map of a queue cluster in Redis, for members on several machines.

The keys share a hash tag, so a Redis Cluster keeps them on one node. To never lose a map, Redis
must write before it answers: `appendonly yes`, `appendfsync always`.
"""

import base64
from collections.abc import Mapping
from typing import cast

from waystation.queue.cluster.slot_map import NodeId, SlotMap, decode_map, encode_map
from waystation.storage.redis.cluster_routing import RedisCluster
from waystation.storage.redis.scripts import (
    CLUSTER_AGES,
    CLUSTER_COMMIT,
    CLUSTER_LEAD,
    CLUSTER_RENEW,
    CLUSTER_RESIGN,
)
from waystation.storage.redis.session import OneServer, Session
from waystation.storage.redis.url import RedisUrl
from waystation.storage.settings import Store

_MAP = "{waystation-cluster}map"
_LEASES = "{waystation-cluster}leases"
_LEAD = "{waystation-cluster}lead"


class RedisClusterStore:
    def __init__(self, session: Session) -> None:
        self._session = session

    @classmethod
    async def open(cls, url: RedisUrl, *, settings: Store) -> "RedisClusterStore":
        return cls(RedisCluster(url, settings) if url.cluster else OneServer(url, settings))

    async def read(self) -> SlotMap:
        (text,) = await self._session.run(_MAP, (("HGET", _MAP, "map"),))
        return SlotMap() if text is None else decode_map(base64.b64decode(cast(str, text)))

    async def epoch(self) -> int:
        (text,) = await self._session.run(_MAP, (("HGET", _MAP, "epoch"),))
        return int(cast(str, text or "0"))

    async def commit(self, slot_map: SlotMap) -> bool:
        text = base64.b64encode(encode_map(slot_map)).decode()
        return await self._session.run_script(CLUSTER_COMMIT, (_MAP,), slot_map.epoch, text) == 1

    async def renew(self, node_id: NodeId) -> None:
        await self._session.run_script(CLUSTER_RENEW, (_LEASES,), int(node_id))

    async def ages(self) -> Mapping[NodeId, float]:
        rows = cast("list[str]", await self._session.run_script(CLUSTER_AGES, (_LEASES,)))
        return {
            NodeId(int(node)): int(age_ms) / 1000
            for node, age_ms in zip(rows[::2], rows[1::2], strict=True)
        }

    async def lead(self, holder: str, ttl_s: float) -> bool:
        milliseconds = int(ttl_s * 1000)
        return await self._session.run_script(CLUSTER_LEAD, (_LEAD,), holder, milliseconds) == 1

    async def resign(self, holder: str) -> None:
        await self._session.run_script(CLUSTER_RESIGN, (_LEAD,), holder)

    async def close(self) -> None:
        await self._session.close()
