"""An embedded push store as a whole, for jobs: read in ranges, and removed from with conditions.

Rule 1: every batch is a read transaction of its own; a long one would keep freed pages from being
        used again while servers write.
Rule 2: a removal names the row as it was read, by a hash of its bytes; a user agent that came back
        meanwhile has another row and stays.

Raw ids are in these batches. They stay in the process that asked.
"""

import hashlib
import json
from collections.abc import Iterator, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

import lmdb

from waystation.base.clock import SystemClock
from waystation.push.model import Uaid
from waystation.storage.embedded import layout
from waystation.storage.embedded.changes import PushChanges
from waystation.storage.embedded.environment import Environment, store_error
from waystation.storage.embedded.layout import AgentRow
from waystation.storage.embedded.upkeep import open_environment
from waystation.storage.embedded.writer import WriterStats
from waystation.storage.settings import Store

BATCH_ROWS = 4096
REMOVED_AT_ONCE = 200

_arrow: Any = import_module("pyarrow")


def open_bulk(place: str) -> "EmbeddedBulk":
    """`place` is JSON: {"directory": …, "map_bytes": …}, as the one who asks found it."""
    told = json.loads(place)
    return EmbeddedBulk(Path(told["directory"]), Store(map_bytes=told["map_bytes"]))


def version_of(value: bytes) -> int:
    """A row as it was read, in 63 bits."""
    return int.from_bytes(hashlib.blake2b(value, digest_size=8).digest(), "big") >> 1


class EmbeddedBulk:
    def __init__(self, directory: Path, settings: Store) -> None:
        self._env: Environment = open_environment(directory, settings)

    def close(self) -> None:
        self._env.close()

    def ranges(self, count: int) -> list[tuple[bytes, bytes | None]]:
        """Keys cut into ranges of equal width: uaids are random."""
        marks = [(number << 16) // count for number in range(1, count)]
        cuts = [b"", *(mark.to_bytes(2, "big") for mark in marks)]
        return list(zip(cuts, [*cuts[1:], None], strict=True))

    def scan(self, table: str, first: bytes, end: bytes | None) -> Iterator[Any]:
        """Arrow batches of `router`, `channels` or `messages`, keys from `first` up to `end`."""
        rows_of = {"router": _router, "channels": _channels, "messages": _messages}[table]
        names = {"router": "agents", "channels": "agents", "messages": "notifications"}
        for chunk in self._chunks(names[table], first, end):
            yield rows_of(chunk)

    def remove_unchanged(self, agents: Sequence[tuple[bytes, int]]) -> int:
        """User agents (uaid, version) with all that is theirs, each only if its row is still the
        one that was seen. How many were."""
        changes = PushChanges(self._env, SystemClock(), WriterStats())
        table = self._env.tables["agents"]
        removed = 0
        for at in range(0, len(agents), REMOVED_AT_ONCE):
            left: list[Uaid] = []
            try:
                with self._env.lmdb.begin(write=True) as txn:
                    for key, version in agents[at : at + REMOVED_AT_ONCE]:
                        value = txn.get(key, db=table)
                        if value is not None and version_of(value) == version:
                            _, more = changes.remove_user_agent(Uaid(key), 1000, txn)
                            removed += 1
                            left += [Uaid(key)] * more
                for uaid in left:
                    more = True
                    while more:
                        with self._env.lmdb.begin(write=True) as txn:
                            _, more = changes.clear_rows(uaid, 1000, txn)
            except lmdb.Error as exc:
                raise store_error(exc) from exc
        return removed

    def _chunks(
        self, table: str, first: bytes, end: bytes | None
    ) -> Iterator[list[tuple[bytes, bytes]]]:
        after: bytes | None = None
        while True:
            rows: list[tuple[bytes, bytes]] = []
            try:
                with (
                    self._env.lmdb.begin(self._env.tables[table]) as txn,
                    txn.cursor() as cursor,
                ):
                    found = cursor.set_range(first if after is None else after + b"\0")
                    while found and len(rows) < BATCH_ROWS:
                        if end is not None and cursor.key() >= end:
                            break
                        rows.append(cursor.item())
                        found = cursor.next()
            except lmdb.Error as exc:
                raise store_error(exc) from exc
            if not rows:
                return
            after = rows[-1][0]
            yield rows


def _router(rows: list[tuple[bytes, bytes]]) -> Any:
    decoded = [AgentRow(value) for _, value in rows]
    records = [row.record() for row in decoded]
    return _arrow.record_batch(
        {
            "uaid": _arrow.array([key for key, _ in rows], _arrow.binary()),
            "connected_at_ms": [record.connected_at_ms for record in records],
            "expires_at_ms": [row.expires_at_ms for row in decoded],
            "router_type": _arrow.array([record.router_type for record in records]),
            "node_id": _arrow.array([record.node_id for record in records], _arrow.string()),
            "channels": [len(row.channels) // 16 for row in decoded],
            "version": [version_of(value) for _, value in rows],
        }
    )


def _channels(rows: list[tuple[bytes, bytes]]) -> Any:
    pairs = [
        (key, channel)
        for key, value in rows
        for channel in layout.split_channels(AgentRow(value).channels)
    ]
    return _arrow.record_batch(
        {
            "uaid": _arrow.array([key for key, _ in pairs], _arrow.binary()),
            "channel_id": _arrow.array([channel for _, channel in pairs], _arrow.binary()),
        }
    )


def _messages(rows: list[tuple[bytes, bytes]]) -> Any:
    keys = [(key[: layout.UAID_BYTES], key[layout.UAID_BYTES :].decode()) for key, _ in rows]
    return _arrow.record_batch(
        {
            "uaid": _arrow.array([uaid for uaid, _ in keys], _arrow.binary()),
            "channel_id": _arrow.array(
                [value[layout.PLACE_BYTES :] for _, value in rows], _arrow.binary()
            ),
            "topic": [sort_key.startswith("01:") for _, sort_key in keys],
            "accepted_at_ms": _arrow.array(
                [_accepted_at_ms(sort_key) for _, sort_key in keys], _arrow.int64()
            ),
            "expires_at_ms": [layout.second_of(value) * 1000 for _, value in rows],
        }
    )


def _accepted_at_ms(sort_key: str) -> int | None:
    """Sort keys of messages without a topic begin with their time."""
    kind, _, rest = sort_key.partition(":")
    digits = rest.partition(":")[0]
    return int(digits) if kind == "02" and digits.isdigit() else None
