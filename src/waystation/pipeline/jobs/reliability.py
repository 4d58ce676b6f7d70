"""Job `reliability`: outcomes, latencies and losses of each day of messages.

Input: `msg_inc` and `msg` of changed days and of days with a message that has become overdue;
`events` for the ids of lost messages. Outputs: `rel_hourly`, `rel_latency`, `rel_loss`.
Progress: `reliability` in each output is the version of `msg_inc` that was read.
Idempotence: days are computed whole and replaced; `now` comes from the events.
Cost: one pass over a day's messages per output; one over milestones if messages were lost.
"""

import datetime as dt

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from waystation.pipeline.delta_table import Handle
from waystation.pipeline.due_days import Days, DaysRun, newest_us, texts
from waystation.pipeline.job_context import Context, JobResult
from waystation.pipeline.quality import at_most, equal, record
from waystation.pipeline.results import REL_HOURLY, REL_LATENCY, REL_LOSS
from waystation.pipeline.schema import EVENTS, MSG, MSG_INC
from waystation.pipeline.transforms import reliability
from waystation.pipeline.transforms.fold import messages

NAME = "reliability"
GAP_SHARE_MAX = 0.001


def run(ctx: Context, days: Days = None) -> JobResult:
    outputs = (REL_HOURLY, REL_LATENCY, REL_LOSS)
    work = DaysRun(ctx, NAME, outputs, MSG_INC, asked=days)
    merged = ctx.lake.table(MSG).open()
    events = ctx.lake.table(EVENTS).open()
    now_us = newest_us(events)
    touched = set(work.due())
    due = sorted(touched if days is not None else touched | overdue(work, now_us))
    if not due:
        return work.noop()
    of_days = messages(merged.read(mdate=texts(due)), work.read(*due))
    outcomes = reliability.outcomes(of_days, now_us)
    hourly = work.put(REL_HOURLY, reliability.hourly(outcomes))
    work.put(REL_LATENCY, reliability.latency(outcomes))
    work.put(REL_LOSS, reliability.loss(outcomes, since(events, due[0])))
    work.done(*due)
    sums = hourly.agg(F.sum("messages").alias("messages"), F.sum("gap").alias("gap")).first()
    assert sums is not None
    counted, gaps, rows = sums.messages or 0, sums.gap or 0, of_days.count()
    checks = [
        equal("funnel_monotone", "stop", counted, rows, "outcomes add up to messages"),
        at_most("gap_rate", "warn", gaps / counted if counted else 0.0, GAP_SHARE_MAX),
    ]
    record(ctx, REL_HOURLY.name, work.name, checks)
    return work.commit()


def overdue(work: DaysRun, now_us: int) -> set[dt.date]:
    """Days with an in-flight message whose deadline has passed."""
    table = work.outputs[REL_HOURLY.name].read()
    late = table.groupBy("day").agg(F.min("next_deadline").alias("first"))
    return {row.day for row in late.where(F.col("first") <= now_us).collect()}


def since(events: Handle, day: dt.date) -> DataFrame:
    """Events from a day on; earlier events of its messages come from wrong clocks."""
    first = (day - dt.timedelta(days=1)).isoformat()
    later = {value for value in events.partition_values("date") if value >= first}
    return events.read(date=later)
