"""Job `forecast`: the load of the next three months.

Input: `cap_minutely`, as hours. Output: `cap_forecast`, in the partition of the newest day used.
Progress: none; consecutive whole days up to the newest complete one give the same forecast.
Idempotence: the rows of that day are replaced.
Cost: one pass over the minutes; the fit runs in this process.
"""

import datetime as dt

from pyspark.sql import functions as F

from waystation.pipeline.due_days import Days
from waystation.pipeline.forecast import forecast
from waystation.pipeline.job_context import Context, JobResult, noop
from waystation.pipeline.results import CAP_FORECAST, CAP_MINUTELY
from waystation.pipeline.transforms.capacity import COUNTED

NAME = "forecast"
HISTORY_DAYS = 366


def run(ctx: Context, days: Days = None) -> JobResult:
    """Uses days up to the last of `days`; by default up to the day before the newest one."""
    minutes = ctx.lake.table(CAP_MINUTELY).open()
    out = ctx.lake.table(CAP_FORECAST).open()
    known = sorted(dt.date.fromisoformat(day) for day in minutes.partition_values("date"))
    last = max(days) if days else (known[-2] if len(known) > 1 else None)
    done = out.progress(NAME)
    if last is None or last not in known or (not days and done == minutes.version):
        return noop(NAME, cap_minutely=minutes.version)
    first = max(known[0], last - dt.timedelta(days=HISTORY_DAYS - 1))
    history = _history(ctx, first, last)
    rows = [
        {
            "day": last,
            "resource": resource,
            "target": last + dt.timedelta(days=one.days_ahead),
            "p10": one.p10,
            "p50": one.p50,
            "p90": one.p90,
            "model": made.model,
            "mape": made.mape,
            "naive_mape": made.naive_mape,
            "growth_per_day": made.growth_per_day,
        }
        for resource, hours in sorted(history.items())
        for made in [forecast(hours)]
        for one in made.days
    ]
    name = ctx.new_run()
    partition = {"date": last.isoformat()}
    staged = out.write_rows(rows, name, partition) if rows else []
    progress = {} if days else {NAME: minutes.version}
    out.swap(out.files(date={last.isoformat()}), staged, name, progress)
    return JobResult(
        job=NAME,
        run=name,
        inputs={CAP_MINUTELY.name: minutes.version},
        outputs={CAP_FORECAST.name: out.version + 1},
        rows_in=sum(map(len, history.values())),
        rows_out=len(rows),
        files=len(staged),
    )


def _history(ctx: Context, first: dt.date, last: dt.date) -> dict[str, list[int]]:
    """Hourly counts from `first` to `last`, for every resource with load."""
    length = (last - first).days + 1
    days = {(first + dt.timedelta(days=number)).isoformat() for number in range(length)}
    hour = F.floor(F.col("minute") / 60).cast("int")
    sums = (
        ctx.lake.read(CAP_MINUTELY, date=days)
        .where(F.col("resource").isin(*COUNTED))
        .groupBy("resource", "day", hour.alias("hour"))
        .agg(F.sum("n").alias("n"))
    )
    history: dict[str, list[int]] = {}
    for row in sums.collect():
        hours = history.setdefault(row.resource, [0] * (24 * length))
        hours[(row.day - first).days * 24 + row.hour] = row.n
    return history
