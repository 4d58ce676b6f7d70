"""Settings of presence: ports, timeouts, limits, authentication, cluster."""

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from waystation.base.settings import doc

Port = Annotated[int, Meta(ge=0, le=65535)]
Seconds = Annotated[float, Meta(gt=0)]
Count = Annotated[int, Meta(ge=1)]

LADDER_TTL_S = 120.0  # the TTL that `ack_wait_ladder_s` is written for

Algorithm = Literal[
    "EdDSA",
    "ES256",
    "ES384",
    "ES512",
    "RS256",
    "RS384",
    "RS512",
    "PS256",
    "PS384",
    "PS512",
    "HS256",
]


class PresenceAuth(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Authentication of clients: tokens (JWT) in the metadata of a stream."""

    mode: Annotated[
        Literal["off", "jwt"],
        doc("`off`: no authentication; refused on a public address unless `insecure`."),
    ] = "off"
    issuer: Annotated[str, doc("`iss` that tokens must carry.")] = ""
    audience: Annotated[str, doc("`aud` that tokens must carry.")] = ""
    algorithms: Annotated[
        tuple[Algorithm, ...],
        doc("Accepted signature algorithms. HS256 needs `secret` and excludes all others."),
    ] = ("EdDSA", "ES256", "RS256", "PS256")
    jwks: Annotated[str, doc("Public keys: a file, or an http(s) URL, of a JWK Set.")] = ""
    secret: Annotated[str, doc("The key of HS256, 32 characters or more.", secret=True)] = ""
    leeway_s: Annotated[
        float,
        Meta(ge=0, le=300),
        doc("Tolerated clock difference when times of a token are checked."),
    ] = 30.0
    lifetime_max_s: Annotated[Seconds, doc("The longest lifetime that a token may have.")] = (
        86_400.0
    )
    cache_s: Annotated[Seconds, doc("How long keys are used before they are fetched again.")] = (
        300.0
    )
    unknown_key_s: Annotated[
        Seconds, doc("Minimum time between two fetches that unknown key ids cause.")
    ] = 30.0
    stale_s: Annotated[
        Seconds, doc("How long the last keys are used while their source does not answer.")
    ] = 86_400.0
    verified_max: Annotated[Count, doc("Verified tokens that are cached.")] = 10_000
    warn_s: Annotated[
        Seconds, doc("How long before its expiry the client is asked for a new token.")
    ] = 60.0


class PresenceRedis(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Presence on Redis, for several processes or machines."""

    prefix: Annotated[str, Meta(min_length=1), doc("Prefix of all keys.")] = "pp"
    min_replicas: Annotated[
        int,
        Meta(ge=0),
        doc("Replicas that must have received a join or leave before it is answered."),
    ] = 0


class Presence(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Presence: the gRPC service, its sessions and its limits."""

    host: Annotated[str, doc("Listening address; empty: as `host`.")] = ""
    port: Annotated[Port, doc("gRPC for clients.")] = 50051
    peer_port: Annotated[
        Port, doc("gRPC between nodes and for operators; on loopback unless there are other nodes.")
    ] = 50052
    ops_port: Annotated[Port, doc("HTTP: `/metrics`, `/healthz`, `/readyz`.")] = 9103
    workers: Annotated[Count, doc("Processes; more than one need `store` to be a Redis.")] = 1
    store: Annotated[
        str,
        doc(
            "Where parties live: `embedded:…`, `memory:`, `redis://…`, `redis+cluster://…`; empty:"
            " the Redis of `store.url` if that is one, else embedded in the data directory."
        ),
    ] = ""
    node_id: Annotated[
        str,
        Meta(pattern=r"^[a-z0-9.-]{0,64}$"),
        doc("This node's name; empty: made of `cluster.node`."),
    ] = ""
    zone: Annotated[str, doc("Zone of the node; hand-offs prefer nodes of the same zone.")] = ""
    endpoint: Annotated[
        str, doc("`HOST:PORT` under which clients reach this node; empty: where it listens.")
    ] = ""
    peer_endpoint: Annotated[
        str, doc("`HOST:PORT` under which nodes reach this one; empty: where it listens.")
    ] = ""
    peer_ca: Annotated[
        str,
        doc(
            "CA certificates (PEM) of the cluster's nodes; callers of the peer port must present"
            " a certificate signed by one of them, too."
        ),
    ] = ""
    peers: Annotated[
        tuple[str, ...],
        doc(
            "Other nodes, without Redis: `NODE_ID=ENDPOINT|PEER_ENDPOINT` each. A party then lives"
            " on one node, and the others relay to it."
        ),
    ] = ()
    peer_redirect: Annotated[
        bool, doc("Send clients to the node of their party instead of relaying to it.")
    ] = False
    insecure: Annotated[
        bool, doc('Allow plain text and `auth.mode = "off"` on an address that is not loopback.')
    ] = False
    reflection: Annotated[
        Literal["auto", "on", "off"], doc("Server reflection; `auto` is on without TLS.")
    ] = "auto"
    rpc_path_aliases: Annotated[
        tuple[str, ...],
        doc(
            "More service names under which streams are opened, with their package. The default is"
            " that of the reference broker."
        ),
    ] = ("ca.ozluminaire.partypresence.ClientMessagingEndpoint",)
    session_ids: Annotated[
        Literal["per_client", "per_party"],
        doc(
            "Where a session id is unique: among the sessions of its client, or in the whole party"
            " as in the reference broker. With `per_party`, a JOIN with a session id that another"
            " client of the party uses is refused with SESSION_ID_IN_USE, and its stream ends."
        ),
    ] = "per_client"

    session_ttl_s: Annotated[
        Seconds, doc("A session without a message for this time is ended.")
    ] = 120.0
    session_ttl_min_s: Annotated[Seconds, doc("Shortest TTL that a client may request.")] = 10.0
    session_ttl_max_s: Annotated[Seconds, doc("Longest TTL that a client may request.")] = 600.0
    tick_s: Annotated[float, Meta(gt=0, le=1), doc("Resolution of timeouts.")] = 0.1
    wheel_slots: Annotated[
        int, Meta(ge=2, le=65_536), doc("Slots of the timer wheel, one tick each.")
    ] = 2048
    join_timeout_s: Annotated[Seconds, doc("Maximum time from opening a stream to its JOIN.")] = (
        10.0
    )
    max_deliveries: Annotated[Count, doc("How often a message is sent before it is dropped.")] = 5
    ack_wait_ladder_s: Annotated[
        tuple[Annotated[float, Meta(gt=0)], ...],
        Meta(min_length=1),
        doc("Waits for an ack after each delivery, for the default TTL; other TTLs scale them."),
    ] = (5.0, 10.0, 20.0, 40.0, 40.0)
    max_inflight: Annotated[
        Count, doc("Unacknowledged messages of a session; at this number sending pauses.")
    ] = 256
    max_lag: Annotated[
        Count, doc("Unsent messages of a session; above this number one LIST replaces them.")
    ] = 1024
    party_log: Annotated[int, Meta(ge=16), doc("Messages kept per party for redelivery.")] = 4096
    party_linger_s: Annotated[
        Seconds, doc("How long an empty party keeps its sequence numbers.")
    ] = 60.0
    dedup_window: Annotated[
        Count, doc("Message ids remembered per session, to detect repeats.")
    ] = 1024
    party_max: Annotated[int, Meta(ge=1, le=10_000), doc("Sessions in a party.")] = 1000
    client_sessions_max: Annotated[Count, doc("Sessions of one client in one party.")] = 8
    client_sessions_policy: Annotated[
        Literal["reject", "evict_oldest"],
        doc("`reject` or `evict_oldest`: what happens to one session more."),
    ] = "reject"
    client_parties_max: Annotated[Count, doc("Parties that one client may be in, per node.")] = 64
    node_sessions_max: Annotated[Count, doc("Sessions of this process.")] = 20_000
    rate_per_s: Annotated[
        Seconds, doc("Messages of a session per second; acks that acknowledge something are free.")
    ] = 20.0
    rate_burst: Annotated[Count, doc("Messages of a session at once.")] = 60
    join_rate_per_min: Annotated[Seconds, doc("JOINs of one client id per minute.")] = 120.0
    join_burst: Annotated[Count, doc("JOINs of one client id at once.")] = 60
    join_clients_max: Annotated[Count, doc("Client ids whose JOIN rate is tracked.")] = 100_000
    connection_streams_max: Annotated[Count, doc("Concurrent streams of one connection.")] = 1000
    max_message_bytes: Annotated[
        int, Meta(ge=1024, le=1 << 20), doc("Longest message of a client.")
    ] = 16_384
    ack_ids_max: Annotated[Count, doc("Ids in one acknowledgement.")] = 1024
    inbox_max: Annotated[
        Count, doc("Messages of a stream that wait for the store; at this number reading pauses.")
    ] = 64
    signal_enabled: Annotated[bool, doc("Allow clients to send SIGNAL to their party.")] = False
    signal_bytes_max: Annotated[int, Meta(ge=1, le=4096), doc("Payload of a SIGNAL.")] = 128
    updates_enabled: Annotated[
        bool,
        doc("Send UPDATE, when a participant loses or regains its stream, to sessions that asked."),
    ] = True
    update_after_s: Annotated[
        Seconds, doc("How long a session is detached before UPDATE is sent.")
    ] = 5.0
    answer_acks: Annotated[bool, doc("Answer ACKs too, for clients that expect an answer.")] = False
    resume_requires_token: Annotated[
        bool, doc("Refuse a resume by ids alone; for deployments without authentication.")
    ] = False
    resume_token_grace_s: Annotated[
        Seconds, doc("How long the previous resume token stays valid.")
    ] = 30.0
    write_stall_s: Annotated[
        Seconds, doc("A stream whose client reads nothing for this time is ended.")
    ] = 20.0
    slow_conflations_max: Annotated[
        Count, doc("Backlogs replaced by a LIST within `slow_window_s` before the stream is ended.")
    ] = 3
    slow_window_s: Annotated[Seconds, doc("Time span of `slow_conflations_max`.")] = 60.0
    keepalive_s: Annotated[Seconds, doc("Silence on a connection before it is pinged.")] = 30.0
    keepalive_timeout_s: Annotated[Seconds, doc("Maximum time until a ping is answered.")] = 10.0
    cursor_save_s: Annotated[Seconds, doc("How often the cursors of sessions are saved.")] = 1.0
    restart_ttl_min_s: Annotated[
        Seconds, doc("Minimum remaining TTL of every session after a start.")
    ] = 30.0

    heartbeat_s: Annotated[Seconds, doc("How often a node renews its lease.")] = 3.0
    lease_s: Annotated[Seconds, doc("A node without a renewal for this time is dead.")] = 10.0
    self_fence_s: Annotated[
        Seconds, doc("A node without a renewal for this time makes no more changes.")
    ] = 8.0
    gap_check_s: Annotated[
        Seconds, doc("How often positions are compared with the store, to find missed messages.")
    ] = 2.0
    sweep_s: Annotated[Seconds, doc("How often expired sessions of dead nodes are ended.")] = 1.0
    store_busy_s: Annotated[Seconds, doc("The `retry_after_ms` of STORE_BUSY, in seconds.")] = 1.0
    store_outage_grace_s: Annotated[
        Seconds, doc("How long streams stay open without the store.")
    ] = 30.0
    drain_timeout_s: Annotated[Seconds, doc("How long a drain waits for clients to move.")] = 60.0
    handoff_rate_per_s: Annotated[Seconds, doc("Sessions handed to other nodes per second.")] = (
        200.0
    )
    shed_check_s: Annotated[
        Seconds, doc("How often a node compares its number of sessions with the others.")
    ] = 30.0
    shed_excess: Annotated[
        float,
        Meta(ge=0),
        doc("Share above the mean of all nodes at which a node sheds sessions; 0.25 is a quarter."),
    ] = 0.25
    shed_rate_per_s: Annotated[Seconds, doc("Sessions shed per second.")] = 20.0
    ticket_s: Annotated[Seconds, doc("How long a hand-off ticket is valid.")] = 60.0
    max_standby: Annotated[int, Meta(ge=0, le=4), doc("Standby streams of a session.")] = 1
    ack_sample: Annotated[
        float, Meta(ge=0, le=1), doc("Share of acks that get an event of their own.")
    ] = 0.01

    auth: PresenceAuth = PresenceAuth()
    redis: PresenceRedis = PresenceRedis()


def contradictions(settings: Presence) -> list[str]:
    """Settings that contradict each other."""
    problems: list[str] = []
    if settings.session_ttl_s < settings.session_ttl_min_s:
        problems.append("presence.session_ttl_s is below presence.session_ttl_min_s")
    if settings.session_ttl_s > settings.session_ttl_max_s:
        problems.append("presence.session_ttl_s is above presence.session_ttl_max_s")
    waits = len(settings.ack_wait_ladder_s)
    if waits < settings.max_deliveries:
        problems.append(
            f"presence.ack_wait_ladder_s has {waits} waits for {settings.max_deliveries} deliveries"
            " (presence.max_deliveries)"
        )
    if sum(settings.ack_wait_ladder_s[: settings.max_deliveries]) >= LADDER_TTL_S:
        problems.append(
            "presence.ack_wait_ladder_s adds up to 120 s or more: the session would time out"
            " before its messages are dropped"
        )
    if settings.lease_s < 3 * settings.heartbeat_s:
        problems.append("presence.lease_s is below three times presence.heartbeat_s")
    if not settings.heartbeat_s < settings.self_fence_s < settings.lease_s:
        problems.append(
            "presence.self_fence_s must lie between presence.heartbeat_s and presence.lease_s"
        )
    if settings.max_lag >= settings.party_log:
        problems.append("presence.max_lag must be below presence.party_log")
    problems.extend(
        f"presence.peers: {one!r} is not NODE_ID=HOST:PORT|HOST:PORT"
        for one in settings.peers
        if parse_peer(one) is None
    )
    problems.extend(_auth_problems(settings.auth))
    return problems


def parse_peer(text: str) -> tuple[str, str, str] | None:
    """Node id, endpoint for clients, endpoint for nodes."""
    node_id, _, rest = text.partition("=")
    endpoint, _, peer_endpoint = rest.partition("|")
    ports = (endpoint.rpartition(":")[2], peer_endpoint.rpartition(":")[2])
    if not node_id or not all(port.isdecimal() for port in ports):
        return None
    return node_id, endpoint, peer_endpoint


def _auth_problems(auth: PresenceAuth) -> list[str]:
    if auth.mode == "off":
        return []
    problems: list[str] = []
    if not auth.issuer or not auth.audience:
        problems.append("presence.auth.issuer and presence.auth.audience must be set")
    if "HS256" in auth.algorithms:
        if len(auth.algorithms) > 1 or auth.jwks:
            problems.append("presence.auth.algorithms: HS256 excludes other algorithms and jwks")
        if len(auth.secret) < 32:
            problems.append("presence.auth.secret: HS256 needs 32 characters or more")
    elif not auth.jwks:
        problems.append("presence.auth.jwks must name the file or URL of the keys")
    return problems
