import uuid
from typing import Any

import pytest

from tests.unit.push.connect.talk import (
    CHANNEL,
    KEY,
    NEW_UAID,
    NODE,
    NOW_MS,
    OTHER_CHANNEL,
    Talk,
    ack,
    notification,
    of,
    said,
    settled_in,
)
from waystation.base.ids import dashed, simple
from waystation.push.connect import effects as do
from waystation.push.connect.session_states import State
from waystation.push.model import UserAgent

CLOSE_SM = [do.Close(1011, "SM")]
TEXT = dashed(CHANNEL)


def register(talk: Talk, **fields: Any) -> list[do.Effect]:
    return talk.say({"messageType": "register", "channelID": TEXT} | fields)


def unregister(talk: Talk, **fields: Any) -> list[do.Effect]:
    return talk.say({"messageType": "unregister", "channelID": TEXT} | fields)


class TestRegister:
    def test_without_a_key_the_endpoint_is_of_version_one(self) -> None:
        """C-019"""
        talk = settled_in()
        assert register(talk) == [do.Subscribe(CHANNEL, None)]
        (reply,) = said(talk.session.subscribed(applied=True))

        assert reply.pop("pushEndpoint").startswith("https://push.example/wpush/v1/")
        assert reply == {"messageType": "register", "channelID": TEXT, "status": 200}

    @pytest.mark.parametrize("key", [KEY, KEY + "="])
    def test_with_a_key_it_is_of_version_two(self, key: str) -> None:
        """C-020: Firefox sends the key padded."""
        talk = settled_in()
        register(talk, key=key)
        (reply,) = said(talk.session.subscribed(applied=True))

        assert reply["pushEndpoint"].startswith("https://push.example/wpush/v2/")

    def test_a_null_key_is_no_key(self) -> None:
        talk = settled_in()
        register(talk, key=None)

        assert "/v1/" in said(talk.session.subscribed(applied=True))[0]["pushEndpoint"]

    @pytest.mark.parametrize(
        "key", ["not base64!", "é", "", "AAAA", "C" + KEY[1:], KEY[:-2] + "+/", KEY + "AAAA"]
    )
    def test_a_key_that_could_never_be_used_is_refused_at_once(self, key: str) -> None:
        """C-021: status 400, no endpoint, and the socket stays open."""
        talk = settled_in()

        assert said(register(talk, key=key)) == [
            {
                "messageType": "register",
                "channelID": TEXT,
                "status": 400,
                "pushEndpoint": "Failed to generate endpoint",
            }
        ]
        assert not talk.session.busy
        assert register(talk) == [do.Subscribe(CHANNEL, None)]

    @pytest.mark.parametrize(
        "channel_id", [TEXT.upper(), simple(CHANNEL), f"{{{TEXT}}}", "x", "", None]
    )
    def test_a_channel_id_must_be_spelled_canonically(self, channel_id: str | None) -> None:
        """C-022"""
        assert register(settled_in(), channelID=channel_id) == CLOSE_SM

    def test_a_channel_id_must_be_there(self) -> None:
        """C-022"""
        assert settled_in().say({"messageType": "register"}) == CLOSE_SM

    def test_a_bad_channel_id_is_answered_where_errors_are(self) -> None:
        """C-022"""
        talk = settled_in(ws_error_replies=True)

        assert said(register(talk, channelID="x")) == [
            {
                "messageType": "register",
                "status": 401,
                "reason": "Invalid channelID",
                "more_info": "https://docs.example",
            }
        ]
        assert register(talk) == [do.Subscribe(CHANNEL, None)]

    def test_registering_twice_succeeds_twice(self) -> None:
        """C-023"""
        talk = settled_in()
        for _ in range(2):
            register(talk)
            assert said(talk.session.subscribed(applied=True))[0]["status"] == 200
        assert talk.session.registers == 2

    def test_a_store_that_is_down_is_answered_500_and_the_socket_stays(self) -> None:
        """C-024"""
        talk = settled_in()
        (subscribe,) = register(talk)

        assert said(talk.session.failed(subscribe)) == [
            {"messageType": "register", "channelID": TEXT, "status": 500, "pushEndpoint": ""}
        ]
        assert talk.session.state is State.IDENTIFIED
        assert not talk.session.busy

    def test_one_subscription_too_many_is_answered_500(self) -> None:
        talk = settled_in()
        register(talk)

        assert said(talk.session.subscribed(applied=False))[0]["status"] == 500

    def test_a_newcomer_is_stored_with_its_first_subscription(self) -> None:
        """C-005: not before; and again if that failed."""
        talk = Talk()
        talk.hello()
        newcomer = UserAgent(uaid=NEW_UAID, connected_at_ms=NOW_MS, node_id=NODE)
        (first,) = register(talk)
        talk.session.failed(first)

        assert first == do.Subscribe(CHANNEL, newcomer)
        assert register(talk) == [first]
        talk.session.subscribed(applied=True)
        assert register(talk, channelID=dashed(OTHER_CHANNEL)) == [
            do.Subscribe(OTHER_CHANNEL, None)
        ]

    def test_while_it_is_under_way_the_session_is_busy(self) -> None:
        talk = settled_in()
        register(talk)
        assert talk.session.busy
        talk.session.subscribed(applied=True)

        assert not talk.session.busy

    def test_notifications_do_not_wait_for_it(self) -> None:
        talk = settled_in()
        register(talk)

        assert talk.session.direct(notification(1)) is do.Direct.SENT
        assert talk.session.check_stored() == (False, [])

    def test_an_answer_after_the_end_says_nothing(self) -> None:
        talk = settled_in()
        (subscribe,) = register(talk)
        talk.session.closed()

        assert talk.session.subscribed(applied=True) == []
        assert talk.session.failed(subscribe) == []

    def test_simplepush_gets_an_endpoint_of_its_own_kind(self) -> None:
        """C-147"""
        talk = Talk()
        talk.hello(use_webpush=False)
        register(talk)
        (reply,) = said(talk.session.subscribed(applied=True))

        assert reply["pushEndpoint"].startswith("https://push.example/spush/v1/")


class TestUnregister:
    @pytest.mark.parametrize("code", [None, 200, 201, 202])
    def test_it_is_answered_200_however_often(self, code: int | None) -> None:
        """C-025"""
        talk = settled_in()
        for _ in range(2):
            assert unregister(talk, code=code) == [do.Unsubscribe(CHANNEL, code or 200)]
            assert said(talk.session.unsubscribed()) == [
                {"messageType": "unregister", "channelID": TEXT, "status": 200}
            ]
        assert talk.session.unregisters == 2

    @pytest.mark.parametrize("code", [-1, 65_536, 2**63, 2**64 - 1])
    def test_a_code_that_an_event_has_no_room_for_is_none(self, code: int) -> None:
        """The column is 32 bits wide."""
        assert unregister(settled_in(), code=code) == [do.Unsubscribe(CHANNEL, 0)]

    @pytest.mark.parametrize("message", [{}, {"channelID": None}, {"channelID": "x"}])
    def test_without_a_channel_id_it_is_refused(self, message: dict[str, Any]) -> None:
        """C-027"""
        assert settled_in().say({"messageType": "unregister"} | message) == CLOSE_SM

    def test_without_a_channel_id_it_is_answered_where_errors_are(self) -> None:
        """C-027"""
        talk = settled_in(ws_error_replies=True)
        (reply,) = said(talk.say({"messageType": "unregister"}))

        assert (reply["messageType"], reply["status"]) == ("unregister", 401)
        assert not talk.session.busy

    def test_the_reply_has_the_channel_id_as_it_was_sent(self) -> None:
        """Firefox matches requests by it."""
        talk = settled_in()
        spelled = uuid.UUID(bytes=bytes(CHANNEL)).hex.upper()
        unregister(talk, channelID=spelled)

        assert said(talk.session.unsubscribed())[0]["channelID"] == spelled

    def test_a_store_that_is_down_is_answered_500_and_the_socket_stays(self) -> None:
        talk = settled_in()
        (unsubscribe,) = unregister(talk)

        assert said(talk.session.failed(unsubscribe))[0]["status"] == 500
        assert talk.session.state is State.IDENTIFIED

    def test_what_is_unacked_of_the_channel_is_owed_no_more(self) -> None:
        talk = settled_in()
        theirs, kept = notification(1), notification(2, channel_id=OTHER_CHANNEL)
        talk.session.direct(theirs)
        talk.session.direct(kept)
        unregister(talk)
        effects = talk.session.unsubscribed()

        assert of(do.Settle, effects) == [do.Settle(theirs, do.DROPPED)]
        assert talk.say(ack(theirs)) == []
        assert talk.session.closed() == [do.SaveUnacked([kept])]

    def test_storage_is_looked_at_if_only_that_channel_kept_us_busy(self) -> None:
        talk = settled_in()
        talk.session.direct(notification(1))
        talk.session.check_stored()
        unregister(talk)

        assert of(do.Fetch, talk.session.unsubscribed()) == [do.Fetch(10)]

    def test_an_answer_after_the_end_says_nothing(self) -> None:
        talk = settled_in()
        unregister(talk)
        talk.session.closed()

        assert talk.session.unsubscribed() == []
