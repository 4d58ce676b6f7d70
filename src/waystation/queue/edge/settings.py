"""Settings of an edge, the front of a queue cluster."""

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from waystation.base.settings import doc

Port = Annotated[int, Meta(ge=0, le=65535)]


class Edge(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An edge: where clients connect to. What concerns clients (versions, passwords,
    proxying, limits of a connection) is set under `queue`."""

    port: Annotated[Port, doc("SimpleX Messaging Protocol over TLS 1.3.")] = 5223
    ops_port: Annotated[Port, doc("Health and `/metrics` over HTTP.")] = 9102
    drain_s: Annotated[float, Meta(ge=0), doc("Over how long a stop spreads the closes.")] = 10.0
    refs_max: Annotated[
        int, Meta(ge=1), doc("References that are remembered, about 200 bytes each.")
    ] = 1_000_000
    map_interval_s: Annotated[
        float, Meta(gt=0), doc("How often the slot map is read if no server reports a newer one.")
    ] = 1.0
    upstream_mode: Annotated[
        Literal["shared", "dedicated"],
        doc(
            "How clients share the links to storage servers: all of them one link to each, or each"
            " client one of its own to every server it uses, which costs both ends about 50 KiB"
            " and keeps clients apart."
        ),
    ] = "shared"
    upstream_links_max: Annotated[
        int,
        Meta(ge=0),
        doc("Links of single clients at once, with `dedicated`; later clients share."),
    ] = 10_000
    new_per_min: Annotated[
        int,
        Meta(ge=0),
        doc("Queues that one connection may create in a minute; then it is slowed. 0: no limit."),
    ] = 0
    new_per_address_per_min: Annotated[
        int,
        Meta(ge=0),
        doc(
            "The same for all connections from one IPv4 address or one IPv6 /48 together, however"
            " often they connect. 0: no limit."
        ),
    ] = 0
