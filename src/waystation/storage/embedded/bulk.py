"""Bulk reader of an embedded push store, for pipeline jobs.

Each page is a separate read transaction; a long one would prevent the reuse of freed pages while
servers write. The version of a record is a hash of its row.
"""

import asyncio
from collections.abc import AsyncIterator, Generator, Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any

import lmdb

from waystation.base.clock import SystemClock
from waystation.push.model import ChannelId, MessageId, Notification, SortKey, Uaid
from waystation.storage.bulk import PAGE_ROWS, BulkStore
from waystation.storage.bulk_rows import (
    Bounds,
    StoredNotification,
    Subscriptions,
    UserAgentSnapshot,
    inside,
    version_of,
)
from waystation.storage.embedded import layout
from waystation.storage.embedded.check import open_environment
from waystation.storage.embedded.environment import Environment, store_error
from waystation.storage.embedded.layout import AgentRow
from waystation.storage.embedded.push_changes import PushChanges
from waystation.storage.embedded.push_reads import PushReads
from waystation.storage.embedded.writer import WriterStats
from waystation.storage.settings import Store

REMOVED_AT_ONCE = 200
_ROWS_AT_ONCE = 1000

_arrow: Any = import_module("pyarrow")


class EmbeddedBulk(BulkStore):
    def __init__(self, directory: Path, settings: Store, runner: asyncio.Runner) -> None:
        super().__init__(_arrow, runner)
        self._env: Environment = open_environment(directory, settings)
        self._clock = SystemClock()
        self._reads = PushReads(self._env, self._clock)
        self._changes = PushChanges(self._env, self._clock, WriterStats())

    async def close_connections(self) -> None:
        self._env.close()

    def ranges(self, table: str, count: int) -> list[bytes]:
        """The first two bytes of each range and of its end (missing in the last). Ranges have
        equal width, because uaids are random."""
        marks = [((number << 16) // count).to_bytes(2, "big") for number in range(1, count)]
        return [first + end for first, end in zip([b"\0\0", *marks], [*marks, b""], strict=True)]

    async def user_agents(
        self, part: bytes, bounds: Bounds, *, whole: bool
    ) -> AsyncIterator[Sequence[UserAgentSnapshot]]:
        for rows in self._chunks("agents", part):
            found: list[UserAgentSnapshot] = []
            for key, value in rows:
                record = AgentRow(value).record()
                if inside(bounds, "connected_at_ms", record.connected_at_ms):
                    found.append(self._user_agent(Uaid(key), value, whole=whole))
            yield found

    def _user_agent(self, uaid: Uaid, value: bytes, *, whole: bool) -> UserAgentSnapshot:
        row = AgentRow(value)
        return UserAgentSnapshot(
            record=row.record(),
            channels=frozenset(layout.split_channels(row.channels) if whole else ()),
            updates=tuple(self._reads.updates(uaid, _ROWS_AT_ONCE)) if whole else (),
            expires_at_ms=row.expires_at_ms,
            version=version_of(value),
        )

    async def read_user_agents(self, uaids: Sequence[Uaid]) -> list[UserAgentSnapshot]:
        with self._env.lmdb.begin(self._env.tables["agents"]) as txn:
            values = [(uaid, txn.get(uaid)) for uaid in uaids]
        now_ms = self._clock.now_ms()
        found = [
            self._user_agent(uaid, value, whole=True) for uaid, value in values if value is not None
        ]
        return [one for one in found if not one.over(now_ms)]

    async def subscriptions(self, part: bytes) -> AsyncIterator[Sequence[Subscriptions]]:
        for rows in self._chunks("agents", part):
            yield [
                (Uaid(key), frozenset(layout.split_channels(AgentRow(value).channels)))
                for key, value in rows
            ]

    async def notifications(
        self, part: bytes, bounds: Bounds, *, whole: bool
    ) -> AsyncIterator[Sequence[StoredNotification]]:
        for rows in self._chunks("notifications", part):
            read = self._payloads(rows) if whole else [_slim(*row) for row in rows]
            yield [row for row in read if inside(bounds, "expires_at_ms", row[1].expires_at_ms)]

    def _payloads(self, rows: list[tuple[bytes, bytes]]) -> list[StoredNotification]:
        found: list[StoredNotification] = []
        with self._env.lmdb.begin(self._env.tables["payloads"]) as txn:
            for key, value in rows:
                payload = txn.get(value[: layout.PLACE_BYTES])
                if payload is not None:  # None: acked since its row was read
                    uaid = Uaid(key[: layout.UAID_BYTES])
                    found.append((uaid, layout.decode_payload(payload)))
        return found

    async def remove_if_same(self, agents: Sequence[tuple[Uaid, int]]) -> int:
        table = self._env.tables["agents"]
        removed = 0
        for at in range(0, len(agents), REMOVED_AT_ONCE):
            left: list[Uaid] = []
            with self._writing() as txn:
                for uaid, version in agents[at : at + REMOVED_AT_ONCE]:
                    value = txn.get(uaid, db=table)
                    if value is not None and version_of(value) == version:
                        _, more = self._changes.remove_user_agent(uaid, _ROWS_AT_ONCE, txn)
                        removed += 1
                        left += [uaid] * more
            self._clear(left)
        return removed

    async def remove_if_orphaned(self, uaids: Sequence[Uaid]) -> int:
        table = self._env.tables["agents"]
        removed = 0
        for at in range(0, len(uaids), REMOVED_AT_ONCE):
            left: list[Uaid] = []
            with self._writing() as txn:
                for uaid in uaids[at : at + REMOVED_AT_ONCE]:
                    if txn.get(uaid, db=table) is None:
                        _, more = self._changes.clear_rows(uaid, _ROWS_AT_ONCE, txn)
                        removed += 1
                        left += [uaid] * more
            self._clear(left)
        return removed

    def _clear(self, uaids: Sequence[Uaid]) -> None:
        for uaid in uaids:
            more = True
            while more:
                with self._writing() as txn:
                    _, more = self._changes.clear_rows(uaid, _ROWS_AT_ONCE, txn)

    @contextmanager
    def _writing(self) -> Generator[Any]:
        try:
            with self._env.lmdb.begin(write=True) as txn:
                yield txn
        except lmdb.Error as exc:
            raise store_error(exc) from exc

    def _chunks(self, table: str, part: bytes) -> Iterator[list[tuple[bytes, bytes]]]:
        after, end = part[:2], part[2:]
        while True:
            rows: list[tuple[bytes, bytes]] = []
            try:
                with (
                    self._env.lmdb.begin(self._env.tables[table]) as txn,
                    txn.cursor() as cursor,
                ):
                    found = cursor.set_range(after)
                    while found and len(rows) < PAGE_ROWS:
                        if end and cursor.key() >= end:
                            break
                        rows.append(cursor.item())
                        found = cursor.next()
            except lmdb.Error as exc:
                raise store_error(exc) from exc
            if not rows:
                return
            yield rows
            after = rows[-1][0] + b"\0"


def _slim(key: bytes, value: bytes) -> StoredNotification:
    """From the index row alone, without reading the payload."""
    sort_key = key[layout.UAID_BYTES :].decode()
    kind, _, rest = sort_key.partition(":")
    digits = rest.partition(":")[0]
    accepted_at_ms = int(digits) if kind == "02" and digits.isdigit() else 0
    ttl_s = layout.second_of(value) - accepted_at_ms // 1000
    return Uaid(key[: layout.UAID_BYTES]), Notification(
        ChannelId(value[layout.PLACE_BYTES :]),
        MessageId(""),
        SortKey(sort_key),
        accepted_at_ms,
        ttl_s,
    )
