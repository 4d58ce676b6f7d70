"""Settings of push: what both roles share, the connection node, the endpoint node.

`daemon=` is the name under which `autoconnect` and `autoendpoint` accept the same
setting (`AUTOCONNECT__AUTO_PING_INTERVAL`).
"""

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from waystation.base.settings import doc
from waystation.push.model import TTL_MAX_S

Count = Annotated[int, Meta(ge=0)]
Port = Annotated[int, Meta(ge=0, le=65535)]


class Push(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What connection and endpoint nodes must agree on."""

    crypto_keys: Annotated[
        str,
        doc(
            "Fernet keys for endpoint tokens and message ids, newest first, as a list in any"
            " spelling; empty: made at first start and kept in the data directory.",
            daemon="crypto_key",
            secret=True,
        ),
    ] = ""
    auth_keys: Annotated[
        str,
        doc(
            "Keys for the secrets of bridged user agents, newest first, as a list in any spelling;"
            " empty: made at first start and kept in the data directory.",
            daemon="auth_keys",
            secret=True,
        ),
    ] = ""
    sort_keys: Annotated[
        Literal["unique", "autopush"],
        doc(
            "`autopush` keeps Autopush's three-part keys so that its nodes can read our rows; the"
            " default of the daemons on stores with its layout."
        ),
    ] = "unique"
    tracking_keys: Annotated[
        str, doc("VAPID public keys of senders whose messages are tracked.", daemon="tracking_keys")
    ] = ""
    message_status: Annotated[
        bool, doc("Keep the milestones of each signed message for `GET /m/{id}/status`.")
    ] = True
    sweep_interval_s: Annotated[
        float, Meta(gt=0), doc("How often rows whose time is over are removed.")
    ] = 60.0


class Connect(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The connection node: who may connect, how long we wait, how much we hold."""

    port: Annotated[Port, doc("WebSocket for user agents.", daemon="port")] = 8080
    relay_port: Annotated[Port, doc("Node API; never public.", daemon="router_port")] = 8081
    url: Annotated[str, doc("Public WebSocket URL that is printed for user agents.")] = ""
    relay_url: Annotated[
        str, doc("Where other nodes reach this one's relay port; advertised as node id.")
    ] = ""
    open_handshake_timeout_s: Annotated[
        float, Meta(gt=0), doc("Upgrade to hello.", daemon="open_handshake_timeout")
    ] = 5.0
    auto_ping_interval_s: Annotated[
        float,
        Meta(gt=0),
        doc("How often a user agent is pinged or told of broadcasts.", daemon="auto_ping_interval"),
    ] = 300.0
    auto_ping_timeout_s: Annotated[
        float, Meta(gt=0), doc("How long a Pong may take.", daemon="auto_ping_timeout")
    ] = 4.0
    min_ping_interval_s: Annotated[
        float, Meta(ge=0), doc("A client ping sooner after the last one ends the connection.")
    ] = 30.0
    excessive_ping_code: Annotated[
        int,
        Meta(ge=1000, le=4999),
        doc("Close code for too many pings (Autopush in Python: 4774)."),
    ] = 1011
    delivery_window: Annotated[
        int,
        Meta(ge=1),
        doc(
            "Direct notifications that one user agent may owe an ack for before it counts as busy."
        ),
    ] = 128
    stored_batch_max: Annotated[
        int, Meta(ge=1, le=1000), doc("Stored notifications sent before their acks are awaited.")
    ] = 10
    msg_limit: Annotated[
        Count,
        doc("Stored notifications in one catch-up before a reset; 0 is off.", daemon="msg_limit"),
    ] = 0
    max_channels_per_uaid: Annotated[
        int, Meta(ge=1), doc("Subscriptions of one user agent; one more is answered 500.")
    ] = 1000
    max_frame_bytes: Annotated[
        int, Meta(ge=125, le=16 * 2**20), doc("Longest message from a client.")
    ] = 65_536
    max_commands: Annotated[
        int, Meta(ge=1), doc("Client messages waiting for an earlier one; then reading pauses.")
    ] = 16
    max_connections: Annotated[
        Count, doc("Connections per worker; 0 is what the system allows.", daemon="max_connections")
    ] = 0
    send_buffer_high_bytes: Annotated[
        int, Meta(ge=1024), doc("Unsent bytes above which a user agent counts as busy.")
    ] = 65_536
    send_buffer_max_bytes: Annotated[
        int, Meta(ge=4096), doc("Unsent bytes above which a connection is cut.")
    ] = 1_048_576
    save_concurrency: Annotated[
        int, Meta(ge=1), doc("Disconnect clean-ups under way at once per worker.")
    ] = 64
    inflight_journal: Annotated[
        Literal["write", "fsync", "off"],
        doc(
            "What un-acked direct notifications survive: a kill (`write`), a loss of power"
            " (`fsync`), nothing (`off`)."
        ),
    ] = "write"
    inflight_max_bytes: Annotated[
        int,
        Meta(ge=65_536),
        doc("Journal size at which direct delivery stops and we store instead."),
    ] = 256 * 2**20
    ws_error_replies: Annotated[
        bool, doc("Answer bad commands with a status instead of closing.")
    ] = False
    simplepush: Annotated[
        Literal["off", "p", "s"],
        doc("SimplePush dialect: off, of the last Python generation, or of the first design."),
    ] = "p"
    megaphone_api_url: Annotated[
        str,
        doc(
            "Where broadcasts are polled; empty: those published here.", daemon="megaphone_api_url"
        ),
    ] = ""
    megaphone_api_token: Annotated[
        str,
        doc("Sent as Authorization to that URL.", daemon="megaphone_api_token", secret=True),
    ] = ""
    megaphone_poll_interval_s: Annotated[
        float, Meta(gt=0), doc("How often broadcasts are read.", daemon="megaphone_poll_interval")
    ] = 30.0
    drain_s: Annotated[float, Meta(ge=0), doc("Over how long a stop spreads the closes.")] = 10.0
    relay_tls: Annotated[bool, doc("TLS on the relay port as well.")] = False


class Endpoint(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The endpoint node: what a POST may be, and whom we ask."""

    port: Annotated[Port, doc("Web Push over HTTP.", daemon="port")] = 8082
    url: Annotated[
        str,
        doc("Public base URL: endpoints, Location and VAPID audience.", daemon="endpoint_url"),
    ] = ""
    max_data_bytes: Annotated[
        int, Meta(ge=4096), doc("Longest body of a POST.", daemon="max_data_bytes")
    ] = 5630
    max_notification_ttl_s: Annotated[
        int,
        Meta(ge=0, le=TTL_MAX_S),
        doc("A longer TTL is lowered to this.", daemon="max_notification_ttl"),
    ] = TTL_MAX_S
    connection_timeout_s: Annotated[
        float, Meta(gt=0), doc("Connecting to a node.", daemon="connection_timeout_millis")
    ] = 1.0
    request_timeout_s: Annotated[
        float, Meta(gt=0), doc("A node's answer.", daemon="request_timeout_millis")
    ] = 3.0
    pool_max_idle_per_host: Annotated[
        int, Meta(ge=0), doc("Idle connections kept per node.", daemon="pool_max_idle_per_host")
    ] = 10
    pool_idle_timeout_s: Annotated[
        float, Meta(gt=0), doc("How long they are kept.", daemon="pool_idle_timeout_secs")
    ] = 30.0
    rate_per_key: Annotated[
        float, Meta(ge=0), doc("POSTs per second for one VAPID key over all workers; 0 is off.")
    ] = 0.0
    burst_per_key: Annotated[int, Meta(ge=1), doc("And how many at once.")] = 1000
    rate_per_endpoint: Annotated[
        float, Meta(ge=0), doc("POSTs per second for one subscription; 0 is off.")
    ] = 0.0
    burst_per_endpoint: Annotated[int, Meta(ge=1), doc("And how many at once.")] = 100
    rate_registrations: Annotated[
        float,
        Meta(ge=0),
        doc("New bridged user agents per second over all workers; 0 is off."),
    ] = 100.0
    burst_registrations: Annotated[int, Meta(ge=1), doc("And how many at once.")] = 1000
    rate_keys_max: Annotated[
        int, Meta(ge=1), doc("Keys and subscriptions whose rate is remembered per worker.")
    ] = 100_000
    vapid_cache_max: Annotated[int, Meta(ge=0), doc("Verified tokens remembered per worker.")] = (
        16_384
    )
    token_cache_max: Annotated[
        int, Meta(ge=0), doc("Decrypted endpoints remembered per worker.")
    ] = 16_384
    max_requests: Annotated[
        int, Meta(ge=1), doc("Requests under way per worker; more are answered 503.")
    ] = 10_000
    max_connections: Annotated[
        Count, doc("HTTP connections per worker; 0 is what the system allows.")
    ] = 0
    idle_timeout_s: Annotated[
        float, Meta(gt=0), doc("A connection that sends nothing is closed after this.")
    ] = 75.0
    matrix_gateway: Annotated[bool, doc("Serve `/_matrix/push/v1/notify`.")] = True
    more_info_url: Annotated[str, doc("`more_info` of error bodies.")] = (
        "https://github.com/waystation/waystation/blob/main/docs/reference/errors.md"
    )


class Fcm(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Firebase Cloud Messaging: devices that are reached through Google."""

    credentials: Annotated[
        str,
        doc(
            'JSON of app id -> {"project_id": …, "credential": …}; a credential is the JSON of a'
            " service account or the path of its file. Empty: FCM is off.",
            daemon="fcm.credentials",
            secret=True,
            table=True,
        ),
    ] = ""
    base_url: Annotated[str, Meta(min_length=1), doc("Where FCM is.", daemon="fcm.base_url")] = (
        "https://fcm.googleapis.com"
    )
    min_ttl_s: Annotated[
        int, Meta(ge=0), doc("A shorter TTL is raised to this.", daemon="fcm.min_ttl")
    ] = 60
    max_ttl_s: Annotated[
        int, Meta(ge=0), doc("A longer TTL is lowered to this.", daemon="fcm.max_ttl")
    ] = 2_419_200
    max_data_bytes: Annotated[
        int, Meta(ge=1), doc("Longest message, encoding included.", daemon="fcm.max_data")
    ] = 4096
    timeout_s: Annotated[float, Meta(gt=0), doc("An answer of FCM.", daemon="fcm.timeout")] = 3.0


class Apns(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Apple Push Notification service: devices that are reached through Apple."""

    channels: Annotated[
        str,
        doc(
            'JSON of release channel -> {"key", "key_id", "team_id"} or {"cert", "key"}, with'
            ' "topic" and "sandbox"; keys and certificates are PEM or paths. Empty: APNs is off.',
            daemon="apns.channels",
            secret=True,
            table=True,
        ),
    ] = ""
    base_url: Annotated[
        str, doc("Where APNs is; empty: Apple's production or sandbox, as the channel says.")
    ] = ""
    max_data_bytes: Annotated[
        int, Meta(ge=1), doc("Longest message, encoding included.", daemon="apns.max_data")
    ] = 4096
    request_timeout_s: Annotated[
        float, Meta(gt=0), doc("An answer of APNs.", daemon="apns.request_timeout_secs")
    ] = 20.0
    pool_idle_timeout_s: Annotated[
        float,
        Meta(gt=0),
        doc("How long an idle connection is kept.", daemon="apns.pool_idle_timeout_secs"),
    ] = 600.0


class Stub(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A bridge that leads nowhere, for load tests."""

    enabled: Annotated[
        bool, doc("Take registrations of the type `stub`.", daemon="stub.enabled")
    ] = False
    error: Annotated[str, doc("What the app id `error` says.", daemon="stub.error")] = (
        "General error"
    )
