"""The relay: what an endpoint node tells a connection node, and what it hears back.

`endpoint` and `connect` meet here and in `PushStore`, nowhere else. The same
three requests travel as a function call inside a worker, as link frames between
our own workers and nodes, and as HTTP (`PUT /push/{uaid}`, `PUT /notif/{uaid}`,
`DELETE /notif/{uaid}/{connected_at}`) for everyone else.

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

    TAKEN = 200  # placed with the client, or the storage check has begun
    FLAGGED = 202  # busy; storage will be checked later
    ABSENT = 404  # no such client here
    BUSY = 503  # the client is here but cannot take it now
    UNREACHABLE = 0  # no connection node answered at that address
    ODD = 1  # it answered, but with something else


class Node(Protocol):
    """One connection worker, as the relay sees it."""

    async def push(self, uaid: Uaid, notification: Notification | Update) -> Answer:
        """TAKEN only when a kill of the node cannot lose it any more."""
        ...

    async def check_stored(self, uaid: Uaid) -> Answer: ...

    async def displace(self, uaid: Uaid, connected_at_ms: int) -> Answer:
        """Close the client if it connected at exactly that time; ABSENT if there is none."""
        ...


class ServedNode(Node, Protocol):
    """One connection worker, as those see it who pass on what others ask."""

    def asker_left(self, uaid: Uaid, taken: Notification | Update | None) -> None:
        """The asker of a push stopped waiting: it clears the route and stores. `taken` was
        delivered all the same, so its ack has a row to delete too; None: it was refused."""
        ...


class Relay(Protocol):
    """All connection nodes, by their node id. Never raises for a node that is gone."""

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
    return _STATUSES.get(status, Answer.ODD)


class _PushBody(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    channel_id: str = msgspec.field(name="channelID")
    version: str | Annotated[int, msgspec.Meta(ge=0, le=VERSION_MAX)]
    ttl: _Seconds = 0
    topic: str | None = None
    timestamp: _Seconds | None = None
    data: str | None = None
    headers: dict[str, str] | None = None
    sortkey_timestamp: _Millis | None = None  # ours, so that what is stored later keeps its order
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
    """What an endpoint node sends: of Web Push one, of SimplePush one or a list.

    `sort_key_of` reads a message id; the wire does not hold the keys.
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
        raise BadBodyError("version is not a message id of ours") from None
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
