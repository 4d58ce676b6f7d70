"""The result tables: their columns and the jobs that fill them.

Every row has its `day`, which is also its partition: a job computes whole days and replaces their
files.
"""

from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from waystation.pipeline.schema import Partition, TableSpec, columns
from waystation.pipeline.transforms import (
    abuse,
    capacity,
    connections,
    presence,
    reconcile,
    reliability,
    slots,
    usage,
)

MDATE = Partition("mdate", "date", lambda: F.col("day"))
DATE = Partition("date", "date", lambda: F.col("day"))
WITH_HASHES_KEEP_DAYS = 90


def _table(
    name: str,
    data: StructType,
    job: str,
    *,
    sort: tuple[str, ...] = (),
    by: Partition = DATE,
    reads: str = "events",
    keep_days: int = 3 * 365,
) -> TableSpec:
    return TableSpec(
        name=name,
        data=data,
        partitions=(by,),
        sort=sort,
        keep_days=keep_days,
        inputs=((job, reads),),
    )


REL_HOURLY = _table(
    "rel_hourly",
    reliability.REL_HOURLY,
    "reliability",
    sort=("hour", "app", "via", "path", "outcome"),
    by=MDATE,
    reads="msg_inc",
)
REL_LATENCY = _table(
    "rel_latency",
    reliability.REL_LATENCY,
    "reliability",
    sort=("hour", "app", "path", "measure", "bucket"),
    by=MDATE,
    reads="msg_inc",
)
REL_LOSS = _table(
    "rel_loss",
    reliability.REL_LOSS,
    "reliability",
    sort=("hour", "mid"),
    by=MDATE,
    reads="msg_inc",
    keep_days=WITH_HASHES_KEEP_DAYS,
)
REL_NODES = _table("rel_nodes", reliability.REL_NODES, "nodes", sort=("hour", "node", "k"))
REL_REPEATS = _table("rel_repeats", reliability.REL_REPEATS, "nodes", sort=("hour", "k"))
REL_SEQUENCE = _table(
    "rel_sequence", reconcile.REL_SEQUENCE, "nodes", sort=("node", "boot", "hour")
)
REL_RECONCILE = _table(
    "rel_reconcile", reconcile.REL_RECONCILE, "nodes", sort=("node", "boot", "hour", "k")
)
CONN_SESSIONS = _table(
    "conn_sessions",
    connections.CONN_SESSIONS,
    "conn",
    sort=("opened_at", "node", "boot", "cid"),
    keep_days=WITH_HASHES_KEEP_DAYS,
)
CONN_MINUTELY = _table("conn_minutely", connections.CONN_MINUTELY, "conn", sort=("minute",))
CONN_HOURLY = _table("conn_hourly", connections.CONN_HOURLY, "conn", sort=("hour", "node"))
SLOT_MINUTELY = _table("slot_minutely", slots.SLOT_MINUTELY, "slots", sort=("minute", "slot"))
SLOT_PLAN = TableSpec(
    name="slot_plan",
    data=columns(
        "day date, plan string, slot smallint, source int, target int, weight double,"
        " bytes bigint, wave int"
    ),
    partitions=(DATE,),
    sort=("wave", "slot"),
)
PARTY_SESSIONS = _table(
    "party_sessions",
    presence.PARTY_SESSIONS,
    "presence",
    sort=("started_at", "party", "sess"),
    keep_days=WITH_HASHES_KEEP_DAYS,
)
PARTY_MINUTELY = _table(
    "party_minutely", presence.PARTY_MINUTELY, "presence", sort=("class", "minute")
)
PARTY_HOURLY = _table("party_hourly", presence.PARTY_HOURLY, "presence", sort=("hour", "node"))
PARTY_LATENCY = _table("party_latency", presence.PARTY_LATENCY, "presence", sort=("hour", "bucket"))
CAP_MINUTELY = _table(
    "cap_minutely", capacity.CAP_MINUTELY, "capacity", sort=("resource", "minute")
)
CAP_UNITS = _table("cap_units", capacity.CAP_UNITS, "capacity", sort=("resource",))
CAP_FORECAST = TableSpec(
    name="cap_forecast",
    data=columns(
        "day date, resource string, target date, p10 double, p50 double, p90 double, model string,"
        " mape double, naive_mape double, growth_per_day double"
    ),
    partitions=(DATE,),
    sort=("resource", "target"),
    inputs=(("forecast", "cap_minutely"),),
)
ABUSE = _table(
    "abuse", abuse.ABUSE, "abuse", sort=("kind", "first_minute"), keep_days=WITH_HASHES_KEEP_DAYS
)
USAGE_DAILY = _table("usage_daily", usage.USAGE_DAILY, "usage", sort=("what", "detail"))
USAGE_SKETCHES = _table("usage_sketches", usage.USAGE_SKETCHES, "usage", sort=("what",))

RESULT_TABLES = (
    REL_HOURLY,
    REL_LATENCY,
    REL_LOSS,
    REL_NODES,
    REL_REPEATS,
    REL_RECONCILE,
    REL_SEQUENCE,
    CONN_SESSIONS,
    CONN_MINUTELY,
    CONN_HOURLY,
    SLOT_MINUTELY,
    SLOT_PLAN,
    PARTY_SESSIONS,
    PARTY_MINUTELY,
    PARTY_HOURLY,
    PARTY_LATENCY,
    CAP_MINUTELY,
    CAP_UNITS,
    CAP_FORECAST,
    ABUSE,
    USAGE_DAILY,
    USAGE_SKETCHES,
)
