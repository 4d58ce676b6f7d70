"""The tables that jobs over stores keep: findings, candidates for removal, and what was removed."""

from waystation.pipeline.schema import Partition, TableSpec, columns, date_of_us

STORE_AUDIT = TableSpec(
    name="store_audit",
    data=columns("at bigint, run string, class string, rows bigint, samples string"),
    partitions=(Partition("date", "date", date_of_us("at")),),
    sort=("class",),
    stats="at",
)
STORE_CANDIDATES = TableSpec(
    name="store_candidates",
    data=columns(
        "at bigint, run string, kind string, uah bigint, version bigint, connected_at_ms bigint"
    ),
    partitions=(Partition("date", "date", date_of_us("at")),),
    sort=("uah",),
    stats="at",
    keep_days=90,
)
STORE_PURGE = TableSpec(
    name="store_purge",
    data=columns("at bigint, run string, candidates bigint, unchanged bigint, removed bigint"),
    partitions=(Partition("date", "date", date_of_us("at")),),
    stats="at",
)
