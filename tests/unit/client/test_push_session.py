"""The user agent's side of the protocol, without a socket."""

import json
from typing import Any

import pytest

from waystation.client.encryption import AgentKeys, b64url, encrypt
from waystation.client.push_session import (
    Broadcasts,
    Deliver,
    Effect,
    PushSession,
    PushSessionError,
    Received,
    Registered,
    Say,
    Unregistered,
    Welcome,
)
from waystation.client.subscriptions import AgentState, Subscription

KEYS = AgentKeys.generate()
CHANNEL = "1d2c3b4a-5e6f-4a7b-8c9d-0e1f2a3b4c5d"
UAID = "5f2b1c0de4a94d1c8f1b7a6c5d4e3f21"
SUBSCRIPTION = Subscription(CHANNEL, "http://127.0.0.1:1/wpush/v1/x", KEYS)


def subscribed() -> AgentState:
    return AgentState(UAID, {CHANNEL: SUBSCRIPTION})


def hello(uaid: str = UAID, **extra: Any) -> str:
    return json.dumps({"messageType": "hello", "uaid": uaid, "status": 200, **extra})


def opened(state: AgentState | None = None) -> PushSession:
    state = state or subscribed()
    conversation = PushSession(state)
    conversation.connected()
    conversation.frame(hello(state.uaid or UAID))
    return conversation


def notification(version: str, text: bytes | None = b"hi", channel: str = CHANNEL) -> str:
    message: dict[str, object] = {
        "messageType": "notification",
        "channelID": channel,
        "version": version,
    }
    if text is not None:
        message["data"] = b64url(encrypt(text, KEYS.public).body)
        message["headers"] = {"encoding": "aes128gcm"}
    return json.dumps(message)


def acked(effect: Effect) -> dict[str, object]:
    assert isinstance(effect, Say)
    message = json.loads(effect.frame)
    assert message["messageType"] == "ack"
    return message["updates"][0]


def test_hello_without_subscriptions_asks_for_a_new_uaid() -> None:
    said = json.loads(PushSession(AgentState(uaid=UAID)).connected())

    assert said == {"messageType": "hello", "use_webpush": True, "broadcasts": {}}


def test_hello_with_subscriptions_names_the_uaid() -> None:
    assert json.loads(PushSession(subscribed()).connected())["uaid"] == UAID


def test_the_same_uaid_keeps_the_subscriptions() -> None:
    state = subscribed()
    conversation = PushSession(state)
    conversation.connected()

    assert conversation.frame(hello()) == [Welcome(UAID, (), {})]
    assert CHANNEL in state.subscriptions
    assert conversation.open


def test_another_uaid_means_that_all_subscriptions_are_lost() -> None:
    state = subscribed()
    conversation = PushSession(state)
    conversation.connected()

    assert conversation.frame(hello("00" * 16)) == [Welcome("00" * 16, (SUBSCRIPTION,), {})]
    assert state == AgentState("00" * 16)


def test_registering_yields_a_subscription_with_our_keys() -> None:
    state = AgentState(UAID)
    conversation = opened(state)

    said = json.loads(conversation.register(CHANNEL, KEYS, "BKey"))
    assert said == {"messageType": "register", "channelID": CHANNEL, "key": "BKey"}
    reply = {
        "messageType": "register",
        "channelID": CHANNEL,
        "status": 200,
        "pushEndpoint": "http://e/",
    }
    assert conversation.frame(json.dumps(reply)) == [Registered(CHANNEL, 200, "http://e/")]
    assert state.subscriptions[CHANNEL] == Subscription(CHANNEL, "http://e/", KEYS, "BKey")


def test_a_refused_register_subscribes_nothing() -> None:
    state = AgentState(UAID)
    conversation = opened(state)
    conversation.register(CHANNEL, KEYS)

    reply = {"messageType": "register", "channelID": CHANNEL, "status": 500, "pushEndpoint": ""}
    assert conversation.frame(json.dumps(reply)) == [Registered(CHANNEL, 500, "")]
    assert not state.subscriptions


def test_unregistering_forgets_the_subscription() -> None:
    state = subscribed()
    conversation = opened(state)

    assert json.loads(conversation.unregister(CHANNEL))["code"] == 200
    reply = {"messageType": "unregister", "channelID": CHANNEL, "status": 200}
    assert conversation.frame(json.dumps(reply)) == [Unregistered(CHANNEL, 200)]
    assert not state.subscriptions


def test_a_notification_is_decrypted_and_handed_over() -> None:
    effects = opened().frame(notification("v1"))

    assert effects == [Deliver(Received(CHANNEL, "v1", b"hi"))]


def test_a_notification_without_data_is_handed_over_empty() -> None:
    assert opened().frame(notification("v1", None)) == [Deliver(Received(CHANNEL, "v1", None))]


def test_a_repeated_version_is_not_handed_over_again_while_it_is_in_hand() -> None:
    conversation = opened()
    conversation.frame(notification("v1"))

    assert conversation.frame(notification("v1")) == []


def test_a_repeated_version_that_was_acked_is_acked_again() -> None:
    """The first ack was lost with its connection."""
    conversation = opened()
    conversation.frame(notification("v1"))
    conversation.ack(Received(CHANNEL, "v1", b"hi"))
    conversation.disconnected()
    conversation.connected()
    conversation.frame(hello())

    (effect,) = conversation.frame(notification("v1"))

    assert acked(effect) == {"channelID": CHANNEL, "version": "v1", "code": 100}


def test_an_undecryptable_notification_is_acked_101_and_reported() -> None:
    effects = opened().frame(
        json.dumps(
            {
                "messageType": "notification",
                "channelID": CHANNEL,
                "version": "v1",
                "data": "AAAA",
                "headers": {"encoding": "aes128gcm"},
            }
        )
    )

    assert acked(effects[0])["code"] == 101
    assert isinstance(effects[1], Deliver)
    assert effects[1].received.payload is None
    assert "header" in effects[1].received.problem


def test_a_notification_of_a_channel_we_do_not_have_is_acked_102() -> None:
    (effect,) = opened().frame(notification("v1", channel="00000000-0000-4000-8000-000000000000"))

    assert acked(effect)["code"] == 102


def test_a_numeric_version_is_echoed_as_a_number() -> None:
    conversation = opened()
    conversation.frame(notification("x").replace('"x"', "17"))

    assert json.loads(conversation.ack(Received(CHANNEL, 17, b"hi")))["updates"][0]["version"] == 17


def test_a_nack_names_version_and_code() -> None:
    said = json.loads(opened().nack(Received(CHANNEL, "v1", b""), 302))

    assert said == {"messageType": "nack", "version": "v1", "code": 302}


def test_broadcasts_are_remembered_and_named_in_the_next_hello() -> None:
    conversation = opened()
    said = json.loads(conversation.subscribe_broadcasts({"a/b": "v1", "x/y": "v1"}))
    assert said["broadcasts"] == {"a/b": "v1", "x/y": "v1"}

    told = {"a/b": "v2", "errors": {"x/y": "Broadcast not found"}}
    (effect,) = conversation.frame(json.dumps({"messageType": "broadcast", "broadcasts": told}))

    assert effect == Broadcasts({"a/b": "v2"}, {"x/y": "Broadcast not found"})
    assert json.loads(conversation.connected())["broadcasts"] == {"a/b": "v2"}


def test_broadcasts_in_the_hello_reply_are_reported() -> None:
    conversation = PushSession(AgentState())
    conversation.connected()

    (effect,) = conversation.frame(hello(broadcasts={"a/b": "v9"}))

    assert effect == Welcome(UAID, (), {"a/b": "v9"})
    assert conversation.broadcasts == {"a/b": "v9"}


@pytest.mark.parametrize("frame", ["{}", '{"messageType":null}', '{"messageType":"error"}'])
def test_pongs_and_messages_of_unknown_kind_are_ignored(frame: str) -> None:
    assert opened().frame(frame) == []


@pytest.mark.parametrize(
    "frame",
    ["", "nonsense", "[]", '{"messageType":"notification"}', hello(), '{"messageType":"register"}'],
)
def test_what_breaks_the_protocol_ends_the_conversation(frame: str) -> None:
    with pytest.raises(PushSessionError):
        opened().frame(frame)


@pytest.mark.parametrize(
    "frame",
    [
        hello(uaid=""),
        hello(uaid="x" * 129),
        '{"messageType":"hello","status":503}',
        hello().replace("200", "500"),
        notification("v1"),
    ],
)
def test_a_first_message_that_is_no_good_hello_ends_the_conversation(frame: str) -> None:
    conversation = PushSession(subscribed())
    conversation.connected()

    with pytest.raises(PushSessionError):
        conversation.frame(frame)
