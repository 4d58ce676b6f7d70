"""Finds keys with unusual load; findings are hints for operators and are not enforced.

Rule 1: the measure is a count per minute and key: address prefix, sender, user agent, slot or
        connection.
Rule 2: a finding has more than `floor` in a minute, and a robust z-score above `Z_MIN` against all
        keys of its kind over the previous 60 minutes of the date:
        (x - median) / (1.4826 · MAD + 1). Medians are exact.
Rule 3: a slot or sender with more than `floor` is also a finding if its share of a minute exceeds
        `share`.
Rule 4: findings of consecutive minutes are merged into one.
"""

from collections.abc import Mapping

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from waystation.pipeline.schema import columns
from waystation.pipeline.transforms.output_schema import returns
from waystation.pipeline.transforms.time import date_of, minute_of, weight

Z_MIN = 8.0
WINDOW_MIN = 60
NODES_MAX = 3
FLOORS = {
    "flood_connect": 120,
    "flood_new_queue": 60,
    "flood_send": 600,
    "quota_hammer": 60,
    "auth_guess": 30,
    "unacked_pile": 500,
    "hot_slot": 600,
    "ping_abuse": 10,
    "giant_payload": 30,
}
SHARED = ("hot_slot", "flood_send")  # kinds to which rule 3 applies

ABUSE = columns(
    "day date, kind string, class string, key bigint, first_minute int, last_minute int, n bigint,"
    " peak bigint, baseline double, score double, share double, nodes string"
)


def _counted() -> list[tuple[str, str, Column, Column, Column]]:
    """(kind, class of key, key, condition, amount)."""
    k, n = F.col("k"), F.coalesce(F.col("n"), F.lit(1).cast("bigint"))
    connection = F.xxhash64("node", "boot", "cid")
    slot = F.col("slot").cast("bigint")
    operations = k.isin(100, 101, 103, 104, 105, 106, 107, 112)
    one = weight()
    too_often = (k == 26) & F.coalesce(F.col("flag"), F.lit(False))
    return [
        ("flood_connect", "iph", F.col("iph"), k == 20, one),
        ("flood_new_queue", "slot", slot, k == 100, n * one),
        ("flood_send", "app", F.col("app"), k == 0, one),
        ("quota_hammer", "slot", slot, (k == 103) & (F.col("code") == 2), n * one),
        ("auth_guess", "app", F.col("app"), k == 41, one),
        ("unacked_pile", "uah", F.col("uah"), k.isin(32, 33), n * one),
        ("hot_slot", "slot", slot, operations, n * one),
        ("ping_abuse", "cid", connection, too_often, one),
        ("giant_payload", "app", F.col("app"), (k == 40) & (F.col("code") == 413), one),
    ]


def counts(events: DataFrame) -> DataFrame:
    """Counts of each key per minute: (day, minute, kind, class, key, n, nodes)."""
    looks = F.array(
        *(
            F.when(
                condition & key.isNotNull(),
                F.struct(
                    F.lit(kind).alias("kind"),
                    F.lit(group).alias("class"),
                    key.cast("bigint").alias("key"),
                    amount.alias("n"),
                ),
            )
            for kind, group, key, condition, amount in _counted()
        )
    )
    return (
        events.where(F.col("k").isin(0, 20, 26, 32, 33, 40, 41) | F.col("k").between(100, 112))
        .select(
            date_of(F.col("ts")).alias("day"),
            minute_of(F.col("ts")).alias("minute"),
            "node",
            F.explode(looks).alias("look"),
        )
        .where("look is not null")
        .groupBy("day", "minute", "look.kind", "look.class", "look.key")
        .agg(F.sum("look.n").alias("n"), F.collect_set("node").alias("nodes"))
    )


@returns(ABUSE)
def findings(
    events: DataFrame, *, floors: Mapping[str, int] = FLOORS, share_min: float = 0.2
) -> DataFrame:
    """All findings, with consecutive minutes merged."""
    looked = counts(events)
    floor = F.element_at(
        F.create_map(*(F.lit(part) for pair in floors.items() for part in pair)), F.col("kind")
    )
    whole = Window.partitionBy("day", "minute", "kind")
    shared = looked.select(
        "*",
        (F.col("n") / F.sum("n").over(whole)).alias("share"),
    )
    large = shared.where(F.col("n") > floor)
    judged = large.join(_baseline(large, looked), on=["day", "minute", "kind"], how="left").select(
        "*",
        F.coalesce("median", F.lit(0.0)).alias("baseline"),
        (
            (F.col("n") - F.coalesce("median", F.lit(0.0)))
            / (F.coalesce("mad", F.lit(0.0)) * F.lit(1.4826) + F.lit(1.0))
        ).alias("score"),
    )
    stands_out = F.col("score") > Z_MIN
    too_much = F.col("kind").isin(*SHARED) & (F.col("share") > share_min)
    return _islands(judged.where(stands_out | too_much))


def _baseline(large: DataFrame, looked: DataFrame) -> DataFrame:
    """Median and median deviation of the hour before each minute with a large count."""
    minutes = large.select("day", "kind", F.col("minute").alias("at")).distinct()
    before = looked.select("day", "kind", "minute", "n").join(
        F.broadcast(minutes), on=["day", "kind"], how="inner"
    )
    window = before.where(
        (F.col("minute") < F.col("at")) & (F.col("minute") >= F.col("at") - WINDOW_MIN)
    )
    medians = window.groupBy("day", "kind", "at").agg(F.percentile("n", 0.5).alias("median"))
    return (
        window.join(medians, on=["day", "kind", "at"], how="inner")
        .groupBy("day", "kind", "at", "median")
        .agg(F.percentile(F.abs(F.col("n") - F.col("median")), 0.5).alias("mad"))
        .select("day", "kind", F.col("at").alias("minute"), "median", "mad")
    )


def _islands(found: DataFrame) -> DataFrame:
    """Merges consecutive minutes of a key into one finding (rule 4)."""
    key = ("day", "kind", "class", "key")
    in_row = Window.partitionBy(*key).orderBy("minute")
    numbered = found.select("*", (F.col("minute") - F.row_number().over(in_row)).alias("island"))
    nodes = F.array_sort(F.array_distinct(F.flatten(F.collect_list("nodes"))))
    peak = F.max(F.struct("n", (-F.col("minute")).alias("back"), "baseline"))
    return (
        numbered.groupBy(*key, "island")
        .agg(
            F.min("minute").alias("first_minute"),
            F.max("minute").alias("last_minute"),
            F.sum("n").alias("n"),
            peak.alias("top"),
            F.max("score").alias("score"),
            F.max("share").alias("share"),
            F.array_join(F.slice(nodes, 1, NODES_MAX), " ").alias("nodes"),
        )
        .select(
            *key,
            "first_minute",
            "last_minute",
            "n",
            F.col("top.n").alias("peak"),
            F.col("top.baseline").alias("baseline"),
            "score",
            "share",
            "nodes",
        )
    )
