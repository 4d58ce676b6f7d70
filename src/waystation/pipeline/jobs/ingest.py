"""Job `ingest`: lines of the event log into the table `events`, every line exactly once.

Inputs: sealed segments below the spool, or a topic of Kafka. Outputs: `events`, `quarantine`, `dq`.
Progress: `ingest/NODE/BOOT` is the last ingested segment of that process (for a topic,
`ingest/TOPIC/PARTITION` is the next offset), and `seq/NODE/BOOT` the greatest sequence number of
its rows; both are in the commit of the rows.
Idempotence: a run that dies before that commit changes nothing for readers, except that
`quarantine` may be ahead: it is committed first with the same progress, and the next run skips the
lines that it has. Whether a line is accepted depends only on its file or record, so both runs
agree. Of two concurrent runs, one loses the commit.
Cost: each file is read once for its checksum and parsed once. Only bad lines, and topics that
repeat known events, need a second parse. One narrow pass over the written rows verifies that
identities are unique.
"""

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import msgspec
from pyspark.sql import DataFrame, Observation, Row
from pyspark.sql import functions as F

from waystation.pipeline.batches import Batch, blank_rows, plan_kafka, plan_segments, seq_app
from waystation.pipeline.commit_log import DataFile
from waystation.pipeline.delta_table import Handle, LostRaceError
from waystation.pipeline.job_context import Context, JobResult, attempt, noop
from waystation.pipeline.quality import Check, QualityStopError, at_most, equal, record
from waystation.pipeline.schema import EVENTS, QUARANTINE
from waystation.pipeline.sources.segments import Source
from waystation.pipeline.transforms import intake
from waystation.telemetry.kafka_topic import KafkaTopic

NAME = "ingest"
_FRESH_S = 300.0

Origin = Path | KafkaTopic  # a spool folder or a topic


class _Seen(msgspec.Struct, frozen=True):
    """Counts of one pass over the lines."""

    lines: int
    bad: int
    unknown: int
    private: int


def drain(ctx: Context, origin: Origin) -> JobResult:
    """Ingests batches until nothing is left; returns the sums."""
    total = noop(NAME)
    while (result := attempt(ctx, lambda ctx: run(ctx, origin))).state != "noop":
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


def run(ctx: Context, origin: Origin) -> JobResult:
    """Ingests one batch: input that is not in the lake, up to the batch limit."""
    events = ctx.lake.table(EVENTS).complete()
    quarantine = ctx.lake.table(QUARANTINE).complete()
    if isinstance(origin, KafkaTopic):
        batch = plan_kafka(ctx, origin, events.progress)
    else:
        batch = plan_segments(ctx, origin, events.progress)
    ctx.lake.at("planned", EVENTS.name)
    run_name = ctx.new_run()
    if not batch.count:
        record(ctx, EVENTS.name, run_name, batch.problems())  # raises if there are any
        return noop(NAME, events=events.version)
    try:
        return _Ingest(ctx, batch, run_name, events, quarantine).commit()
    except (LostRaceError, QualityStopError):
        events.discard(run_name)
        quarantine.discard(run_name)
        raise


class _Ingest:
    """One batch, with the handles that it was planned from."""

    def __init__(
        self, ctx: Context, batch: Batch, run_name: str, events: Handle, quarantine: Handle
    ) -> None:
        self._ctx = ctx
        self._batch = batch
        self._run = run_name
        self._events = events
        self._quarantine = quarantine

    def commit(self) -> JobResult:
        batch = self._batch
        staged, seen = self._write_events([])
        sources = self._per_source(staged)
        again = [
            (one.node, one.boot)
            for one in sources
            if one.least <= self._seen_seq((one.node, one.boot))
        ]
        if again:
            self._delete(staged)
            staged, seen = self._write_events(again)
            sources = self._per_source(staged)
        if any(source.rows != source.distinct for source in sources):
            staged = self._rewritten_once(staged)
        refused, reasons = self._write_rejected(seen, again)
        checks = [*batch.problems(), *self._checks(staged, seen, sources)]
        record(self._ctx, EVENTS.name, self._run, checks)

        progress = batch.progress()
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
            files=batch.count,
            notes={f"rejected {reason}": count for reason, count in reasons.items()},
        )

    def _verdicts(self, batch: Batch, again: Sequence[Source]) -> DataFrame:
        settings = self._ctx.settings
        return intake.judged(
            batch.read(self._seen_seq, again),
            late_max_us=int(settings.late_max_s * 1e6),
            early_max_us=int(settings.early_max_s * 1e6),
        )

    def _write_events(self, again: Sequence[Source]) -> tuple[list[DataFile], _Seen]:
        observation = Observation()
        good = F.col("reason").isNull()
        verdicts = self._verdicts(self._batch, again).observe(
            observation,
            F.count(F.lit(1)).alias("lines"),
            F.count("reason").alias("bad"),
            F.count_if(good & intake.is_unknown()).alias("unknown"),
            F.count_if(good & intake.is_private()).alias("private"),
        )
        number = self._ctx.clock.now_us()
        folder = f"{self._run}/again" if again else self._run
        staged = self._events.write(intake.accepted(verdicts, number), folder)
        return staged, msgspec.convert(observation.get, _Seen)

    def _per_source(self, staged: Sequence[DataFile]) -> list[Row]:
        return intake.per_source(self._events.frame(staged)).collect() if staged else []

    def _rewritten_once(self, staged: Sequence[DataFile]) -> list[DataFile]:
        """Rewrites the rows with each identity once; rare, because nodes do not repeat lines."""
        once = intake.deduplicated(self._events.frame(staged))
        again = self._events.write(once, f"{self._run}/once")
        self._delete(staged)
        return again

    def _delete(self, staged: Sequence[DataFile]) -> None:
        for file in staged:
            self._events.table.files.delete(file.path)

    def _write_rejected(
        self, seen: _Seen, again: Sequence[Source]
    ) -> tuple[list[DataFile], dict[str, int]]:
        """Writes bad lines, except those that a crashed run has already written."""
        new = self._batch.beyond(self._quarantine.progress)
        blank = new.blank()
        if not new.count or not (seen.bad or blank):
            return [], {}
        bad = intake.rejected(self._verdicts(new, again))
        if blank:
            bad = bad.unionByName(blank_rows(self._ctx, blank))
        staged = self._quarantine.write(bad, self._run)
        counts = self._quarantine.frame(staged).groupBy("reason").count().collect()
        return staged, {row.reason: row["count"] for row in counts}

    def _checks(
        self, staged: Sequence[DataFile], seen: _Seen, sources: Sequence[Row]
    ) -> list[Check]:
        settings = self._ctx.settings
        blank = len(self._batch.blank())
        bad = seen.bad + blank
        named = self._batch.lines
        different = sum(source.distinct for source in sources)
        repeated = sum(source.rows for source in sources) - different
        missing = -bad - sum(source.distinct + source.gaps for source in sources)
        missing += sum(
            source.greatest - self._seen_seq((source.node, source.boot)) for source in sources
        )
        allowed = max(settings.quarantine_floor, settings.quarantine_share_max * named)
        return [
            *self._batch.checks(seen.lines + blank),
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
            at_most("unknown_code", "warn", seen.unknown),
            *self._clock_checks(sources),
        ]

    def _clock_checks(self, sources: Sequence[Row]) -> list[Check]:
        """Compares the nodes' times with the seal times of segments and with the local clock."""
        sealed = self._batch.sealed_at_us()
        now_us = self._ctx.clock.now_us()
        behind = [
            (sealed[one.node, one.boot] - one.newest_ts) / 1e6
            for one in sources
            if (one.node, one.boot) in sealed
        ]
        stale = [(now_us - one.newest_ts) / 1e6 for one in sources]
        return [
            at_most("clock_skew", "warn", max(behind, default=0), 3600, "seconds behind"),
            at_most("clock_ahead", "warn", -min(behind, default=0), 1, "seconds ahead"),
            at_most("freshness", "warn", max(stale, default=0), _FRESH_S, "seconds, worst node"),
        ]

    def _seen_seq(self, source: Source) -> int:
        seen = self._events.progress(seq_app(source))
        return -1 if seen is None else seen
