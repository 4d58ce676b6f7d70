"""Aggregates frames to the few rows of a report, in a fixed order.

Most of a small query's time is planning, so several groupings of a table share one query.
"""

import datetime as dt
from collections.abc import Mapping, Sequence
from typing import Any

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from waystation.pipeline.transforms.histogram import quantiles

Row = dict[str, Any]


def rollups(
    frame: DataFrame, sets: Mapping[str, Sequence[str]], *columns: Column
) -> dict[str, list[Row]]:
    """Several groupings of the same rows in one query, each ordered by its keys."""
    keys = list(dict.fromkeys(name for by in sets.values() for name in by))
    grouped = frame.groupingSets([list(by) for by in sets.values()], *keys)
    rows = rows_of(grouped.agg(F.grouping_id().alias("_set"), *columns))
    found: dict[str, list[Row]] = {}
    for what, by in sets.items():
        # grouping_id: one bit per key, the last key lowest; set if the key was aggregated away.
        number = int("0" + "".join(str(int(key not in by)) for key in keys), 2)
        mine = [row for row in rows if row["_set"] == number]
        found[what] = without(_ordered(mine, by), ["_set", *(key for key in keys if key not in by)])
    return found


def rows_of(frame: DataFrame, *order: str) -> list[Row]:
    """Rows ordered by columns that are unique together; nulls last."""
    rows: list[Row] = [row.asDict() for row in frame.collect()]
    for row in rows:
        for name, value in row.items():
            if isinstance(value, dt.date):
                row[name] = value.isoformat()
    return _ordered(rows, order)


def _ordered(rows: list[Row], order: Sequence[str]) -> list[Row]:
    def place(row: Row) -> list[tuple[bool, Any]]:
        return [(row[name] is None, 0 if row[name] is None else row[name]) for name in order]

    return sorted(rows, key=place)


def quantile_rows(buckets: DataFrame, *by: str) -> list[Row]:
    """Quantiles, limited to the maximum: a bucket's value may exceed every value in it."""
    rows = rows_of(quantiles(buckets, by), *by)
    return [
        {
            name: min(value, row["max_ms"]) if name.endswith("_ms") else value
            for name, value in row.items()
        }
        for row in rows
    ]


def zero(column: Column) -> Column:
    """The sum, 0 for no rows."""
    return F.coalesce(column, F.lit(0).cast("bigint"))


def nothing(frame: DataFrame, name: str) -> Column:
    """A typed null in place of a column."""
    return F.lit(None).cast(frame.schema[name].dataType).alias(name)


def without(rows: Sequence[Row], names: Sequence[str]) -> list[Row]:
    return [{key: value for key, value in row.items() if key not in names} for row in rows]


def only(rows: Sequence[Row], *names: str) -> list[Row]:
    return [{name: row[name] for name in names} for row in rows]
