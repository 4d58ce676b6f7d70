"""Job `vacuum`: removes partitions past their retention and deletes files that no reader needs.

Rule 1: a partition past its table's retention is removed by a `swap` without new files.
Rule 2: a removed file is deleted `delete_after_s` after its removal, and only when every job that
        reads the table has passed the commit that added it.
Rule 3: a file that no commit names (of a crashed run) is deleted when it is that old.
Rule 4: without `apply`, files are only counted.

Inputs and outputs: all tables.
Idempotence: deleting again finds nothing.
"""

from collections.abc import Iterable
from datetime import UTC, date, datetime, timedelta

import msgspec

from waystation.pipeline.all_tables import consumers, keep_days
from waystation.pipeline.commit_log import Added, HistoryGoneError, Removed
from waystation.pipeline.delta_table import Handle
from waystation.pipeline.job_context import Context
from waystation.pipeline.schema import TableSpec


class Vacuumed(msgspec.Struct, frozen=True):
    table: str
    partitions: int  # past retention
    rows: int
    files: int  # deleted from disk
    bytes: int


class _Known(msgspec.Struct, frozen=True):
    """Files that the log names, present and removed."""

    added_in: dict[str, int]
    removed_at_ms: dict[str, int]


def run(
    ctx: Context, specs: Iterable[TableSpec], *, apply: bool, at_once: bool = False
) -> list[Vacuumed]:
    """`at_once` deletes removed files without waiting, which `forget` needs."""
    done: list[Vacuumed] = []
    for spec in specs:
        table = ctx.lake.table(spec)
        if table.exists():
            partitions, rows = _expire(ctx, spec, apply=apply)
            files, size = _delete(ctx, table.open(), apply=apply, at_once=at_once)
            if apply:
                table.open().trim_log()
            done.append(Vacuumed(spec.name, partitions, rows, files, size))
    return done


def _expire(ctx: Context, spec: TableSpec, *, apply: bool) -> tuple[int, int]:
    handle = ctx.lake.table(spec).open()
    by = spec.partition_names[0]
    today = datetime.fromtimestamp(ctx.clock.now_ms() / 1000, UTC).date()
    oldest = today - timedelta(days=keep_days(spec, ctx.settings))
    past = {day for day in handle.partition_values(by) if date.fromisoformat(day) < oldest}
    files = handle.files(**{by: past})
    if files and apply:
        handle.swap(files, [], ctx.new_run())
    return len(past), sum(file.rows for file in files)


def _delete(ctx: Context, handle: Handle, *, apply: bool, at_once: bool) -> tuple[int, int]:
    wanted = {file.path for file in handle.files()}
    known = _known(handle)
    read_by_all = _read_by_all(ctx, handle)
    oldest_ms = ctx.clock.now_ms() - int(ctx.settings.delete_after_s * 1000)
    count = size = 0
    for found in handle.table.files.below("data"):
        if found.path in wanted:
            continue
        added_in, removed_at_ms = (
            known.added_in.get(found.path),
            known.removed_at_ms.get(found.path),
        )
        if removed_at_ms is not None:
            waits = removed_at_ms > oldest_ms and not at_once
            if waits or (added_in or 0) > read_by_all:
                continue
        elif added_in is not None or found.changed_at_ms > oldest_ms:
            continue  # committed meanwhile, or of a run that may still commit it
        count += 1
        size += found.size_bytes
        if apply:
            handle.table.files.delete(found.path)
    return count, size


def _known(handle: Handle) -> _Known:
    known = _Known({}, {})
    since = handle.oldest_commit() - 1
    try:
        for change in handle.changes(since):
            match change:
                case Added():
                    known.added_in[change.file.path] = change.version
                case Removed():
                    known.removed_at_ms[change.path] = change.at_ms
    except HistoryGoneError:
        pass  # trimmed meanwhile: the files known so far suffice
    return known


def _read_by_all(ctx: Context, handle: Handle) -> int:
    """The version that all consumers have read."""
    versions = [
        table.open().progress(job) or 0
        for spec, job in consumers(handle.spec.name)
        if (table := ctx.lake.table(spec)).exists()
    ]
    return min(versions, default=handle.version)
