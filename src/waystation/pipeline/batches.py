"""Plans the input of one `ingest` commit: segments, or offset ranges of a Kafka topic.

Both kinds of batch state the number of lines and where the next batch begins.
"""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import msgspec
from pyspark.sql import DataFrame

from waystation.pipeline.delta_table import local_frame
from waystation.pipeline.job_context import Context
from waystation.pipeline.quality import Check, at_most, equal
from waystation.pipeline.schema import QUARANTINE
from waystation.pipeline.sources import segments
from waystation.pipeline.sources.segments import Source, Taken
from waystation.pipeline.transforms import intake
from waystation.telemetry.kafka_topic import KafkaTopic
from waystation.telemetry.segments import seal_abandoned

Done = Callable[[str], int | None]  # name -> committed progress


class Batch(Protocol):
    count: int  # segments, or offset ranges; 0: nothing new
    lines: int  # according to the source

    def problems(self) -> list[Check]:
        """Problems found while planning, and what was left out because of them."""
        ...

    def progress(self) -> dict[str, int]:
        """The progress of the lake after this batch."""
        ...

    def beyond(self, done: Done) -> "Batch":
        """The batch without the parts that a table already has."""
        ...

    def read(self, seen: Callable[[Source], int], again: Sequence[Source]) -> DataFrame:
        """Its lines, unchecked. `seen` gives the greatest sequence number in the lake; `again` are
        the sources whose first read repeated such numbers."""
        ...

    def blank(self) -> list[dict[str, Any]]:
        """Rows of `quarantine` for blank lines, which `read` skips."""
        ...

    def checks(self, lines: int) -> list[Check]:
        """Checks of the number of lines read, blank ones included."""
        ...

    def sealed_at_us(self) -> Mapping[Source, int]:
        """Time at which each source's newest segment was sealed."""
        ...


def plan_segments(ctx: Context, spool: Path, done: Done) -> "SegmentBatch":
    settings = ctx.settings
    now_s = ctx.clock.now_ms() / 1000
    seal_abandoned(spool, unchanged_since_s=now_s - settings.seal_after_s)
    found = segments.plan(
        spool,
        lambda source: done(segno_app(source)),
        now_s,
        batch_bytes_max=settings.batch_bytes_max,
        hole_wait_s=settings.hole_wait_s,
    )
    return SegmentBatch(ctx, found)


class SegmentBatch:
    def __init__(self, ctx: Context, found: segments.Batch) -> None:
        self._ctx = ctx
        self._found = found
        self.count = len(found.taken)
        self.lines = sum(one.segment.count for one in found.taken)

    def problems(self) -> list[Check]:
        level = "stop" if not self.count else "warn"
        return [
            Check("segment_count", level, 1, 0, ok=False, note=segments.file_key(one))
            for one in self._found.broken
        ]

    def progress(self) -> dict[str, int]:
        return {segno_app(source): last for source, last in self._found.last_segnos().items()}

    def beyond(self, done: Done) -> "SegmentBatch":
        def is_new(one: Taken) -> bool:
            last = done(segno_app(_source(one)))
            return last is None or one.segment.segno > last

        taken = [one for one in self._found.taken if is_new(one)]
        return SegmentBatch(self._ctx, msgspec.structs.replace(self._found, taken=taken))

    def read(self, seen: Callable[[Source], int], again: Sequence[Source]) -> DataFrame:
        assert not again, "file names already show repeated numbers"
        rows = [
            (
                segments.file_key(one.segment),
                *_source(one),
                one.segment.segno,
                one.sealed_at_us,
                one.segment.first_seq,
                seen(_source(one)),
            )
            for one in self._found.taken
        ]
        files = local_frame(self._ctx.spark, rows, intake.FILE)
        return intake.read_lines(self._ctx.spark, segments.paths(self._found.taken), files)

    def blank(self) -> list[dict[str, Any]]:
        return [
            {
                "node": one.segment.node,
                "boot": one.segment.boot,
                "segno": one.segment.segno,
                "sealed_at": one.sealed_at_us,
                "reason": "blank",
                "line": "",
            }
            for one in self._found.taken
            for _ in range(one.blank_lines)
        ]

    def checks(self, lines: int) -> list[Check]:
        return [
            equal("segment_count", "stop", lines, self.lines, "lines of all segments"),
            at_most("segment_missing", "warn", self._found.missing),
        ]

    def sealed_at_us(self) -> Mapping[Source, int]:
        sealed: dict[Source, int] = {}
        for one in self._found.taken:
            source = _source(one)
            sealed[source] = max(one.sealed_at_us, sealed.get(source, 0))
        return sealed


def plan_kafka(ctx: Context, topic: KafkaTopic, done: Done) -> "KafkaBatch":
    from waystation.pipeline.sources import kafka  # noqa: PLC0415 its client is an extra

    offsets = kafka.plan(
        topic,
        lambda partition: done(offset_app(topic.name, partition)),
        records_max=ctx.settings.batch_records_max,
    )
    return KafkaBatch(
        ctx, topic, [msgspec.structs.astuple(one) for one in offsets.ranges], offsets.missing
    )


class KafkaBatch:
    def __init__(
        self, ctx: Context, topic: KafkaTopic, ranges: Sequence[tuple[int, int, int]], missing: int
    ) -> None:
        self._ctx = ctx
        self._topic = topic
        self._ranges = ranges  # (partition, first offset, next offset)
        self._missing = missing
        self.count = len(ranges)
        self.lines = sum(end - start for _, start, end in ranges)

    def problems(self) -> list[Check]:
        return []

    def progress(self) -> dict[str, int]:
        return {offset_app(self._topic.name, partition): end for partition, _, end in self._ranges}

    def beyond(self, done: Done) -> "KafkaBatch":
        new = [
            (partition, max(start, done(offset_app(self._topic.name, partition)) or 0), end)
            for partition, start, end in self._ranges
        ]
        left = [one for one in new if one[1] < one[2]]
        return KafkaBatch(self._ctx, self._topic, left, self._missing)

    def read(self, seen: Callable[[Source], int], again: Sequence[Source]) -> DataFrame:
        from waystation.pipeline.sources import kafka  # noqa: PLC0415 its client is an extra

        spark = self._ctx.spark
        ranges = [kafka.Range(*one) for one in self._ranges]
        known = [(*source, seen(source)) for source in again]
        return intake.read_records(
            kafka.read(spark, self._topic, ranges),
            self._topic.name,
            local_frame(spark, known, intake.SEEN) if known else None,
        )

    def blank(self) -> list[dict[str, Any]]:
        return []  # a record without a value counts as a line

    def checks(self, lines: int) -> list[Check]:
        return [
            at_most("offset_without_record", "warn", self.lines - lines),
            at_most("record_missing", "warn", self._missing, 0, "removed before they were read"),
        ]

    def sealed_at_us(self) -> Mapping[Source, int]:
        return {}


def blank_rows(ctx: Context, rows: Sequence[Mapping[str, Any]]) -> DataFrame:
    names = QUARANTINE.data.names
    values = [tuple(row.get(name) for name in names) for row in rows]
    return local_frame(ctx.spark, values, QUARANTINE.data)


def segno_app(source: Source) -> str:
    return f"ingest/{source[0]}/{source[1]}"


def offset_app(topic: str, partition: int) -> str:
    return f"ingest/{topic}/{partition}"


def seq_app(source: Source) -> str:
    return f"seq/{source[0]}/{source[1]}"


def _source(one: Taken) -> Source:
    return (one.segment.node, one.segment.boot)
