"""Who asks for more than everybody else.

Input: `events` of the days that are due. Output: `abuse`.
Progress: `abuse` in it is the version of `events` that it has read.
Idempotence: days are computed whole and exchanged.
Cost: one pass over a day's events; what follows is as large as the number of keys a minute.
"""

from waystation.pipeline.due_days import Days, DaysRun
from waystation.pipeline.job_context import Context, JobResult
from waystation.pipeline.results import ABUSE
from waystation.pipeline.transforms import abuse

NAME = "abuse"


def run(ctx: Context, days: Days = None) -> JobResult:
    work = DaysRun(ctx, NAME, (ABUSE,), asked=days)
    due = work.due()
    if not due:
        return work.noop()
    work.put(ABUSE, abuse.findings(work.read(*due), share_min=ctx.settings.abuse_share))
    work.done(*due)
    return work.commit()
