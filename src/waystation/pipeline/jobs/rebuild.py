"""Job `rebuild`: recomputes days of messages from the events.

Input: `events`. Outputs: `msg`; the rows of those days are removed from `msg_inc`. Progress: none.
Idempotence: a fold of all events of a message equals the merge of its partial folds, so a rebuilt
day equals the incremental one, row for row. The two commits have the order of `merge`, for the same
reason.
Cost: one pass over the events from the first of the days on.

Jobs of other tables recompute days themselves; they take days as an argument.
"""

from collections.abc import Iterable
from datetime import date

from pyspark.sql import functions as F

from waystation.pipeline.job_context import Context, JobResult
from waystation.pipeline.schema import DATE_OF_MID, EVENTS, MSG, MSG_INC
from waystation.pipeline.transforms.fold import fold

NAME = "rebuild"


def run(ctx: Context, days: Iterable[date]) -> JobResult:
    """Reads events from a day before `days` on: events of a message may follow until its TTL
    ends."""
    wanted = sorted(days)
    texts = {day.isoformat() for day in wanted}
    merged, increments = ctx.lake.table(MSG).open(), ctx.lake.table(MSG_INC).open()
    events = ctx.lake.table(EVENTS).open()
    first = date.fromordinal(wanted[0].toordinal() - 1).isoformat()
    files = [file for file in events.files() if (file.partition["date"] or "") >= first]
    of_days = events.frame(files).where(DATE_OF_MID.derive().isin(*(F.lit(day) for day in wanted)))
    name = ctx.new_run()
    taken = increments.files(mdate=texts)
    staged = merged.replace(texts, fold(of_days), name, {})
    increments.swap(taken, [], name)
    return JobResult(
        job=NAME,
        run=name,
        inputs={EVENTS.name: events.version},
        outputs={MSG.name: merged.version + 1},
        rows_in=sum(file.rows for file in files),
        rows_out=sum(file.rows for file in staged),
        files=len(staged),
    )
