"""The tables of the lake: columns, partitions, order and consumers.

Rule 1: columns of events come from the event contract.
Rule 2: a partition column is a pure function of the data columns. It is not in the data files;
        readers derive it, so a data file alone is complete.
Rule 3: a table names its inputs: the progress that it keeps, and the table that the job reads. A
        file is deleted only when all consumers of its table have read it.
"""

from collections.abc import Callable, Mapping

import msgspec
from pyspark.sql import Column
from pyspark.sql import functions as F
from pyspark.sql.types import (
    BinaryType,
    BooleanType,
    ByteType,
    DataType,
    DateType,
    DoubleType,
    IntegerType,
    LongType,
    ShortType,
    StringType,
    StructField,
    StructType,
)

from waystation.telemetry import contract

TYPES: Mapping[str, DataType] = {
    "tinyint": ByteType(),
    "smallint": ShortType(),
    "int": IntegerType(),
    "bigint": LongType(),
    "boolean": BooleanType(),
    "string": StringType(),
    "double": DoubleType(),
    "date": DateType(),
    "binary": BinaryType(),
}


class Partition(msgspec.Struct, frozen=True):
    """A partition column, and its expression over the data columns."""

    name: str
    type: str
    derive: Callable[[], Column]


class TableSpec(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    data: StructType  # columns of the data files
    partitions: tuple[Partition, ...]
    sort: tuple[str, ...] = ()  # order inside a file
    # Columns with hardly any repeated value: a dictionary only costs.
    plain: tuple[str, ...] = ()
    # Columns whose values repeat far apart, because the file is ordered by other columns.
    scattered: tuple[str, ...] = ()
    stats: str = ""  # the column whose range the log keeps for each file
    keep_days: int = 3 * 365
    inputs: tuple[
        tuple[str, str], ...
    ] = ()  # (name of the progress in this table, table that the job reads)

    @property
    def schema(self) -> StructType:
        """The schema for readers: data columns, then partition columns."""
        more = [StructField(column.name, TYPES[column.type]) for column in self.partitions]
        return StructType([*self.data.fields, *more])

    @property
    def partition_names(self) -> list[str]:
        return [column.name for column in self.partitions]


def columns(text: str) -> StructType:
    """A schema from `name type, name type`, all nullable."""
    fields: list[StructField] = []
    for part in text.split(","):
        name, _, kind = part.strip().partition(" ")
        fields.append(StructField(name, TYPES[kind.strip()]))
    return StructType(fields)


def contract_schema() -> StructType:
    """The columns of the event contract, in its order."""
    return StructType(
        [StructField(column.name, TYPES[column.type]) for column in contract.COLUMNS.values()]
    )


def date_of_us(column: str) -> Callable[[], Column]:
    """The UTC date of a time in microseconds; integer arithmetic is cheaper than calendars."""
    return lambda: F.date_from_unix_date(F.expr(f"cast({column} div 86400000000 as int)"))


def mid_ms() -> Column:
    """The notification's time: the first 48 bits of `mid`."""
    return F.conv(F.substring("mid", 1, 12), 16, 10).cast("bigint")


DATE_OF_TS = Partition("date", "date", date_of_us("ts"))
HOUR_OF_TS = Partition("hour", "int", lambda: F.expr("cast(ts div 3600000000 % 24 as int)"))
DATE_OF_MID = Partition("mdate", "date", lambda: F.timestamp_millis(mid_ms()).cast("date"))

FOLDED = columns(
    "mid string, last bigint, seen int, t0 bigint, t_store bigint, t_get bigint, t_fwd bigint,"
    " t_sent bigint, t_acc bigint, t_term bigint, t_done bigint, ttl int, size bigint, app bigint,"
    " via smallint, path tinyint, topic boolean"
)

EVENTS = TableSpec(
    name="events",
    data=StructType([*contract_schema().fields, StructField("_in", LongType())]),
    partitions=(DATE_OF_TS, HOUR_OF_TS),
    sort=("k", "mid", "ts"),
    plain=("ts", "seq"),
    scattered=("mid",),
    stats="ts",
    keep_days=90,
)
QUARANTINE = TableSpec(
    name="quarantine",
    data=columns(
        "node string, boot bigint, segno bigint, sealed_at bigint, reason string, line string,"
        " topic string, partition int, offset bigint"
    ),
    partitions=(Partition("date", "date", date_of_us("sealed_at")),),
    sort=("node", "boot", "segno"),
    stats="sealed_at",
    keep_days=90,
)
MSG_INC = TableSpec(
    name="msg_inc",
    data=FOLDED,
    partitions=(DATE_OF_MID,),
    sort=("mid",),
    stats="mid",
    keep_days=60,
    inputs=(("fold", "events"),),
)
MSG = TableSpec(
    name="msg", data=FOLDED, partitions=(DATE_OF_MID,), sort=("mid",), stats="mid", keep_days=60
)
DQ = TableSpec(
    name="dq",
    data=columns(
        "at bigint, run string, table string, check string, level string, value double,"
        " bound double, ok boolean, note string"
    ),
    partitions=(Partition("date", "date", date_of_us("at")),),
    sort=("at",),
    stats="at",
)
