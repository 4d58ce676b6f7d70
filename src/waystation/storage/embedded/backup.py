"""Backs up all embedded stores into one file and restores them: `waystation store backup`.

A backup runs beside servers, in the bounded read transactions of `check`, so it is not the state
of one instant: what belongs together (a queue, a party, a notification) is as it was at some moment
between the beginning and the end, and what existed all the time is in it. Rows of push do not
depend on each other, and their indexes (`notifications`, `expiry`) are built again by the restore;
the other stores are restored row by row.

Rule 1: a restore reads the backup to its end first, builds all stores beside the old ones, checks
        them, and only then replaces the old ones. A damaged backup changes nothing.
Rule 2: a store of which the backup has nothing stays as it is.
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

BringBack = Callable[[Environment, "lmdb.Transaction[bytes]", Entry, int], None]


class Part(msgspec.Struct, frozen=True):
    """One of the embedded stores, as far as upkeep goes."""

    name: str
    form: str
    tables: tuple[str, ...]
    saved: tuple[str, ...]  # tables that a backup has, by number; later ones go last
    rows: Callable[[Environment], Iterator[Entry]]
    bring_back: BringBack  # a row, and its number within the transaction
    check: Callable[[Environment], Report]


def _push_rows(env: Environment) -> Iterator[Entry]:
    for table in _PUSH_TABLES:
        for _, rows in chunks(env, table):
            for key, value in rows:
                yield table, key, value


def _bring_back_push(
    env: Environment, txn: "lmdb.Transaction[bytes]", entry: Entry, number: int
) -> None:
    table, key, value = entry
    if table == "payloads":
        _bring_back_payload(env, txn, key, value, number)
    else:
        _bring_back(env, txn, table, key, value)


def _as_it_is(env: Environment, txn: "lmdb.Transaction[bytes]", entry: Entry, _number: int) -> None:
    table, key, value = entry
    txn.put(key, value, db=env.tables[table])


PARTS: Final = {
    part.name: part
    for part in (
        Part(
            "push",
            layout.FORMAT,
            layout.TABLES,
            _PUSH_TABLES,
            _push_rows,
            _bring_back_push,
            check_store,
        ),
        Part(
            "queue",
            queue_layout.FORMAT,
            queue_layout.TABLES,
            queue_layout.TABLES,
            queue_rows,
            _as_it_is,
            check_queue_store,
        ),
        Part(
            "presence",
            presence_rows.FORMAT,
            presence_rows.TABLES,
            presence_rows.TABLES,
            presence_rows_of,
            _as_it_is,
            check_presence_store,
        ),
        Part(
            "cluster",
            cluster_store.FORMAT,
            cluster_store.TABLES,
            cluster_store.SAVED_TABLES,
            cluster_store.saved_rows,
            _as_it_is,
            cluster_store.check_cluster_store,
        ),
    )
}
_SAVED: Final = {part.name: part.saved for part in PARTS.values()}


def backup_stores(opened: Sequence[tuple[str, Environment]], target: Path) -> dict[str, Report]:
    """Write all rows of these stores into one file, which is there whole or not at all."""
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
    """Make the stores of a backup anew, each in its directory of `places`. What is there is
    replaced only with `force`; no server may have it open, which `alone` sees to: it is entered
    when the backup has been read, so that a bad one changes nothing."""
    held = {name for name, _ in read_archive(source, _SAVED)}
    for name in sorted(held - places.keys()):
        raise StoreUnavailableError(
            f"{source} holds {name}, which by the settings does not live in an embedded store"
        )
    with alone():
        for directory in (places[name] for name in sorted(held)):
            if (directory / "data.mdb").exists() and not force:
                raise StoreUnavailableError(
                    f"there is a store at {directory}; use --force to replace it"
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
    part: Part, source: Path, built: dict[str, Path], directory: Path, settings: Store
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


def _fill(env: Environment, part: Part, rows: Iterator[Entry]) -> None:
    more = True
    while more:
        more = False
        with env.lmdb.begin(write=True) as txn:
            for number, row in enumerate(rows, 1):
                part.bring_back(env, txn, row, number)
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
