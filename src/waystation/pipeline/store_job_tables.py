"""Tables of the jobs over push stores: audit findings, purge candidates and results, migrations."""

from waystation.pipeline.schema import Partition, TableSpec, columns, date_of_us

MIGRATE_PROGRESS = TableSpec(
    name="migrate_progress",
    data=columns(
        "at bigint, run string, move string, phase string, part string, read bigint,"
        " written bigint, present bigint, gone bigint, refused bigint"
    ),
    partitions=(Partition("date", "date", date_of_us("at")),),
    sort=("phase",),
    stats="at",
)
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
    data=columns(
        "at bigint, run string, candidates bigint, unchanged bigint, removed bigint, orphans bigint"
    ),
    partitions=(Partition("date", "date", date_of_us("at")),),
    stats="at",
)
