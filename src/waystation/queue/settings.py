"""Settings of the queue service: ports, limits, timeouts, retention."""

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from waystation.base.settings import doc

Port = Annotated[int, Meta(ge=0, le=65535)]


class Queue(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The queue server: addresses, access, limits, upkeep."""

    port: Annotated[Port, doc("SimpleX Messaging Protocol over TLS 1.3.")] = 5223
    control_port: Annotated[
        Annotated[int, Meta(ge=0, le=65535)] | Literal["off"],
        doc("Line protocol for operators, on loopback only; `off` unless a port is given."),
    ] = "off"
    link_port: Annotated[
        Port, doc("Links of a cluster: edges and other storage servers; mutual TLS.")
    ] = 5225
    ops_port: Annotated[Port, doc("Health, `/metrics` and the information page over HTTP.")] = 9101
    hosts: Annotated[
        str,
        doc(
            "Names under which clients reach this server, in the server address, separated by"
            " commas; empty: `host`."
        ),
    ] = ""
    public_port: Annotated[
        Port, doc("The port in the server address; 0: the port that we listen on.")
    ] = 0

    # Access
    min_version: Annotated[
        Literal[6, 7, 8],
        doc(
            "The oldest protocol version that is accepted. 6 admits clients without ALPN, which get"
            " 6 alone."
        ),
    ] = 8
    new_queues: Annotated[bool, doc("Whether clients may create queues.")] = True
    create_password: Annotated[
        str,
        Meta(pattern=r"^[!-~]*$"),
        doc("Password for creating queues; empty: none is needed.", secret=True),
    ] = ""
    proxying: Annotated[
        bool, doc("Whether commands of clients are forwarded to other servers (PRXY, PFWD).")
    ] = True
    proxy_concurrency: Annotated[
        int, Meta(ge=1, le=255), doc("Forwarded commands in flight for one client.")
    ] = 32
    proxy_relays_max: Annotated[
        int, Meta(ge=1), doc("Connections to other servers as a proxy.")
    ] = 1000
    proxy_connect_timeout_s: Annotated[
        float, Meta(gt=0), doc("From the connection to another server to the end of both hellos.")
    ] = 10.0
    proxy_request_timeout_s: Annotated[
        float, Meta(gt=0), doc("How long another server may take to answer a forwarded command.")
    ] = 20.0
    proxy_failure_memory_s: Annotated[
        float, Meta(ge=0), doc("Pause after a failed connection to another server.")
    ] = 30.0
    proxy_private_hosts: Annotated[
        bool,
        doc(
            "Whether commands may be forwarded to loopback and private addresses. Off, because"
            " clients name the servers: they could reach into the network behind this proxy. Switch"
            " it on if all servers are in one private network."
        ),
    ] = False
    proxy_own_domains: Annotated[
        str,
        doc("Domains of our other servers, separated by commas; statistics count them apart."),
    ] = ""
    connections_max: Annotated[
        int, Meta(ge=0), doc("Connections at once; 0: the limit of the system.")
    ] = 0
    connections_per_address: Annotated[
        int,
        Meta(ge=0),
        doc(
            "Connections at once from one IPv4 address or one IPv6 /48; all clients behind one"
            " router count together. 0: no limit."
        ),
    ] = 0
    subscriptions_max: Annotated[
        int, Meta(ge=1), doc("Queues that one connection may subscribe to.")
    ] = 100_000

    id_mode: Annotated[
        Literal["refs", "hybrid"],
        doc(
            "Whether ids that the server makes begin with the slot of their queue (`hybrid`), or"
            " are random throughout (`refs`), which costs a cluster more requests."
        ),
    ] = "hybrid"
    followers: Annotated[
        Literal["sync", "async"],
        doc(
            "In a cluster with `controller.replicas`: whether an answer waits until the slot's"
            " follower has confirmed it (`sync`), or not (`async`): then what was answered in the"
            " last two seconds may be lost when a server is lost."
        ),
    ] = "sync"

    refs_sweep_interval_s: Annotated[
        float,
        Meta(gt=0),
        doc("How often a storage server of a cluster looks for outdated references."),
    ] = 3600.0
    refs_lost_after_s: Annotated[
        float,
        Meta(gt=0),
        doc("A reference is removed after its queue was not found for so long."),
    ] = 3600.0

    store: Annotated[
        str,
        doc(
            "The store of queues: `embedded:./path`, `memory:` or `postgres://…`; empty:"
            " `store.url` if that is one of these, else `embedded:./store`."
        ),
    ] = ""

    service_certificates: Annotated[
        bool,
        doc(
            "Whether busy clients may present a certificate and subscribe to all of their queues"
            " with one command. TLS then asks every client for a certificate and costs more for"
            " each block; needs the extra `services`."
        ),
    ] = False
    services_max: Annotated[
        int, Meta(ge=1), doc("Service certificates that are remembered; further ones are refused.")
    ] = 1000

    # Retention
    queue_quota: Annotated[
        int, Meta(ge=1, le=65_535), doc("Waiting messages in one queue; then `QUOTA`.")
    ] = 128
    expire_messages_days: Annotated[
        float, Meta(ge=0), doc("Messages older than this are removed; 0: never.")
    ] = 21.0
    expire_interval_s: Annotated[float, Meta(gt=0), doc("How often old messages are removed.")] = (
        7200.0
    )
    expire_on_send: Annotated[
        bool, doc("Also remove old messages of a queue whenever a message is sent to it.")
    ] = False
    expire_ntfs_hours: Annotated[
        float, Meta(gt=0), doc("Notifications without a subscriber are removed after this time.")
    ] = 24.0
    ntf_interval_s: Annotated[
        float, Meta(gt=0), doc("How often notifications are sent to their subscribers.")
    ] = 1.5
    ntfs_max: Annotated[
        int, Meta(ge=1), doc("Waiting notifications in all; beyond, the oldest are removed.")
    ] = 100_000
    ntfs_per_notifier_max: Annotated[
        int, Meta(ge=1), doc("Waiting notifications of one notifier.")
    ] = 128

    # Timeouts
    handshake_timeout_s: Annotated[
        float, Meta(gt=0), doc("From the connection to the end of both hellos.")
    ] = 30.0
    inactive_timeout_s: Annotated[
        float,
        Meta(ge=0),
        doc("A connection without subscription and without traffic is closed; 0: never."),
    ] = 21_600.0
    inactive_check_s: Annotated[float, Meta(gt=0), doc("How often that is checked.")] = 3600.0
    drain_s: Annotated[float, Meta(ge=0), doc("Over how long a stop spreads the closes.")] = 10.0

    # Limits of one connection
    in_blocks_max: Annotated[
        int, Meta(ge=1, le=1024), doc("Blocks read and not yet executed; then reading pauses.")
    ] = 2
    out_blocks_max: Annotated[
        int, Meta(ge=1, le=4096), doc("Unsent blocks above which a client counts as slow.")
    ] = 64
    auth_errors_per_min: Annotated[
        int,
        Meta(ge=0),
        doc("Refused authorisations of one connection, after which it is slowed; 0: no limit."),
    ] = 0
    check_threads: Annotated[int, Meta(ge=1, le=64), doc("Threads that verify signatures.")] = 2

    # Operators
    identity_algorithm: Annotated[
        Literal["ed448", "ed25519"], doc("Keys of certificates that are made at first start.")
    ] = "ed448"
    control_admin_password: Annotated[
        str, doc("Password of the role admin on the control port; empty: disabled.", secret=True)
    ] = ""
    control_user_password: Annotated[
        str, doc("Password of the role user on the control port; empty: disabled.", secret=True)
    ] = ""
    daily_block_quota: Annotated[
        int, Meta(ge=0), doc("Queues that the control port may block in a day.")
    ] = 20
    trace_events: Annotated[
        bool, doc("An event for each command instead of totals; for tests only.")
    ] = False
    information: Annotated[
        str, doc("Text of the information page: the operator of this server, and its terms.")
    ] = ""
