"""Protocol core of our push user agent: builds messages and handles those of the node. No I/O.

Rule 1: hello carries the uaid only while there is a subscription; without one the node need not
        keep it.
Rule 2: a hello reply with another uaid means that the node has forgotten the user agent: all
        subscriptions are lost, and the application is told once.
Rule 3: a version is delivered to the application once; if it arrives again after its ack, the ack
        is repeated, because the node did not get it.
Rule 4: a notification that cannot be decrypted is delivered as such and acked with 101; one
        without a known subscription is acked with 102.
"""

from typing import Annotated, Any

import msgspec
import pybase64

from waystation.base.decode_errors import DECODE_ERRORS
from waystation.base.errors import RejectedError
from waystation.base.limits import BoundedLru

from .encryption import AgentKeys, EncryptionError, decrypt
from .subscriptions import AgentState, Subscription

ACK_DELIVERED = 100
ACK_UNDECRYPTABLE = 101
ACK_NOT_DELIVERED = 102
PING = "{}"


class PushSessionError(RejectedError):
    """The node sent a message that the protocol does not allow here; close the connection."""

    label = "conversation"


class Received(msgspec.Struct, frozen=True):
    """A notification that has arrived."""

    channel_id: str
    version: str | int
    payload: bytes | None  # decrypted; None: there was no body, or `problem` says why not
    problem: str = ""

    @property
    def text(self) -> str:
        return (self.payload or b"").decode("utf-8", "replace")


class Say(msgspec.Struct, frozen=True):
    frame: str


class Welcome(msgspec.Struct, frozen=True):
    uaid: str
    lost: tuple[Subscription, ...]
    broadcasts: dict[str, str]


class Registered(msgspec.Struct, frozen=True):
    channel_id: str
    status: int
    endpoint: str


class Unregistered(msgspec.Struct, frozen=True):
    channel_id: str
    status: int


class Deliver(msgspec.Struct, frozen=True):
    received: Received


class Broadcasts(msgspec.Struct, frozen=True):
    changed: dict[str, str]
    unknown: dict[str, str]  # id -> the node's words


Effect = Say | Welcome | Registered | Unregistered | Deliver | Broadcasts


class _Hello(msgspec.Struct, frozen=True, tag_field="messageType", tag="hello"):
    uaid: Annotated[str, msgspec.Meta(min_length=1, max_length=128)]
    status: int = 200
    broadcasts: dict[str, Any] | None = None


class _Register(msgspec.Struct, frozen=True, tag_field="messageType", tag="register"):
    status: int
    channel_id: str = msgspec.field(default="", name="channelID")
    endpoint: str = msgspec.field(default="", name="pushEndpoint")


class _Unregister(msgspec.Struct, frozen=True, tag_field="messageType", tag="unregister"):
    status: int
    channel_id: str = msgspec.field(default="", name="channelID")


class _Notification(msgspec.Struct, frozen=True, tag_field="messageType", tag="notification"):
    version: str | int
    channel_id: str = msgspec.field(name="channelID")
    data: str | None = None
    headers: dict[str, str] | None = None


class _Broadcast(msgspec.Struct, frozen=True, tag_field="messageType", tag="broadcast"):
    broadcasts: dict[str, Any]


_ServerMessage = _Hello | _Register | _Unregister | _Notification | _Broadcast
_decoder: msgspec.json.Decoder[_ServerMessage] = msgspec.json.Decoder(_ServerMessage)
_encode = msgspec.json.Encoder().encode


class _Kind(msgspec.Struct):
    kind: Any = msgspec.field(default=None, name="messageType")


class PushSession:
    """One user agent's side, over any number of connections one after the other."""

    def __init__(self, state: AgentState, *, seen_max: int = 1024) -> None:
        self._state = state
        self._pending: dict[str, tuple[AgentKeys, str]] = {}  # registers under way
        self._asked_for = ""  # the uaid in our last hello
        self._open = False  # hello answered
        # version -> the code it was acked with; None while it is in the caller's hands
        self._seen: BoundedLru[str | int, tuple[int | None]] = BoundedLru(seen_max)
        self.broadcasts: dict[str, str] = {}  # id -> the version we know

    @property
    def open(self) -> bool:
        return self._open

    def connected(self) -> str:
        """A new connection: what to say first."""
        self._open = False
        self._asked_for = self._state.uaid if self._state.subscriptions else ""
        hello: dict[str, object] = {
            "messageType": "hello",
            "use_webpush": True,
            "broadcasts": self.broadcasts,
        }
        if self._asked_for:
            hello["uaid"] = self._asked_for
        return _encode(hello).decode()

    def disconnected(self) -> None:
        self._open = False
        self._pending.clear()

    def register(self, channel_id: str, keys: AgentKeys, app_server_key: str = "") -> str:
        self._pending[channel_id] = (keys, app_server_key)
        request = {"messageType": "register", "channelID": channel_id}
        if app_server_key:
            request["key"] = app_server_key
        return _encode(request).decode()

    def unregister(self, channel_id: str, code: int = 200) -> str:
        return _encode(
            {"messageType": "unregister", "channelID": channel_id, "code": code}
        ).decode()

    def ack(self, received: Received, code: int = ACK_DELIVERED) -> str:
        self._seen.put(received.version, (code,))
        return _ack(received.channel_id, received.version, code)

    def nack(self, received: Received, code: int = 301) -> str:
        return _encode({"messageType": "nack", "version": received.version, "code": code}).decode()

    def subscribe_broadcasts(self, versions: dict[str, str]) -> str:
        """The versions are those we know already; the node tells only of others."""
        self.broadcasts |= versions
        return _encode({"messageType": "broadcast_subscribe", "broadcasts": versions}).decode()

    def frame(self, frame: str | bytes) -> list[Effect]:
        """A frame from the node."""
        try:
            message = _decoder.decode(frame)
        except DECODE_ERRORS as exc:
            return self._not_understood(frame, exc)
        if isinstance(message, _Hello):
            return self._welcomed(message)
        if not self._open:
            raise PushSessionError("the node's first message is not hello")
        match message:
            case _Register():
                return self._registered(message)
            case _Unregister():
                if message.status == 200:
                    self._state.subscriptions.pop(message.channel_id, None)
                return [Unregistered(message.channel_id, message.status)]
            case _Notification():
                return self._notified(message)
            case _Broadcast():
                return [self._broadcast(message.broadcasts)]

    def _not_understood(self, frame: str | bytes, exc: Exception) -> list[Effect]:
        """`{}` is a pong; messages of a kind that we do not know are none of our business."""
        try:
            kind = msgspec.json.decode(frame, type=_Kind).kind
        except DECODE_ERRORS:
            raise PushSessionError("a frame that is not a JSON object") from exc
        known = {"hello", "register", "unregister", "notification", "broadcast"}
        if isinstance(kind, str) and kind in known:
            raise PushSessionError(f"{kind}: {exc}") from exc
        return []

    def _welcomed(self, hello: _Hello) -> list[Effect]:
        if self._open:
            raise PushSessionError("a second hello on one connection")
        if hello.status != 200:
            raise PushSessionError(f"hello was answered with status {hello.status}")
        self._open = True
        lost: tuple[Subscription, ...] = ()
        if hello.uaid != self._asked_for and self._state.subscriptions:
            lost = tuple(self._state.subscriptions.values())
            self._state.subscriptions.clear()
        self._state.uaid = hello.uaid
        return [Welcome(hello.uaid, lost, self._broadcast(hello.broadcasts or {}).changed)]

    def _registered(self, reply: _Register) -> list[Effect]:
        keys, app_server_key = self._pending.pop(reply.channel_id, (None, ""))
        if keys is not None and reply.status == 200:
            self._state.subscriptions[reply.channel_id] = Subscription(
                reply.channel_id, reply.endpoint, keys, app_server_key
            )
        return [Registered(reply.channel_id, reply.status, reply.endpoint)]

    def _notified(self, message: _Notification) -> list[Effect]:
        seen = self._seen.get(message.version)
        if seen is not None:
            (code,) = seen
            if code is None:
                return []  # still in the caller's hands; the ack will come from there
            return [Say(_ack(message.channel_id, message.version, code))]
        subscription = self._state.subscriptions.get(message.channel_id)
        if subscription is None:
            self._seen.put(message.version, (ACK_NOT_DELIVERED,))
            return [Say(_ack(message.channel_id, message.version, ACK_NOT_DELIVERED))]
        if message.data is None:
            self._seen.put(message.version, (None,))
            return [Deliver(Received(message.channel_id, message.version, None))]
        headers = message.headers or {}
        try:
            payload = decrypt(
                _decoded(message.data),
                subscription.keys,
                encoding=headers.get("encoding", ""),
                encryption=headers.get("encryption", ""),
                crypto_key=headers.get("crypto_key", ""),
            )
        except EncryptionError as exc:
            self._seen.put(message.version, (ACK_UNDECRYPTABLE,))
            return [
                Say(_ack(message.channel_id, message.version, ACK_UNDECRYPTABLE)),
                Deliver(Received(message.channel_id, message.version, None, problem=str(exc))),
            ]
        self._seen.put(message.version, (None,))
        return [Deliver(Received(message.channel_id, message.version, payload))]

    def _broadcast(self, said: dict[str, Any]) -> Broadcasts:
        changed = {key: value for key, value in said.items() if isinstance(value, str)}
        self.broadcasts |= changed
        errors = said.get("errors")
        unknown = msgspec.convert(errors, dict[str, str]) if isinstance(errors, dict) else {}
        for broadcast_id in unknown:
            self.broadcasts.pop(broadcast_id, None)
        return Broadcasts(changed, unknown)


def _decoded(data: str) -> bytes:
    try:
        return pybase64.urlsafe_b64decode(data + "=" * (-len(data) % 4))
    except ValueError as exc:
        raise EncryptionError("data is not base64url") from exc


def _ack(channel_id: str, version: str | int, code: int) -> str:
    update = {"channelID": channel_id, "version": version, "code": code}
    return _encode({"messageType": "ack", "updates": [update]}).decode()
