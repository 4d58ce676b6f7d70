"""Job `presence`: sessions in parties, one row each, per minute and hour, and ack latency.

Input: `events` of due days, of the newest computed day, and of all later ones. Outputs:
`party_sessions`, `party_minutely`, `party_hourly`, `party_latency`.
Progress: `presence` in each output is the version of `events` that was read.
Idempotence: days are computed whole and replaced; the pipeline's `now` comes from the events.
Cost: three passes over a day's party events.
"""

from pyspark.sql import functions as F

from waystation.pipeline.due_days import Days, DaysRun, newest_us
from waystation.pipeline.job_context import Context, JobResult
from waystation.pipeline.results import (
    PARTY_HOURLY,
    PARTY_LATENCY,
    PARTY_MINUTELY,
    PARTY_SESSIONS,
)
from waystation.pipeline.transforms import presence

NAME = "presence"


def run(ctx: Context, days: Days = None) -> JobResult:
    outputs = (PARTY_SESSIONS, PARTY_MINUTELY, PARTY_HOURLY, PARTY_LATENCY)
    work = DaysRun(ctx, NAME, outputs, asked=days)
    due = work.due_in_a_row(newest_again=True)
    if not due:
        return work.noop()
    now_us = newest_us(work.source)
    for day in due:
        events = work.read(day)
        still_open = work.before(PARTY_SESSIONS, day).where(F.col("status") == "open")
        of_day = presence.sessions(events, still_open, day, now_us)
        sessions = work.put(PARTY_SESSIONS, of_day, day)
        work.put(PARTY_MINUTELY, presence.minutely(sessions, day), day)
        work.done(day)
    everything = work.read(*due)
    work.put(PARTY_HOURLY, presence.hourly(everything))
    work.put(PARTY_LATENCY, presence.latency(everything))
    return work.commit()
