"""Backup of an embedded push store into one file, and the way back.

A backup runs beside servers, in the bounded read transactions of `upkeep`, so it is not the state
of one instant: each row is as it was at some moment between the beginning and the end, and what
existed all the time is in it. Rows do not depend on each other, and what leads to them
(`notifications`, `expiry`) is made anew by the restore.

The file: a line that says what it is; frames of table, key and value; a frame with the SHA-256 of
all that came before.
"""

import hashlib
import os
import shutil
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, Final

import lmdb
import msgspec

from waystation.push.errors import StoreUnavailableError
from waystation.storage.embedded import layout
from waystation.storage.embedded.environment import Environment, store_error
from waystation.storage.embedded.layout import AgentRow
from waystation.storage.embedded.tracking import entry_of
from waystation.storage.embedded.upkeep import CHUNK_ROWS, Report, check_store, chunks
from waystation.storage.settings import Store

_MAGIC: Final = b"waystation backup 1\n"
_FRAME: Final = struct.Struct(">BHI")  # table, lengths of key and value
_END: Final = 255
_BACKED_UP: Final = (
    "agents",
    "payloads",
    "updates",
    "broadcasts",
    "statuses",
    "tracked",
    "counts",
)


def backup_store(env: Environment, target: Path) -> Report:
    """Write all rows into one file, which is there whole or not at all."""
    report = Report(file_bytes=env.file_bytes(), map_bytes=env.map_bytes)
    if target.exists():
        raise StoreUnavailableError(f"{target} exists; a backup overwrites nothing")
    target.parent.mkdir(parents=True, exist_ok=True)
    partial = target.with_name(f".{target.name}.partial")
    descriptor = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    try:
        with os.fdopen(descriptor, "wb") as file:
            digest = hashlib.sha256(_MAGIC)
            file.write(_MAGIC)
            for number, table in enumerate(_BACKED_UP):
                report.rows[table] = 0
                for _, rows in chunks(env, table):
                    chunk = b"".join(
                        _FRAME.pack(number, len(key), len(value)) + key + value
                        for key, value in rows
                    )
                    digest.update(chunk)
                    file.write(chunk)
                    report.rows[table] += len(rows)
            file.write(_FRAME.pack(_END, 0, digest.digest_size) + digest.digest())
            file.flush()
            os.fsync(file.fileno())
        partial.rename(target)
    except lmdb.Error as exc:
        raise store_error(exc) from exc
    finally:
        partial.unlink(missing_ok=True)
    _flush_directory(target.parent)
    return report


def _frames(file: BinaryIO, source: Path) -> Iterator[tuple[str, bytes, bytes]]:
    """The rows of a backup; raises at the end unless it is whole."""
    digest = hashlib.sha256()
    magic = file.read(len(_MAGIC))
    if magic != _MAGIC:
        raise StoreUnavailableError(f"{source} is not a backup that this version reads")
    digest.update(magic)
    while True:
        head = file.read(_FRAME.size)
        if len(head) < _FRAME.size:
            raise StoreUnavailableError(f"{source} is cut off")
        number, key_length, value_length = _FRAME.unpack(head)
        body = file.read(key_length + value_length)
        if len(body) < key_length + value_length:
            raise StoreUnavailableError(f"{source} is cut off")
        if number == _END:
            if body != digest.digest():
                raise StoreUnavailableError(f"{source} is damaged: its checksum does not match")
            return
        if number >= len(_BACKED_UP):
            raise StoreUnavailableError(f"{source} is damaged: it names a table we do not know")
        digest.update(head)
        digest.update(body)
        yield _BACKED_UP[number], body[:key_length], body[key_length:]


def restore_store(source: Path, directory: Path, *, settings: Store, force: bool = False) -> Report:
    """Make the store in `directory` from a backup. One that is there is replaced only with
    `force`; no server may have it open. A damaged backup changes nothing."""
    if (directory / "data.mdb").exists() and not force:
        raise StoreUnavailableError(f"there is a store at {directory}; use --force to replace it")
    try:
        with source.open("rb") as file:
            for _ in _frames(file, source):
                pass
    except OSError as exc:
        raise StoreUnavailableError(f"{source} cannot be read: {exc}") from exc
    building = directory.with_name(f".{directory.name}.restoring")
    shutil.rmtree(building, ignore_errors=True)
    env = Environment.open(
        building,
        form=layout.FORMAT,
        tables=layout.TABLES,
        settings=msgspec.structs.replace(settings, sync=False),  # flushed once, at the end
    )
    try:
        with source.open("rb") as file:
            _fill(env, _frames(file, source))
        env.lmdb.sync(True)
        report = check_store(env)
    except lmdb.Error as exc:
        raise store_error(exc) from exc
    finally:
        env.close()
    old = directory.with_name(f".{directory.name}.replaced")
    shutil.rmtree(old, ignore_errors=True)
    if directory.exists():
        directory.rename(old)
    building.rename(directory)
    _flush_directory(directory.parent)
    shutil.rmtree(old, ignore_errors=True)
    return report


def _fill(env: Environment, frames: Iterator[tuple[str, bytes, bytes]]) -> None:
    more = True
    while more:
        more = False
        with env.lmdb.begin(write=True) as txn:
            for number, (table, key, value) in enumerate(frames, 1):
                if table == "payloads":
                    _bring_back_payload(env, txn, key, value, number)
                else:
                    _bring_back(env, txn, table, key, value)
                if number == CHUNK_ROWS:
                    more = True
                    break


def _bring_back_payload(
    env: Environment, txn: "lmdb.Transaction[bytes]", place: bytes, value: bytes, number: int
) -> None:
    """A notification, at a new place: transactions are counted anew in a new store."""
    notifications, payloads = env.tables["notifications"], env.tables["payloads"]
    key = layout.key_of(value)
    held = txn.get(key, db=notifications)
    if held is not None:  # replaced while the backup ran, so both are in it
        held_place = held[: layout.PLACE_BYTES]
        held_payload = txn.get(held_place, db=payloads)
        assert held_payload is not None, "a row and its payload are written together"
        if layout.age_of(held_payload) >= layout.age_of(value):
            return
        txn.delete(held_place, db=payloads)
    place = layout.place_of(layout.second_of(place), txn.id(), number)
    txn.put(key, place + layout.decode_payload(value).channel_id, db=notifications)
    txn.put(place, value, db=payloads)


def _bring_back(
    env: Environment, txn: "lmdb.Transaction[bytes]", table: str, key: bytes, value: bytes
) -> None:
    """Any other row, and its entry in `expiry`."""
    entry: bytes | None = None
    if table == "agents":
        row = AgentRow(value)
        value = layout.encode_agent(
            row.record(),
            channels=row.channels,
            expires_at_ms=row.expires_at_ms,
            indexed_at_ms=row.expires_at_ms,
        )
        entry = layout.expiry_key(layout.AGENT, row.expires_at_ms, key)
    elif table == "statuses":
        entry = layout.expiry_key(layout.STATUS, layout.decode_status(value).keep_until_ms, key)
    elif table == "tracked":
        entry = entry_of(key, layout.decode_tracked(value))
    if entry is not None:
        txn.put(entry, b"", db=env.tables["expiry"])
    txn.put(key, value, db=env.tables[table])


def _flush_directory(directory: Path) -> None:
    """A rename is durable once its directory is."""
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
