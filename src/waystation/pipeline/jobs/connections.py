"""Job `connections`: connections of user agents, one row each, and per minute and hour.

Input: `events` of due days and all later ones. Outputs: `conn_sessions`, `conn_minutely`,
`conn_hourly`.
Progress: `conn` in each output is the version of `events` that was read.
Idempotence: days are computed whole and replaced; the same events give the same rows.
Cost: two passes over a day's connection events.
"""

from pyspark.sql import functions as F

from waystation.pipeline.due_days import Days, DaysRun
from waystation.pipeline.job_context import Context, JobResult
from waystation.pipeline.results import CONN_HOURLY, CONN_MINUTELY, CONN_SESSIONS
from waystation.pipeline.transforms import connections

NAME = "conn"


def run(ctx: Context, days: Days = None) -> JobResult:
    work = DaysRun(ctx, NAME, (CONN_SESSIONS, CONN_MINUTELY, CONN_HOURLY), asked=days)
    due = work.due_in_a_row()
    if not due:
        return work.noop()
    for day in due:
        events = work.read(day)
        still_open = work.before(CONN_SESSIONS, day).where(F.col("status") == "open")
        sessions = work.put(CONN_SESSIONS, connections.sessions(events, still_open, day), day)
        work.put(CONN_MINUTELY, connections.minutely(sessions, day), day)
        work.done(day)
    work.put(CONN_HOURLY, connections.hourly(work.read(*due)))
    return work.commit()
