"""Job `slots`: load of each of the 4096 slots per minute.

Input: `events` of due days. Output: `slot_minutely`.
Progress: `slots` in the output is the version of `events` that was read.
Idempotence: days are computed whole and replaced.
Cost: one pass over a day's queue events.
"""

from pyspark.sql import functions as F

from waystation.pipeline.due_days import Days, DaysRun
from waystation.pipeline.job_context import Context, JobResult
from waystation.pipeline.quality import at_most, record
from waystation.pipeline.results import SLOT_MINUTELY
from waystation.pipeline.transforms import slots
from waystation.queue.model import SLOTS

NAME = "slots"


def run(ctx: Context, days: Days = None) -> JobResult:
    work = DaysRun(ctx, NAME, (SLOT_MINUTELY,), asked=days)
    due = work.due()
    if not due:
        return work.noop()
    rows = work.put(SLOT_MINUTELY, slots.minutely(work.read(*due)))
    outside = rows.where(~F.col("slot").between(0, SLOTS - 1)).count()
    work.done(*due)
    record(ctx, SLOT_MINUTELY.name, work.name, [at_most("slot_range", "stop", outside)])
    return work.commit()
