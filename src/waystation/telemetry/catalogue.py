"""Every metric of the platform: name, labels, help text, and name in Autopush.

The mapping from Autopush's statsd names to Prometheus:
- dots become underscores and everything starts with `waystation_`;
- a counter ends in `_total` (the exposition adds it), a timer is a histogram in seconds and ends in
  `_seconds`, bytes end in `_bytes`;
- the last part of a family of names that differ only there becomes a label
  (`ua.command.hello` is `ua_command{command="hello"}`, `api_error.no_user` is
  `api_error{label="no_user"}`);
- a tag keeps its name; tags without a name get one.

`"kind=open|joined"` declares the label `kind` with all the values that it takes; `"kind"` alone
declares a label of any value.

`autopush_reliability` keeps the name that Autopush's own exposition has.
"""

from typing import Literal

import msgspec

MetricKind = Literal["counter", "gauge", "histogram"]

PREFIX = "waystation_"

# Upper bounds in seconds; one set for all latencies, so that histograms can be compared.
LATENCY_S = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
LIFESPAN_S = (1.0, 10.0, 60.0, 600.0, 1800.0, 3600.0, 4 * 3600.0, 12 * 3600.0, 24 * 3600.0)
ACK_S = (0.05, 0.1, 0.5, 1.0, 2.0, 3.0, 4.0, 5.0, 10.0, 20.0, 30.0, 60.0, 300.0, 3600.0)
CHANNELS = (0.0, 1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0, 200.0)


class Spec(msgspec.Struct, frozen=True):
    name: str  # without prefix and `_total`
    kind: MetricKind
    help: str
    labels: tuple[str, ...] = ()
    autopush: str = ""
    buckets: tuple[float, ...] = ()
    prefix: str = PREFIX
    values: tuple[tuple[str, ...], ...] = ()  # of each label; empty if a label takes any value

    @property
    def full_name(self) -> str:
        return self.prefix + self.name

    def takes(self, place: int, value: str) -> bool:
        """Whether the label at `place` may have this value; every label may be empty."""
        known = self.values[place] if self.values else ()
        return not known or not value or value in known


def counter(name: str, help_: str, *labels: str, autopush: str = "") -> Spec:
    names, values = _declared(labels)
    return Spec(name, "counter", help_, names, autopush, values=values)


def gauge(name: str, help_: str, *labels: str, autopush: str = "") -> Spec:
    names, values = _declared(labels)
    return Spec(name, "gauge", help_, names, autopush, values=values)


def histogram(
    name: str,
    help_: str,
    *labels: str,
    autopush: str = "",
    buckets: tuple[float, ...] = LATENCY_S,
) -> Spec:
    names, values = _declared(labels)
    return Spec(name, "histogram", help_, names, autopush, buckets, values=values)


def _declared(labels: tuple[str, ...]) -> tuple[tuple[str, ...], tuple[tuple[str, ...], ...]]:
    """The names of labels, and the values that each takes."""
    parts = [label.partition("=") for label in labels]
    values = tuple(tuple(rest.split("|")) if rest else () for _, _, rest in parts)
    return tuple(name for name, _, _ in parts), values


PUSH = (
    counter(
        "ua_already_connected",
        "User agents that connected while an older connection was open.",
        autopush="ua.already_connected",
    ),
    counter(
        "ua_command",
        "Commands of user agents. `detail` is hello's existing, reassigned or new, and the code of"
        " an unregister or nack.",
        "command=hello|register|unregister|ack|nack",
        "detail",
        autopush="ua.command.hello, .register, .unregister, .ack, .nack",
    ),
    counter(
        "ua_connection_check",
        "Hellos of user agents by family, and channel checks of bridged ones.",
        "os",
        "browser",
        autopush="ua.connection.check",
    ),
    histogram(
        "ua_connection_channels",
        "Subscriptions of a user agent at hello.",
        "category",
        autopush="ua.connection.channel_count",
        buckets=CHANNELS,
    ),
    histogram(
        "ua_connection_lifespan_seconds",
        "Duration of user agents' connections.",
        "os",
        "browser",
        autopush="ua.connection.lifespan",
        buckets=LIFESPAN_S,
    ),
    gauge("ua_connections", "Open connections of user agents."),
    counter(
        "ua_notification_sent",
        "Notifications written to user agents.",
        "source=Direct|Stored",
        "topic=true|false",
        autopush="ua.notification.sent",
    ),
    counter(
        "ua_message_data_bytes",
        "Payload bytes written to user agents.",
        "source=Direct|Stored",
        autopush="ua.message_data",
    ),
    counter("ua_expiration", "User agents that were reset.", "reason", autopush="ua.expiration"),
    counter(
        "notification_received",
        "Notifications accepted from app servers.",
        "trackable",
        autopush="notification.received",
    ),
    counter(
        "notification_auth",
        "Notifications signed with VAPID.",
        "vapid",
        "scheme",
        autopush="notification.auth",
    ),
    counter(
        "notification_auth_result",
        "Requests with VAPID by the result of its check.",
        "result=ok|error",
        autopush="notification.auth.ok, .error, .bad_vapid.json, .bad_vapid.other",
    ),
    counter(
        "notification_message",
        "Notifications saved in the store, and found expired there.",
        "event=stored|expired",
        "topic=true|false",
        "database",
        autopush="notification.message.stored, .retrieved, .expired, .deleted",
    ),
    counter(
        "notification_message_data_bytes",
        "Payload bytes accepted from app servers.",
        "destination=Direct|Stored",
        "platform",
        "app_id",
        autopush="notification.message_data",
    ),
    counter(
        "notification_bridge",
        "Notifications sent to other push networks.",
        "result",
        "platform",
        "app_id",
        "reason",
        autopush="notification.bridge.sent, .error",
    ),
    histogram(
        "notification_request_seconds",
        "Time from a request to its answer.",
        "platform",
        autopush="notification.total_request_time",
    ),
    histogram(
        "notification_route_seconds",
        "Time for routing a notification.",
        "outcome",
        autopush="notification.route_time",
    ),
    histogram(
        "notification_storage_seconds",
        "Time for saving a notification.",
        "topic",
        autopush="notification.storage.save_time, .storage.time",
    ),
    histogram(
        "notification_direct_seconds",
        "Time from the relay's request to the user agent's socket.",
        autopush="notification.direct.delivery_time",
    ),
    counter(
        "notification_direct",
        "Direct deliveries by the status that the connection node answered.",
        "status=200|404|503",
        autopush="notification.direct.delivery_status",
    ),
    counter("updates_drop_user", "User agents removed.", "errno", autopush="updates.drop_user"),
    counter(
        "updates_vapid",
        "VAPID drafts seen.",
        "draft=draft01|draft02",
        autopush="updates.vapid.draft01, .draft02",
    ),
    counter(
        "notification_key_taken",
        "Messages that got another sort key because theirs was in use.",
    ),
    counter(
        "updates_client_host_gone",
        "Routes to a node that is gone.",
        autopush="updates.client.host_gone",
    ),
    counter(
        "updates_notification_encoding",
        "Content encodings seen.",
        "encoding=aesgcm|aes128gcm",
        autopush="updates.notification.encoding.aesgcm, .aes128gcm",
    ),
    counter(
        "error_node",
        "Nodes that could not be reached.",
        "reason=connect",
        autopush="error.node.timeout, .connect",
    ),
    counter(
        "error_disconnect_semaphore_full",
        "Disconnects that waited for `connect.save_concurrency`.",
        autopush="error.disconnect.semaphore_full",
    ),
    counter(
        "client_channel_full",
        "Notifications refused because a user agent's window was full.",
        autopush="client.channel.full",
    ),
    counter(
        "megaphone_updater",
        "Polls for broadcasts.",
        "result=ok|error",
        "reason",
        autopush="megaphone.updater.ok, .error",
    ),
    counter(
        "reliability_gc",
        "Messages that garbage collection found expired.",
        autopush="reliability.gc",
    ),
    counter(
        "reliability_error",
        "Reliability counters that could not be written.",
        "reason",
        autopush="reliability.error.redis_unavailable, error.redis.unavailable",
    ),
    counter("database_retry", "Retried store operations.", "error", autopush="database.retry"),
    counter(
        "database_drop_user",
        "User agents removed because their record was broken.",
        "reason",
        autopush="database.drop_user",
    ),
    gauge(
        "database_ops",
        "Store operations.",
        "state=inflight|available|queued",
        autopush="database.ops.inflight, .available, .queued",
    ),
    histogram("database_op_seconds", "Time of store operations.", "op"),
    counter(
        "database_migrate",
        "User agents that this process moved from the secondary store to the primary.",
        autopush="database.migrate",
    ),
    counter(
        "database_already_migrated",
        "User agents that another process had moved already.",
        autopush="database.already_migrated",
    ),
    counter(
        "database_dual_error",
        "Calls of the dual store in which the secondary store failed.",
        "func",
        autopush="database.dual.error",
    ),
    gauge("request_in_flight", "Running requests.", autopush="request.in_flight"),
    counter("api_error", "Failed requests by error.", "label", autopush="api_error.{label}"),
    Spec(
        "reliability",
        "gauge",
        "Tracked messages by milestone.",
        ("state",),
        "autopush_reliability",
        prefix="autopush_",
    ),
)

PROCESS = (
    gauge("process_resident_memory_bytes", "Resident memory of a worker."),
    gauge("process_open_fds", "Open descriptors of a worker."),
    gauge("process_start_time_seconds", "Start time of a worker, seconds since the epoch."),
    counter("process_cpu_seconds", "Processor time of a worker, user and system."),
    gauge("loop_lag_seconds", "Delay of the event loop's timers."),
    counter("events_written", "Events written to the event log."),
    counter("events_lost", "Events dropped from a full buffer, or not taken by disk or Kafka."),
    counter("log_lines_dropped", "Log lines dropped because the output was too slow."),
    counter("limit_refused", "Refusals by the limit's name.", "limit"),
)

# Named as in SMP servers' own statistics where those exist; guides/queue-statistics.md has both.
QUEUE = (
    counter(
        "queue_queues",
        "Changes of queues. deleted_new: deleted before they were secured; deleted_secured: after.",
        "event=created|refused|secured|suspended|deleted|deleted_new|deleted_secured",
    ),
    counter(
        "queue_messages",
        "Messages. received: acknowledged; sent_notify, received_notify: with a request for a"
        " notification.",
        "event=sent|sent_notify|sent_refused|sent_quota|sent_large|sent_blocked|received"
        "|received_get|received_notify|expired",
    ),
    counter("queue_message_bytes", "Bytes of sent messages."),
    counter(
        "queue_subscriptions",
        "Subscriptions. delivered: a message was waiting; ended: by another connection.",
        "event=made|delivered|refused|repeated|prohibited|ended",
    ),
    counter(
        "queue_gets",
        "Answers to GET.",
        "event=message|empty|refused|repeated|prohibited",
    ),
    counter(
        "queue_notifiers",
        "Changes and subscriptions of notifiers.",
        "event=created|deleted|subscribed|refused|repeated",
    ),
    counter(
        "queue_notifications",
        "Notifications. waiting: without a subscriber; lost: the buffer was full.",
        "event=sent|waiting|lost|expired",
    ),
    counter(
        "queue_services",
        "Services (clients with a certificate): queues added (new, duplicate, updated) or removed,"
        " sessions that subscribed to all of them (subscribed, repeated), the number of these"
        " queues (queues), sessions replaced by others (ended).",
        "role=messaging|notifier",
        "event=new|duplicate|updated|removed|subscribed|repeated|queues|ended",
    ),
    counter(
        "queue_batches",
        "Blocks with several commands of one kind, and rounds that ended or notified several"
        " queues at once.",
        "event=subscribe|delete|end|notify|notifier_subscribe|notifier_delete",
    ),
    counter(
        "queue_relays",
        "Requests for a session with another server, by result; `own`: a server of this operator.",
        "outcome=success|connect|compat|other",
        "own=true|false",
    ),
    counter(
        "queue_forwards",
        "Commands passed on to another server, by result; `own`: a server of this operator.",
        "outcome=success|connect|compat|other",
        "own=true|false",
    ),
    counter("queue_forwards_received", "Commands that other servers passed on to this one."),
    counter("queue_sockets", "Connections.", "event=opened|closed"),
    gauge("queue_connections", "Open connections."),
    counter("edge_commands", "Commands of clients at an edge.", "kind=new|send|other"),
    counter("edge_command_bytes", "Bytes of clients' commands at an edge."),
    counter(
        "edge_refusals",
        "Commands at an edge that servers answered with an error.",
        "kind=auth|other",
    ),
    counter(
        "edge_unserved",
        "Commands without an answer of a server in time. later: the client was told to retry.",
        "outcome=later|disconnected",
    ),
    counter(
        "edge_homes",
        "Look-ups of references by an edge, by whether they were cached.",
        "outcome=known|unknown",
    ),
    histogram("edge_held_seconds", "Time that commands waited for a slot without a server."),
    gauge("edge_connections", "Clients of an edge."),
    gauge("edge_links", "Links to storage servers.", "kind=shared|own"),
    gauge("edge_waiting", "Commands at an edge.", "kind=under_way|held|requests"),
    gauge("edge_refs", "References cached by an edge."),
    gauge("edge_epoch", "Epoch of the slot map of an edge."),
    gauge("queue_subscribed", "Open subscriptions.", "kind=queue|notifier"),
    gauge("queue_stored", "Stored items.", "kind=queue|message|notifier|notification"),
    gauge("queue_relay_links", "Open connections to other servers."),
    histogram(
        "queue_ack_seconds",
        "Time from the delivery of a message to its acknowledgement.",
        buckets=ACK_S,
    ),
)

CLUSTER = (
    gauge("controller_leads", "1 in the controller that leads, 0 in the others."),
    counter("controller_commits", "Changes of the slot map that this controller made."),
    counter("controller_lost", "Changes that another controller made first."),
)

CATALOGUE: tuple[Spec, ...] = (*PUSH, *QUEUE, *CLUSTER, *PROCESS)
