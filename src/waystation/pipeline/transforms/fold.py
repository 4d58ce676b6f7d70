"""Folds all milestones of a message into one row.

Rule 1: only `min`, `max` and bit-or (a semilattice join) are used. So repeated events, their order,
        and their split into batches do not change the result.
Rule 2: every buffer has a fixed width, so that Spark uses its hash aggregate with generated code;
        strings or arrays would be half as expensive again.

`last` is the latest milestone with its time: `last % 32` is the state, `last / 32` the time.
"""

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from waystation.pipeline.schema import FOLDED
from waystation.pipeline.transforms.output_schema import returns
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


@returns(FOLDED)
def fold(events: DataFrame) -> DataFrame:
    """One row per `mid`; events without one are ignored."""
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


@returns(FOLDED)
def merge(folded: DataFrame) -> DataFrame:
    """Merges the rows of each message into one."""
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
    """One row per message for readers, independent of the job `merge`."""
    both = merged.select(*FOLDED.names).unionByName(increments.select(*FOLDED.names))
    return merge(both)


def _bit(code: str) -> Column:
    return F.call_function("shiftleft", F.lit(1), F.col(code).cast("int"))


def _at(code: int, column: str) -> Column:
    return F.when(F.col("k") == code, F.col(column))


def _via_code() -> Column:
    """A number for `via`: a string would leave the fast path (rule 2)."""
    via = F.col("via")
    known = F.when(via.isNull(), F.lit(None))
    for name, code in VIA_CODES.items():
        known = known.when(via == name, F.lit(code))
    return known.otherwise(F.lit(VIA_OTHER)).cast("smallint")
