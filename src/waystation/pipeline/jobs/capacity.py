"""Job `capacity`: load of the platform and its stores per minute, and the required capacity.

Input: `events` of due days. Outputs: `cap_minutely`, `cap_units`.
Progress: `capacity` in each output is the version of `events` that was read.
Idempotence: days are computed whole and replaced.
Cost: one pass over a day's events.
"""

from waystation.pipeline.due_days import Days, DaysRun
from waystation.pipeline.job_context import Context, JobResult
from waystation.pipeline.results import CAP_MINUTELY, CAP_UNITS
from waystation.pipeline.transforms import capacity

NAME = "capacity"


def run(ctx: Context, days: Days = None) -> JobResult:
    work = DaysRun(ctx, NAME, (CAP_MINUTELY, CAP_UNITS), asked=days)
    due = work.due()
    if not due:
        return work.noop()
    settings = ctx.settings
    asked = capacity.minutely(work.read(*due), router_item_bytes=settings.router_item_bytes)
    minutes = work.put(CAP_MINUTELY, asked)
    work.put(CAP_UNITS, capacity.units(minutes, headroom=settings.headroom))
    work.done(*due)
    return work.commit()
