"""Spark data source that copies between stores: one task per part, one result row per task.

A task writes each page right after reading it, so rows are fresh and payloads do not pass through
Spark. A task may run twice: rows that the target has are not written again.
"""

import base64
import json
from collections.abc import Iterator, Sequence
from importlib import import_module
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from waystation.pipeline.schema import columns
from waystation.pipeline.sources.rate_limit import RateLimit
from waystation.pipeline.sources.store import StoreHandle, StorePart, open_named

NAME = "pushcopy"
RESULT = columns(
    "part string, read bigint, written bigint, present bigint, gone bigint, refused bigint"
)
_COUNTS = ("read", "written", "present", "gone", "refused")

_arrow: Any = import_module("pyarrow")


class CopyReader(DataSourceReader):
    def __init__(self, options: dict[str, str]) -> None:
        self._options = options

    def partitions(self) -> Sequence[InputPartition]:
        parts: list[str] = json.loads(self._options["parts"])
        return [StorePart(base64.b64decode(part)) for part in parts]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        assert isinstance(partition, StorePart)
        options = self._options
        pace = RateLimit(float(options.get("rate_per_s", "0")))
        counts = dict.fromkeys(_COUNTS, 0)
        copier = open_named(options["opener"], options["source"], options["target"])
        try:
            since_ms = int(options["since_ms"])
            for copied in copier.copy(options["table"], partition.part, since_ms):
                for name in _COUNTS:
                    counts[name] += getattr(copied, name)
                pace.wait(copied.read)
        finally:
            copier.close()
        row = {"part": [base64.b64encode(partition.part).decode()]}
        row |= {name: [count] for name, count in counts.items()}
        types: Any = import_module("pyspark.sql.pandas.types")
        yield _arrow.RecordBatch.from_pydict(row, schema=types.to_arrow_schema(RESULT))


class CopySource(DataSource):
    @classmethod
    def name(cls) -> str:
        return NAME

    def schema(self) -> StructType:
        return RESULT

    def reader(self, schema: StructType) -> DataSourceReader:
        return CopyReader(dict(self.options))


class Move:
    """A migration: the copier's opener, and the configuration files of both stores."""

    def __init__(self, copier: str, source: StoreHandle, target: StoreHandle, name: str) -> None:
        self.copier = copier
        self.source = source
        self.target = target
        self.name = name  # identifies the migration to later runs; contains no secrets

    def copy(
        self,
        spark: SparkSession,
        table: str,
        parts: Sequence[str],
        *,
        since_ms: int,
        rate_per_s: float | None,
    ) -> DataFrame:
        spark.dataSource.register(CopySource)
        options = {
            "opener": self.copier,
            "source": self.source.place,
            "target": self.target.place,
            "table": table,
            "parts": json.dumps(list(parts)),
            "since_ms": str(since_ms),
        }
        if rate_per_s:
            options["rate_per_s"] = str(rate_per_s / spark.sparkContext.defaultParallelism)
        return spark.read.format(NAME).options(**options).load()
