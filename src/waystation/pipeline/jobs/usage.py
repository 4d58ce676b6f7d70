"""Job `usage`: daily counts of operations and of distinct ids.

Input: `events` of due days. Outputs: `usage_daily`, `usage_sketches`.
Progress: `usage` in each output is the version of `events` that was read.
Idempotence: days are computed whole and replaced.
Cost: two passes over a day's events.
"""

from waystation.pipeline.due_days import Days, DaysRun
from waystation.pipeline.job_context import Context, JobResult
from waystation.pipeline.results import USAGE_DAILY, USAGE_SKETCHES
from waystation.pipeline.transforms import usage

NAME = "usage"


def run(ctx: Context, days: Days = None) -> JobResult:
    work = DaysRun(ctx, NAME, (USAGE_DAILY, USAGE_SKETCHES), asked=days)
    due = work.due()
    if not due:
        return work.noop()
    events = work.read(*due)
    work.put(USAGE_DAILY, usage.daily(events))
    work.put(USAGE_SKETCHES, usage.sketches(events))
    work.done(*due)
    return work.commit()
