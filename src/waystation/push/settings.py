"""Settings of push: shared by both roles, of the connection node, and of the endpoint node.

`daemon=` is the name of the same setting in the daemons `autoconnect` and `autoendpoint`
(`AUTOCONNECT__AUTO_PING_INTERVAL`).
"""

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from waystation.base.settings import doc
from waystation.push.model import TTL_MAX_S

Count = Annotated[int, Meta(ge=0)]
Port = Annotated[int, Meta(ge=0, le=65535)]


class Push(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Settings that must be equal on connection and endpoint nodes."""

    crypto_keys: Annotated[
        str,
        doc(
            "Fernet keys for endpoint tokens and message ids, newest first, separated by commas or"
            " as a JSON list; empty: generated at first start and kept in the data directory.",
            daemon="crypto_key",
            secret=True,
        ),
    ] = ""
    auth_keys: Annotated[
        str,
        doc(
            "Keys for the secrets of bridged user agents, newest first, separated by commas or as a"
            " JSON list; empty: generated at first start and kept in the data directory.",
            daemon="auth_keys",
            secret=True,
        ),
    ] = ""
    sort_keys: Annotated[
        Literal["unique", "autopush"],
        doc(
            "Form of sort keys. `autopush`: its three-part keys, so that its nodes can read the"
            " rows; the default of the daemons on stores with its layout."
        ),
    ] = "unique"
    tracking_keys: Annotated[
        str, doc("VAPID public keys of senders whose messages are tracked.", daemon="tracking_keys")
    ] = ""
    message_status: Annotated[
        bool, doc("Keep the milestones of each signed message for `GET /m/{id}/status`.")
    ] = True
    sweep_interval_s: Annotated[float, Meta(gt=0), doc("How often expired rows are removed.")] = (
        60.0
    )


class Connect(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The connection node: ports, timeouts and limits of user agents' connections."""

    port: Annotated[Port, doc("WebSocket port for user agents.", daemon="port")] = 8080
    relay_port: Annotated[
        Port, doc("Port of the node API; must not be public.", daemon="router_port")
    ] = 8081
    url: Annotated[str, doc("Public WebSocket URL, printed for user agents.")] = ""
    relay_url: Annotated[
        str, doc("URL of this node's relay port for other nodes; advertised as node id.")
    ] = ""
    open_handshake_timeout_s: Annotated[
        float, Meta(gt=0), doc("Time from upgrade to hello.", daemon="open_handshake_timeout")
    ] = 5.0
    auto_ping_interval_s: Annotated[
        float,
        Meta(gt=0),
        doc("How often a user agent gets a ping or broadcasts.", daemon="auto_ping_interval"),
    ] = 300.0
    auto_ping_timeout_s: Annotated[
        float, Meta(gt=0), doc("Time to wait for a Pong.", daemon="auto_ping_timeout")
    ] = 4.0
    min_ping_interval_s: Annotated[
        float,
        Meta(ge=0),
        doc("Shortest time between client pings; an earlier ping closes the connection."),
    ] = 30.0
    excessive_ping_code: Annotated[
        int,
        Meta(ge=1000, le=4999),
        doc("Close code for too many pings (Autopush in Python: 4774)."),
    ] = 1011
    delivery_window: Annotated[
        int,
        Meta(ge=1),
        doc("Unacked direct notifications from which a user agent counts as busy."),
    ] = 128
    stored_batch_max: Annotated[
        int,
        Meta(ge=1, le=1000),
        doc("Stored notifications sent at a time; the next batch follows their acks."),
    ] = 10
    msg_limit: Annotated[
        Count,
        doc(
            "Stored notifications above which a user agent is reset; 0 is off.", daemon="msg_limit"
        ),
    ] = 0
    max_channels_per_uaid: Annotated[
        int, Meta(ge=1), doc("Subscriptions per user agent; one more is answered 500.")
    ] = 1000
    max_frame_bytes: Annotated[
        int, Meta(ge=125, le=16 * 2**20), doc("Longest client message in bytes.")
    ] = 65_536
    max_commands: Annotated[
        int,
        Meta(ge=1),
        doc("Client messages queued behind a running command before reading pauses."),
    ] = 16
    max_connections: Annotated[
        Count, doc("Connections per worker; 0 is the system's limit.", daemon="max_connections")
    ] = 0
    send_buffer_high_bytes: Annotated[
        int, Meta(ge=1024), doc("Unsent bytes above which a user agent counts as busy.")
    ] = 65_536
    send_buffer_max_bytes: Annotated[
        int, Meta(ge=4096), doc("Unsent bytes above which a connection is closed.")
    ] = 1_048_576
    save_concurrency: Annotated[
        int,
        Meta(ge=1),
        doc("User agents per worker whose unacked notifications are saved at the same time."),
    ] = 64
    inflight_journal: Annotated[
        Literal["write", "fsync", "off"],
        doc(
            "What unacked direct notifications survive: a crash of the process (`write`), a power"
            " failure (`fsync`), nothing (`off`)."
        ),
    ] = "write"
    inflight_max_bytes: Annotated[
        int,
        Meta(ge=65_536),
        doc("Journal size from which notifications are stored instead of delivered directly."),
    ] = 256 * 2**20
    ws_error_replies: Annotated[
        bool, doc("Answer invalid commands with a status instead of closing the connection.")
    ] = False
    simplepush: Annotated[
        Literal["off", "p", "s"],
        doc("SimplePush dialect: off, `p` (last Python generation) or `s` (first design)."),
    ] = "p"
    megaphone_api_url: Annotated[
        str,
        doc(
            "Megaphone URL that is polled for broadcasts; empty: those published in the store.",
            daemon="megaphone_api_url",
        ),
    ] = ""
    megaphone_api_token: Annotated[
        str,
        doc(
            "Authorization header for `megaphone_api_url`.",
            daemon="megaphone_api_token",
            secret=True,
        ),
    ] = ""
    megaphone_poll_interval_s: Annotated[
        float, Meta(gt=0), doc("How often broadcasts are polled.", daemon="megaphone_poll_interval")
    ] = 30.0
    drain_s: Annotated[
        float, Meta(ge=0), doc("Time over which a stop spreads the closing of connections.")
    ] = 10.0
    relay_tls: Annotated[bool, doc("Use TLS on the relay port as well.")] = False


class Endpoint(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The endpoint node: limits of POSTs, and timeouts of requests to connection nodes."""

    port: Annotated[Port, doc("HTTP port for app servers.", daemon="port")] = 8082
    url: Annotated[
        str,
        doc("Public base URL of endpoints, Location and VAPID audience.", daemon="endpoint_url"),
    ] = ""
    max_data_bytes: Annotated[
        int, Meta(ge=4096), doc("Longest body of a POST in bytes.", daemon="max_data_bytes")
    ] = 5630
    max_notification_ttl_s: Annotated[
        int,
        Meta(ge=0, le=TTL_MAX_S),
        doc("Longest TTL; a longer one is lowered.", daemon="max_notification_ttl"),
    ] = TTL_MAX_S
    connection_timeout_s: Annotated[
        float,
        Meta(gt=0),
        doc("Timeout for connecting to a node.", daemon="connection_timeout_millis"),
    ] = 1.0
    request_timeout_s: Annotated[
        float, Meta(gt=0), doc("Timeout for a node's answer.", daemon="request_timeout_millis")
    ] = 3.0
    pool_max_idle_per_host: Annotated[
        int, Meta(ge=0), doc("Idle connections kept per node.", daemon="pool_max_idle_per_host")
    ] = 10
    pool_idle_timeout_s: Annotated[
        float,
        Meta(gt=0),
        doc("How long idle connections are kept.", daemon="pool_idle_timeout_secs"),
    ] = 30.0
    rate_per_key: Annotated[
        float, Meta(ge=0), doc("POSTs per second and VAPID key over all workers; 0 is off.")
    ] = 0.0
    burst_per_key: Annotated[int, Meta(ge=1), doc("Burst of `rate_per_key`.")] = 1000
    rate_per_endpoint: Annotated[
        float, Meta(ge=0), doc("POSTs per second and subscription; 0 is off.")
    ] = 0.0
    burst_per_endpoint: Annotated[int, Meta(ge=1), doc("Burst of `rate_per_endpoint`.")] = 100
    rate_registrations: Annotated[
        float,
        Meta(ge=0),
        doc("New bridged user agents per second over all workers; 0 is off."),
    ] = 100.0
    burst_registrations: Annotated[int, Meta(ge=1), doc("Burst of `rate_registrations`.")] = 1000
    rate_keys_max: Annotated[
        int, Meta(ge=1), doc("Rate limit buckets (keys, subscriptions) kept per worker.")
    ] = 100_000
    vapid_cache_max: Annotated[int, Meta(ge=0), doc("Verified VAPID tokens cached per worker.")] = (
        16_384
    )
    token_cache_max: Annotated[
        int, Meta(ge=0), doc("Decrypted endpoint tokens cached per worker.")
    ] = 16_384
    max_requests: Annotated[
        int, Meta(ge=1), doc("Concurrent requests per worker; more are answered 503.")
    ] = 10_000
    max_connections: Annotated[
        Count, doc("HTTP connections per worker; 0 is the system's limit.")
    ] = 0
    idle_timeout_s: Annotated[
        float, Meta(gt=0), doc("Time after which an idle connection is closed.")
    ] = 75.0
    matrix_gateway: Annotated[bool, doc("Serve `/_matrix/push/v1/notify`.")] = True
    more_info_url: Annotated[str, doc("URL in `more_info` of error bodies.")] = (
        "https://github.com/waystation/waystation/blob/main/docs/reference/errors.md"
    )


class Fcm(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Bridge to Firebase Cloud Messaging (Google)."""

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
    base_url: Annotated[str, Meta(min_length=1), doc("URL of FCM.", daemon="fcm.base_url")] = (
        "https://fcm.googleapis.com"
    )
    min_ttl_s: Annotated[
        int, Meta(ge=0), doc("Shortest TTL; a shorter one is raised.", daemon="fcm.min_ttl")
    ] = 60
    max_ttl_s: Annotated[
        int, Meta(ge=0), doc("Longest TTL; a longer one is lowered.", daemon="fcm.max_ttl")
    ] = 2_419_200
    max_data_bytes: Annotated[
        int, Meta(ge=1), doc("Longest encoded message in bytes.", daemon="fcm.max_data")
    ] = 4096
    timeout_s: Annotated[
        float, Meta(gt=0), doc("Timeout for FCM's answer.", daemon="fcm.timeout")
    ] = 3.0


class Apns(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Bridge to the Apple Push Notification service."""

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
        str, doc("URL of APNs; empty: Apple's production or sandbox, by `sandbox` of the channel.")
    ] = ""
    max_data_bytes: Annotated[
        int, Meta(ge=1), doc("Longest encoded message in bytes.", daemon="apns.max_data")
    ] = 4096
    request_timeout_s: Annotated[
        float, Meta(gt=0), doc("Timeout for APNs' answer.", daemon="apns.request_timeout_secs")
    ] = 20.0
    pool_idle_timeout_s: Annotated[
        float,
        Meta(gt=0),
        doc("How long an idle connection is kept.", daemon="apns.pool_idle_timeout_secs"),
    ] = 600.0


class Stub(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Stub bridge for load tests: accepts every message and sends nothing."""

    enabled: Annotated[
        bool, doc("Accept registrations of the type `stub`.", daemon="stub.enabled")
    ] = False
    error: Annotated[str, doc("Error text of the app id `error`.", daemon="stub.error")] = (
        "General error"
    )
