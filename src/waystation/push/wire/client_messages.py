"""Messages between user agents and the server over the WebSocket, as typed values.

One JSON object per text message. Unknown fields are ignored. A message that is not JSON, has an
unknown `messageType` or lacks a field raises `BadFrameError`. An unreadable ack counts as an empty
one, as in Autopush: closing the connection would only send the same notifications again.
"""

from binascii import Error as Base64Error
from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Annotated, Any

import msgspec
import pybase64

from waystation.base.decode_errors import DECODE_ERRORS
from waystation.base.ids import dashed
from waystation.push.errors import BadFrameError
from waystation.push.model import Notification, Update

PING = b"{}"

VAPID_KEY_BYTES = 65
DELIVERED, DECRYPTION_ERROR, NOT_DELIVERED = 100, 101, 102


class Hello(msgspec.Struct, frozen=True, tag_field="messageType", tag="hello"):
    uaid: str | None = None
    use_webpush: bool | None = None
    channelIDs: list[str] | None = None  # noqa: N815 the wire's own word
    broadcasts: dict[str, str] | None = None


class Register(msgspec.Struct, frozen=True, tag_field="messageType", tag="register"):
    channelID: str | None = None  # noqa: N815
    key: str | None = None


class Unregister(msgspec.Struct, frozen=True, tag_field="messageType", tag="unregister"):
    channelID: str | None = None  # noqa: N815
    code: int | None = None


class AckUpdate(msgspec.Struct, frozen=True, gc=False):
    version: str | int  # a number for SimplePush; opaque otherwise
    channelID: str | None = None  # noqa: N815
    code: Annotated[int, msgspec.Meta(ge=0, le=65_535)] | None = None


class Ack(msgspec.Struct, frozen=True, tag_field="messageType", tag="ack"):
    updates: Annotated[list[AckUpdate], msgspec.Meta(max_length=1000)]


class Nack(msgspec.Struct, frozen=True, tag_field="messageType", tag="nack"):
    version: str | int
    code: int | None = None


class Ping(msgspec.Struct, frozen=True, tag_field="messageType", tag="ping"):
    pass


class BroadcastSubscribe(
    msgspec.Struct, frozen=True, tag_field="messageType", tag="broadcast_subscribe"
):
    broadcasts: dict[str, str]


ClientMessage = Hello | Register | Unregister | Ack | Nack | Ping | BroadcastSubscribe

_decoder = msgspec.json.Decoder(ClientMessage)
_encode = msgspec.json.Encoder().encode
_PING = Ping()
_ACK_OF_NOTHING = Ack(updates=[])


def decode_client(text: bytes) -> ClientMessage:
    if text == PING:
        return _PING
    try:
        return _decoder.decode(text)
    except DECODE_ERRORS as exc:
        return _decode_leniently(text, exc)


def _decode_leniently(text: bytes, exc: Exception) -> ClientMessage:
    try:
        message = msgspec.json.decode(text)
    except DECODE_ERRORS:
        message = None
    if message == {}:
        return _PING
    if isinstance(message, dict) and message.get("messageType") == "ack":  # pyright: ignore[reportUnknownMemberType]
        return _ACK_OF_NOTHING
    raise BadFrameError(str(exc)) from exc


def message_type(text: bytes) -> str:
    """The `messageType` of an unreadable message, for the error reply."""
    try:
        message = msgspec.json.decode(text)
    except DECODE_ERRORS:
        return "error"
    kind = message.get("messageType") if isinstance(message, dict) else None  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]
    return kind if isinstance(kind, str) else "error"


def hello_reply(uaid_text: str, broadcasts: Mapping[str, Any], *, webpush: bool) -> bytes:
    reply: dict[str, Any] = {"messageType": "hello", "uaid": uaid_text, "status": 200}
    if webpush:  # without it Firefox falls back to SimplePush
        reply["use_webpush"] = True
        reply["broadcasts"] = broadcasts
    return _encode(reply)


def register_reply(channel_id: str, status: int, endpoint: str) -> bytes:
    return _encode(
        {
            "messageType": "register",
            "channelID": channel_id,
            "status": status,
            "pushEndpoint": endpoint,
        }
    )


def unregister_reply(channel_id: str, status: int) -> bytes:
    return _encode({"messageType": "unregister", "channelID": channel_id, "status": status})


def error_reply(kind: str, status: int, reason: str, more_info: str) -> bytes:
    """An error in the form of the Python generation, for `ws_error_replies`."""
    return _encode(
        {"messageType": kind, "status": status, "reason": reason, "more_info": more_info}
    )


def broadcast_message(broadcasts: Mapping[str, Any]) -> bytes:
    return _encode({"messageType": "broadcast", "broadcasts": broadcasts})


def notification_message(notification: Notification) -> bytes:
    """Formatted without an encoder, for speed: ids and base64url need no escaping."""
    data, headers = notification.data, notification.headers
    tracked = text = ""
    if notification.reliability_id is not None:
        tracked = f',"reliability_id":{_encode(notification.reliability_id).decode()}'
    if data is not None:
        shown = "" if headers is None else f',"headers":{_encode(headers).decode()}'
        text = f',"data":"{data}"{shown}'
    start = _notification_start(notification.channel_id)
    return f'{start}{notification.message_id}"{tracked}{text}}}'.encode()


@lru_cache(maxsize=4096)
def _notification_start(channel_id: bytes) -> str:
    return f'{{"messageType":"notification","channelID":"{dashed(channel_id)}","version":"'


def updates_message(updates: Iterable[Update]) -> bytes:
    """SimplePush: any number of versions in one message."""
    return _encode(
        {"messageType": "notification", "updates": [_update(update) for update in updates]}
    )


def _update(update: Update) -> dict[str, Any]:
    form: dict[str, Any] = {"channelID": dashed(update.channel_id), "version": update.version}
    if update.data is not None:
        form["data"] = update.data
    return form


def public_key(text: str) -> bytes | None:
    """A P-256 point in X9.62 uncompressed form, base64url with or without padding."""
    if "+" in text or "/" in text:
        return None  # standard base64 alphabet, which the decoder would accept
    try:
        bare = text.rstrip("=")
        raw = pybase64.b64decode(bare + "=" * (-len(bare) % 4), altchars="-_", validate=True)
    except (Base64Error, ValueError):
        return None
    return raw if len(raw) == VAPID_KEY_BYTES and raw[0] == 4 else None
