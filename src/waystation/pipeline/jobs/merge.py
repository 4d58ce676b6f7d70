"""Job `merge`: merges partial rows into one row per message.

Inputs and outputs: `msg_inc` and `msg`, for days of messages with many increments.
Progress: none; merged rows are removed from `msg_inc`.
Idempotence: `msg` gets its new partitions first, then `msg_inc` loses the merged files. A crash in
between is harmless: readers merge both tables, and merging twice changes nothing.
Cost: one pass over both tables' files of due days.
"""

from collections import defaultdict

from waystation.pipeline.commit_log import DataFile
from waystation.pipeline.delta_table import Handle
from waystation.pipeline.job_context import Context, JobResult, noop
from waystation.pipeline.schema import MSG, MSG_INC
from waystation.pipeline.transforms.fold import messages

NAME = "merge"
DUE_SHARE = 0.25


def run(ctx: Context, *, all_days: bool = False) -> JobResult:
    """`all_days`: also days with few increments, less than a quarter of their messages."""
    merged, increments = ctx.lake.table(MSG).open(), ctx.lake.table(MSG_INC).open()
    days = due(merged, increments, 0.0 if all_days else DUE_SHARE)
    ctx.lake.at("planned", MSG.name)
    if not days:
        return noop(NAME, msg=merged.version, msg_inc=increments.version)
    name = ctx.new_run()
    taken = increments.files(mdate=days)
    both = messages(merged.read(mdate=days), increments.frame(taken))
    staged = merged.replace(days, both, name, {})
    increments.swap(taken, [], name)
    return JobResult(
        job=NAME,
        run=name,
        inputs={MSG_INC.name: increments.version},
        outputs={MSG.name: merged.version + 1},
        rows_in=sum(file.rows for file in taken),
        rows_out=sum(file.rows for file in staged),
        files=len(staged),
    )


def due(merged: Handle, increments: Handle, share: float) -> set[str]:
    """Days whose increments exceed a share of their messages."""
    have, new = _bytes_by_day(merged.files()), _bytes_by_day(increments.files())
    return {day for day, size in new.items() if size > share * have.get(day, 0)}


def _bytes_by_day(files: list[DataFile]) -> dict[str, int]:
    total: dict[str, int] = defaultdict(int)
    for file in files:
        total[file.partition["mdate"] or ""] += file.size_bytes
    return total
