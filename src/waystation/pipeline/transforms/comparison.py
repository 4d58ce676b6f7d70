"""Compares two stores: digests of buckets first, then the rows of buckets that differ.

Rows have the canonical form of stores (`sources/store.py`): a keyed hash of the user agent, a key,
and a body that must be equal in both stores.
"""

from collections.abc import Sequence

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

BUCKETS = 4096


def bucket() -> Column:
    return F.pmod("uah", F.lit(BUCKETS)).cast("int")


def digests(rows: DataFrame, keys: Sequence[str]) -> DataFrame:
    """Per bucket: number of rows, and the exclusive or of their hashes, independent of order."""
    return rows.groupBy(bucket().alias("bucket")).agg(
        F.count("*").alias("rows"), F.bit_xor(F.xxhash64(*keys, "body")).alias("digest")
    )


def differing(source: DataFrame, target: DataFrame) -> DataFrame:
    """Buckets (`bucket`) with different digests."""
    other = target.select("bucket", F.col("rows").alias("rows_"), F.col("digest").alias("digest_"))
    same = F.col("rows").eqNullSafe(F.col("rows_")) & F.col("digest").eqNullSafe(F.col("digest_"))
    return source.join(other, on="bucket", how="full").where(~same).select("bucket")


def compared(source: DataFrame, target: DataFrame, keys: Sequence[str]) -> DataFrame:
    """Rows that differ: `kind` is missing, extra or different."""
    other = target.select(*keys, F.col("body").alias("body_"))
    kind = (
        F.when(F.col("body_").isNull(), "missing")
        .when(F.col("body").isNull(), "extra")
        .otherwise("different")
    )
    return (
        source.join(other, on=list(keys), how="full")
        .where(~F.col("body").eqNullSafe(F.col("body_")))
        .withColumn("kind", kind)
    )


def channel_list(column: str) -> Column:
    """Splits joined ids of sixteen bytes each."""
    count = (F.length(column) / 16).cast("int")
    texts = F.hex(column)
    return F.when(count == 0, F.array().cast("array<string>")).otherwise(
        F.transform(
            F.sequence(F.lit(0), count - 1), lambda at: F.substr(texts, at * 32 + 1, F.lit(32))
        )
    )


def covers(source: DataFrame, target: DataFrame) -> DataFrame:
    """`uah` of differing records whose target record is not older and has all subscriptions: a
    server has moved the user agent, which has changed its record since."""
    other = target.select(
        "uah",
        F.col("connected_at_ms").alias("connected_at_ms_"),
        F.col("channels").alias("channels_"),
    )
    lost = F.array_except(channel_list("channels"), channel_list("channels_"))
    newer = F.col("connected_at_ms_") >= F.col("connected_at_ms")
    return (
        source.join(other, on="uah", how="inner").where(newer & (F.size(lost) == 0)).select("uah")
    )


def awaited(rows: DataFrame, agents: DataFrame, records: DataFrame) -> DataFrame:
    """Compared notifications without missing ones that no user agent can fetch: of user agents
    unknown to the source (`agents`), and of removed subscriptions. The target's record, if it
    exists, decides whether a subscription was removed; a record without a subscription that the
    source has is itself different. Two notifications of one topic, posted at the same time, may
    each be the last in one store: no loss if the target has the newer one."""
    known = agents.select("uah").distinct().withColumn("known", F.lit(True))
    home = records.select("uah", channel_list("channels").alias("subscribed"))
    # The body begins with the channel: `["0123…",`.
    channel = F.upper(F.substring(F.col("body").cast("string"), 3, 32))
    gone = F.coalesce(~F.array_contains("subscribed", channel), F.lit(False))
    fetchable = F.col("known").isNotNull() & ~gone
    newer = F.col("sort_key").startswith("01:") & (_accepted_at("body_") > _accepted_at("body"))
    return (
        rows.join(known, on="uah", how="left")
        .join(home, on="uah", how="left")
        .where((F.col("kind") != "missing") | fetchable)
        .where((F.col("kind") != "different") | ~newer)
        .drop("known", "subscribed")
    )


def _accepted_at(body: str) -> Column:
    """The third value of a canonical notification."""
    return F.get_json_object(F.col(body).cast("string"), "$[2]").cast("bigint")
