"""Settings of the store: URL, size limits, timeouts."""

from typing import Annotated

import msgspec
from msgspec import Meta

from waystation.base.settings import doc


class Store(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Storage of all services."""

    url: Annotated[
        str,
        doc(
            "`embedded:./relative` (to the data directory), `embedded:///absolute`, `memory:`, or"
            " the URL of a server (guides/stores), for example `redis://HOST:6379/0`; `dual:` for a"
            " move from one store to another.",
            daemon="db_dsn",
        ),
    ] = "embedded:./store"
    db_settings: Annotated[
        str,
        doc(
            "Autopush's settings of a server store, a JSON object with its names.",
            daemon="db_settings",
        ),
    ] = ""
    connect_timeout_s: Annotated[
        float, Meta(gt=0), doc("How long a connection to a server store may take to be made.")
    ] = 5.0
    operation_timeout_s: Annotated[
        float,
        Meta(gt=0),
        doc("A server store that has not answered for so long counts as gone: 503."),
    ] = 5.0
    connections_max: Annotated[
        int,
        Meta(ge=1, le=1000),
        doc("Connections of a process to a store that takes one operation on each (PostgreSQL)."),
    ] = 8
    table_units: Annotated[
        int,
        Meta(ge=0),
        doc(
            "Read and write units of tables that are made on DynamoDB, unless the URL says them;"
            " 0: paid by the request. The daemons: 1, as Autopush."
        ),
    ] = 0
    map_bytes: Annotated[
        int,
        Meta(ge=1 << 20),
        doc(
            "The most that one embedded store may grow to. The file is sparse: it takes what is"
            " in use, not this. Beyond 95 % of it new notifications are refused, deletes are not."
        ),
    ] = 64 << 30
    disk_reserve_bytes: Annotated[
        int,
        Meta(ge=0),
        doc("While the disk has less room than this, new notifications are refused."),
    ] = 64 << 20
    commit_batch_max: Annotated[
        int, Meta(ge=1, le=65_536), doc("The most writes that one commit of a process takes.")
    ] = 1024
    queue_max: Annotated[
        int,
        Meta(ge=1),
        doc(
            "Operations of a process that may wait for the store (of the embedded one: writes that"
            " wait for the disk); one more is answered 503."
        ),
    ] = 16_384
    sync: Annotated[
        bool,
        doc(
            "Flush to the disk before a write is acknowledged. Without it `kill -9` loses nothing,"
            " but a loss of power may lose the last writes or damage the store."
        ),
    ] = True
    readers_max: Annotated[
        int,
        Meta(ge=8, le=4096),
        doc("Reader slots for all processes together that have the store open."),
    ] = 512
