"""Checks every row of an embedded push store; also has the report and helpers of all such checks.

A check may run while servers write, in read transactions of `CHUNK_ROWS` rows: one long transaction
would prevent the reuse of freed pages, and the file would grow until it ends. A row is compared
with related rows of other tables in the transaction that read it, so concurrent writers cause no
false alarms.
"""

import hashlib
import struct
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Final

import lmdb
import msgspec

from waystation.base.errors import StoreUnavailableError
from waystation.push.model import ChannelId
from waystation.storage.embedded import layout
from waystation.storage.embedded.environment import Environment, store_error
from waystation.storage.embedded.layout import AgentRow
from waystation.storage.embedded.tracking import entry_of
from waystation.storage.settings import Store

CHUNK_ROWS: Final = 1000
PROBLEMS_MAX: Final = 100  # listed in a report; more are only counted

Look = Callable[["lmdb.Transaction[bytes]", bytes, bytes], None]  # checks one row: key, value

_DECODE_ERRORS = (msgspec.MsgspecError, struct.error, ValueError, UnicodeDecodeError)


class Report(msgspec.Struct, kw_only=True):
    """Result of a check, a backup or a restore."""

    rows: dict[str, int] = msgspec.field(default_factory=dict[str, int])
    orphaned: int = 0  # notifications without a user agent or channel; they expire normally
    problems: list[str] = msgspec.field(default_factory=list[str])
    problems_found: int = 0
    file_bytes: int = 0
    used_bytes: int = 0
    map_bytes: int = 0

    def problem(self, table: str, key: bytes, what: str) -> None:
        """Identifies the row by a hash, so ids do not reach terminals and logs."""
        self.problems_found += 1
        if len(self.problems) < PROBLEMS_MAX:
            name = hashlib.blake2b(key, digest_size=6).hexdigest()
            self.problems.append(f"{table} {name}: {what}")


def open_environment(
    directory: Path,
    settings: Store,
    *,
    form: str = layout.FORMAT,
    tables: Sequence[str] = layout.TABLES,
) -> Environment:
    """Open an existing store, by default push; unlike a server, never creates one."""
    if not (directory / "data.mdb").exists():
        raise StoreUnavailableError(f"no embedded store at {directory}")
    return Environment.open(directory, form=form, tables=tables, settings=settings)


def chunks(
    env: Environment, table: str
) -> Iterator[tuple["lmdb.Transaction[bytes]", list[tuple[bytes, bytes]]]]:
    """All rows of a table in chunks, each with its read transaction."""
    after: bytes | None = None
    while True:
        with env.lmdb.begin(env.tables[table]) as txn:
            rows: list[tuple[bytes, bytes]] = []
            with txn.cursor() as cursor:
                found = cursor.first() if after is None else cursor.set_range(after + b"\0")
                while found and len(rows) < CHUNK_ROWS:
                    rows.append(cursor.item())
                    found = cursor.next()
            if not rows:
                return
            after = rows[-1][0]
            yield txn, rows


# Check


def check_store(env: Environment) -> Report:
    """Checks that every row decodes and that rows and indexes agree."""
    report = Report()
    return check_rows(env, layout.TABLES, _Checks(env, report).of, report)


def check_rows(
    env: Environment, tables: Sequence[str], of: Callable[[str], Look], report: Report
) -> Report:
    """Checks every row of these tables; fills and returns `report`."""
    report.file_bytes, report.map_bytes = env.file_bytes(), env.map_bytes
    try:
        with env.lmdb.begin() as txn:
            report.used_bytes = env.used_pages(txn) * env.page_bytes
        for table in tables:
            look = of(table)
            report.rows[table] = 0
            for txn, rows in chunks(env, table):
                report.rows[table] += len(rows)
                for key, value in rows:
                    try:
                        look(txn, key, value)
                    except _DECODE_ERRORS as exc:
                        report.problem(table, key, f"does not decode: {exc}")
    except lmdb.Error as exc:
        raise store_error(exc) from exc
    return report


class _Checks:
    """The checks of one row, per table, within one transaction."""

    def __init__(self, env: Environment, report: Report) -> None:
        self._tables = env.tables
        self._report = report

    def of(self, table: str) -> Look:
        return getattr(self, f"_{table}")

    def _has_entry(
        self, txn: "lmdb.Transaction[bytes]", table: str, key: bytes, entry: bytes
    ) -> None:
        if txn.get(entry, db=self._tables["expiry"]) is None:
            self._report.problem(table, key, "has no entry in expiry, so it never expires")

    def _agents(self, txn: "lmdb.Transaction[bytes]", key: bytes, value: bytes) -> None:
        row = AgentRow(value)
        if row.record().uaid != key:
            self._report.problem("agents", key, "contains the record of another user agent")
        channels = layout.split_channels(row.channels)
        if len(set(channels)) != len(channels):
            self._report.problem("agents", key, "has a channel twice")
        if row.indexed_at_ms > row.expires_at_ms:
            self._report.problem("agents", key, "would be swept too late")
        entry = layout.expiry_key(layout.AGENT, row.indexed_at_ms, key)
        self._has_entry(txn, "agents", key, entry)

    def _notifications(self, txn: "lmdb.Transaction[bytes]", key: bytes, value: bytes) -> None:
        place, channel_id = value[: layout.PLACE_BYTES], value[layout.PLACE_BYTES :]
        payload = txn.get(place, db=self._tables["payloads"])
        if payload is None or layout.key_of(payload) != key:
            self._report.problem("notifications", key, "does not refer to a payload of its own")
            return
        notification = layout.decode_payload(payload)
        if notification.channel_id != channel_id:
            self._report.problem("notifications", key, "names another channel than its payload")
        if notification.expires_at_ms != layout.second_of(place) * 1000:
            self._report.problem("notifications", key, "has a payload key of another expiry time")
        agent = txn.get(key[: layout.UAID_BYTES], db=self._tables["agents"])
        if agent is None or not AgentRow(agent).subscribed(ChannelId(channel_id)):
            self._report.orphaned += 1

    def _payloads(self, txn: "lmdb.Transaction[bytes]", key: bytes, value: bytes) -> None:
        row = txn.get(layout.key_of(value), db=self._tables["notifications"])
        if row is None or row[: layout.PLACE_BYTES] != key:
            self._report.problem("payloads", key, "no row refers to it")

    def _updates(self, txn: "lmdb.Transaction[bytes]", key: bytes, value: bytes) -> None:
        agent = txn.get(key[: layout.UAID_BYTES], db=self._tables["agents"])
        channel_id = ChannelId(key[layout.UAID_BYTES :])
        if not value:
            self._report.problem("updates", key, "has no version")
        if agent is None or not AgentRow(agent).subscribed(channel_id):
            self._report.orphaned += 1

    def _broadcasts(self, txn: "lmdb.Transaction[bytes]", key: bytes, value: bytes) -> None:
        if not key.decode() or not value.decode():
            self._report.problem("broadcasts", key, "is empty")

    def _statuses(self, txn: "lmdb.Transaction[bytes]", key: bytes, value: bytes) -> None:
        until_ms = layout.decode_status(value).keep_until_ms
        self._has_entry(txn, "statuses", key, layout.expiry_key(layout.STATUS, until_ms, key))

    def _tracked(self, txn: "lmdb.Transaction[bytes]", key: bytes, value: bytes) -> None:
        self._has_entry(txn, "tracked", key, entry_of(key, layout.decode_tracked(value)))

    def _counts(self, txn: "lmdb.Transaction[bytes]", key: bytes, value: bytes) -> None:
        if not value:
            self._report.problem("counts", key, "has no number")

    def _expiry(self, txn: "lmdb.Transaction[bytes]", key: bytes, value: bytes) -> None:
        kind, at_ms, row_key = layout.split_expiry_key(key)
        if kind == layout.AGENT:
            row = txn.get(row_key, db=self._tables["agents"])
            agrees = row is not None and AgentRow(row).indexed_at_ms == at_ms
        elif kind == layout.STATUS:
            row = txn.get(row_key, db=self._tables["statuses"])
            agrees = row is not None and layout.decode_status(row).keep_until_ms == at_ms
        elif kind in (layout.TRACKED, layout.TRACKED_ENDED):
            row = txn.get(row_key, db=self._tables["tracked"])
            agrees = row is not None and entry_of(row_key, layout.decode_tracked(row)) == key
        else:
            agrees = False
        if not agrees:
            self._report.problem("expiry", key, "its row is missing or ends at another time")
