"""Finds the days that a job must compute again, and replaces their files in one commit.

Rule 1: a day is due when files were added to its partition of the input since the job's progress.
        With several outputs, the one that is furthest behind decides.
Rule 2: all days of a run are replaced in one commit per table, together with the progress. A crash
        before the commit leaves files that no commit names; the next run repairs a crash between
        the commits of two tables.
Rule 3: days that an operator names are computed whatever the progress is, and do not change it.
"""

import datetime as dt
from collections.abc import Iterable, Sequence

from pyspark.sql import DataFrame

from waystation.pipeline.commit_log import DataFile, HistoryGoneError
from waystation.pipeline.delta_table import Handle
from waystation.pipeline.job_context import Context, JobResult
from waystation.pipeline.schema import EVENTS, TableSpec

Days = Sequence[dt.date] | None
SETTLED_AFTER_US = 120_000_000  # events of one instant may arrive this much apart


def newest_us(events: Handle) -> int:
    """The pipeline's `now`: the newest event time, so that a repeated run gives the same result."""
    newest = [file.greatest for file in events.files() if isinstance(file.greatest, int)]
    return max(newest, default=0) - SETTLED_AFTER_US


class DaysRun:
    """One run of a job that computes days of its output tables from one input."""

    def __init__(
        self,
        ctx: Context,
        job: str,
        outputs: Sequence[TableSpec],
        source: TableSpec = EVENTS,
        *,
        asked: Days = None,
    ) -> None:
        self.ctx = ctx
        self.job = job
        self.name = ctx.new_run()
        self.outputs = {spec.name: ctx.lake.table(spec).complete() for spec in outputs}
        self.source = ctx.lake.table(source).open()
        self._asked = asked
        self._by = source.partition_names[0]
        self._staged: dict[str, list[DataFile]] = {spec.name: [] for spec in outputs}
        self._days: set[str] = set()
        self.rows_in = 0
        ctx.lake.at("planned", outputs[0].name)

    def due(self) -> list[dt.date]:
        """Days to compute, in order (rules 1 and 3)."""
        if self._asked is not None:
            return sorted(set(self._asked))
        since = min(handle.progress(self.job) or 0 for handle in self.outputs.values())
        try:
            files = self.source.added(since)
        except HistoryGoneError:
            files = self.source.files()
        days = {file.partition[self._by] for file in files}
        return sorted(dt.date.fromisoformat(day) for day in days if day is not None)

    def due_in_a_row(self, *, newest_again: bool = False) -> list[dt.date]:
        """Like `due`, plus every later day, because each day starts from the previous one's result.

        `newest_again`: also recompute the newest day, for jobs that depend on the pipeline's
        `now`, which has advanced since.
        """
        due = self.due()
        if not due or self._asked is not None:
            return due
        first = due[0]
        if newest_again:
            output = next(iter(self.outputs.values()))
            computed = output.partition_values(output.spec.partition_names[0])
            first = min([first, *(dt.date.fromisoformat(day) for day in sorted(computed)[-1:])])
        known = self.source.partition_values(self._by)
        last = max(dt.date.fromisoformat(day) for day in known)
        return [first + dt.timedelta(days=n) for n in range((last - first).days + 1)]

    def read(self, *days: dt.date) -> DataFrame:
        """The input of these days."""
        files = self.source.files(**{self._by: texts(days)})
        self.rows_in += sum(file.rows for file in files)
        return self.source.frame(files)

    def before(self, spec: TableSpec, day: dt.date) -> DataFrame:
        """The rows of the date before `day`, from this run or from the table."""
        handle = self.outputs[spec.name]
        yesterday = (day - dt.timedelta(days=1)).isoformat()
        if yesterday in self._days:
            staged = self._staged[spec.name]
            by = spec.partition_names[0]
            return handle.frame([file for file in staged if file.partition[by] == yesterday])
        return handle.read(**{spec.partition_names[0]: {yesterday}})

    def put(self, spec: TableSpec, frame: DataFrame, day: dt.date | None = None) -> DataFrame:
        """Writes one day of an output, or all days at once; returns the written frame."""
        handle = self.outputs[spec.name]
        staged = handle.write(frame, f"{self.name}/{day.isoformat() if day else 'days'}")
        self._staged[spec.name] += staged
        return handle.frame(staged)

    def done(self, *days: dt.date) -> None:
        """Call when all outputs of these days are written."""
        self._days |= texts(days)

    def commit(self, progress: int | None = None) -> JobResult:
        """Replaces the days in every table (rule 2)."""
        moved = {self.job: self.source.version if progress is None else progress}
        for name, handle in self.outputs.items():
            old = handle.files(**{handle.spec.partition_names[0]: self._days})
            handle.swap(
                old, self._staged[name], self.name, {} if self._asked is not None else moved
            )
        files = [file for staged in self._staged.values() for file in staged]
        return JobResult(
            job=self.job,
            run=self.name,
            inputs={self.source.spec.name: self.source.version},
            outputs={name: handle.version + 1 for name, handle in self.outputs.items()},
            rows_in=self.rows_in,
            rows_out=sum(file.rows for file in files),
            files=len(files),
            notes={"days": len(self._days)},
        )

    def noop(self) -> JobResult:
        return JobResult(
            job=self.job, state="noop", inputs={self.source.spec.name: self.source.version}
        )


def texts(days: Iterable[dt.date]) -> set[str]:
    return {day.isoformat() for day in days}
