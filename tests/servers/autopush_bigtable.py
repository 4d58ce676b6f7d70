"""What a node of autopush-rs does to Bigtable, call by call: its neighbour in a mixed cluster.

Written from the layout that docs/guides/stores/bigtable.md records; nothing of ours is used.
"""

import datetime
import json
import time
from typing import Any
from uuid import UUID, uuid4

from google.cloud.bigtable.data import (
    DeleteAllFromRow,
    DeleteRangeFromColumn,
    ReadRowsQuery,
    RowRange,
    SetCell,
)
from google.cloud.bigtable.data import row_filters as rf

ROUTER_TTL_MS = 60 * 86_400_000
NEWEST = rf.CellsColumnLimitFilter(1)
REQUIRED = {b"connected_at", b"router_type", b"record_version", b"version"}


def now_ms() -> int:
    return time.time_ns() // 1_000_000


def number(value: int) -> bytes:
    return value.to_bytes(8, "big")


class IntegrityError(Exception):
    """A record that autopush-rs refuses to read."""


class AutopushNode:
    def __init__(self, table: Any) -> None:
        self.table = table

    # Users

    async def add_user(self, uaid: UUID, user: dict[str, Any]) -> bool:
        there = rf.RowFilterChain([NEWEST, rf.RowKeyRegexFilter(f"^{uaid.hex}$")])
        return not await self.table.check_and_mutate_row(
            uaid.hex, there, false_case_mutations=self._user_cells(user, user["version"])
        )

    async def update_user(self, uaid: UUID, user: dict[str, Any]) -> bool:
        return await self.table.check_and_mutate_row(
            uaid.hex,
            self._same_version(user["version"]),
            true_case_mutations=self._user_cells(user, uuid4().bytes),
        )

    async def get_user(self, uaid: UUID) -> dict[str, Any] | None:
        wanted = rf.RowFilterChain([NEWEST, rf.FamilyNameRegexFilter("^router$")])
        row = await self.table.read_row(uaid.hex, row_filter=wanted)
        if row is None:
            return None
        cells = {cell.qualifier: cell.value for cell in row.cells}
        if not cells.keys() >= REQUIRED:
            raise IntegrityError(cells.keys())
        user: dict[str, Any] = {
            "connected_at": int.from_bytes(cells.pop(b"connected_at"), "big"),
            "router_type": cells.pop(b"router_type").decode(),
            "record_version": int.from_bytes(cells.pop(b"record_version"), "big"),
            "version": UUID(bytes=cells.pop(b"version")).bytes,
        }
        if data := cells.pop(b"router_data", None):
            user["router_data"] = json.loads(data)
        if node_id := cells.pop(b"node_id", None):
            user["node_id"] = node_id.decode()
        if cursor := cells.pop(b"current_timestamp", None):
            user["current_timestamp"] = int.from_bytes(cursor, "big")
        user["channels"] = {UUID(name.decode().split("chid:")[1]) for name in cells}
        return user

    async def remove_user(self, uaid: UUID) -> None:
        await self.table.mutate_row(uaid.hex, DeleteAllFromRow())

    async def add_channels(self, uaid: UUID, *channels: UUID) -> None:
        ends = (now_ms() + ROUTER_TTL_MS) * 1000
        cells = [SetCell("router", f"chid:{channel}", b"\x00", ends) for channel in channels]
        await self.table.mutate_row(uaid.hex, cells)

    async def remove_channel(self, uaid: UUID, channel: UUID) -> bool:
        there = rf.RowFilterChain([NEWEST, rf.ColumnQualifierRegexFilter(f"^chid:{channel}$")])
        return await self.table.check_and_mutate_row(
            uaid.hex,
            there,
            true_case_mutations=[
                DeleteRangeFromColumn("router", f"chid:{channel}".encode()),
                SetCell("router", "version", uuid4().bytes, (now_ms() + ROUTER_TTL_MS) * 1000),
            ],
        )

    async def remove_node_id(self, uaid: UUID, version: bytes) -> bool:
        return await self.table.check_and_mutate_row(
            uaid.hex,
            self._same_version(version),
            true_case_mutations=[DeleteRangeFromColumn("router", b"node_id")],
        )

    async def increment_storage(self, uaid: UUID, cursor_ms: int) -> None:
        ends = (now_ms() + ROUTER_TTL_MS) * 1000
        cells = [
            SetCell("router", "current_timestamp", number(cursor_ms), ends),
            SetCell("router", "version", uuid4().bytes, ends),
        ]
        await self.table.mutate_row(uaid.hex, cells)

    # Messages

    async def save_message(self, uaid: UUID, sort_key: str, message: dict[str, Any]) -> None:
        family = "message_topic" if sort_key.startswith("01:") else "message"
        ends = (now_ms() + message["ttl"] * 1000) * 1000
        cells = {
            "ttl": number(message["ttl"]),
            "timestamp": number(message["timestamp"]),
            "version": message["version"].encode(),
        }
        if message.get("headers"):
            cells["headers"] = json.dumps(message["headers"]).encode()
        if message.get("data"):
            cells["data"] = message["data"].encode()
        await self.table.mutate_row(
            f"{uaid.hex}#{sort_key}",
            [SetCell(family, name, value, ends) for name, value in cells.items()],
        )

    async def fetch_topics(self, uaid: UUID) -> dict[str, dict[str, Any]]:
        return await self._fetch(f"{uaid.hex}#01:", f"{uaid.hex}#02:", "message_topic")

    async def fetch_timed(
        self, uaid: UUID, cursor_ms: int | None = None
    ) -> dict[str, dict[str, Any]]:
        start = "" if cursor_ms is None else f"{cursor_ms}z"
        return await self._fetch(f"{uaid.hex}#02:{start}", f"{uaid.hex}#03:", "message")

    async def _fetch(self, start: str, end: str, family: str) -> dict[str, dict[str, Any]]:
        alive = rf.TimestampRangeFilter(start=datetime.datetime.now(datetime.UTC))
        wanted = rf.RowFilterChain([NEWEST, alive, rf.FamilyNameRegexFilter(f"^{family}$")])
        between = RowRange(start, end, start_is_inclusive=False)
        rows = await self.table.read_rows(ReadRowsQuery(row_ranges=between, row_filter=wanted))
        found: dict[str, dict[str, Any]] = {}
        for row in rows:
            cells = {cell.qualifier.decode(): cell.value for cell in row.cells}
            found[row.row_key.decode().split("#", 1)[1]] = {
                "version": cells["version"].decode(),
                "ttl": int.from_bytes(cells["ttl"], "big"),
                "timestamp": int.from_bytes(cells["timestamp"], "big"),
                "data": cells["data"].decode() if "data" in cells else None,
                "headers": json.loads(cells["headers"]) if "headers" in cells else None,
            }
        return found

    async def remove_message(self, uaid: UUID, sort_key: str) -> None:
        await self.table.mutate_row(f"{uaid.hex}#{sort_key}", DeleteAllFromRow())

    # Inside

    def _same_version(self, version: bytes) -> rf.RowFilter:
        return rf.RowFilterChain(
            [
                NEWEST,
                rf.FamilyNameRegexFilter("^router$"),
                rf.ColumnQualifierRegexFilter("^version$"),
                rf.ValueRangeFilter(version, version),
            ]
        )

    def _user_cells(self, user: dict[str, Any], version: bytes) -> list[SetCell]:
        ends = (now_ms() + ROUTER_TTL_MS) * 1000
        cells = {
            "connected_at": number(user["connected_at"]),
            "router_type": user["router_type"].encode(),
            "record_version": number(user.get("record_version", 1)),
            "version": version,
        }
        if "node_id" in user:
            cells["node_id"] = user["node_id"].encode()
        if "router_data" in user:
            cells["router_data"] = json.dumps(user["router_data"]).encode()
        if "current_timestamp" in user:
            cells["current_timestamp"] = number(user["current_timestamp"])
        cells |= {f"chid:{channel}": b"\x00" for channel in user.get("channels", ())}
        return [SetCell("router", name, value, ends) for name, value in cells.items()]
