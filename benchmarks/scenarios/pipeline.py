"""The pipeline on synthetic events: every job, and every bar of its specification.

CPU is that of the whole process tree: the JVM, Python workers, and DuckDB and Polars, which work
inside this process. What grows with the events is measured for each number of them that is asked
for; ratios that hardly depend on it, once, at one small size (`Bench.fixed`).
"""

import shutil
import tempfile
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

from benchmarks.cost import Cost, contest, cost, size, told
from benchmarks.measurement import Bar, Measurement
from benchmarks.scenarios import pipeline_engines, pipeline_fixed, pipeline_layouts
from waystation.base.clock import SystemClock
from waystation.pipeline import generate, session
from waystation.pipeline.dag import STEPS
from waystation.pipeline.delta_table import Lake
from waystation.pipeline.job_context import Context
from waystation.pipeline.jobs import ingest, report
from waystation.pipeline.schema import EVENTS
from waystation.pipeline.traffic import Traffic

EVENTS_DEFAULT = 1_000_000
FIXED_EVENTS = 1_000_000
EVENTS_A_MESSAGE = 5.06
WARM_MESSAGES = 20_000
MONTH_DAYS = 30
MONTH_MESSAGES = 600_000
LINES_MAX = 20_000_000  # events; segments are ten times as large as the table


class Bench:
    """One run of the benchmark: a session, and what was learnt of the sizes so far."""

    def __init__(self, fixed_events: int = FIXED_EVENTS) -> None:
        self._fixed_events = fixed_events
        self._warm = False
        self._folds: dict[int, Cost] = {}  # events -> fold + funnel

    def sized(self, events: int) -> list[Measurement]:
        """Everything that grows with the number of events."""
        folder = Path(tempfile.mkdtemp(prefix="waystation-bench-"))
        try:
            return list(self._sized(folder, _traffic(events)))
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    def fixed(self) -> list[Measurement]:
        """The ratios that do not."""
        folder = Path(tempfile.mkdtemp(prefix="waystation-bench-"))
        try:
            return list(self._fixed(folder, _traffic(self._fixed_events)))
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    def growth(self) -> list[Measurement]:
        """Of the fold, from each size to the next."""
        sizes = sorted(self._folds)
        return [
            told(
                f"pipeline: fold + funnel, {size(more)} after {size(fewer)}",
                more,
                self._folds[more],
                bars=(Bar("P2, CPU", ratio, more / fewer),),
            )
            for fewer, more in pairwise(sizes)
            for ratio in [self._folds[more].cpu_s / self._folds[fewer].cpu_s]
        ]

    def _context(self, folder: Path) -> Context:
        spark = session.build("embedded")
        clock = SystemClock()
        return Context(spark, Lake(spark, str(folder), clock), clock)

    def _warmed(self, folder: Path) -> None:
        """Everything once on a little: classes loaded, code compiled."""
        if self._warm:
            return
        self._warm = True
        small = self._context(folder / "lake")
        traffic = Traffic(messages=WARM_MESSAGES)
        generate.to_segments(small, traffic, folder / "spool")
        ingest.drain(small, folder / "spool")
        generate.to_lake(small, traffic)
        for step in STEPS:
            step.run(small, None)

    def _sized(self, folder: Path, traffic: Traffic) -> Iterator[Measurement]:
        self._warmed(folder / "warm")
        count = traffic.event_count()
        ctx = self._context(folder / "made")
        took = cost(lambda: generate.to_lake(ctx, traffic))
        rate = Bar("P12", count / took.cpu_s / 1e6, 0.5, "M events a CPU second", least=True)
        yield told(f"pipeline: generate, {size(count)}", count, took, bars=(rate,))
        for measurement in pipeline_engines.questions(ctx.lake.table(EVENTS).open(), count):
            if measurement.scenario == f"pipeline: fold + funnel, {size(count)}":
                cpu_s = (measurement.cpu_us or 0) * count / 1e6
                self._folds[count] = Cost(measurement.seconds, cpu_s)
            yield measurement
        yield from _jobs(ctx, folder / "report", count)
        if count <= LINES_MAX:
            spool = folder / "spool"
            name = f"pipeline: generate segments, {size(count)}"
            yield told(name, count, cost(lambda: generate.to_segments(ctx, traffic, spool)))
            yield from pipeline_engines.lines(ctx.spark, spool, count)
            taken = self._context(folder / "taken")
            took = cost(lambda: ingest.drain(taken, spool))
            yield told(f"pipeline: ingest, {size(count)}", count, took)

    def _fixed(self, folder: Path, traffic: Traffic) -> Iterator[Measurement]:
        ctx = self._context(folder / "lake")
        generate.to_lake(ctx, traffic)
        count = traffic.event_count()
        handle = ctx.lake.table(EVENTS).open()
        yield from pipeline_layouts.run(ctx.spark, handle.read(), folder, count)
        paths = [handle.table.files.uri(file.path) for file in handle.files()]
        yield from pipeline_fixed.starts(folder / "starts", paths, count)
        yield from pipeline_fixed.commits(self._context(folder / "commits").lake)
        yield month(self._context(folder / "month"), folder / "page")
        yield pipeline_fixed.plan()


def month(ctx: Context, out: Path) -> Measurement:
    """A page over thirty days, in a session that has made one before; few events a day, since what
    it reads hardly grows with them."""
    generate.to_lake(ctx, Traffic(messages=MONTH_MESSAGES, days=MONTH_DAYS))
    for step in STEPS:
        step.run(ctx, None)
    return page_of_month(ctx, out)


def page_of_month(ctx: Context, out: Path) -> Measurement:
    took = contest({"page": lambda: report.run(ctx, out)})["page"]
    bars = (Bar("a month's page", took.seconds, 10, "s"),)
    name = f"pipeline: report over {MONTH_DAYS} days"
    return told(name, 1, took, operation="page", bars=bars)


def _jobs(ctx: Context, out: Path, count: int) -> Iterator[Measurement]:
    """Every job of `waystation pipeline run` after `ingest`, then each of them without input."""
    for step in STEPS:
        name = f"pipeline: {step.name}, {size(count)}"
        yield told(name, count, cost(lambda step=step: step.run(ctx, None)))
    took = cost(lambda: report.run(ctx, out))
    yield told(f"pipeline: report, {size(count)}", count, took)
    idle = {step.name: cost(lambda step=step: step.run(ctx, None)) for step in STEPS}
    slowest = max(idle, key=lambda name: idle[name].seconds)
    yield told(
        f"pipeline: a job without input, {size(count)}",
        1,
        idle[slowest],
        operation="job",
        bars=(Bar("P6, the slowest", idle[slowest].seconds, 1, "s"),),
        notes=f"{slowest}, of {len(idle)} jobs",
    )


def _traffic(events: int) -> Traffic:
    return Traffic(messages=int(events / EVENTS_A_MESSAGE))
