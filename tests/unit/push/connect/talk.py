"""What the tests of a connection node's cores share: notifications, terms, a session to talk to."""

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import msgspec

from waystation.base.ids import dashed, simple
from waystation.push.connect import effects as do
from waystation.push.connect.broadcasts import Broadcasts
from waystation.push.connect.effects import Effect
from waystation.push.connect.session import Session
from waystation.push.connect.session_context import SessionContext
from waystation.push.model import (
    ChannelId,
    MessageId,
    Notification,
    SortKey,
    Uaid,
    Update,
    UserAgent,
)
from waystation.push.settings import Connect

NOW_MS = 1_700_000_000_000
NODE = "http://node-1:8081"
UAID = Uaid(bytes.fromhex("5f2b1c0de4a94d1c8f1b7a6c5d4e3f21"))
NEW_UAID = Uaid(b"\x99" * 16)
CHANNEL, OTHER_CHANNEL = ChannelId(b"\xa1" * 16), ChannelId(b"\xb2" * 16)
KEY = "BA" + "A" * 85  # 65 bytes that begin with 4

E = TypeVar("E", bound=msgspec.Struct)


def notification(
    name: str | int,
    *,
    channel_id: ChannelId = CHANNEL,
    ttl_s: int = 300,
    topic: str | None = None,
    data: str | None = "AbC_",
    accepted_at_ms: int = NOW_MS,
) -> Notification:
    number = f"{name:05}" if isinstance(name, int) else name
    sort_key = (
        f"02:{accepted_at_ms}:{dashed(channel_id)}:{number}"
        if topic is None
        else f"01:{dashed(channel_id)}:{topic}"
    )
    return Notification(
        channel_id=channel_id,
        message_id=MessageId(f"m-{number}"),
        sort_key=SortKey(sort_key),
        accepted_at_ms=accepted_at_ms,
        ttl_s=ttl_s,
        topic=topic,
        data=data,
        headers=None if data is None else {"encoding": "aes128gcm"},
    )


def update(
    version: int,
    channel_id: ChannelId = CHANNEL,
    data: str | None = None,
    *,
    accepted_at_ms: int = 0,
) -> Update:
    return Update(channel_id, version, data, accepted_at_ms)


def record(**fields: Any) -> UserAgent:
    return UserAgent(**({"uaid": UAID, "connected_at_ms": NOW_MS - 1000} | fields))


def terms(
    *,
    broadcasts: Broadcasts | None = None,
    new_uaid: Callable[[], Uaid] = lambda: NEW_UAID,
    keeps_cursor: bool = False,
    **settings: Any,
) -> SessionContext:
    return SessionContext(
        Connect(**settings),
        node_id=NODE,
        broadcasts=broadcasts if broadcasts is not None else Broadcasts(),
        endpoint_for=endpoint_for,
        new_uaid=new_uaid,
        more_info_url="https://docs.example",
        keeps_cursor=keeps_cursor,
    )


def endpoint_for(uaid: Uaid, channel_id: ChannelId, key: bytes | None, simplepush: bool) -> str:
    version = "spush/v1" if simplepush else "wpush/v1" if key is None else "wpush/v2"
    return f"https://push.example/{version}/{simple(uaid)}{simple(channel_id)}"


def ack(*messages: Notification | Update | str, code: int | None = None) -> dict[str, Any]:
    updates: list[dict[str, Any]] = []
    for message in messages:
        match message:
            case Notification():
                one: dict[str, Any] = {
                    "channelID": dashed(message.channel_id),
                    "version": message.message_id,
                }
            case Update():
                one = {"channelID": dashed(message.channel_id), "version": message.version}
            case str():
                one = {"channelID": dashed(CHANNEL), "version": message}
        updates.append(one if code is None else one | {"code": code})
    return {"messageType": "ack", "updates": updates}


def of(kind: type[E], effects: Sequence[Effect]) -> list[E]:
    return [effect for effect in effects if isinstance(effect, kind)]


def said(effects: Sequence[Effect]) -> list[dict[str, Any]]:
    """The messages among the effects; those that come as frames are short."""
    payloads = [
        effect.payload if isinstance(effect, do.Send) else effect.frame[2:]
        for effect in effects
        if isinstance(effect, do.Send | do.SendFrame)
    ]
    return [msgspec.json.decode(payload) for payload in payloads]


class Talk:
    """A session, its clock, and the user agent's side of the conversation."""

    def __init__(self, **given: Any) -> None:
        self.now_ms = NOW_MS
        self.mono = 1000.0
        self.session = Session(terms(**given), mono=self.mono)

    def wait(self, seconds: float) -> None:
        self.mono += seconds
        self.now_ms += int(seconds * 1000)

    def say(self, message: Any) -> list[Effect]:
        text = message if isinstance(message, bytes) else msgspec.json.encode(message)
        return self.session.received(text, now_ms=self.now_ms, mono=self.mono)

    def hello(self, **fields: Any) -> list[Effect]:
        return self.say({"messageType": "hello", "use_webpush": True} | fields)

    def looked_up(self, found: UserAgent | None) -> list[Effect]:
        return self.session.looked_up(found, now_ms=self.now_ms, mono=self.mono)

    def claimed(self, applied: bool = True) -> list[Effect]:
        return self.session.claimed(applied, mono=self.mono)

    def wake(self) -> list[Effect]:
        return self.session.woken(mono=self.mono)

    def wake_in_time(self) -> list[Effect]:
        self.wait(self.session.wake_at - self.mono)
        return self.wake()


def returned(**settings: Any) -> tuple[Talk, list[Effect]]:
    """A known user agent that has just been greeted, and what that led to."""
    fields = settings.pop("hello", {})
    found = settings.pop("found", record())
    talk = Talk(**settings)
    talk.hello(uaid=simple(UAID), **fields)
    talk.looked_up(found)
    return talk, talk.claimed()


def settled_in(**settings: Any) -> Talk:
    """A known user agent for whom nothing was stored."""
    talk, _ = returned(**settings)
    assert talk.session.fetched([]) == []
    return talk
