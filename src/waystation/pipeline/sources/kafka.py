"""Plans the next offsets of a Kafka topic, and reads them with a Python data source.

Rule 1: offsets are explicit: the driver plans them once, from the lake's progress to the current
        end of each partition. No consumer group is used and nothing is committed to Kafka.
Rule 2: a batch takes records from all partitions evenly, so a long backlog delays no other one.
Rule 3: records that Kafka removed before they were read count as missing. A partition that ends
        before the lake's progress was recreated, which stops the job.
Rule 4: a range is read to its end or the task fails. Offsets without a record (compacted, or
        transaction markers) are skipped.
Rule 5: plans show options, so the worker reads passwords from a file.
"""

import json
import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib import import_module
from typing import Any, cast

import msgspec
from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from waystation.base.errors import UnavailableError
from waystation.pipeline.schema import columns
from waystation.telemetry.kafka_topic import KafkaTopic

NAME = "kafka_py"
RANGE_RECORDS_MAX = 250_000  # per task
READ_AT_ONCE = 10_000
ASK_TIMEOUT_S = 30.0
SILENCE_MAX_S = 60.0
_WAIT_S = 1.0

# `at` is the record's create or append time in microseconds.
RECORD = columns("partition int, offset bigint, at bigint, key binary, value binary")

_arrow: Any = import_module("pyarrow")
_log = logging.getLogger("kafka")


class TopicError(UnavailableError):
    """The topic cannot be read, or was recreated."""

    label = "topic"


class Range(msgspec.Struct, frozen=True):
    """Offsets of a partition: `start` is the first, `end` is not included."""

    partition: int
    start: int
    end: int


class Offsets(msgspec.Struct, frozen=True):
    ranges: list[Range]  # one per partition
    missing: int  # removed before they were read (rule 3)


def plan(topic: KafkaTopic, done: Callable[[int], int | None], *, records_max: int) -> Offsets:
    """The next ranges; `done` returns the lake's next offset of a partition."""
    ends: dict[int, tuple[int, int]] = {}
    consumer = _consumer(topic)
    try:
        for partition in _partitions(consumer, topic.name):
            found = consumer.get_watermark_offsets(
                TopicPartition(topic.name, partition), timeout=ASK_TIMEOUT_S
            )
            ends[partition] = found or (0, 0)
    except KafkaException as exc:
        raise TopicError(f"topic {topic.name}: {exc.args[0].str()}") from exc
    finally:
        consumer.close()
    return cut(topic.name, ends, done, records_max=records_max)


def cut(
    name: str,
    ends: Mapping[int, tuple[int, int]],
    done: Callable[[int], int | None],
    *,
    records_max: int,
) -> Offsets:
    """Plans ranges from the first and the end offset of each partition (rules 2 and 3)."""
    waiting: list[Range] = []
    missing = 0
    for partition, (first, end) in sorted(ends.items()):
        next_one = done(partition)
        if next_one is None:
            next_one = first
        if end < next_one:
            raise TopicError(
                f"partition {partition} of topic {name} ends at offset {end}, but the lake has it"
                f" up to {next_one}: the topic was recreated. Use a topic with another name"
            )
        missing += max(0, first - next_one)
        start = max(first, next_one)
        if start < end:
            waiting.append(Range(partition, start, end))
    left = records_max
    ranges: list[Range] = []
    # The shortest first, so that others can use the rest of its share.
    for number, one in enumerate(sorted(waiting, key=lambda one: one.end - one.start)):
        share = max(1, left // (len(waiting) - number))
        end = min(one.end, one.start + share)
        ranges.append(Range(one.partition, one.start, end))
        left -= end - one.start
    return Offsets(sorted(ranges, key=lambda one: one.partition), missing)


def split(one: Range) -> Iterator[Range]:
    for start in range(one.start, one.end, RANGE_RECORDS_MAX):
        yield Range(one.partition, start, min(one.end, start + RANGE_RECORDS_MAX))


def read(spark: SparkSession, topic: KafkaTopic, ranges: Sequence[Range]) -> DataFrame:
    """The columns of RECORD."""
    spark.dataSource.register(KafkaSource)
    options = {
        "servers": topic.servers,
        "topic": topic.name,
        "config_file": topic.config_file,
        "ranges": json.dumps([msgspec.structs.astuple(one) for one in ranges]),
    }
    return spark.read.format(NAME).options(**options).load()


class KafkaSource(DataSource):
    @classmethod
    def name(cls) -> str:
        return NAME

    def schema(self) -> StructType:
        return RECORD

    def reader(self, schema: StructType) -> DataSourceReader:
        return KafkaReader(dict(self.options))


class KafkaPart(InputPartition):
    def __init__(self, span: Range) -> None:
        super().__init__(0)
        self.span = span


class KafkaReader(DataSourceReader):
    def __init__(self, options: dict[str, str]) -> None:
        self._topic = KafkaTopic(options["servers"], options["topic"], options["config_file"])
        self._ranges = [Range(*one) for one in json.loads(options["ranges"])]

    def partitions(self) -> Sequence[InputPartition]:
        return [KafkaPart(part) for one in self._ranges for part in split(one)]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        assert isinstance(partition, KafkaPart)
        types: Any = import_module("pyspark.sql.pandas.types")
        schema = types.to_arrow_schema(RECORD)
        for records in _read(self._topic, partition.span):
            rows = [
                (one.partition(), one.offset(), one.timestamp()[1] * 1000, one.key(), one.value())
                for one in records
            ]
            yield _arrow.RecordBatch.from_arrays(
                [
                    _arrow.array(values, field.type)
                    for values, field in zip(zip(*rows, strict=True), schema, strict=True)
                ],
                schema=schema,
            )


def _read(topic: KafkaTopic, span: Range) -> Iterator[list[Message]]:
    consumer = _consumer(topic)
    try:
        consumer.assign([TopicPartition(topic.name, span.partition, span.start)])
        heard_mono = time.monotonic()
        at = span.start
        while at < span.end:
            found = consumer.consume(READ_AT_ONCE, _WAIT_S)
            if found:
                heard_mono = time.monotonic()
            elif time.monotonic() - heard_mono > SILENCE_MAX_S:
                raise TopicError(f"topic {topic.name}: no record for {SILENCE_MAX_S:.0f} s")
            records: list[Message] = []
            for one in found:
                error = one.error()
                at = cast(int, one.offset())
                if error is None and at < span.end:
                    records.append(one)
                    at += 1
                elif error is not None:
                    _expect_the_end(topic, error, at, span)
            if records:
                yield records
    finally:
        consumer.close()


def _expect_the_end(topic: KafkaTopic, error: KafkaError, at: int, span: Range) -> None:
    """Kafka reports the end of a partition as an error; it is one only before the range's end."""
    if error.code() != KafkaError._PARTITION_EOF or at < span.end:  # noqa: SLF001 its public name
        raise TopicError(f"topic {topic.name}, partition {span.partition}: {error.str()}")


def _partitions(consumer: Consumer, name: str) -> list[int]:
    about = consumer.list_topics(name, timeout=ASK_TIMEOUT_S).topics[name]
    if about.error is not None:
        raise KafkaException(about.error)
    return sorted(about.partitions)


def _consumer(topic: KafkaTopic) -> Consumer:
    return Consumer(
        {
            "log.connection.close": False,
            **topic.client_config(),
            "group.id": "waystation",  # required, but never joined
            "enable.auto.commit": False,
            "auto.offset.reset": "error",
            "enable.partition.eof": True,
            # Uncommitted transactions then do not hide the end of the partition.
            "isolation.level": "read_uncommitted",
        },
        logger=_log,
    )
