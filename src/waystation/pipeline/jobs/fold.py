"""Job `fold`: folds new events into partial rows of messages.

Input: files added to `events` since the progress. Output: `msg_inc`, appended.
Progress: `fold` in `msg_inc` is the version of `events` that was read.
Idempotence: rows and progress share a commit; folding an event twice changes nothing.
Cost: one pass over the milestone columns of the new files.
"""

from pyspark.sql import functions as F

from waystation.pipeline.commit_log import DataFile, HistoryGoneError
from waystation.pipeline.delta_table import Handle
from waystation.pipeline.job_context import Context, JobResult, noop
from waystation.pipeline.quality import equal, record
from waystation.pipeline.schema import EVENTS, MSG_INC
from waystation.pipeline.transforms import fold as transform

NAME = "fold"
_IDLE_VERSIONS_MAX = 50


def run(ctx: Context) -> JobResult:
    out = ctx.lake.table(MSG_INC).open()
    events = ctx.lake.table(EVENTS).open()
    since = out.progress(NAME) or 0
    added = new_files(events, since)
    ctx.lake.at("planned", MSG_INC.name)
    if not added and events.version - since < _IDLE_VERSIONS_MAX:
        return noop(NAME, events=events.version)
    name = ctx.new_run()
    staged = out.write(transform.fold(events.frame(added)), name) if added else []
    if staged:
        mids = out.frame(staged).agg(F.count_distinct("mid").alias("n")).first()
        rows = sum(file.rows for file in staged)
        assert mids is not None
        record(ctx, MSG_INC.name, name, [equal("fold_conserves", "stop", rows, mids.n)])
    out.append(staged, name, {NAME: events.version})
    return JobResult(
        job=NAME,
        run=name,
        inputs={EVENTS.name: events.version},
        outputs={MSG_INC.name: out.version + 1},
        rows_in=sum(file.rows for file in added),
        rows_out=sum(file.rows for file in staged),
        files=len(staged),
    )


def new_files(source: Handle, since: int) -> list[DataFile]:
    """Files that a consumer has not read; all files if the log does not reach back that far, which
    gives the same result."""
    try:
        return source.added(since)
    except HistoryGoneError:
        return source.files()
