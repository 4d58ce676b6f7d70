"""Rows of plain Python as frames, and frames compared with rows."""

import datetime as dt
import math
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

import duckdb
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from tests.oracle.troubled_events import day_of_trouble
from waystation.pipeline.schema import contract_schema

Row = dict[str, Any]
_ARROW: dict[str, pa.DataType] = {
    "tinyint": pa.int8(),
    "smallint": pa.int16(),
    "int": pa.int32(),
    "bigint": pa.int64(),
    "boolean": pa.bool_(),
    "string": pa.string(),
    "double": pa.float64(),
    "date": pa.date32(),
}


def frame(spark: SparkSession, rows: Iterable[Row], schema: StructType) -> DataFrame:
    """Rows that lack a column have null there."""
    rows = list(rows)
    arrow = pa.table(
        {
            field.name: pa.array(
                [row.get(field.name) for row in rows], _ARROW[field.dataType.simpleString()]
            )
            for field in schema.fields
        }
    )
    return spark.createDataFrame(arrow)


def events_frame(spark: SparkSession, rows: Iterable[Row]) -> DataFrame:
    return frame(spark, rows, contract_schema())


class Trouble:
    """One date of events with everything that goes wrong: two hundred seeds in one frame."""

    _made: "Trouble | None" = None

    def __init__(self, spark: SparkSession) -> None:
        self.events = day_of_trouble(range(200))
        self.frame = events_frame(spark, self.events).cache()

    @classmethod
    def of(cls, spark: SparkSession) -> "Trouble":
        """The same for all tests of a process: making it takes seconds."""
        if cls._made is None:
            cls._made = cls(spark)
        return cls._made


def rows_of(of: DataFrame) -> list[Row]:
    return of.toArrow().to_pylist()


def duck(query: str) -> list[Row]:
    """What another engine says of the same files."""
    answer = duckdb.sql(query)
    assert answer is not None
    return answer.to_arrow_table().to_pylist()


def assert_same(of: DataFrame | list[Row], expected: Sequence[Row]) -> None:
    """The same rows in any order, exactly; doubles may differ in their last digits."""
    found = rows_of(of) if isinstance(of, DataFrame) else of
    mine, theirs = Counter(map(_key, found)), Counter(map(_key, expected))
    missing, extra = list((theirs - mine).elements()), list((mine - theirs).elements())
    differences = [f"missing {dict(row)}" for row in sorted(missing, key=str)[:5]]
    differences += [f"extra   {dict(row)}" for row in sorted(extra, key=str)[:5]]

    assert not differences, "\n".join([f"{len(found)} of {len(expected)} rows", *differences])


def _key(row: Row) -> tuple[tuple[str, Any], ...]:
    return tuple(sorted((name, _plain(value)) for name, value in row.items()))


def _plain(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isnan(value) or value == 0 else float(f"{value:.12g}")
    if isinstance(value, dt.datetime):
        return value.isoformat()
    return value
