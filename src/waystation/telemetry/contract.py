"""Event contract: codes, columns and state transitions of all events.

Plain data, read by the writer (`events`, `eventlog`) and by the pipeline, which derives its schemas
from it.

Rule 1: only additions. A column or a code is never renamed and never used again; a changed
        meaning is a new code. `CONTRACT_VERSION` grows only when a reader must change.
Rule 2: all integers are signed, because unsigned columns reach Spark as decimals.
Rule 3: no column carries a raw id, an address, an endpoint or a payload; ids are keyed hashes.
Rule 4: an unknown code is kept and counted; it never fails a reader.
"""

from typing import Literal

import msgspec

CONTRACT_VERSION = 1
ATTRS_BYTES_MAX = 4096
TTL_MAX_S = 30 * 86_400  # of a notification; also the limit of `push.model`
NODE_PATTERN = r"[a-z0-9.-]{1,64}"

ColumnType = Literal["tinyint", "smallint", "int", "bigint", "boolean", "string"]


class Column(msgspec.Struct, frozen=True):
    name: str
    type: ColumnType
    meaning: str


class Kind(msgspec.Struct, frozen=True):
    """One event code. `required` and `optional` name columns besides the envelope."""

    code: int
    name: str
    required: tuple[str, ...] = ()
    optional: tuple[str, ...] = ()
    attrs: tuple[str, ...] = ()
    terminal: bool = False
    note: str = ""


# Columns of every event. `w` is omitted when it is 1.
ENVELOPE = (
    Column("v", "smallint", "contract version"),
    Column("ts", "bigint", "event time, microseconds since the epoch, the node's clock"),
    Column("node", "string", "the writing process: <name>.<role>.<k>, stable across restarts"),
    Column("boot", "bigint", "start of the process, microseconds since the epoch"),
    Column("seq", "bigint", "0, 1, 2, ... inside (node, boot); gaps are counted by log.gap"),
    Column("k", "smallint", "event code"),
    Column("w", "int", "weight: how many events this one stands for; null is 1"),
)

# Null means "does not apply"; empty texts and zeros are never used for that.
DOMAIN = (
    Column("mid", "string", "message tracking id, 32 hex digits"),
    Column("uah", "bigint", "keyed hash of the user agent's id"),
    Column("chh", "bigint", "keyed hash of the channel id"),
    Column("app", "bigint", "first 8 bytes of SHA-256 of the VAPID public key"),
    Column("cid", "bigint", "connection, unique inside (node, boot)"),
    Column("via", "string", "webpush, fcm, apns, adm, stub, simplepush"),
    Column("path", "tinyint", "0 direct, 1 stored, 2 bridge"),
    Column("slot", "smallint", "0..4095, the first 12 bits of a queue id"),
    Column("qh", "bigint", "keyed hash of a queue's recipient id"),
    Column("party", "bigint", "keyed hash of the party id"),
    Column("cli", "bigint", "keyed hash of the client id"),
    Column("sess", "bigint", "keyed hash of the session id"),
    Column("msg", "bigint", "deduplication id of a party message"),
    Column("peer", "string", "the other node involved"),
    Column("iph", "bigint", "keyed hash of the address prefix (/24, /48)"),
    Column("code", "int", "result: HTTP status, nack code, close code, leave reason"),
    Column("errno", "int", "application error number"),
    Column("size", "bigint", "payload bytes"),
    Column("ttl", "int", f"seconds, 0..{TTL_MAX_S}"),
    Column("dur", "bigint", "duration in microseconds"),
    Column("n", "bigint", "count carried by the event"),
    Column("flag", "boolean", "depends on the event"),
    Column("attrs", "string", "JSON object for all other values, at most 4 KiB"),
)

COLUMNS: dict[str, Column] = {column.name: column for column in (*ENVELOPE, *DOMAIN)}

# Push milestones: the codes 0 to 14 are also the states of a message, so they come first.
RECEIVED, STORED, RETRIEVED, INT_TRANSMITTED, INT_ACCEPTED = 0, 1, 2, 3, 4
BRIDGE_TRANSMITTED, TRANSMITTED, ACCEPTED = 5, 6, 7
DELIVERED, DECRYPTION_ERROR, NOT_DELIVERED, EXPIRED, ERRORED, SUPERSEDED = 8, 9, 10, 11, 12, 13
WITHDRAWN = 14

_TRACE = ("qh", "iph")  # only with queue.trace_events, in tests
_TOTALS = ("n", "size", "code", *_TRACE)

_ALL = (
    Kind(0, "push.received", ("mid", "uah", "chh", "ttl", "size", "via"), ("app",)),
    Kind(1, "push.stored", ("mid", "uah", "flag"), ("size",), note="flag: has a topic"),
    Kind(2, "push.retrieved", ("mid", "uah")),
    Kind(3, "push.int_transmitted", ("mid", "peer")),
    Kind(4, "push.int_accepted", ("mid", "uah")),
    Kind(5, "push.bridge_transmitted", ("mid", "via", "code", "dur"), terminal=True),
    Kind(6, "push.transmitted", ("mid", "uah", "path")),
    Kind(7, "push.accepted", ("mid", "uah")),
    Kind(8, "push.delivered", ("mid", "uah"), terminal=True),
    Kind(9, "push.decryption_error", ("mid", "code"), terminal=True),
    Kind(10, "push.not_delivered", ("mid", "code"), terminal=True),
    Kind(11, "push.expired", ("mid",), terminal=True),
    Kind(12, "push.errored", ("mid", "errno"), terminal=True),
    Kind(
        13, "push.superseded", ("mid",), terminal=True, note="replaced by a newer one of its topic"
    ),
    Kind(14, "push.withdrawn", ("mid",), terminal=True, note="deleted by its sender"),
    Kind(20, "conn.open", ("cid", "iph")),
    Kind(
        21,
        "conn.hello",
        ("cid", "uah", "flag", "attrs"),
        ("n",),
        attrs=("os", "browser"),
        note="flag: a new uaid was issued; n: channels where a hello reads them; families only",
    ),
    Kind(22, "conn.hello_reject", ("cid", "code")),
    Kind(23, "conn.register", ("uah", "chh", "code")),
    Kind(24, "conn.unregister", ("uah", "chh", "code")),
    Kind(25, "conn.broadcast_sub", ("cid", "n")),
    Kind(26, "conn.ping", ("cid", "flag"), note="flag: too often"),
    Kind(27, "conn.storage_check", ("uah", "n", "size", "dur"), note="n: messages read"),
    Kind(28, "conn.nack", ("uah", "code"), ("mid",), note="code: 301, 302, 303, else 0"),
    Kind(29, "conn.close", ("cid", "dur", "code"), ("uah",)),
    Kind(30, "conn.displaced", ("uah", "peer")),
    Kind(31, "conn.drop_user", ("uah", "code")),
    Kind(32, "conn.unacked_stored", ("uah", "n")),
    Kind(33, "conn.unacked_dropped", ("uah", "n")),
    Kind(
        40,
        "ep.request",
        ("code", "errno", "size", "ttl", "dur", "attrs"),
        ("app", "chh"),
        attrs=("aud", "sub", "route_us", "validate_us"),
        note="aud and sub are keyed hashes; successes are sampled through w",
    ),
    Kind(41, "ep.auth_error", ("errno",), ("app",)),
    Kind(42, "ep.node_busy", ("peer", "uah")),
    Kind(43, "ep.node_gone", ("peer", "uah")),
    Kind(44, "ep.node_timeout", ("peer", "uah")),
    Kind(60, "bridge.sent", ("mid", "via", "code", "dur")),
    Kind(61, "bridge.error", ("mid", "via", "code", "dur")),
    Kind(62, "bridge.token_gone", ("uah", "via")),
    Kind(70, "reg.new", ("uah", "via")),
    Kind(71, "reg.update", ("uah", "via")),
    Kind(72, "reg.delete", ("uah", "via")),
    Kind(73, "reg.channel_new", ("uah", "via")),
    Kind(74, "reg.channel_delete", ("uah", "via")),
    Kind(
        80,
        "store.stats",
        ("n", "size", "dur", "code", "attrs"),
        attrs=("table", "op"),
        note="one per class of operations, every 10 s; dur is the sum",
    ),
    # Queue events are totals per slot and 10 s; events of single commands exist in tests only.
    Kind(100, "queue.new", ("slot", "code"), ("n", "size", *_TRACE)),
    Kind(101, "queue.sub", ("slot",), _TOTALS),
    Kind(102, "queue.secure", ("slot",), _TOTALS),
    Kind(
        103,
        "queue.send",
        ("slot", "size", "code"),
        ("n", *_TRACE),
        note="code: 0 ok, 1 AUTH, 2 QUOTA, 3 LARGE, 4 BLOCKED",
    ),
    Kind(104, "queue.deliver", ("slot",), _TOTALS),
    Kind(105, "queue.ack", ("slot",), (*_TOTALS, "dur"), note="dur: since the delivery"),
    Kind(106, "queue.get", ("slot",), (*_TOTALS, "flag"), note="flag: there was a message"),
    Kind(107, "queue.delete", ("slot",), _TOTALS),
    Kind(108, "queue.suspend", ("slot",), _TOTALS),
    Kind(109, "queue.expired", ("slot", "n"), ("size",)),
    Kind(111, "queue.notifier_new", ("slot", "code"), ("n", *_TRACE)),
    Kind(112, "queue.notify", ("slot", "code"), ("n", *_TRACE)),
    # Events of edges. Names and codes are stored with events, so they keep "proxy".
    Kind(120, "proxy.route", ("slot", "peer", "code"), ("dur", "n", "size")),
    Kind(121, "proxy.ref_set", ("slot", "peer", "code"), ("n",)),
    Kind(122, "proxy.ref_get", ("slot", "peer", "code"), ("n",)),
    Kind(
        130,
        "slot.load",
        ("slot", "n", "size", "attrs"),
        attrs=("messages", "ops_in", "ops_out"),
        note="every 60 s for slots that changed; n: queues, size: stored bytes",
    ),
    Kind(131, "slot.move_begin", ("slot", "peer", "size", "code")),
    Kind(132, "slot.move_end", ("slot", "peer", "size", "code")),
    Kind(
        200,
        "party.session_started",
        ("party", "cli", "sess", "n", "attrs"),
        attrs=("seq", "epoch", "device_sessions", "ttl_ms", "auth"),
        note="n: participants afterwards",
    ),
    Kind(
        201,
        "party.session_left",
        ("party", "cli", "sess", "code", "dur", "attrs"),
        attrs=("seq", "out", "acked", "retried", "dropped", "superseded", "resumes"),
        note="code: the status code of the leave",
    ),
    Kind(202, "party.session_detached", ("party", "sess", "code", "n"), note="n: in flight"),
    Kind(
        203,
        "party.session_resumed",
        ("party", "sess", "dur", "n", "attrs"),
        attrs=("how", "from_node", "resync"),
        note="dur: the gap; n: delivered again",
    ),
    Kind(204, "party.session_moved", ("party", "sess", "peer", "dur")),
    Kind(
        205,
        "party.message_sent",
        ("party", "msg", "n", "size", "attrs"),
        ("sess",),
        attrs=("type", "seq"),
        note="n: recipients",
    ),
    Kind(
        206,
        "party.message_retried",
        ("party", "sess", "msg", "n", "dur", "code"),
        note="n: number of the attempt; dur: age; code: cause",
    ),
    Kind(
        207,
        "party.message_acked",
        ("party", "sess", "msg", "n", "dur"),
        note="sampled through w; dur: first sending to ack",
    ),
    Kind(
        208,
        "party.delivery_totals",
        ("attrs",),
        attrs=("out", "acked", "dropped", "superseded", "outstanding", "retried", "redelivered",
               "latency_us"),
        note="exact, per node and 10 s: out = acked + dropped + superseded + outstanding",
    ),
    Kind(
        209,
        "party.message_dropped",
        ("party", "sess", "msg", "n", "dur", "code"),
        note="n: attempts; dur: age; code: cause",
    ),
    Kind(210, "party.refused", ("code", "attrs"), attrs=("what",), note="join, auth or rate"),
    Kind(211, "party.opened", ("party",), ("n", "dur")),
    Kind(212, "party.closed", ("party", "n", "dur"), note="n: highest number of participants"),
    Kind(
        213,
        "party.node_state",
        ("n", "attrs"),
        attrs=("state", "reason"),
        note="n: sessions held",
    ),
    Kind(300, "node.start", ("attrs",), attrs=("version",)),
    Kind(301, "node.stop", ("code",)),
    Kind(
        302,
        "node.stats",
        ("attrs",),
        attrs=("connections", "rss", "cpu", "loop_lag", "spool_bytes", "counters"),
        note="every 60 s; counters are cumulative since boot",
    ),
    Kind(303, "log.gap", ("n",), note="n: lost events; they have sequence numbers but no lines"),
)  # fmt: skip

KINDS: dict[int, Kind] = {kind.code: kind for kind in _ALL}
CODES: dict[str, int] = {kind.name: kind.code for kind in _ALL}
MILESTONES = range(15)
TERMINAL = frozenset(kind.code for kind in _ALL if kind.terminal)

# Other transitions are recorded, not rejected; the pipeline counts them as gaps.
TRANSITIONS: dict[int, frozenset[int]] = {
    # Directly to TRANSMITTED inside a worker, and on nodes that send at once.
    # Directly to SUPERSEDED if a newer SimplePush version is stored already.
    RECEIVED: frozenset(
        {INT_TRANSMITTED, BRIDGE_TRANSMITTED, TRANSMITTED, EXPIRED, STORED, ERRORED, SUPERSEDED}
    ),
    INT_TRANSMITTED: frozenset({INT_ACCEPTED, TRANSMITTED, RECEIVED, ERRORED}),
    STORED: frozenset({RETRIEVED, EXPIRED, ERRORED, SUPERSEDED, WITHDRAWN}),
    INT_ACCEPTED: frozenset({TRANSMITTED, STORED, ERRORED}),
    # A stored notification that was sent may be withdrawn until it is acked.
    TRANSMITTED: frozenset(
        {ERRORED, ACCEPTED, STORED, DELIVERED, DECRYPTION_ERROR, NOT_DELIVERED, WITHDRAWN}
    ),
    ACCEPTED: frozenset({DELIVERED, DECRYPTION_ERROR, NOT_DELIVERED}),
    RETRIEVED: frozenset(
        {TRANSMITTED, DELIVERED, DECRYPTION_ERROR, NOT_DELIVERED, EXPIRED, WITHDRAWN}
    ),
}


def is_legal(before: int, after: int) -> bool:
    """Whether a message may change from milestone `before` to `after`."""
    return after in TRANSITIONS.get(before, frozenset())
