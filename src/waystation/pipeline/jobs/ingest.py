"""Segments of the event log into the table `events`, every line exactly once.

Inputs: sealed segments below the spool. Outputs: `events`, `quarantine`, `dq`.
Progress: `ingest/NODE/BOOT` is the last segment of that process that the lake has, and
`seq/NODE/BOOT` the greatest sequence number among its rows; both are in the commit of the rows.
Idempotence: a run that dies before that commit has changed nothing that anybody reads, except that
`quarantine` may be ahead; it is committed first with the same progress, and the next run leaves out
the lines of segments that it covers. The verdict on a line depends on its file alone, so both runs
agree. Of two runs at once, one loses the commit.
Cost: each file is read once for its checksum and parsed once; a second parse only when lines are
bad. One narrow pass over what was written proves that no identity is there twice.
"""

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import msgspec
from pyspark.sql import DataFrame, Observation, Row
from pyspark.sql import functions as F

from waystation.pipeline.commit_log import DataFile
from waystation.pipeline.job import Context, JobResult, attempt, noop
from waystation.pipeline.quality import Check, QualityStopError, at_most, equal, record
from waystation.pipeline.schema import EVENTS, QUARANTINE
from waystation.pipeline.sources.segments import Batch, Source, Taken, file_key, paths, plan
from waystation.pipeline.table import Handle, LostRaceError, local_frame
from waystation.pipeline.transforms import intake
from waystation.telemetry.segments import seal_abandoned

NAME = "ingest"
_FRESH_S = 300.0


class _Seen(msgspec.Struct, frozen=True):
    """What one pass over the lines counted."""

    lines: int
    bad: int
    unknown: int
    private: int


def drain(ctx: Context, spool: Path) -> JobResult:
    """Batch after batch until nothing is left; the sums of all."""
    total = noop(NAME)
    while (result := attempt(ctx, lambda ctx: run(ctx, spool))).state != "noop":
        total = JobResult(
            job=NAME,
            run=result.run,
            outputs=result.outputs,
            rows_in=total.rows_in + result.rows_in,
            rows_out=total.rows_out + result.rows_out,
            files=total.files + result.files,
            notes=dict(Counter(total.notes) + Counter(result.notes)),
            seconds=total.seconds + result.seconds,
            cpu_seconds=total.cpu_seconds + result.cpu_seconds,
        )
    return total


def run(ctx: Context, spool: Path) -> JobResult:
    """One batch: what is sealed and not yet in the lake, up to `batch_bytes_max`."""
    settings = ctx.settings
    now_s = ctx.clock.now_ms() / 1000
    seal_abandoned(spool, unchanged_since_s=now_s - settings.seal_after_s)
    events = _open_with_all_columns(ctx)
    quarantine = ctx.lake.table(QUARANTINE).open()
    batch = plan(
        spool,
        lambda source: events.progress(segno_app(source)),
        now_s,
        batch_bytes_max=settings.batch_bytes_max,
        hole_wait_s=settings.hole_wait_s,
    )
    ctx.lake.at("planned", EVENTS.name)
    run_name = ctx.new_run()
    broken = [
        Check("segment_count", "stop" if not batch.taken else "warn", 1, 0, ok=False, note=name)
        for name in map(file_key, batch.broken)
    ]
    if not batch.taken:
        record(ctx, EVENTS.name, run_name, broken)  # raises if there are any
        return noop(NAME, events=events.version)
    try:
        return _Ingest(ctx, batch, run_name, events, quarantine).commit(broken)
    except (LostRaceError, QualityStopError):
        events.discard(run_name)
        quarantine.discard(run_name)
        raise


class _Ingest:
    """One batch on its way, with the handles that the plan was made from."""

    def __init__(
        self, ctx: Context, batch: Batch, run_name: str, events: Handle, quarantine: Handle
    ) -> None:
        self._ctx = ctx
        self._batch = batch
        self._run = run_name
        self._events = events
        self._quarantine = quarantine

    def commit(self, broken: Sequence[Check]) -> JobResult:
        batch = self._batch
        staged, seen = self._write_events()
        sources = self._per_source(staged)
        if any(source.rows != source.distinct for source in sources):
            staged = self._rewritten_once(staged)
        refused, reasons = self._write_rejected(seen)
        checks = [*broken, *self._checks(staged, seen, sources)]
        record(self._ctx, EVENTS.name, self._run, checks)

        progress = {segno_app(source): last for source, last in batch.last_segnos().items()}
        if refused:
            self._quarantine.append(refused, self._run, progress)
        for source in sources:
            progress[seq_app((source.node, source.boot))] = source.greatest
        self._events.append(staged, self._run, progress)
        return JobResult(
            job=NAME,
            run=self._run,
            outputs={EVENTS.name: self._events.version + 1},
            rows_in=seen.lines,
            rows_out=sum(file.rows for file in staged),
            files=len(batch.taken),
            notes={f"rejected {reason}": count for reason, count in reasons.items()},
        )

    def _verdicts(self, taken: Sequence[Taken]) -> DataFrame:
        settings = self._ctx.settings
        rows = [
            (
                file_key(one.segment),
                one.segment.node,
                one.segment.boot,
                one.segment.segno,
                one.sealed_at_us,
                one.segment.first_seq,
                self._seen_seq((one.segment.node, one.segment.boot)),
            )
            for one in taken
        ]
        files = local_frame(self._ctx.spark, rows, intake.FILE)
        lines = intake.read_lines(self._ctx.spark, paths(taken), files)
        return intake.judged(
            lines,
            late_max_us=int(settings.late_max_s * 1e6),
            early_max_us=int(settings.early_max_s * 1e6),
        )

    def _write_events(self) -> tuple[list[DataFile], _Seen]:
        observation = Observation()
        good = F.col("reason").isNull()
        verdicts = self._verdicts(self._batch.taken).observe(
            observation,
            F.count(F.lit(1)).alias("lines"),
            F.count("reason").alias("bad"),
            F.count_if(good & intake.is_unknown()).alias("unknown"),
            F.count_if(good & intake.is_private()).alias("private"),
        )
        number = self._ctx.clock.now_us()
        staged = self._events.write(intake.accepted(verdicts, number), self._run)
        return staged, msgspec.convert(observation.get, _Seen)

    def _per_source(self, staged: Sequence[DataFile]) -> list[Row]:
        return intake.per_source(self._events.frame(staged)).collect() if staged else []

    def _rewritten_once(self, staged: Sequence[DataFile]) -> list[DataFile]:
        """Again, each identity once; rare, because no writer of ours repeats itself."""
        once = intake.deduplicated(self._events.frame(staged))
        again = self._events.write(once, f"{self._run}/once")
        for file in staged:
            self._events.table.files.delete(file.path)
        return again

    def _write_rejected(self, seen: _Seen) -> tuple[list[DataFile], dict[str, int]]:
        """Lines of segments that `quarantine` does not have from a run that died."""
        new = [
            one
            for one in self._batch.taken
            if one.segment.segno > self._quarantined((one.segment.node, one.segment.boot))
        ]
        blank = [
            (one.segment.node, one.segment.boot, one.segment.segno, one.sealed_at_us, "blank", "")
            for one in new
            for _ in range(one.blank_lines)
        ]
        if not new or not (seen.bad or blank):
            return [], {}
        bad = intake.rejected(self._verdicts(new))
        if blank:
            bad = bad.unionByName(local_frame(self._ctx.spark, blank, QUARANTINE.data))
        staged = self._quarantine.write(bad, self._run)
        counts = self._quarantine.frame(staged).groupBy("reason").count().collect()
        return staged, {row.reason: row["count"] for row in counts}

    def _checks(
        self, staged: Sequence[DataFile], seen: _Seen, sources: Sequence[Row]
    ) -> list[Check]:
        settings = self._ctx.settings
        taken = self._batch.taken
        blank = sum(one.blank_lines for one in taken)
        bad = seen.bad + blank
        named = sum(one.segment.count for one in taken)
        different = sum(source.distinct for source in sources)
        repeated = sum(source.rows for source in sources) - different
        missing = -bad - sum(source.distinct + source.gaps for source in sources)
        missing += sum(
            source.greatest - self._seen_seq((source.node, source.boot)) for source in sources
        )
        allowed = max(settings.quarantine_floor, settings.quarantine_share_max * named)
        return [
            equal("segment_count", "stop", seen.lines + blank, named, "lines of all segments"),
            equal(
                "identity_unique",
                "stop",
                sum(file.rows for file in staged),
                different,
                f"{repeated} repeated" if repeated else "",
            ),
            at_most("quarantine_rate", "stop", bad, allowed, f"of {named} lines"),
            at_most("privacy", "stop", seen.private, 0, "attrs with an id, an address or a key"),
            at_most("seq_gapless", "warn", max(missing, 0)),
            at_most("segment_missing", "warn", self._batch.missing),
            at_most("unknown_code", "warn", seen.unknown),
            *self._clock_checks(sources),
        ]

    def _clock_checks(self, sources: Sequence[Row]) -> list[Check]:
        """Do the nodes' times fit the moments at which their segments were sealed, and ours?"""
        sealed: dict[Source, int] = {}
        for one in self._batch.taken:
            source = (one.segment.node, one.segment.boot)
            sealed[source] = max(one.sealed_at_us, sealed.get(source, 0))
        now_us = self._ctx.clock.now_us()
        behind = [(sealed[one.node, one.boot] - one.newest_ts) / 1e6 for one in sources]
        stale = [(now_us - one.newest_ts) / 1e6 for one in sources]
        return [
            at_most("clock_skew", "warn", max(behind, default=0), 3600, "seconds behind"),
            at_most("clock_ahead", "warn", -min(behind, default=0), 1, "seconds ahead"),
            at_most("freshness", "warn", max(stale, default=0), _FRESH_S, "seconds, of any node"),
        ]

    def _seen_seq(self, source: Source) -> int:
        seen = self._events.progress(seq_app(source))
        return -1 if seen is None else seen

    def _quarantined(self, source: Source) -> int:
        last = self._quarantine.progress(segno_app(source))
        return -1 if last is None else last


def segno_app(source: Source) -> str:
    return f"ingest/{source[0]}/{source[1]}"


def seq_app(source: Source) -> str:
    return f"seq/{source[0]}/{source[1]}"


def _open_with_all_columns(ctx: Context) -> Handle:
    """A column that the contract has gained is added in a commit of its own, before any row."""
    events = ctx.lake.table(EVENTS).open()
    missing = set(EVENTS.schema.names) - set(events.column_names())
    if missing:
        events.add_columns(missing)
        events = ctx.lake.table(EVENTS).open()
    return events
