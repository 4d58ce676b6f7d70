"""The relay: requests of endpoint nodes to connection nodes, and their answers.

`endpoint` and `connect` meet only here and in `PushStore`. The three requests are a function call
inside a worker, link frames between Waystation workers and nodes, and HTTP (`PUT /push/{uaid}`,
`PUT /notif/{uaid}`, `DELETE /notif/{uaid}/{connected_at}`) otherwise.

The JSON of the HTTP form is here; the frames of the link are in `link_frames`.
"""

import enum
from collections.abc import Callable, Sequence
from typing import Annotated, Protocol

import msgspec

from waystation.base.decode_errors import DECODE_ERRORS
from waystation.base.ids import dashed, parse_uuid
from waystation.push.errors import BadBodyError, InvalidMessageIdError
from waystation.push.model import (
    VERSION_MAX,
    ChannelId,
    MessageId,
    Notification,
    SortKey,
    Uaid,
    Update,
)


class Answer(enum.IntEnum):
    """A connection node's answer; the numbers are the statuses of the HTTP form."""

    TAKEN = 200  # push: accepted; check: storage is read now
    FLAGGED = 202  # busy; storage will be read later
    ABSENT = 404  # the user agent is not connected to this node
    BUSY = 503  # connected, but cannot accept a direct notification now
    UNREACHABLE = 0  # the node did not answer
    UNEXPECTED = 1  # the node failed, or its answer is none of these


class Node(Protocol):
    """One connection worker, as endpoint nodes use it."""

    async def push(self, uaid: Uaid, notification: Notification | Update) -> Answer:
        """TAKEN only after a crash of the node can no longer lose the notification."""
        ...

    async def check_stored(self, uaid: Uaid) -> Answer: ...

    async def displace(self, uaid: Uaid, connected_at_ms: int) -> Answer:
        """Close the connection if it began at exactly that time; ABSENT if there is none."""
        ...


class ServedNode(Node, Protocol):
    """One connection worker, as link server and node API use it."""

    def push_abandoned(self, uaid: Uaid, taken: Notification | Update | None) -> None:
        """The endpoint node stopped waiting for a push: it clears the route and stores the
        notification. If that was delivered all the same it is `taken`, and its ack must delete the
        row too; None: it was refused."""
        ...


class Relay(Protocol):
    """All connection nodes, by node id. Does not raise for a node that does not answer."""

    async def push(
        self, node_id: str, uaid: Uaid, notification: Notification | Update
    ) -> Answer: ...

    async def check_stored(self, node_id: str, uaid: Uaid) -> Answer: ...

    async def displace(self, node_id: str, uaid: Uaid, connected_at_ms: int) -> Answer: ...


# The HTTP form

LIST_MAX = 1000  # updates in one request of the first design
BODY_BYTES_MAX = 262_144  # of `PUT /push/{uaid}`
TIME_MS_MAX = 1 << 53  # sums of two times must fit into 64 bits
_Millis = Annotated[int, msgspec.Meta(ge=0, le=TIME_MS_MAX)]
_Seconds = Annotated[int, msgspec.Meta(ge=0, le=TIME_MS_MAX // 1000)]

_STATUSES = {answer.value: answer for answer in Answer if answer >= 100}


def answer_of_status(status: int) -> Answer:
    return _STATUSES.get(status, Answer.UNEXPECTED)


class _PushBody(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    channel_id: str = msgspec.field(name="channelID")
    version: str | Annotated[int, msgspec.Meta(ge=0, le=VERSION_MAX)]
    ttl: _Seconds = 0
    topic: str | None = None
    timestamp: _Seconds | None = None
    data: str | None = None
    headers: dict[str, str] | None = None
    sortkey_timestamp: _Millis | None = (
        None  # Waystation only: keeps the order if the notification is stored later
    )
    reliability_id: str | None = None
    reliable_state: str | None = None


_Bodies = Annotated[list[_PushBody], msgspec.Meta(max_length=LIST_MAX)]
_decoder: msgspec.json.Decoder[_PushBody | list[_PushBody]] = msgspec.json.Decoder(
    _PushBody | _Bodies
)
_encode = msgspec.json.Encoder().encode


def encode_push(notification: Notification | Update) -> bytes:
    """The body of `PUT /push/{uaid}`."""
    if isinstance(notification, Update):
        return _encode(
            _PushBody(
                channel_id=dashed(notification.channel_id),
                version=notification.version,
                timestamp=notification.timestamp_s or None,
                data=notification.data,
            )
        )
    return _encode(
        _PushBody(
            channel_id=dashed(notification.channel_id),
            version=notification.message_id,
            ttl=notification.ttl_s,
            topic=notification.topic,
            timestamp=notification.timestamp_s,
            data=notification.data,
            headers=notification.headers,
            sortkey_timestamp=notification.accepted_at_ms,
            reliability_id=notification.reliability_id,
            reliable_state=notification.reliable_state,
        )
    )


def decode_push(
    body: bytes, sort_key_of: Callable[[str], SortKey]
) -> Sequence[Notification | Update]:
    """One notification, or one or more SimplePush updates.

    `sort_key_of` decrypts a message id, because codecs do not have the keys.
    """
    try:
        decoded = _decoder.decode(body)
    except DECODE_ERRORS as error:
        raise BadBodyError(str(error)) from None
    entries = decoded if isinstance(decoded, list) else [decoded]
    return [_from_body(entry, sort_key_of) for entry in entries]


def _from_body(body: _PushBody, sort_key_of: Callable[[str], SortKey]) -> Notification | Update:
    channel_id = parse_uuid(body.channel_id)
    if channel_id is None:
        raise BadBodyError("channelID is not a UUID")
    if isinstance(body.version, int):
        accepted_at_ms = (body.timestamp or 0) * 1000
        return Update(ChannelId(channel_id), body.version, body.data, accepted_at_ms)
    if body.timestamp is None:
        raise BadBodyError("timestamp is missing")
    try:
        sort_key = sort_key_of(body.version)
    except InvalidMessageIdError:
        raise BadBodyError("version is not a message id of this service") from None
    accepted_at_ms = body.sortkey_timestamp
    if accepted_at_ms is None or accepted_at_ms // 1000 != body.timestamp:
        accepted_at_ms = body.timestamp * 1000
    return Notification(
        ChannelId(channel_id),
        MessageId(body.version),
        sort_key,
        accepted_at_ms,
        body.ttl,
        topic=body.topic,
        data=body.data,
        headers=body.headers,
        reliability_id=body.reliability_id,
        reliable_state=body.reliable_state,
    )
