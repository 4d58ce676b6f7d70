"""Whatever a client sends is a message or a BadFrameError, and what we send is JSON."""

import json
from typing import Any

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from waystation.push.connect.broadcasts import Broadcasts
from waystation.push.connect.session import Session
from waystation.push.connect.session_context import SessionContext
from waystation.push.connect.session_states import State
from waystation.push.errors import BadFrameError
from waystation.push.model import ChannelId, MessageId, Notification, SortKey, Uaid, Update
from waystation.push.settings import Connect
from waystation.push.wire import client_messages as wire

KINDS = ["hello", "register", "unregister", "ack", "nack", "ping", "broadcast_subscribe", "x"]
FIELDS = ["uaid", "use_webpush", "channelIDs", "broadcasts", "channelID", "key", "version", "code"]
JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=9),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=9), inner),
    max_leaves=12,
)
UPDATES = st.fixed_dictionaries({}, optional={"version": JSON, "channelID": JSON, "code": JSON})
MESSAGES = st.builds(
    lambda kind, fields, updates: {"messageType": kind} | fields | updates,
    st.sampled_from(KINDS) | JSON,
    st.dictionaries(st.sampled_from(FIELDS), JSON),
    st.fixed_dictionaries({}, optional={"updates": JSON | st.lists(UPDATES, max_size=4)}),
)
BASE64URL = st.text("ABab01-_", max_size=40)


def dumps(message: Any) -> bytes:
    """With the standard library, which writes numbers beyond 64 bits too."""
    return json.dumps(message).encode()


def decode(text: bytes) -> wire.ClientMessage | None:
    try:
        return wire.decode_client(text)
    except BadFrameError:
        return None


@given(st.binary(max_size=200))
def test_any_bytes_are_a_message_or_a_bad_frame(text: bytes) -> None:
    message = decode(text)

    assert message is None or isinstance(message, wire.ClientMessage)
    assert isinstance(wire.message_type(text), str)


@given(MESSAGES | JSON)
def test_any_json_is_a_message_or_a_bad_frame(message: Any) -> None:
    text = dumps(message)
    value = decode(text)

    assert value is None or isinstance(value, wire.ClientMessage)
    assert isinstance(wire.message_type(text), str)


@given(st.dictionaries(st.sampled_from(FIELDS), JSON), st.lists(UPDATES, max_size=4) | JSON)
def test_an_ack_is_always_an_ack(fields: dict[str, Any], updates: Any) -> None:
    """C-031: of nothing if it cannot be read."""
    text = dumps({"messageType": "ack", "updates": updates} | fields)

    assert isinstance(decode(text), wire.Ack)


@settings(max_examples=40, deadline=None)
@given(st.lists(MESSAGES, max_size=8), st.booleans(), st.sampled_from(["off", "p", "s"]))
def test_a_session_survives_any_messages(
    messages: list[Any], replies: bool, simplepush: str
) -> None:
    terms = SessionContext(
        Connect(ws_error_replies=replies, simplepush=simplepush),  # type: ignore[arg-type]
        node_id="http://node:8081",
        broadcasts=Broadcasts(),
        endpoint_for=lambda *_: "https://push.example/x",
        new_uaid=lambda: Uaid(bytes(16)),
    )
    session = Session(terms, mono=0.0)
    for message in [{"messageType": "hello", "use_webpush": True}, *messages]:
        if session.busy:
            session.closed()
        session.received(dumps(message), now_ms=1, mono=1.0)

    assert session.state in (State.IDENTIFIED, State.CLOSED)


@given(
    st.text(),
    st.none() | BASE64URL,
    st.none() | st.dictionaries(st.sampled_from(["encoding", "encryption"]), st.text()),
)
def test_a_notification_is_json_with_exactly_what_was_given(
    reliability_id: str, data: str | None, headers: dict[str, str] | None
) -> None:
    """C-060, C-061: headers only together with data."""
    notification = Notification(
        channel_id=ChannelId(bytes(16)),
        message_id=MessageId("gAAAA-_="),
        sort_key=SortKey("02:1:x"),
        accepted_at_ms=1,
        ttl_s=1,
        data=data,
        headers=headers,
        reliability_id=reliability_id.encode("utf-8", "replace").decode(),
    )
    frame = msgspec.json.decode(wire.notification_message(notification))

    assert frame["version"] == "gAAAA-_="
    assert frame["reliability_id"] == notification.reliability_id
    assert frame.get("data") == data
    assert frame.get("headers") == (None if data is None else headers)


@given(st.lists(st.tuples(st.integers(0, 2**53), st.none() | st.text('ab"\\é', max_size=9))))
def test_versions_of_simplepush_come_back_as_they_were(versions: list[Any]) -> None:
    updates = [Update(ChannelId(bytes(16)), version, data) for version, data in versions]
    frame = msgspec.json.decode(wire.updates_message(updates))

    assert [(one["version"], one.get("data")) for one in frame["updates"]] == versions


@given(st.text(max_size=100) | BASE64URL)
def test_any_text_is_a_key_of_65_bytes_or_none(text: str) -> None:
    key = wire.public_key(text)

    assert key is None or (len(key) == 65 and key[0] == 4)
