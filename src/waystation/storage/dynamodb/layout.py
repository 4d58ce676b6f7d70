"""Rows and their attributes, as Autopush has them (§6.7), and what we add beside.

Ours are `accepted_ms`, `urgency`, `sender`, `reliability_id` and `reliable_state` of a
notification, `accepted_ms` of a SimplePush update, `current_timestamp` and `previous_month` of a
record: readers of Autopush pass over attributes that they do not know. A row of theirs has none of
them. `updateid` is the message id.
"""

import hashlib
import hmac
from collections.abc import Iterable, Mapping
from typing import Any, Final

import pybase64

from waystation.base.ids import dashed, parse_uuid, simple
from waystation.push.model import (
    TTL_MAX_S,
    WEBPUSH,
    ChannelId,
    MessageId,
    Notification,
    SortKey,
    Uaid,
    Update,
    Urgency,
    UserAgent,
)

CHANNELS_KEY: Final = " "  # the row of a partition that holds the channel set

Item = dict[str, Any]


class UnreadableRowError(Exception):
    """A row that neither Autopush nor we have written."""


# Values


def string(value: str) -> Item:
    return {"S": value}


def number(value: int) -> Item:
    return {"N": str(value)}


def string_set(values: Iterable[str]) -> Item:
    return {"SS": list(values)}


def to_attribute(value: Any) -> Item:
    """A JSON value. A number without a fraction comes back as an integer."""
    match value:
        case None:
            return {"NULL": True}
        case bool():
            return {"BOOL": value}
        case int() | float():
            return {"N": str(value)}
        case str():
            return {"S": value}
        case list():
            return {"L": [to_attribute(each) for each in value]}  # pyright: ignore[reportUnknownVariableType]
        case dict():
            return {"M": {str(name): to_attribute(each) for name, each in value.items()}}  # pyright: ignore[reportUnknownArgumentType, reportUnknownVariableType]
        case _:
            raise TypeError(f"no attribute holds a {type(value).__name__}")


def from_attribute(attribute: Mapping[str, Any]) -> Any:
    ((kind, value),) = attribute.items()
    match kind:
        case "NULL":
            return None
        case "N":
            return int(value) if value.lstrip("-").isdigit() else float(value)
        case "L":
            return [from_attribute(each) for each in value]
        case "M":
            return {name: from_attribute(each) for name, each in value.items()}
        case "SS":
            return frozenset(value)
        case _:
            return value


def get_number(item: Item, name: str) -> int | None:
    attribute = item.get(name)
    return int(attribute["N"]) if attribute is not None and "N" in attribute else None


def get_string(item: Item, name: str) -> str | None:
    return item.get(name, {}).get("S")


# Keys


class Keys:
    """Row keys; with `key_hash` a uaid is stored as its HMAC-SHA-256."""

    def __init__(self, key_hash: str = "") -> None:
        self._key = key_hash.encode()

    def uaid(self, uaid: Uaid) -> Item:
        text = simple(uaid)
        if self._key:
            text = hmac.digest(self._key, text.encode(), hashlib.sha256).hex()
        return {"S": text}

    def router(self, uaid: Uaid) -> Item:
        return {"uaid": self.uaid(uaid)}

    def message(self, uaid: Uaid, sort_key: str) -> Item:
        return {"uaid": self.uaid(uaid), "chidmessageid": {"S": sort_key}}

    def channels(self, uaid: Uaid) -> Item:
        return self.message(uaid, CHANNELS_KEY)

    def update(self, uaid: Uaid, channel_id: ChannelId) -> Item:
        return {"uaid": self.uaid(uaid), "chid": {"S": dashed(channel_id)}}


# User agents


def record_fields(record: UserAgent) -> dict[str, Item | None]:
    """The attributes of a record but its key; None: it has none of that name."""
    router_data = record.router_data
    return {
        "connected_at": number(record.connected_at_ms),
        "router_type": string(record.router_type),
        "router_data": None if router_data is None else to_attribute(router_data),
        "node_id": None if record.node_id is None else string(record.node_id),
        "record_version": _number_or_none(record.record_version),
        "current_timestamp": _number_or_none(record.current_timestamp_ms),
    }


def decode_record(uaid: Uaid, item: Item, *, behind: bool) -> UserAgent:
    connected_at = get_number(item, "connected_at")
    if connected_at is None:  # §6.7: a row of its key alone is no record
        raise UnreadableRowError
    router_data = item.get("router_data")
    return UserAgent(
        uaid=uaid,
        connected_at_ms=connected_at,
        router_type=get_string(item, "router_type") or WEBPUSH,
        router_data=None if router_data is None else from_attribute(router_data),
        node_id=get_string(item, "node_id"),
        record_version=get_number(item, "record_version"),
        current_timestamp_ms=get_number(item, "current_timestamp"),
        behind=behind,
    )


def decode_channels(item: Item | None, *, now_s: int) -> frozenset[ChannelId]:
    if item is None or over(item, now_s):
        return frozenset()
    raw = (parse_uuid(text) for text in item.get("chids", {}).get("SS", ()))
    return frozenset(ChannelId(channel) for channel in raw if channel is not None)


def over(item: Item, now_s: int) -> bool:
    """The row's time is over; DynamoDB removes it within two days."""
    expiry = get_number(item, "expiry")
    return expiry is not None and expiry <= now_s


# SimplePush


def encode_update(key: Item, update: Update, expiry: int) -> Item:
    item = key | {"version": number(update.version), "expiry": number(expiry)}
    if update.accepted_at_ms:
        item["accepted_ms"] = number(update.accepted_at_ms)
    return item


def decode_update(item: Item) -> Update | None:
    """None for a row without a channel or a version."""
    raw = parse_uuid(get_string(item, "chid") or "")
    version = get_number(item, "version")
    if raw is None or version is None:
        return None
    return Update(ChannelId(raw), version, accepted_at_ms=get_number(item, "accepted_ms") or 0)


# Notifications


def encode_notification(key: Item, notification: Notification) -> Item:
    ttl_s = min(notification.ttl_s, TTL_MAX_S)
    item = key | {
        "timestamp": number(notification.timestamp_s),
        "ttl": number(notification.ttl_s),
        "expiry": number(notification.timestamp_s + ttl_s),
        "updateid": string(notification.message_id),
        "accepted_ms": number(notification.accepted_at_ms),
    }
    if notification.data is not None:
        item["data"] = string(notification.data)
    if notification.headers is not None:
        item["headers"] = to_attribute(notification.headers)
    if notification.urgency is not Urgency.NORMAL:
        item["urgency"] = string(notification.urgency.value)
    if notification.sender is not None:
        item["sender"] = string(pybase64.b64encode(notification.sender).decode())
    for name in ("reliability_id", "reliable_state"):
        value = getattr(notification, name)
        if value is not None:
            item[name] = string(value)
    return item


def decode_notification(item: Item) -> Notification:
    """Raises `UnreadableRowError`."""
    sort_key = get_string(item, "chidmessageid") or ""
    channel, topic, version = _parts(sort_key)
    raw = parse_uuid(channel)
    message_id = version or get_string(item, "updateid")
    timestamp_s = get_number(item, "timestamp")
    if raw is None or message_id is None or timestamp_s is None:
        raise UnreadableRowError
    accepted_at_ms = get_number(item, "accepted_ms")
    headers = item.get("headers", {}).get("M")
    sender = get_string(item, "sender")
    return Notification(
        ChannelId(raw),
        MessageId(message_id),
        SortKey(sort_key),
        timestamp_s * 1000 if accepted_at_ms is None else accepted_at_ms,
        get_number(item, "ttl") or 0,
        topic=topic,
        data=get_string(item, "data"),
        headers=None if headers is None else _headers(headers),
        urgency=_urgency(get_string(item, "urgency")),
        sender=None if sender is None else pybase64.b64decode(sender),
        reliability_id=get_string(item, "reliability_id"),
        reliable_state=get_string(item, "reliable_state"),
    )


def is_legacy(sort_key: str) -> bool:
    """Before 2017 a key was `{channel}:{message id}`, and `updateid` meant something else."""
    return not sort_key.startswith(("01:", "02:"))


def _parts(sort_key: str) -> tuple[str, str | None, str | None]:
    """Channel, topic, and the message id if the key holds it."""
    parts = sort_key.split(":")
    match parts:
        case ["01", channel, topic]:
            return channel, topic, None
        case ["02", _, channel] | ["02", _, channel, _]:
            return channel, None, None
        case [channel, message_id] if channel not in ("01", "02"):
            return channel, None, message_id
        case _:
            raise UnreadableRowError


def _headers(attributes: Mapping[str, Any]) -> dict[str, str]:
    return {name: value["S"] for name, value in attributes.items() if "S" in value}


def _urgency(text: str | None) -> Urgency:
    return Urgency(text) if text in set(Urgency) else Urgency.NORMAL


def _number_or_none(value: int | None) -> Item | None:
    return None if value is None else number(value)
