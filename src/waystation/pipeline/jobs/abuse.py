"""Job `abuse`: finds senders, user agents and slots with unusual load.

Input: `events` of due days. Output: `abuse`.
Progress: `abuse` in the output is the version of `events` that was read.
Idempotence: days are computed whole and replaced.
Cost: one pass over a day's events; later steps depend on the number of keys per minute.
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
