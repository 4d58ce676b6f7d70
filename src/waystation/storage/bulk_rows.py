"""Rows of a push store as jobs read them, and their columns as Arrow batches.

Columns are the same for every backend, so jobs do not depend on the backend.

The canonical form of a row serves to compare two stores. It leaves out the current route, the
cursor (which only some stores have) and row versions.

Arrow is passed in: only the backends' own `bulk` modules import it.
"""

import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import msgspec

from waystation.push.model import ChannelId, Notification, Uaid, Update, UserAgent

TOMBSTONE_MARK = "~"  # prefix of a message id: marks a tombstone and sorts after every real id

Bounds = Mapping[str, tuple[int | None, int | None]]  # column -> minimum and maximum, both included
StoredNotification = tuple[Uaid, Notification]
Subscriptions = tuple[Uaid, frozenset[ChannelId]]


class UserAgentSnapshot(msgspec.Struct, frozen=True, kw_only=True):
    record: UserAgent
    channels: frozenset[ChannelId] = frozenset()
    updates: tuple[Update, ...] = ()
    expires_at_ms: int | None = None
    version: int = 0  # of the row that was read, at most 63 bits
    month: str | None = None  # of its table, in a store with monthly tables

    def over(self, now_ms: int) -> bool:
        return self.expires_at_ms is not None and self.expires_at_ms <= now_ms


def version_of(*parts: bytes) -> int:
    """63-bit hash of the bytes of a row."""
    hashed = hashlib.blake2b(digest_size=8)
    for part in parts:
        hashed.update(len(part).to_bytes(4, "big") + part)
    return int.from_bytes(hashed.digest(), "big") >> 1


def inside(bounds: Bounds, column: str, value: int | None) -> bool:
    least, greatest = bounds.get(column, (None, None))
    if value is None:
        return least is None and greatest is None
    return (least is None or value >= least) and (greatest is None or value <= greatest)


# Canonical forms


def canonical_record(snapshot: UserAgentSnapshot) -> bytes:
    record = snapshot.record
    return _json(
        [
            record.connected_at_ms,
            record.router_type,
            record.router_data or None,
            record.record_version,
            sorted(channel.hex() for channel in snapshot.channels),
            sorted(
                [update.channel_id.hex(), update.version, update.accepted_at_ms]
                for update in snapshot.updates
            ),
        ]
    )


def canonical_notification(notification: Notification) -> bytes:
    return _json(
        [
            notification.channel_id.hex(),
            notification.message_id,
            notification.accepted_at_ms,
            notification.ttl_s,
            notification.topic,
            notification.data or None,
            notification.headers or None,
            notification.urgency.value,
            None if notification.sender is None else notification.sender.hex(),
            notification.reliability_id,
            notification.reliable_state,
        ]
    )


def _json(value: object) -> bytes:
    return msgspec.json.encode(value, order="deterministic")


# Columns

TYPES: Mapping[str, Mapping[str, str]] = {
    "router": {
        "uaid": "binary",
        "connected_at_ms": "int64",
        "expires_at_ms": "int64",
        "router_type": "string",
        "node_id": "string",
        "version": "int64",
        "month": "string",
    },
    "channels": {"uaid": "binary", "channel_id": "binary"},
    "messages": {
        "uaid": "binary",
        "channel_id": "binary",
        "topic": "bool_",
        "topic_key": "int64",
        "accepted_at_ms": "int64",
        "expires_at_ms": "int64",
        "month": "string",
    },
    "records": {
        "uaid": "binary",
        "connected_at_ms": "int64",
        "channels": "binary",
        "body": "binary",
    },
    "notifications": {
        "uaid": "binary",
        "sort_key": "string",
        "message_id": "string",
        "body": "binary",
    },
}


def batch(
    arrow: Any, table: str, rows: Sequence[Any], now_ms: int, *, month: str | None = None
) -> Any:
    """One Arrow batch of a table from snapshots, subscriptions or notifications.
    `month` is the monthly table of notifications, if the store has such tables."""
    columns = _MAKERS[table](rows, now_ms)
    if table == "messages":
        columns["month"] = [month] * len(columns["uaid"])
    arrays = [
        arrow.array(columns[name], getattr(arrow, kind)()) for name, kind in TYPES[table].items()
    ]
    return arrow.RecordBatch.from_arrays(arrays, names=list(TYPES[table]))


def _router(rows: Sequence[UserAgentSnapshot], _now_ms: int) -> dict[str, list[Any]]:
    return {
        "uaid": [row.record.uaid for row in rows],
        "connected_at_ms": [row.record.connected_at_ms for row in rows],
        "expires_at_ms": [row.expires_at_ms for row in rows],
        "router_type": [row.record.router_type for row in rows],
        "node_id": [row.record.node_id for row in rows],
        "version": [row.version for row in rows],
        "month": [row.month for row in rows],
    }


def _channels(rows: Sequence[Subscriptions], _now_ms: int) -> dict[str, list[Any]]:
    pairs = [(uaid, channel) for uaid, channels in rows for channel in channels]
    return {
        "uaid": [uaid for uaid, _ in pairs],
        "channel_id": [channel for _, channel in pairs],
    }


def _messages(rows: Sequence[StoredNotification], _now_ms: int) -> dict[str, list[Any]]:
    rows = [row for row in rows if not row[1].message_id.startswith(TOMBSTONE_MARK)]
    return {
        "uaid": [uaid for uaid, _ in rows],
        "channel_id": [row.channel_id for _, row in rows],
        "topic": [row.sort_key.startswith("01:") for _, row in rows],
        "topic_key": [_topic_key(row) for _, row in rows],
        "accepted_at_ms": [row.accepted_at_ms or None for _, row in rows],
        "expires_at_ms": [row.expires_at_ms for _, row in rows],
    }


def _topic_key(notification: Notification) -> int | None:
    """A hash that is equal for notifications of one topic; it does not reveal the topic."""
    key = notification.sort_key
    return version_of(key.encode()) if key.startswith("01:") else None


def _records(rows: Sequence[UserAgentSnapshot], now_ms: int) -> dict[str, list[Any]]:
    alive = [row for row in rows if not row.over(now_ms)]
    return {
        "uaid": [row.record.uaid for row in alive],
        "connected_at_ms": [row.record.connected_at_ms for row in alive],
        "channels": [b"".join(sorted(row.channels)) for row in alive],
        "body": [canonical_record(row) for row in alive],
    }


def _notifications(rows: Iterable[StoredNotification], now_ms: int) -> dict[str, list[Any]]:
    alive = [row for row in rows if worth_copying(row[1], now_ms)]
    return {
        "uaid": [uaid for uaid, _ in alive],
        "sort_key": [row.sort_key for _, row in alive],
        "message_id": [row.message_id for _, row in alive],
        "body": [canonical_notification(row) for _, row in alive],
    }


def worth_copying(notification: Notification, now_ms: int) -> bool:
    return not notification.expired(now_ms) and not notification.message_id.startswith(
        TOMBSTONE_MARK
    )


_MAKERS: Mapping[str, Callable[[Any, int], dict[str, list[Any]]]] = {
    "router": _router,
    "channels": _channels,
    "messages": _messages,
    "records": _records,
    "notifications": _notifications,
}
