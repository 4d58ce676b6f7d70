"""Python data source for synthetic events (`traffic_columns`), as a frame or directly as files.

Rule 1: a task computes one slice of the messages, independent of other tasks.
Rule 2: for files, a task writes them itself with Arrow and returns only counts: Spark's writer is
        several times slower for rows of thirty mostly empty columns.
Rule 3: a task may run twice: the slice determines file names and every byte.
"""

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from importlib import import_module
from itertools import pairwise
from typing import Any

import msgspec
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from waystation.pipeline.files import Files
from waystation.pipeline.parquet_options import arrow_options
from waystation.pipeline.schema import EVENTS, columns, contract_schema
from waystation.pipeline.traffic import Traffic
from waystation.pipeline.traffic_columns import HOUR_US, WORDS, Plan, Slice

NAME = "traffic"
BATCH_ROWS = 64 << 10
_ANSWER = columns("rows bigint, files bigint")

_arrow: Any = import_module("pyarrow")


class TrafficPart(InputPartition):
    def __init__(self, number: int, first: int, end: int) -> None:
        super().__init__(number)
        self.number = number
        self.first = first
        self.end = end


class TrafficReader(DataSourceReader):
    """Reads rows of events with the contract's columns."""

    def __init__(self, options: dict[str, str]) -> None:
        self._options = options

    def partitions(self) -> Sequence[InputPartition]:
        first, end, slices = (int(self._options[name]) for name in ("first", "end", "slices"))
        cuts = [first + (end - first) * cut // slices for cut in range(slices + 1)]
        pairs = pairwise(cuts)
        return [TrafficPart(at, *pair) for at, pair in enumerate(pairs) if pair[0] < pair[1]]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        names = contract_schema().names
        for batch, _ in self._slice(partition).batches():
            made = [
                batch.column(name).dictionary_decode() if name in WORDS else batch.column(name)
                for name in names
            ]
            table = _arrow.RecordBatch.from_arrays(made, names=names)
            for at in range(0, table.num_rows, BATCH_ROWS):
                yield table.slice(at, BATCH_ROWS)

    def _slice(self, partition: InputPartition) -> Slice:
        assert isinstance(partition, TrafficPart)
        traffic = msgspec.json.decode(self._options["traffic"], type=Traffic)
        in_us = int(self._options.get("in_us", "0"))
        return Slice(traffic, Plan(traffic), partition.first, partition.end, in_us)


class TrafficFiler(TrafficReader):
    """Writes files of events below a folder, one per slice and hour; returns the row counts."""

    def read(self, partition: InputPartition) -> Iterator[Any]:
        assert isinstance(partition, TrafficPart)
        files = Files(self._options["root"])
        rows = count = 0
        for hour, table in self._slice(partition).by_hour().items():
            at = datetime.fromtimestamp(hour * HOUR_US // 1_000_000, UTC)
            folder = f"{self._options['folder']}/date={at:%Y-%m-%d}/hour={at.hour}"
            path = f"{folder}/part-{partition.number:05d}.zstd.parquet"
            files.write_table(path, table, **arrow_options(EVENTS))
            rows += table.num_rows
            count += 1
        yield _arrow.RecordBatch.from_pydict({"rows": [rows], "files": [count]})


class TrafficSource(DataSource):
    @classmethod
    def name(cls) -> str:
        return NAME

    def schema(self) -> StructType:
        return _ANSWER if "folder" in self.options else contract_schema()

    def reader(self, schema: StructType) -> DataSourceReader:
        kind = TrafficFiler if "folder" in self.options else TrafficReader
        return kind(dict(self.options))


def load(
    spark: SparkSession, traffic: Traffic, first: int, end: int, slices: int, **more: str
) -> DataFrame:
    spark.dataSource.register(TrafficSource)
    options = {"first": str(first), "end": str(end), "slices": str(slices), **more}
    text = msgspec.json.encode(traffic).decode()
    return spark.read.format(NAME).options(traffic=text, **options).load()
