import uuid
from typing import Any

import pytest

from tests.unit.push.connect.talk import (
    NEW_UAID,
    NODE,
    NOW_MS,
    UAID,
    Talk,
    notification,
    of,
    record,
    returned,
    said,
)
from waystation.base.ids import dashed, simple
from waystation.push.connect import effects as do
from waystation.push.connect.session_states import ALREADY_CONNECTED, State
from waystation.push.model import Uaid

CLOSE_SM = [do.Close(1011, "SM")]
CLOSE_JSON = [do.Close(1011, "Json")]


class TestNewcomers:
    def test_a_newcomer_is_entered_greeted_and_answered_with_exactly_five_keys(self) -> None:
        """C-001"""
        talk = Talk()
        effects = talk.hello()

        assert effects[:2] == [do.AddToRegistry(NEW_UAID), do.Greeted(new=True)]
        assert said(effects) == [
            {
                "messageType": "hello",
                "uaid": simple(NEW_UAID),
                "status": 200,
                "use_webpush": True,
                "broadcasts": {},
            }
        ]
        assert talk.session.state is State.IDENTIFIED

    def test_a_newcomer_costs_the_store_nothing(self) -> None:
        assert not of(do.LookUp, Talk().hello())
        assert not of(do.Claim, Talk().hello())
        assert not of(do.Fetch, Talk().hello())

    @pytest.mark.parametrize("uaid", ["invalid", "", "abc123", "g" * 32, "1" * 33, None])
    def test_a_uaid_that_cannot_be_one_is_replaced(self, uaid: str | None) -> None:
        """C-003"""
        assert said(Talk().hello(uaid=uaid))[0]["uaid"] == simple(NEW_UAID)

    def test_a_uaid_that_nobody_knows_is_replaced(self) -> None:
        """C-004, C-005: the unknown one is not adopted, and nothing was stored of a newcomer."""
        talk = Talk()
        assert talk.hello(uaid=simple(UAID)) == [do.LookUp(UAID)]
        effects = talk.looked_up(None)

        assert effects[:2] == [do.AddToRegistry(NEW_UAID), do.Greeted(new=True)]
        assert said(effects)[0]["uaid"] == simple(NEW_UAID)
        assert talk.session.reset

    def test_a_uaid_of_a_bridge_is_replaced(self) -> None:
        talk = Talk()
        talk.hello(uaid=simple(UAID))

        assert said(talk.looked_up(record(router_type="fcm")))[0]["uaid"] == simple(NEW_UAID)

    @pytest.mark.parametrize(
        "fields",
        [
            {"broadcasts": None},
            {"channelIDs": []},
            {"channelIDs": None},
            {"channelIDs": [str(uuid.uuid4()), uuid.uuid4().hex]},
            {"wakeup_hostport": {"ip": "127.0.0.1", "port": 1}, "x": [1, {"y": None}]},
            {"use_webpush": None},
        ],
    )
    def test_what_is_null_empty_or_unknown_does_no_harm(self, fields: dict[str, Any]) -> None:
        """C-017"""
        assert said(Talk(simplepush="off").hello(**fields))[0]["status"] == 200

    def test_channel_ids_must_be_uuids(self) -> None:
        """C-018"""
        talk = Talk()

        assert talk.hello(channelIDs=[str(uuid.uuid4()), "no uuid"]) == CLOSE_SM
        assert talk.session.uaid is None


class TestKnownUserAgents:
    def test_a_known_uaid_is_claimed_for_this_node_and_kept(self) -> None:
        """C-002"""
        talk = Talk()
        assert talk.hello(uaid=simple(UAID)) == [do.LookUp(UAID)]
        claim = talk.looked_up(record(node_id="http://elsewhere:8081", current_timestamp_ms=7))

        assert claim == [
            do.AddToRegistry(UAID),
            do.Claim(
                record(node_id=NODE, connected_at_ms=NOW_MS, current_timestamp_ms=7),
            ),
        ]
        assert said(talk.claimed())[0]["uaid"] == simple(UAID)

    def test_it_is_found_under_its_uaid_before_the_claim_is_written(self) -> None:
        """C-088b: nobody may clear the route of a user agent that is just arriving."""
        talk = Talk()
        talk.hello(uaid=simple(UAID))
        effects = talk.looked_up(record())

        assert [type(effect) for effect in effects] == [do.AddToRegistry, do.Claim]
        assert talk.session.direct(notification(1)) is do.Direct.REFUSED
        assert talk.session.check_stored() == (False, [])

    @pytest.mark.parametrize(
        "spelling", [dashed(UAID), simple(UAID).upper(), f"{{{dashed(UAID)}}}", simple(UAID)]
    )
    def test_any_spelling_is_understood_and_the_reply_has_no_dashes(self, spelling: str) -> None:
        """C-006"""
        talk = Talk()
        assert talk.hello(uaid=spelling) == [do.LookUp(UAID)]
        talk.looked_up(record())

        assert said(talk.claimed())[0]["uaid"] == simple(UAID)

    def test_storage_is_looked_at_right_after_the_reply(self) -> None:
        """C-044, C-088"""
        talk, effects = returned()

        assert [type(effect) for effect in effects] == [do.Greeted, do.Send, do.Fetch]
        rows = [notification(1), notification(2)]
        assert talk.session.fetched(rows) == [do.DeliverStored(rows)]

    def test_a_newer_connection_elsewhere_wins(self) -> None:
        """C-014: the row is not touched."""
        talk = Talk()
        talk.hello(uaid=simple(UAID))

        assert talk.looked_up(record(connected_at_ms=NOW_MS + 1)) == [
            do.Close(1011, ALREADY_CONNECTED)
        ]

    def test_a_lost_claim_ends_the_connection_without_a_reply(self) -> None:
        """C-014"""
        talk = Talk()
        talk.hello(uaid=simple(UAID))
        talk.looked_up(record())

        assert talk.claimed(applied=False) == [do.Close(1011, ALREADY_CONNECTED)]
        assert not talk.session.greeted
        assert talk.session.closed() == []

    def test_the_node_where_it_was_before_may_let_go(self) -> None:
        """C-015, C-084"""
        _, effects = returned(found=record(node_id="http://elsewhere:8081"))

        assert of(do.Displace, effects) == [do.Displace("http://elsewhere:8081", NOW_MS - 1000)]

    @pytest.mark.parametrize("before", [NODE, None])
    def test_nobody_is_displaced_if_it_was_here_or_nowhere(self, before: str | None) -> None:
        _, effects = returned(found=record(node_id=before))

        assert not of(do.Displace, effects)

    def test_an_old_record_stays_old_until_it_is_reset(self) -> None:
        talk = Talk()
        talk.hello(uaid=simple(UAID))
        (claim,) = of(do.Claim, talk.looked_up(record(record_version=None)))

        assert claim.user_agent.record_version is None


class TestRefusals:
    @pytest.mark.parametrize(
        "message",
        [
            {},
            {"messageType": "ping"},
            {"messageType": "register", "channelID": str(uuid.uuid4())},
            {"messageType": "ack", "updates": []},
            {"messageType": "nack", "version": "x"},
            {"messageType": "broadcast_subscribe", "broadcasts": {}},
        ],
    )
    @pytest.mark.parametrize("replies", [False, True])
    def test_the_first_message_must_be_a_hello(
        self, message: dict[str, Any], replies: bool
    ) -> None:
        """C-007"""
        assert Talk(ws_error_replies=replies).say(message) == CLOSE_SM

    @pytest.mark.parametrize(
        "text", [b"", b"hello", b"[]", b'"hello"', b"7", b"null", b'{"messageType":"hello"', b"{}x"]
    )
    @pytest.mark.parametrize("replies", [False, True])
    def test_what_is_no_json_object_ends_the_connection(self, text: bytes, replies: bool) -> None:
        """C-010"""
        assert Talk(ws_error_replies=replies).say(text) == CLOSE_JSON

    def test_a_binary_message_ends_the_connection(self) -> None:
        """C-010"""
        assert Talk().session.received_binary() == [do.Close(1003, "UnsupportedMessage")]

    def test_a_second_hello_ends_the_connection(self) -> None:
        """C-008"""
        talk, _ = returned()

        assert talk.hello(uaid=simple(UAID)) == CLOSE_SM

    def test_a_second_hello_is_told_so_where_errors_are_answered(self) -> None:
        """C-008"""
        talk, _ = returned(ws_error_replies=True)
        effects = talk.hello()

        assert said(effects) == [
            {
                "messageType": "hello",
                "status": 401,
                "reason": "duplicate hello",
                "more_info": "https://docs.example",
            }
        ]
        assert effects[1:] == CLOSE_SM

    @pytest.mark.parametrize(
        "message",
        [{"messageType": "subscribe"}, {"messageType": 7}, {"uaid": "x"}, {"messageType": None}],
    )
    def test_an_unknown_message_type_ends_the_connection(self, message: dict[str, Any]) -> None:
        """C-011"""
        talk, _ = returned()

        assert talk.say(message) == CLOSE_JSON

    def test_an_unknown_message_type_is_answered_where_errors_are(self) -> None:
        talk, _ = returned(ws_error_replies=True)
        (reply,) = said(talk.say({"messageType": "subscribe"}))

        assert (reply["messageType"], reply["status"]) == ("subscribe", 401)
        assert talk.session.state is State.IDENTIFIED

    def test_without_a_hello_in_time_the_connection_ends(self) -> None:
        """C-009"""
        talk = Talk(open_handshake_timeout_s=5.0)
        talk.wait(4.9)
        assert talk.wake() == []
        talk.wait(0.2)

        assert talk.wake() == [do.Close(1011, "HandshakeTimeout")]

    def test_a_store_that_is_slow_to_look_up_is_not_waited_for_longer(self) -> None:
        talk = Talk()
        talk.hello(uaid=simple(UAID))

        assert talk.wake_in_time() == [do.Close(1011, "HandshakeTimeout")]
        assert talk.looked_up(record()) == []

    def test_a_claim_that_is_answered_too_late_greets_nobody(self) -> None:
        talk = Talk()
        talk.hello(uaid=simple(UAID))
        talk.looked_up(record())
        talk.wake_in_time()

        assert talk.claimed() == []

    def test_a_store_that_is_down_ends_the_connection_without_a_new_uaid(self) -> None:
        """C-016"""
        talk = Talk()
        (look_up,) = talk.hello(uaid=simple(UAID))

        assert talk.session.failed(look_up) == [do.Close(1011, "Store")]

    def test_a_store_that_goes_down_before_the_claim_ends_the_connection(self) -> None:
        """C-016"""
        talk = Talk()
        talk.hello(uaid=simple(UAID))
        (claim,) = of(do.Claim, talk.looked_up(record()))

        assert talk.session.failed(claim) == [do.Close(1011, "Store")]
        assert talk.session.failed(claim) == []


class TestSimplePush:
    def test_a_hello_without_use_webpush_is_simplepush(self) -> None:
        """C-147: the reply does not say use_webpush, and the record says simplepush."""
        talk = Talk(simplepush="p")
        effects = talk.hello(use_webpush=False)

        assert said(effects) == [
            {"messageType": "hello", "uaid": simple(NEW_UAID), "status": 200},
        ]
        talk = Talk(simplepush="s")
        talk.say({"messageType": "hello", "uaid": simple(UAID)})
        (claim,) = of(do.Claim, talk.looked_up(record()))
        assert claim.user_agent.router_type == "simplepush"

    def test_where_it_is_off_everybody_speaks_web_push(self) -> None:
        effects = Talk(simplepush="off").say({"messageType": "hello"})

        assert said(effects)[0]["use_webpush"] is True

    def test_a_leftover_simplepush_record_becomes_web_push(self) -> None:
        talk = Talk()
        talk.hello(uaid=simple(UAID))
        (claim,) = of(do.Claim, talk.looked_up(record(router_type="simplepush")))

        assert claim.user_agent.router_type == "webpush"


class TestOtherEndings:
    def test_the_older_connection_of_a_user_agent_is_told_so(self) -> None:
        """C-013"""
        talk, _ = returned()

        assert talk.session.ended(1011, "Ghosted") == [do.Close(1011, "Ghosted")]
        assert talk.session.ended(1011, "Ghosted") == []

    def test_a_node_that_stops_says_so(self) -> None:
        """C-090"""
        talk, _ = returned()
        talk.session.fetched([])
        talk.session.direct(notification(1))

        assert talk.session.ended(1012, "Restart") == [do.Close(1012, "Restart")]
        assert talk.session.closed() == [do.SaveUnacked([notification(1)])]

    def test_after_the_end_nothing_has_an_effect(self) -> None:
        talk, effects = returned()
        session = talk.session
        session.ended(1011, "Ghosted")

        assert talk.say({"messageType": "ping"}) == []
        assert session.received_binary() == []
        assert session.fetched([notification(1)]) == []
        assert session.direct(notification(2)) is do.Direct.REFUSED
        assert session.check_stored() == (False, [])
        assert session.congested() == []
        assert session.forgotten(0) == []
        assert session.failed(effects[-1]) == []
        assert talk.wake_in_time() == []
        assert session.closed() == []

    def test_sessions_that_are_over_do_not_share_anything(self) -> None:
        """What is asked of one that has ended must not show up in another."""
        ended, _ = returned()
        ended.session.closed()
        ended.session.direct(notification(1))
        ended.session.congested()
        fresh = Talk(new_uaid=lambda: Uaid(b"\x42" * 16))
        fresh.hello()

        assert fresh.session.direct(notification(2)) is do.Direct.SENT
        assert ended.session.closed() == []
