"""Rows of a push store as a frame: a Python data source over a backend's `bulk`.

Rule 1: the pipeline does not know the backends. It is handed the dotted name of an opener
        (`waystation.storage.embedded.bulk:open_bulk`) and imports it in the worker.
Rule 2: ids become the keyed hashes of the event log inside the worker, so rows and events can be
        joined; raw ids leave it only with `raw=true`, which only a removal asks for.
Rule 3: secrets are read from a file in the worker, never passed as an option: plans show these.
"""

from collections.abc import Iterator, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, Protocol, cast

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import BinaryType, StructField, StructType

from waystation.pipeline.schema import columns
from waystation.telemetry.hashes import DAY_MS, EventHashes

NAME = "pushstore"
QUARTER_MS = 92 * DAY_MS

_arrow: Any = import_module("pyarrow")

# `uah_before` is the hash of the quarter before: what an event of weeks ago may carry.
TABLES = {
    "router": columns(
        "uah bigint, uah_before bigint, connected_at_ms bigint, expires_at_ms bigint,"
        " router_type string, node_id string, channels int, version bigint"
    ),
    "channels": columns("uah bigint, chh bigint"),
    "messages": columns(
        "uah bigint, chh bigint, topic boolean, accepted_at_ms bigint, expires_at_ms bigint"
    ),
}


class Bulk(Protocol):
    """What a backend offers to jobs."""

    def ranges(self, count: int) -> list[tuple[bytes, bytes | None]]: ...

    def scan(self, table: str, first: bytes, end: bytes | None) -> Iterator[Any]: ...

    def remove_unchanged(self, agents: Sequence[tuple[bytes, int]]) -> int: ...

    def close(self) -> None: ...


def open_bulk(opener: str, place: str) -> Bulk:
    module, _, name = opener.partition(":")
    return cast(Bulk, getattr(import_module(module), name)(place))


class KeyRange(InputPartition):
    def __init__(self, first: bytes, end: bytes | None) -> None:
        super().__init__(0)
        self.first = first
        self.end = end


class StoreReader(DataSourceReader):
    def __init__(self, options: dict[str, str], schema: StructType) -> None:
        self._options = options
        self._schema = schema

    def partitions(self) -> Sequence[InputPartition]:
        bulk = open_bulk(self._options["opener"], self._options["place"])
        try:
            ranges = bulk.ranges(int(self._options.get("ranges", "8")))
        finally:
            bulk.close()
        return [KeyRange(first, end) for first, end in ranges]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        assert isinstance(partition, KeyRange)
        options = self._options
        master = bytes.fromhex(Path(options["key_file"]).read_text(encoding="utf-8").strip())
        hashes = EventHashes(master)
        now_ms = int(options["now_ms"])
        bulk = open_bulk(options["opener"], options["place"])
        try:
            for batch in bulk.scan(options["table"], partition.first, partition.end):
                if batch.num_rows:
                    yield self._hashed(batch, hashes, now_ms)
        finally:
            bulk.close()

    def _hashed(self, batch: Any, hashes: EventHashes, now_ms: int) -> Any:
        uaids: list[bytes] = batch.column("uaid").to_pylist()
        made: dict[str, Any] = {"uah": [hashes.uah(uaid, now_ms) for uaid in uaids], "uaid": uaids}
        if "uah_before" in self._schema.names:
            # Kept apart from the loop above: the hashes of one period are remembered.
            made["uah_before"] = [hashes.uah(uaid, now_ms - QUARTER_MS) for uaid in uaids]
        if "chh" in self._schema.names:
            channels: list[bytes] = batch.column("channel_id").to_pylist()
            made["chh"] = [hashes.chh(channel, now_ms) for channel in channels]
        types: Any = import_module("pyspark.sql.pandas.types")
        schema = types.to_arrow_schema(self._schema)
        columns_ = [
            _arrow.array(made[field.name], field.type)
            if field.name in made
            else batch.column(field.name).cast(field.type)
            for field in schema
        ]
        return _arrow.RecordBatch.from_arrays(columns_, schema=schema)


class StoreSource(DataSource):
    @classmethod
    def name(cls) -> str:
        return NAME

    def schema(self) -> StructType:
        table = TABLES[self.options["table"]]
        if self.options.get("raw") == "true":
            return StructType([*table.fields, StructField("uaid", BinaryType())])
        return table

    def reader(self, schema: StructType) -> DataSourceReader:
        return StoreReader(dict(self.options), schema)


class StorePlace:
    """A store that jobs read: who opens it, where it is, and where the key of hashes lies."""

    def __init__(self, opener: str, place: str, key_file: Path) -> None:
        self.opener = opener
        self.place = place
        self.key_file = key_file

    def read(self, spark: SparkSession, table: str, now_ms: int, *, raw: bool = False) -> DataFrame:
        spark.dataSource.register(StoreSource)
        options = {
            "opener": self.opener,
            "place": self.place,
            "key_file": str(self.key_file.absolute()),
            "table": table,
            "now_ms": str(now_ms),
            "raw": str(raw).lower(),
            "ranges": str(2 * spark.sparkContext.defaultParallelism),
        }
        return spark.read.format(NAME).options(**options).load()

    def open(self) -> Bulk:
        return open_bulk(self.opener, self.place)
