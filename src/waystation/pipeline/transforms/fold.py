"""All milestones of a message in one row.

Rule 1: only `min`, `max` and bit-or: a join of a semilattice. Repeating events, shuffling them,
        splitting them into batches and folding those in any order changes nothing.
Rule 2: every buffer has a fixed width, so that Spark keeps its hash aggregate with generated code;
        texts or arrays would cost half as much again.

`last` is the latest milestone with its moment: `last % 32` is the state, `last / 32` the time.
"""

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from waystation.pipeline.schema import FOLDED
from waystation.pipeline.transforms.declared import declared
from waystation.telemetry.contract import (
    ACCEPTED,
    BRIDGE_TRANSMITTED,
    DELIVERED,
    INT_TRANSMITTED,
    MILESTONES,
    RECEIVED,
    RETRIEVED,
    STORED,
    TERMINAL,
    TRANSMITTED,
)

VIA_CODES = {"webpush": 0, "fcm": 1, "apns": 2, "adm": 3, "stub": 4, "simplepush": 5}
VIA_OTHER = 99
STATE_BITS = 32

_FIRST_OF = {
    "t0": (RECEIVED,),
    "t_store": (STORED,),
    "t_get": (RETRIEVED,),
    "t_fwd": (INT_TRANSMITTED, BRIDGE_TRANSMITTED),
    "t_sent": (TRANSMITTED,),
    "t_acc": (ACCEPTED,),
    "t_term": tuple(sorted(TERMINAL)),
    "t_done": (DELIVERED,),
}
_GREATEST = ("ttl", "size", "app", "via", "path", "topic")


@declared(FOLDED)
def fold(events: DataFrame) -> DataFrame:
    """One row for each `mid` among the events; other events are passed over."""
    milestones = events.where(
        F.col("k").between(MILESTONES.start, MILESTONES.stop - 1) & F.col("mid").isNotNull()
    )
    return (
        milestones.groupBy("mid")
        .agg(
            F.max(F.col("ts") * STATE_BITS + F.col("k")).alias("last"),
            F.bit_or(_bit("k")).alias("seen"),
            *(
                F.min(F.when(F.col("k").isin(*codes), F.col("ts"))).alias(name)
                for name, codes in _FIRST_OF.items()
            ),
            F.max(_at(RECEIVED, "ttl")).alias("ttl"),
            F.max(_at(RECEIVED, "size")).alias("size"),
            F.max("app").alias("app"),
            F.max(_via_code()).alias("via"),
            F.max("path").alias("path"),
            F.max(_at(STORED, "flag")).alias("topic"),
        )
        .select(*FOLDED.names)
    )


@declared(FOLDED)
def merge(folded: DataFrame) -> DataFrame:
    """Several rows of a message into one."""
    return (
        folded.groupBy("mid")
        .agg(
            F.max("last").alias("last"),
            F.bit_or("seen").alias("seen"),
            *(F.min(name).alias(name) for name in _FIRST_OF),
            *(F.max(name).alias(name) for name in _GREATEST),
        )
        .select(*FOLDED.names)
    )


def messages(merged: DataFrame, increments: DataFrame) -> DataFrame:
    """What readers see: one row a message, whether or not `merge` has run since."""
    both = merged.select(*FOLDED.names).unionByName(increments.select(*FOLDED.names))
    return merge(both)


def _bit(code: str) -> Column:
    return F.call_function("shiftleft", F.lit(1), F.col(code).cast("int"))


def _at(code: int, column: str) -> Column:
    return F.when(F.col("k") == code, F.col(column))


def _via_code() -> Column:
    """A number for `via`: a text in the buffer would leave the fast path (rule 2)."""
    via = F.col("via")
    known = F.when(via.isNull(), F.lit(None))
    for name, code in VIA_CODES.items():
        known = known.when(via == name, F.lit(code))
    return known.otherwise(F.lit(VIA_OTHER)).cast("smallint")
