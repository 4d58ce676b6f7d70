"""The slot map of a queue cluster in PostgreSQL, for members on several machines.

The map and the lead have one row each, and each server's lease has one. Times are PostgreSQL's
(`clock_timestamp`), so members need no common clock.
"""

from collections.abc import Mapping

from waystation.queue.cluster.slot_map import NodeId, SlotMap, decode_map, encode_map
from waystation.storage.postgres.session import Connection, Session
from waystation.storage.postgres.url import PostgresUrl
from waystation.storage.settings import Store

_SCHEMA = """
CREATE TABLE IF NOT EXISTS waystation_cluster_map (
    id smallint PRIMARY KEY DEFAULT 1 CHECK (id = 1), epoch bigint NOT NULL, map bytea NOT NULL
);
CREATE TABLE IF NOT EXISTS waystation_cluster_lease (
    node integer PRIMARY KEY, renewed_at timestamptz NOT NULL
);
CREATE TABLE IF NOT EXISTS waystation_cluster_lead (
    id smallint PRIMARY KEY DEFAULT 1 CHECK (id = 1), holder text NOT NULL,
    until timestamptz NOT NULL
);
"""
_READ = "SELECT map FROM waystation_cluster_map"
_EPOCH = "SELECT epoch FROM waystation_cluster_map"
_FIRST = (
    "INSERT INTO waystation_cluster_map (epoch, map) VALUES ($1, $2)"
    " ON CONFLICT DO NOTHING RETURNING epoch"
)
_NEXT = (
    "UPDATE waystation_cluster_map SET epoch = $1, map = $2 WHERE epoch = $1 - 1 RETURNING epoch"
)
_RENEW = (
    "INSERT INTO waystation_cluster_lease VALUES ($1, clock_timestamp())"
    " ON CONFLICT (node) DO UPDATE SET renewed_at = clock_timestamp()"
)
_AGES = (
    "SELECT node, extract(epoch FROM clock_timestamp() - renewed_at)::float8 AS age"
    " FROM waystation_cluster_lease"
)
_LEAD = (
    "INSERT INTO waystation_cluster_lead AS lead (holder, until)"
    " VALUES ($1, clock_timestamp() + make_interval(secs => $2))"
    " ON CONFLICT (id) DO UPDATE SET holder = excluded.holder, until = excluded.until"
    " WHERE lead.holder = excluded.holder OR lead.until <= clock_timestamp() RETURNING holder"
)
_RESIGN = "DELETE FROM waystation_cluster_lead WHERE holder = $1"


class PostgresClusterStore:
    def __init__(self, session: Session) -> None:
        self._session = session

    @classmethod
    async def open(cls, url: PostgresUrl, *, settings: Store) -> "PostgresClusterStore":
        async def make_ready(connection: Connection) -> None:
            # Members that start at once would all create the tables.
            async with connection.transaction():
                await connection.execute("SELECT pg_advisory_xact_lock(5223)")
                await connection.execute(_SCHEMA)

        store = cls(Session(url, settings, make_ready=make_ready))
        await store.read()
        return store

    async def read(self) -> SlotMap:
        rows = await self._session.read(_READ)
        return decode_map(rows[0]["map"]) if rows else SlotMap()

    async def epoch(self) -> int:
        rows = await self._session.read(_EPOCH)
        return rows[0]["epoch"] if rows else 0

    async def commit(self, slot_map: SlotMap) -> bool:
        statement = _FIRST if slot_map.epoch == 1 else _NEXT
        return bool(await self._session.change(statement, slot_map.epoch, encode_map(slot_map)))

    async def renew(self, node_id: NodeId) -> None:
        await self._session.change(_RENEW, node_id)

    async def ages(self) -> Mapping[NodeId, float]:
        return {NodeId(row["node"]): row["age"] for row in await self._session.read(_AGES)}

    async def lead(self, holder: str, ttl_s: float) -> bool:
        return bool(await self._session.change(_LEAD, holder, ttl_s))

    async def resign(self, holder: str) -> None:
        await self._session.change(_RESIGN, holder)

    async def close(self) -> None:
        await self._session.close()
