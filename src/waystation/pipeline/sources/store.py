"""A Spark data source over the bulk access of a push store.

Rule 1: the pipeline does not depend on backends. It gets the dotted name of an opener
        (`waystation.storage.open:open_bulk`), which the worker imports.
Rule 2: the worker replaces ids by the keyed hashes of the event log, so rows and events can be
        joined. Raw ids leave it only with `raw=true`, which only a removal sets.
Rule 3: the worker reads secrets from files, because plans show options; so a store is named by the
        path of its configuration file.
Rule 4: a task may run twice. A removal is conditional on the version that was read, so the second
        run removes nothing.
"""

import base64
import json
from collections.abc import Iterable, Iterator, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, Protocol

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    DataSourceReader,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    InputPartition,
    LessThan,
    LessThanOrEqual,
    WriterCommitMessage,
)
from pyspark.sql.types import BinaryType, StructField, StructType

from waystation.pipeline.schema import columns
from waystation.pipeline.sources.rate_limit import RateLimit
from waystation.telemetry.hashes import DAY_MS, EventHashes

NAME = "pushstore"
QUARTER_MS = 92 * DAY_MS
REMOVED_AT_ONCE = 500

_arrow: Any = import_module("pyarrow")

# `uah_before` is the hash of the previous quarter, which older events may have. `records` and
# `notifications` have the canonical form that compares two stores.
TABLES = {
    "router": columns(
        "uah bigint, uah_before bigint, connected_at_ms bigint, expires_at_ms bigint,"
        " router_type string, node_id string, version bigint, month string"
    ),
    "channels": columns("uah bigint, chh bigint"),
    "messages": columns(
        "uah bigint, chh bigint, topic boolean, topic_key bigint, accepted_at_ms bigint,"
        " expires_at_ms bigint, month string"
    ),
    "records": columns("uah bigint, connected_at_ms bigint, channels binary, body binary"),
    "notifications": columns("uah bigint, sort_key string, message_id string, body binary"),
}
_COMPARISONS = (EqualTo, LessThan, LessThanOrEqual, GreaterThan, GreaterThanOrEqual)
PUSHED = ("connected_at_ms", "expires_at_ms")

Bounds = dict[str, tuple[int | None, int | None]]


class Bulk(Protocol):
    """The bulk reader of a backend, as jobs use it."""

    def ranges(self, table: str, count: int) -> list[bytes]: ...

    def away_ranges(self, count: int) -> list[bytes]: ...

    def scan(self, table: str, part: bytes, *, now_ms: int, bounds: Bounds) -> Iterator[Any]: ...

    def remove_unchanged(self, agents: Sequence[tuple[bytes, int]]) -> int: ...

    def remove_orphans(self, uaids: Sequence[bytes]) -> int: ...

    def close(self) -> None: ...


def open_named(opener: str, *places: str) -> Any:
    """Calls the function with the dotted name `package.module:function`."""
    module, _, name = opener.partition(":")
    return getattr(import_module(module), name)(*places)


def parts_of(opener: str, place: str, table: str, count: int) -> list[bytes]:
    bulk: Bulk = open_named(opener, place)
    try:
        return bulk.ranges(table, count)
    finally:
        bulk.close()


class StorePart(InputPartition):
    def __init__(self, part: bytes) -> None:
        super().__init__(0)
        self.part = part


class StoreReader(DataSourceReader):
    def __init__(self, options: dict[str, str], schema: StructType) -> None:
        self._options = options
        self._schema = schema
        self._bounds: Bounds = {}

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:  # noqa: N802 Spark's name
        """Passes time bounds to the store. Spark checks them again, because a store may return more
        rows."""
        for one in filters:
            self._bound(one)
        return filters

    def _bound(self, one: Filter) -> None:
        if not isinstance(one, _COMPARISONS):
            return
        name = one.attribute[0]
        if name not in PUSHED or name not in self._schema.names:
            return
        value = int(one.value)
        least, greatest = self._bounds.get(name, (None, None))
        match one:
            case LessThan() | LessThanOrEqual():
                value -= isinstance(one, LessThan)
                greatest = value if greatest is None else min(value, greatest)
            case GreaterThan() | GreaterThanOrEqual():
                value += isinstance(one, GreaterThan)
                least = value if least is None else max(value, least)
            case _:
                least = greatest = value
        self._bounds[name] = (least, greatest)

    def partitions(self) -> Sequence[InputPartition]:
        told = self._options.get("parts")
        if told is not None:
            return [StorePart(base64.b64decode(part)) for part in json.loads(told)]
        place, table = self._options["place"], self._options["table"]
        count = int(self._options.get("ranges", "8"))
        return [StorePart(part) for part in parts_of(self._options["opener"], place, table, count)]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        assert isinstance(partition, StorePart)
        options = self._options
        hashes = EventHashes(read_key(options["key_file"]))
        now_ms = int(options["now_ms"])
        bulk: Bulk = open_named(options["opener"], options["place"])
        try:
            for batch in bulk.scan(
                options["table"], partition.part, now_ms=now_ms, bounds=self._bounds
            ):
                if batch.num_rows:
                    yield self._hashed(batch, hashes, now_ms)
        finally:
            bulk.close()

    def _hashed(self, batch: Any, hashes: EventHashes, now_ms: int) -> Any:
        uaids: list[bytes] = batch.column("uaid").to_pylist()
        made: dict[str, Any] = {"uah": [hashes.uah(uaid, now_ms) for uaid in uaids], "uaid": uaids}
        if "uah_before" in self._schema.names:
            # Separate from the loop above, because hashes of one period are cached.
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


class Removed(WriterCommitMessage):
    def __init__(self, asked: int, removed: int) -> None:
        self.asked = asked
        self.removed = removed


class StoreRemover(DataSourceArrowWriter):
    """Removes rows of (`uaid`, `version`): user agents if they are unchanged; without a version,
    orphans."""

    def __init__(self, options: dict[str, str]) -> None:
        self._options = options

    def write(self, iterator: Iterator[Any]) -> WriterCommitMessage:
        options = self._options
        pace = RateLimit(float(options.get("rate_per_s", "0")))
        asked = removed = 0
        bulk: Bulk = open_named(options["opener"], options["place"])
        try:
            for batch in iterator:
                for at in range(0, batch.num_rows, REMOVED_AT_ONCE):
                    rows = batch.slice(at, REMOVED_AT_ONCE)
                    pace.wait(rows.num_rows)
                    asked += rows.num_rows
                    removed += _removed(bulk, rows)
        finally:
            bulk.close()
        return Removed(asked, removed)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        self._tell(messages)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Removals are permanent, so they are counted."""
        self._tell(messages)

    def _tell(self, messages: list[WriterCommitMessage | None]) -> None:
        done = [message for message in messages if isinstance(message, Removed)]
        receipt = {
            "asked": sum(message.asked for message in done),
            "removed": sum(message.removed for message in done),
        }
        Path(self._options["receipt"]).write_text(json.dumps(receipt), encoding="utf-8")


def _removed(bulk: Bulk, rows: Any) -> int:
    uaids: list[bytes] = rows.column("uaid").to_pylist()
    if "version" not in rows.schema.names:
        return bulk.remove_orphans(uaids)
    versions: list[int] = rows.column("version").to_pylist()
    return bulk.remove_unchanged(list(zip(uaids, versions, strict=True)))


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

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceArrowWriter:
        return StoreRemover(dict(self.options))


class StoreHandle:
    """A store for jobs: its opener, its configuration file, and the path of the hash key."""

    def __init__(self, opener: str, place: str, key_file: Path) -> None:
        self.opener = opener
        self.place = place
        self.key_file = key_file

    def read(self, spark: SparkSession, table: str, now_ms: int, *, raw: bool = False) -> DataFrame:
        parts = self.parts(table, 2 * spark.sparkContext.defaultParallelism)
        return self._frame(spark, table, now_ms, parts, raw=raw)

    def read_away(self, spark: SparkSession, now_ms: int) -> DataFrame | None:
        """Rows of `router` that include all inactive user agents, read by the store's index of
        last connections; None if it has no such index."""
        bulk: Bulk = open_named(self.opener, self.place)
        try:
            found = bulk.away_ranges(2 * spark.sparkContext.defaultParallelism)
        finally:
            bulk.close()
        return self._frame(spark, "router", now_ms, _as_text(found)) if found else None

    def _frame(
        self, spark: SparkSession, table: str, now_ms: int, parts: list[str], *, raw: bool = False
    ) -> DataFrame:
        spark.dataSource.register(StoreSource)
        options = {
            "opener": self.opener,
            "place": self.place,
            "key_file": str(self.key_file.absolute()),
            "table": table,
            "now_ms": str(now_ms),
            "raw": str(raw).lower(),
            # Planned here, because Spark would plan in a new process each time, which would have to
            # import the store's driver.
            "parts": json.dumps(parts),
        }
        return spark.read.format(NAME).options(**options).load()

    def parts(self, table: str, count: int) -> list[str]:
        """About `count` parts, as text."""
        return _as_text(parts_of(self.opener, self.place, table, count))

    def remove(self, due: DataFrame, receipt: Path, *, rate_per_s: float | None) -> tuple[int, int]:
        """Removes the rows (`StoreRemover`); returns how many were requested and removed.
        Concurrent tasks share the rate."""
        spark = due.sparkSession
        spark.dataSource.register(StoreSource)
        options = {"opener": self.opener, "place": self.place, "receipt": str(receipt.absolute())}
        if rate_per_s:
            options["rate_per_s"] = str(rate_per_s / spark.sparkContext.defaultParallelism)
        receipt.unlink(missing_ok=True)
        try:
            due.write.format(NAME).options(**options).mode("append").save()
        finally:
            asked = removed = 0
            if receipt.exists():
                told: dict[str, int] = json.loads(receipt.read_text(encoding="utf-8"))
                asked, removed = told["asked"], told["removed"]
            receipt.unlink(missing_ok=True)
        return asked, removed


def _as_text(parts: list[bytes]) -> list[str]:
    return [base64.b64encode(part).decode() for part in parts]


def read_key(path: str) -> bytes:
    return bytes.fromhex(Path(path).read_text(encoding="utf-8").strip())
