"""The slot map of a queue cluster in LMDB, for all processes of one machine.

Rule 1: ages are measured with the system's monotonic clock, which all processes of a machine share.
        It restarts with the machine, so a time in the future counts as expired.
Rule 2: a commit of the map is flushed to disk before it is acknowledged. A lease renewal is not
        flushed: a loss of power stops the servers too.
Rule 3: every operation runs in a thread, because another process may hold LMDB's writer lock.
"""

import asyncio
import struct
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Final, TypeVar

import lmdb

from waystation.queue.cluster.slot_map import NodeId, SlotMap, SlotMapError, decode_map, encode_map
from waystation.storage.embedded.backup_file import Entry
from waystation.storage.embedded.check import Look, Report, check_rows
from waystation.storage.embedded.environment import STORE_ERRORS, Environment, store_error
from waystation.storage.settings import Store

FORMAT: Final = "waystation-cluster/1"
TABLES: Final = ("cluster", "leases")
SAVED_TABLES: Final = ("cluster",)  # not leases, which hold times of this machine's clock
_MAP = b"map"
_EPOCH = b"epoch"
_LEADER = b"leader"
_TIME = struct.Struct(">d")
_NODE = struct.Struct(">H")

T = TypeVar("T")


class EmbeddedClusterStore:
    def __init__(self, env: Environment) -> None:
        self._env = env

    @classmethod
    async def open(cls, directory: Path, *, settings: Store) -> "EmbeddedClusterStore":
        def opened() -> Environment:
            return Environment.open(directory, form=FORMAT, tables=TABLES, settings=settings)

        return cls(await asyncio.to_thread(opened))

    async def read(self) -> SlotMap:
        return await self._run(self._map, write=False)

    async def epoch(self) -> int:
        return await self._run(self._epoch, write=False)

    async def commit(self, slot_map: SlotMap) -> bool:
        data = encode_map(slot_map)
        table = self._env.tables["cluster"]

        def step(txn: "lmdb.Transaction[bytes]") -> bool:
            if self._epoch(txn) != slot_map.epoch - 1:
                return False
            txn.put(_EPOCH, slot_map.epoch.to_bytes(8, "big"), db=table)
            return txn.put(_MAP, data, db=table)

        return await self._run(step, write=True)

    async def renew(self, node_id: NodeId) -> None:
        table = self._env.tables["leases"]
        stamp = _TIME.pack(time.monotonic())
        await self._run(lambda txn: txn.put(_NODE.pack(node_id), stamp, db=table), write=True)

    async def ages(self) -> Mapping[NodeId, float]:
        table = self._env.tables["leases"]

        def step(txn: "lmdb.Transaction[bytes]") -> dict[NodeId, float]:
            mono = time.monotonic()
            return {
                NodeId(_NODE.unpack(key)[0]): _age(mono, _TIME.unpack(value)[0])
                for key, value in txn.cursor(db=table)
            }

        return await self._run(step, write=False)

    async def lead(self, holder: str, ttl_s: float) -> bool:
        table = self._env.tables["cluster"]

        def step(txn: "lmdb.Transaction[bytes]") -> bool:
            mono = time.monotonic()
            row = txn.get(_LEADER, db=table)
            if row is not None and row[_TIME.size :] != holder.encode():
                # A lead that ends later than any lead can is from before a restart.
                left_s = _TIME.unpack(row[: _TIME.size])[0] - mono
                if 0.0 < left_s <= ttl_s:
                    return False
            return txn.put(_LEADER, _TIME.pack(mono + ttl_s) + holder.encode(), db=table)

        return await self._run(step, write=True)

    async def resign(self, holder: str) -> None:
        table = self._env.tables["cluster"]

        def step(txn: "lmdb.Transaction[bytes]") -> None:
            row = txn.get(_LEADER, db=table)
            if row is not None and row[_TIME.size :] == holder.encode():
                txn.delete(_LEADER, db=table)

        await self._run(step, write=True)

    async def close(self) -> None:
        await asyncio.to_thread(self._env.close)

    def _epoch(self, txn: "lmdb.Transaction[bytes]") -> int:
        return int.from_bytes(txn.get(_EPOCH, db=self._env.tables["cluster"]) or b"", "big")

    def _map(self, txn: "lmdb.Transaction[bytes]") -> SlotMap:
        data = txn.get(_MAP, db=self._env.tables["cluster"])
        return SlotMap() if data is None else decode_map(data)

    async def _run(self, step: "Callable[[lmdb.Transaction[bytes]], T]", *, write: bool) -> T:
        def run() -> T:
            try:
                with self._env.lmdb.begin(write=write) as txn:
                    return step(txn)
            except (*STORE_ERRORS, SlotMapError) as exc:
                raise store_error(exc) from exc

        return await asyncio.to_thread(run)


def saved_rows(env: Environment) -> Iterator[Entry]:
    """Rows for a backup: the map only. The lead is elected again after a restore."""
    with env.lmdb.begin() as txn:
        for key in (_EPOCH, _MAP):
            value = txn.get(key, db=env.tables["cluster"])
            if value is not None:
                yield "cluster", key, value


def check_cluster_store(env: Environment) -> Report:
    report = Report()

    def of(table: str) -> Look:
        def look(txn: "lmdb.Transaction[bytes]", key: bytes, value: bytes) -> None:
            if table == "cluster" and key == _MAP:
                epoch = int.from_bytes(txn.get(_EPOCH, db=env.tables["cluster"]) or b"", "big")
                try:
                    if decode_map(value).epoch != epoch:
                        report.problem(table, key, "has another epoch than the table says")
                except SlotMapError as exc:
                    report.problem(table, key, f"does not decode: {exc}")

        return look

    return check_rows(env, TABLES, of, report)


def _age(mono: float, at: float) -> float:
    return mono - at if at <= mono else float("inf")
