"""What the form of the data costs: P3, P4, P5 and P13 of the specification, at one small size.

Everything is made from the same events and written by Spark, so only the form differs.
"""

import secrets
from collections.abc import Callable, Iterator
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

from pyspark.sql import Column, DataFrame, Row, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.datasource import DataSource, DataSourceArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructField, StructType, TimestampType

from benchmarks.cost import Cost, contest, told
from benchmarks.measurement import Bar, Measurement
from waystation.pipeline.parquet_options import arrow_options, spark_options
from waystation.pipeline.schema import EVENTS, FOLDED, contract_schema
from waystation.pipeline.transforms.fold import fold
from waystation.telemetry.contract import KINDS, TERMINAL

IDS = ("uah", "chh", "app", "qh", "party", "cli", "sess", "msg", "iph")
FILES = 4
_GATHERED = ("ts", "k", "ttl", "size", "app", "via", "path", "flag")
_MOMENTS = {
    "t0": {0},
    "t_store": {1},
    "t_get": {2},
    "t_fwd": {3, 5},
    "t_sent": {6},
    "t_acc": {7},
    "t_term": set(TERMINAL),
    "t_done": {8},
}


def run(spark: SparkSession, events: DataFrame, folder: Path, count: int) -> Iterator[Measurement]:
    bare = events.select(*contract_schema().names)
    codes, texts = _written(spark, bare, folder)
    yield from _folds(codes, count)
    yield from _layouts(codes.drop("name"), texts, folder, count)
    yield from _lines(spark, bare, folder, count)
    yield from _writers(spark, codes.drop("name"), folder, count)


def _written(spark: SparkSession, bare: DataFrame, folder: Path) -> tuple[DataFrame, DataFrame]:
    """The events with codes, and their names beside them, in our order and coded as the lake has
    them; and as somebody would keep them who thinks of nothing: names of events, moments and ids as
    texts, in the order in which they came in, with the codec that Spark takes by itself.

    P4 names what the table of texts lacks: codes, ids as numbers, an order, zstd. So it has snappy;
    `texts-zstd` shows how much of the difference is the codec's. `mid` is a text in both.
    """
    name = F.element_at(
        F.create_map(*(F.lit(part) for k, kind in KINDS.items() for part in (k, kind.name))),
        F.col("k").cast("int"),
    )
    spread = bare.withColumn("name", name).repartitionByRange(FILES, "ts")
    ours = spread.sortWithinPartitions("k", "mid", "ts")
    coded = spark_options(EVENTS)
    ours.drop("name").write.options(**coded).parquet(str(folder / "codes"))
    ours.write.options(**coded).parquet(str(folder / "named"))
    hexed = {column: F.lower(F.hex(column)) for column in IDS}
    texts = spread.sortWithinPartitions("ts").drop("k").withColumns(hexed | {"ts": _spoken()})
    texts.write.option("compression", "snappy").parquet(str(folder / "texts"))
    texts.write.parquet(str(folder / "texts-zstd"))
    return spark.read.parquet(str(folder / "named")), spark.read.parquet(str(folder / "texts"))


def _spoken() -> Column:
    """The moment of an event as a text."""
    return F.date_format(F.timestamp_micros("ts"), "yyyy-MM-dd'T'HH:mm:ss.SSSSSS'Z'")


def _folds(named: DataFrame, count: int) -> Iterator[Measurement]:
    took = contest(
        {
            "fixed width": lambda: _run(fold(named)),
            "texts and sets": lambda: _run(_fold_texts(named)),
            "Python UDF": lambda: _run(_fold_udf(named)),
        }
    )
    ours = took["fixed width"].cpu_s
    for name in ("texts and sets", "Python UDF"):
        yield told(f"pipeline: fold by {name}", count, took[name])
    yield told(
        "pipeline: fold of fixed width",
        count,
        took["fixed width"],
        bars=(
            Bar("P3, of max_by and collect_set", ours / took["texts and sets"].cpu_s, 0.7),
            Bar("P3, of a Python UDF", ours / took["Python UDF"].cpu_s, 0.3),
        ),
    )


def _fold_texts(named: DataFrame) -> DataFrame:
    """As somebody would write it who has the names of events."""
    name, ts = F.col("name"), F.col("ts")
    return (
        named.where(name.startswith("push.") & F.col("mid").isNotNull())
        .groupBy("mid")
        .agg(
            F.max_by("name", "ts").alias("last"),
            F.collect_set("name").alias("seen"),
            *(
                F.min(F.when(name.isin(*(KINDS[k].name for k in sorted(codes))), ts)).alias(moment)
                for moment, codes in _MOMENTS.items()
            ),
            *(F.max(column).alias(column) for column in _GATHERED[2:]),
        )
    )


def _fold_udf(named: DataFrame) -> DataFrame:
    shape = StructType([field for field in FOLDED.fields if field.name not in {"mid", "via"}])
    folded: Any = F.udf(_fold_list, shape, useArrow=False)
    return (
        named.where(F.col("k").between(0, 13) & F.col("mid").isNotNull())
        .groupBy("mid")
        .agg(F.collect_list(F.struct(*_GATHERED)).alias("all"))
        .select("mid", folded("all").alias("folded"))
    )


def _fold_list(events: list[Row]) -> tuple[Any, ...]:
    seen = 0
    moments: dict[str, int | None] = dict.fromkeys(_MOMENTS)
    for event in events:
        seen |= 1 << event.k
        for moment, codes in _MOMENTS.items():
            before = moments[moment]
            if event.k in codes and (before is None or event.ts < before):
                moments[moment] = event.ts

    def greatest(column: str) -> Any:
        return max((event[column] for event in events if event[column] is not None), default=None)

    last = max(event.ts * 32 + event.k for event in events)
    return (last, seen, *moments.values(), *(map(greatest, ("ttl", "size", "app", "path", "flag"))))


def _layouts(codes: DataFrame, texts: DataFrame, folder: Path, count: int) -> Iterator[Measurement]:
    k = F.element_at(
        F.create_map(*(F.lit(part) for k, kind in KINDS.items() for part in (kind.name, k))),
        F.col("name"),
    )
    app = F.conv("app", 16, -10).cast("bigint")
    ts = F.unix_micros(F.to_timestamp("ts"))
    decoded = texts.withColumns({"k": k.cast("smallint"), "app": app, "ts": ts})
    took = contest({"codes": lambda: _run(fold(codes)), "texts": lambda: _run(fold(decoded))})
    size = _bytes(folder / "codes")
    yield told("pipeline: fold from a table of texts", count, took["texts"])
    yield told(
        "pipeline: fold from a table of codes",
        count,
        took["codes"],
        bars=(
            Bar("P4, CPU", took["codes"].cpu_s / took["texts"].cpu_s, 0.8),
            Bar("P4, bytes", size / _bytes(folder / "texts"), 0.55),
            Bar("bytes, of texts in zstd", size / _bytes(folder / "texts-zstd")),
        ),
    )


def _lines(spark: SparkSession, bare: DataFrame, folder: Path, count: int) -> Iterator[Measurement]:
    names = bare.columns
    spoken = bare.withColumn("ts", _spoken())
    whole = contract_schema()
    timed = StructType(
        [StructField("ts", TimestampType()) if one.name == "ts" else one for one in whole.fields]
    )
    readers: dict[str, Callable[[], object]] = {}
    for kind, frame, schema in (("numbers", bare, whole), ("texts", spoken, timed)):
        path = str(folder / f"lines-{kind}")
        frame.select(F.to_json(F.struct(*names))).write.text(path)
        readers[kind] = partial(_counted, spark, path, schema)
    took = contest(readers)
    yield told("pipeline: JSON lines with moments as texts", count, took["texts"])
    yield told(
        "pipeline: JSON lines with moments as numbers",
        count,
        took["numbers"],
        bars=(Bar("P5, of moments as texts", took["numbers"].cpu_s / took["texts"].cpu_s, 0.9),),
    )


def _counted(spark: SparkSession, path: str, schema: StructType) -> object:
    """Asked anew each time: Spark keeps what it shuffled for a question that it has answered."""
    read = spark.read.schema(schema).json(path)
    return read.agg(*(F.count(name) for name in schema.names)).collect()


def _writers(
    spark: SparkSession, codes: DataFrame, folder: Path, count: int
) -> Iterator[Measurement]:
    spark.dataSource.register(ArrowFiles)
    targets: dict[str, Path] = {}

    def native() -> None:
        targets["native"] = folder / f"native-{secrets.token_hex(4)}"
        codes.write.options(**spark_options(EVENTS)).parquet(str(targets["native"]))

    def arrow() -> None:
        targets["Arrow"] = folder / f"arrow-{secrets.token_hex(4)}"
        targets["Arrow"].mkdir()
        place = str(targets["Arrow"])
        codes.write.format(ArrowFiles.name()).option("folder", place).mode("append").save()

    took: dict[str, Cost] = contest({"native": native, "Arrow": arrow})
    share = _bytes(targets["native"]) / _bytes(targets["Arrow"])
    yield told("pipeline: written by Arrow in Python", count, took["Arrow"])
    yield told(
        "pipeline: written by Spark",
        count,
        took["native"],
        bars=(
            Bar("P13, of a Python Arrow writer", took["native"].cpu_s / took["Arrow"].cpu_s, 1),
            Bar("bytes", share),
        ),
    )


class ArrowFiles(DataSource):
    """Parquet files written by Python workers from what Spark hands them, coded as ours."""

    @classmethod
    def name(cls) -> str:
        return "arrow_files"

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceArrowWriter:
        return ArrowFileWriter(self.options["folder"])


class ArrowFileWriter(DataSourceArrowWriter):
    def __init__(self, folder: str) -> None:
        self._folder = folder

    def write(self, iterator: Iterator[Any]) -> WriterCommitMessage:
        parquet: Any = import_module("pyarrow.parquet")
        arrow: Any = import_module("pyarrow")
        batches = list(iterator)
        if batches:
            path = f"{self._folder}/{secrets.token_hex(8)}.parquet"
            parquet.write_table(arrow.Table.from_batches(batches), path, **arrow_options(EVENTS))
        return WriterCommitMessage()


def _run(frame: DataFrame) -> None:
    frame.write.format("noop").mode("overwrite").save()


def _bytes(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.glob("*.parquet"))
