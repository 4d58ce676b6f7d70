"""The order of all jobs, and a run through them.

Rule 1: a job runs after the jobs whose tables it reads. A job without new input is cheap, so
        running all of them is the normal case.
Rule 2: a job that fails ends the run: later jobs would compute from incomplete input.
"""

import datetime as dt
from collections.abc import Callable, Iterable, Iterator, Sequence

import msgspec

from waystation.base.errors import RejectedError
from waystation.pipeline.due_days import Days
from waystation.pipeline.job_context import Context, JobResult, attempt
from waystation.pipeline.jobs import (
    abuse,
    capacity,
    connections,
    fold,
    forecast,
    merge,
    nodes,
    presence,
    reliability,
    slots,
    usage,
)


class UnknownJobError(RejectedError):
    """A job or table name is unknown."""

    label = "unknown_job"


class Step(msgspec.Struct, frozen=True):
    """A job, and the tables that it updates."""

    name: str
    run: Callable[[Context, Days], JobResult]
    tables: tuple[str, ...]


STEPS = (
    Step("fold", lambda ctx, _: fold.run(ctx), ("msg_inc",)),
    Step("merge", lambda ctx, _: merge.run(ctx), ("msg",)),
    Step("reliability", reliability.run, ("rel_hourly", "rel_latency", "rel_loss")),
    Step("nodes", nodes.run, ("rel_nodes", "rel_repeats", "rel_reconcile")),
    Step("conn", connections.run, ("conn_sessions", "conn_minutely", "conn_hourly")),
    Step("slots", slots.run, ("slot_minutely",)),
    Step(
        "presence",
        presence.run,
        ("party_sessions", "party_minutely", "party_hourly", "party_latency"),
    ),
    Step("capacity", capacity.run, ("cap_minutely", "cap_units")),
    Step("forecast", forecast.run, ("cap_forecast",)),
    Step("abuse", abuse.run, ("abuse",)),
    Step("usage", usage.run, ("usage_daily", "usage_sketches")),
)


def chosen(
    steps: Sequence[Step], *, only: Iterable[str] = (), until: str | None = None
) -> list[Step]:
    """The requested steps, in the order of execution."""
    names = [step.name for step in steps]
    wanted = set(only)
    unknown = sorted(wanted - set(names))
    if unknown:
        raise UnknownJobError(f"no job {unknown[0]!r}; there are {', '.join(names)}")
    picked = [step for step in steps if not wanted or step.name in wanted]
    if until is None:
        return picked
    for at, step in enumerate(picked):
        if until == step.name or until in step.tables:
            return picked[: at + 1]
    tables = [table for step in picked for table in step.tables]
    raise UnknownJobError(f"no table {until!r}; there are {', '.join(tables)}")


def run_steps(
    ctx: Context, steps: Sequence[Step], day: dt.date | None = None
) -> Iterator[JobResult]:
    """Runs the steps in order. `day` recomputes that day, independent of the progress."""
    days = None if day is None else [day]
    for step in steps:
        yield attempt(ctx, lambda ctx, step=step: step.run(ctx, days))
