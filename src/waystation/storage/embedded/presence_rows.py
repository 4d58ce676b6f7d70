"""The layout of parties in LMDB.

| table | key | value |
|---|---|---|
| parties | party | epoch, seq, time, tick, since when it is empty |
| sessions | party, client, session | the session record |
| log | party, seq | one entry |
| cursors | party, client, session | fence, cursor |

Ids are eight bytes, big-endian, so the rows of a party are adjacent and in order. Cursors have
their own table: they are written late, and never cause a write of the session row.
"""

import struct
from collections.abc import Sequence
from typing import Final

import lmdb
import msgspec
from msgspec.structs import replace

from waystation.presence.model import (
    ClientId,
    Entry,
    MessageType,
    PartyId,
    SessionId,
    SessionKey,
    SessionRecord,
)
from waystation.presence.store import CursorRow
from waystation.storage.embedded.environment import Environment
from waystation.storage.memory.presence_ledger import Changes, PartyLedger

FORMAT: Final = "waystation.presence/1"
TABLES: Final = ("parties", "sessions", "log", "cursors")

_key = struct.Struct(">QQQ")
_log_key = struct.Struct(">QQ")
_cursor = struct.Struct(">QQ")
_id = struct.Struct(">Q")


class PartyRow(msgspec.Struct, array_like=True, frozen=True):
    epoch: int
    seq: int
    at_ms: int
    tick: int
    emptied_at_ms: int


class _EntryRow(msgspec.Struct, array_like=True, frozen=True):
    kind: int
    client_id: int
    session_id: int
    message_id: int
    at_ms: int
    count: int
    code: int
    payload: bytes


class _SessionRow(msgspec.Struct, array_like=True, frozen=True):
    """New fields go last and have defaults."""

    active: bool
    owner: str
    incarnation: int
    fence: int
    joined_seq: int
    joined_at_ms: int
    cursor: int
    ttl_ms: int
    flags: int
    token_hash: bytes
    previous_hash: bytes
    previous_until_ms: int
    detached_at_ms: int
    deadline_ms: int
    cause: int
    last_signal_id: int
    token_exp_ms: int


_encode = msgspec.msgpack.Encoder().encode
_decode_party = msgspec.msgpack.Decoder(PartyRow).decode
_decode_entry = msgspec.msgpack.Decoder(_EntryRow).decode
_decode_session = msgspec.msgpack.Decoder(_SessionRow).decode
_SESSION_FIELDS: Final = _SessionRow.__struct_fields__

Row = tuple[str, bytes, bytes | None]  # table, key, value; None removes


def rows_of(ledger: PartyLedger, changes: Changes, log_max: int) -> list[Row]:
    """The rows to write for a change of a party."""
    party_id = ledger.party_id
    row = PartyRow(ledger.epoch, ledger.seq, ledger.at_ms, ledger.tick, ledger.emptied_at_ms)
    rows: list[Row] = [("parties", _id.pack(party_id), _encode(row))]
    for (client_id, session_id), record in changes.sessions.items():
        key = _key.pack(party_id, client_id, session_id)
        if record is None:
            rows.append(("cursors", key, None))
        rows.append(("sessions", key, None if record is None else encode_session(record)))
    for entry in changes.entries:
        rows.append(("log", _log_key.pack(party_id, entry.seq), _encode_entry(entry)))
        if entry.seq > log_max:
            rows.append(("log", _log_key.pack(party_id, entry.seq - log_max), None))
    return rows


def encode_session(record: SessionRecord) -> bytes:
    return _encode(_SessionRow(*(getattr(record, name) for name in _SESSION_FIELDS)))


def _encode_entry(entry: Entry) -> bytes:
    return _encode(
        _EntryRow(
            int(entry.kind),
            entry.client_id,
            entry.session_id,
            entry.message_id,
            entry.at_ms,
            entry.count,
            entry.code,
            entry.payload,
        )
    )


class PartyTables:
    """Reads and writes of the four tables inside a transaction."""

    def __init__(self, env: Environment) -> None:
        self._tables = env.tables

    def write(self, txn: "lmdb.Transaction[bytes]", rows: Sequence[Row]) -> None:
        for table, key, value in rows:
            if value is None:
                txn.delete(key, db=self._tables[table])
            else:
                txn.put(key, value, db=self._tables[table])

    def clear_log(self, txn: "lmdb.Transaction[bytes]", party_id: PartyId) -> None:
        """Used when a new epoch begins or the party is removed."""
        self._clear(txn, "log", party_id)

    def _clear(self, txn: "lmdb.Transaction[bytes]", table: str, party_id: PartyId) -> None:
        prefix = _id.pack(party_id)
        with txn.cursor(self._tables[table]) as cursor:
            found = cursor.set_range(prefix)
            while found and cursor.key().startswith(prefix):
                found = cursor.delete()

    def forget(self, txn: "lmdb.Transaction[bytes]", party_id: PartyId) -> None:
        for table in ("log", "sessions", "cursors"):
            self._clear(txn, table, party_id)
        txn.delete(_id.pack(party_id), db=self._tables["parties"])

    def save_cursors(self, txn: "lmdb.Transaction[bytes]", rows: Sequence[CursorRow]) -> None:
        for row in rows:
            txn.put(_key.pack(*row.key), _cursor.pack(row.fence, row.cursor), db=self._cursors)

    @property
    def _cursors(self) -> "lmdb._Database":
        return self._tables["cursors"]

    def party_ids(self, txn: "lmdb.Transaction[bytes]") -> list[PartyId]:
        with txn.cursor(self._tables["parties"]) as cursor:
            return [PartyId(_id.unpack(key)[0]) for key in cursor.iternext(values=False)]

    def load(self, txn: "lmdb.Transaction[bytes]", ledger: PartyLedger) -> bool:
        """Fill an empty ledger; False if the party does not exist."""
        prefix = _id.pack(ledger.party_id)
        value = txn.get(prefix, db=self._tables["parties"])
        if value is None:
            return False
        row = _decode_party(value)
        ledger.epoch, ledger.seq, ledger.at_ms = row.epoch, row.seq, row.at_ms
        ledger.tick, ledger.emptied_at_ms = max(row.tick, ledger.tick), row.emptied_at_ms
        with txn.cursor(self._tables["sessions"]) as cursor:
            found = cursor.set_range(prefix)
            while found and cursor.key().startswith(prefix):
                ledger.restore_session(self._session(txn, cursor.key(), cursor.value()))
                found = cursor.next()
        with txn.cursor(self._tables["log"]) as cursor:
            found = cursor.set_range(prefix)
            while found and cursor.key().startswith(prefix):
                ledger.log.append(_entry(cursor.key(), cursor.value()))
                found = cursor.next()
        return True

    def _session(self, txn: "lmdb.Transaction[bytes]", key: bytes, value: bytes) -> SessionRecord:
        party_id, client_id, session_id = _key.unpack(key)
        row = _decode_session(value)
        fields = {name: getattr(row, name) for name in _SESSION_FIELDS}
        record = SessionRecord(
            key=SessionKey(PartyId(party_id), ClientId(client_id), SessionId(session_id)), **fields
        )
        saved = txn.get(key, db=self._cursors)
        if saved is not None:
            fence, cursor = _cursor.unpack(saved)
            # A resume keeps the cursor, so one that was saved under an older fence still counts.
            if fence <= record.fence and cursor > record.cursor:
                return replace(record, cursor=cursor)
        return record


def decode_row(table: str, key: bytes, value: bytes) -> object:
    """The decoded row; raises `msgspec.MsgspecError` or `struct.error` for an invalid one."""
    match table:
        case "parties":
            return _id.unpack(key), _decode_party(value)
        case "sessions":
            return _key.unpack(key), _decode_session(value)
        case "log":
            return _entry(key, value)
        case _:
            return _key.unpack(key), _cursor.unpack(value)


def _entry(key: bytes, value: bytes) -> Entry:
    _, seq = _log_key.unpack(key)
    row = _decode_entry(value)
    return Entry(
        seq,
        MessageType(row.kind),
        ClientId(row.client_id),
        SessionId(row.session_id),
        row.message_id,
        row.at_ms,
        row.count,
        row.code,
        row.payload,
    )
