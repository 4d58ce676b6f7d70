"""Backs up all embedded stores into one file and restores them: `waystation store backup`.

A backup may run while servers write. It uses the bounded read transactions of `check`, so it is not
a snapshot of one instant: each unit (a queue, a party, a notification) is consistent as of some
moment during the backup, and rows that exist throughout are included. Push rows do not depend on
each other; the restore rebuilds their indexes (`notifications`, `expiry`). The other stores are
restored row by row.

Rule 1: a restore reads the backup to its end first, builds all stores beside the old ones, checks
        them, and only then replaces the old ones. A damaged backup changes nothing.
Rule 2: a store that is not in the backup is left unchanged.
"""

import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Final

import lmdb
import msgspec

from waystation.base.errors import StoreUnavailableError
from waystation.storage.embedded import cluster_store, layout, presence_rows, queue_layout
from waystation.storage.embedded.backup_file import (
    Entry,
    flush_directory,
    read_archive,
    write_archive,
)
from waystation.storage.embedded.check import CHUNK_ROWS, Report, check_store, chunks
from waystation.storage.embedded.environment import Environment, store_error
from waystation.storage.embedded.layout import AgentRow
from waystation.storage.embedded.presence_check import check_presence_store, presence_rows_of
from waystation.storage.embedded.queue_check import check_queue_store, queue_rows
from waystation.storage.embedded.tracking import entry_of
from waystation.storage.settings import Store

_PUSH_TABLES: Final = (
    "agents",
    "payloads",
    "updates",
    "broadcasts",
    "statuses",
    "tracked",
    "counts",
)

RestoreRow = Callable[[Environment, "lmdb.Transaction[bytes]", Entry, int], None]


class SavedStore(msgspec.Struct, frozen=True):
    """How one of the embedded stores is saved, restored and checked."""

    name: str
    form: str
    tables: tuple[str, ...]
    saved: tuple[str, ...]  # saved tables; a backup refers to them by position, so new ones go last
    rows: Callable[[Environment], Iterator[Entry]]
    restore_row: RestoreRow  # takes a row and its number within the transaction
    check: Callable[[Environment], Report]


def _push_rows(env: Environment) -> Iterator[Entry]:
    for table in _PUSH_TABLES:
        for _, rows in chunks(env, table):
            for key, value in rows:
                yield table, key, value


def _restore_push(
    env: Environment, txn: "lmdb.Transaction[bytes]", entry: Entry, number: int
) -> None:
    table, key, value = entry
    if table == "payloads":
        _restore_payload(env, txn, key, value, number)
    else:
        _restore(env, txn, table, key, value)


def _restore_row(
    env: Environment, txn: "lmdb.Transaction[bytes]", entry: Entry, _number: int
) -> None:
    table, key, value = entry
    txn.put(key, value, db=env.tables[table])


PARTS: Final = {
    part.name: part
    for part in (
        SavedStore(
            "push",
            layout.FORMAT,
            layout.TABLES,
            _PUSH_TABLES,
            _push_rows,
            _restore_push,
            check_store,
        ),
        SavedStore(
            "queue",
            queue_layout.FORMAT,
            queue_layout.TABLES,
            queue_layout.TABLES,
            queue_rows,
            _restore_row,
            check_queue_store,
        ),
        SavedStore(
            "presence",
            presence_rows.FORMAT,
            presence_rows.TABLES,
            presence_rows.TABLES,
            presence_rows_of,
            _restore_row,
            check_presence_store,
        ),
        SavedStore(
            "cluster",
            cluster_store.FORMAT,
            cluster_store.TABLES,
            cluster_store.SAVED_TABLES,
            cluster_store.saved_rows,
            _restore_row,
            cluster_store.check_cluster_store,
        ),
    )
}
_SAVED: Final = {part.name: part.saved for part in PARTS.values()}


def backup_stores(opened: Sequence[tuple[str, Environment]], target: Path) -> dict[str, Report]:
    """Write all rows of these stores into one file, which appears only when it is complete."""
    try:
        stores = [(name, PARTS[name].rows(env)) for name, env in opened]
        written = write_archive(target, stores, _SAVED)
    except lmdb.Error as exc:
        raise store_error(exc) from exc
    return {name: Report(rows=rows) for name, rows in written.items()}


def restore_stores(
    source: Path,
    places: Mapping[str, Path],
    *,
    settings: Store,
    force: bool = False,
    alone: Callable[[], AbstractContextManager[None]] = nullcontext,
) -> dict[str, Report]:
    """Build the stores of a backup, each in its directory of `places`. An existing store is
    replaced only with `force`. `alone` is a context that excludes servers; it is entered after
    the backup has been read, so a damaged backup changes nothing."""
    held = {name for name, _ in read_archive(source, _SAVED)}
    for name in sorted(held - places.keys()):
        raise StoreUnavailableError(
            f"{source} contains {name}, but the settings put {name} into another kind of store"
        )
    with alone():
        for directory in (places[name] for name in sorted(held)):
            if (directory / "data.mdb").exists() and not force:
                raise StoreUnavailableError(
                    f"a store exists at {directory}; use --force to replace it"
                )
        return _replace(source, held, places, settings)


def _replace(
    source: Path, held: set[str], places: Mapping[str, Path], settings: Store
) -> dict[str, Report]:
    built: dict[str, Path] = {}
    try:
        reports = {
            name: _build(PARTS[name], source, built, places[name], settings)
            for name in PARTS
            if name in held
        }
    except BaseException:
        for building in built.values():
            shutil.rmtree(building, ignore_errors=True)
        raise
    for name, building in built.items():
        _put_in_place(building, places[name])
    return reports


def _build(
    part: SavedStore, source: Path, built: dict[str, Path], directory: Path, settings: Store
) -> Report:
    building = built[part.name] = directory.with_name(f".{directory.name}.restoring")
    shutil.rmtree(building, ignore_errors=True)
    env = Environment.open(
        building,
        form=part.form,
        tables=part.tables,
        settings=msgspec.structs.replace(settings, sync=False),  # flushed once, at the end
    )
    try:
        entries = read_archive(source, _SAVED)
        _fill(env, part, (row for name, row in entries if row is not None and name == part.name))
        env.lmdb.sync(True)
        return part.check(env)
    except lmdb.Error as exc:
        raise store_error(exc) from exc
    finally:
        env.close()


def _put_in_place(building: Path, directory: Path) -> None:
    old = directory.with_name(f".{directory.name}.replaced")
    shutil.rmtree(old, ignore_errors=True)
    if directory.exists():
        directory.rename(old)
    building.rename(directory)
    flush_directory(directory.parent)
    shutil.rmtree(old, ignore_errors=True)


def _fill(env: Environment, part: SavedStore, rows: Iterator[Entry]) -> None:
    more = True
    while more:
        more = False
        with env.lmdb.begin(write=True) as txn:
            for number, row in enumerate(rows, 1):
                part.restore_row(env, txn, row, number)
                if number == CHUNK_ROWS:
                    more = True
                    break


def _restore_payload(
    env: Environment, txn: "lmdb.Transaction[bytes]", place: bytes, value: bytes, number: int
) -> None:
    """Restores a notification under a new payload key: a new store counts transactions from 0."""
    notifications, payloads = env.tables["notifications"], env.tables["payloads"]
    key = layout.key_of(value)
    held = txn.get(key, db=notifications)
    if held is not None:  # replaced during the backup, which then contains both
        held_place = held[: layout.PLACE_BYTES]
        held_payload = txn.get(held_place, db=payloads)
        assert held_payload is not None, "a row and its payload are written together"
        if layout.age_of(held_payload) >= layout.age_of(value):
            return
        txn.delete(held_place, db=payloads)
    place = layout.place_of(layout.second_of(place), txn.id(), number)
    txn.put(key, place + layout.decode_payload(value).channel_id, db=notifications)
    txn.put(place, value, db=payloads)


def _restore(
    env: Environment, txn: "lmdb.Transaction[bytes]", table: str, key: bytes, value: bytes
) -> None:
    """Restores any other row, and its entry in `expiry`."""
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
