"""Load of the platform per minute, and the store capacity that it requires.

The unit model of the storage documents:

Rule 1: a connect writes the user agent's record, one unit per started KiB; a disconnect clears its
        node. So router write units limit connections per second.
Rule 2: every notification, stored or not, reads that record: one unit per started 4 KiB.
Rule 3: a stored notification is written, one unit per started KiB, and deleted after its fetch, one
        unit.
Rule 4: a storage check reads the stored notifications, one unit per started 4 KiB, at least one.
Rule 5: the required capacity is the p99 of the rate in the busiest hour, plus headroom.
"""

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from waystation.pipeline.schema import columns
from waystation.pipeline.transforms.output_schema import returns
from waystation.pipeline.transforms.time import date_of, minute_of, weight
from waystation.telemetry.contract import (
    BRIDGE_TRANSMITTED,
    DELIVERED,
    RECEIVED,
    RETRIEVED,
    STORED,
)

HELLO, STORAGE_CHECK, CLOSE, STORE_STATS = 21, 27, 29, 80
OPEN = 20
QUEUE_SEND, PARTY_STARTED, PARTY_SENT = 103, 200, 205
READ_BLOCK_BYTES, WRITE_BLOCK_BYTES = 4096, 1024

# Resources counted per minute, and the events that count for each.
COUNTED = {
    "connects": OPEN,
    "hellos": HELLO,
    "closes": CLOSE,
    "notifications": RECEIVED,
    "stored": STORED,
    "retrieved": RETRIEVED,
    "acks": DELIVERED,
    "bridge_sends": BRIDGE_TRANSMITTED,
    "storage_checks": STORAGE_CHECK,
    "queue_sends": QUEUE_SEND,
    "party_joins": PARTY_STARTED,
    "party_messages": PARTY_SENT,
}
UNITS = {  # unit of a store -> the resource that drives it
    "router_read": "notifications",
    "router_write": "hellos",
    "message_read": "storage_checks",
    "message_write": "stored",
}

CAP_MINUTELY = columns(
    "day date, minute int, resource string, n bigint, units bigint, bytes bigint, "
    "size_mean double, size_p95 double"
)
CAP_UNITS = columns(
    "day date, resource string, busiest_hour int, units bigint, rate_p99 double, "
    "provision double, driver string, driver_per_unit double"
)


@returns(CAP_MINUTELY)
def minutely(events: DataFrame, *, router_item_bytes: int = 600) -> DataFrame:
    """Rows of minute × resource: count, store units, sizes.

    Resources are requests (connects, notifications, …), the four kinds of store units, and
    `store:TABLE:OP` as reported by the stores.
    """
    told = events.where(F.col("k").isin(*COUNTED.values(), STORE_STATS))
    attrs = F.try_parse_json("attrs")
    by_store = F.concat_ws(
        ":",
        F.lit("store"),
        F.try_variant_get(attrs, "$.table", "string"),
        F.try_variant_get(attrs, "$.op", "string"),
    )
    name = F.coalesce(
        *(F.when(F.col("k") == code, F.lit(name)) for name, code in COUNTED.items()), by_store
    )
    amount = F.when(
        F.col("k").isin(STORE_STATS, QUEUE_SEND), F.coalesce(F.col("n"), F.lit(1).cast("bigint"))
    ).otherwise(F.lit(1).cast("bigint"))
    times = amount * weight()
    size = F.coalesce(F.col("size"), F.lit(0).cast("bigint"))
    blocks = F.when(F.col("k") == STORAGE_CHECK, _started(size, READ_BLOCK_BYTES)).otherwise(1)
    asked = (
        told.groupBy(
            date_of(F.col("ts")).alias("day"),
            minute_of(F.col("ts")).alias("minute"),
            name.alias("resource"),
        )
        .agg(
            F.sum(times).alias("n"),
            F.sum(times * blocks).alias("units"),
            F.sum(size).alias("bytes"),
            (F.sum(size) / F.count(F.lit(1))).alias("size_mean"),
            F.percentile(size, 0.95).alias("size_p95"),
        )
        .select(*CAP_MINUTELY.fieldNames())
    )
    return asked.unionByName(_units_of(asked, router_item_bytes))


def _started(amount: Column, block_bytes: int) -> Column:
    """Number of started blocks, at least one."""
    blocks = F.ceil(amount / F.lit(float(block_bytes)))
    return F.greatest(blocks, F.lit(1)).cast("bigint")


def _units_of(asked: DataFrame, router_item_bytes: int) -> DataFrame:
    """The four kinds of store units of a minute (rules 1 to 4). A `push.stored` has no size: the
    mean of the minute's notifications is used."""

    def total(resource: str, column: str = "n") -> Column:
        chosen = F.sum(F.when(F.col("resource") == resource, F.col(column)))
        return F.coalesce(chosen, F.lit(0).cast("bigint"))

    mean_size = F.coalesce(
        F.max(F.when(F.col("resource") == "notifications", F.col("size_mean"))), F.lit(0.0)
    )
    item = F.lit(router_item_bytes)
    of_minutes = asked.groupBy("day", "minute").agg(
        *(total(resource).alias(resource) for resource in (*UNITS.values(), "closes", "retrieved")),
        total("storage_checks", "units").alias("blocks_read"),
        _started(mean_size, WRITE_BLOCK_BYTES).alias("blocks_written"),
    )
    units = {
        "router_read": F.col("notifications") * _started(item, READ_BLOCK_BYTES),
        "router_write": F.col("hellos") * _started(item, WRITE_BLOCK_BYTES) + F.col("closes"),
        "message_read": F.col("blocks_read"),
        "message_write": F.col("stored") * F.col("blocks_written") + F.col("retrieved"),
    }
    rows = F.explode(
        F.array(
            *(
                F.struct(
                    F.lit(resource).alias("resource"),
                    F.col(UNITS[resource]).alias("n"),
                    units[resource].alias("units"),
                )
                for resource in UNITS
            )
        )
    )
    return (
        of_minutes.select("day", "minute", rows.alias("row"))
        .where("row.units > 0")
        .select(
            "day",
            "minute",
            "row.resource",
            "row.n",
            "row.units",
            F.lit(None).cast("bigint").alias("bytes"),
            F.lit(None).cast("double").alias("size_mean"),
            F.lit(None).cast("double").alias("size_p95"),
        )
    )


@returns(CAP_UNITS)
def units(of_minutes: DataFrame, *, headroom: float = 0.3) -> DataFrame:
    """Required units per second of each kind, by the busiest hour of the date, and the number of
    driver operations per unit: provision · driver_per_unit is the possible rate per second.

    Counts are per minute: the p99 of an hour's 60 minutes is its busiest minute.
    """
    of_units = of_minutes.where(F.col("resource").isin(*UNITS))
    hours = of_units.groupBy(
        "day", "resource", F.floor(F.col("minute") / 60).cast("int").alias("hour")
    ).agg(F.sum("units").alias("in_hour"), F.max("units").alias("in_minute"))
    # The earliest of equally busy hours, so that the result does not depend on row order.
    busiest = F.max(F.struct("in_hour", (-F.col("hour")).alias("back"), "in_minute"))
    of_day = of_units.groupBy("day", "resource").agg(
        F.sum("units").alias("units"), F.sum("n").alias("n")
    )
    drivers = F.create_map(*(F.lit(text) for pair in UNITS.items() for text in pair))
    rate = F.col("busiest.in_minute") / F.lit(60.0)
    return (
        hours.groupBy("day", "resource")
        .agg(busiest.alias("busiest"))
        .join(of_day, on=["day", "resource"], how="inner")
        .select(
            "day",
            "resource",
            (-F.col("busiest.back")).alias("busiest_hour"),
            "units",
            rate.alias("rate_p99"),
            (rate * F.lit(1.0 + headroom)).alias("provision"),
            F.element_at(drivers, F.col("resource")).alias("driver"),
            (F.col("n") / F.col("units")).alias("driver_per_unit"),
        )
    )
