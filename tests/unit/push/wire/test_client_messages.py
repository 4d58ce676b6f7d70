from typing import Any

import msgspec
import pytest

from tests.unit.push.connect.talk import CHANNEL, KEY, notification, update
from waystation.base.ids import dashed
from waystation.push.errors import BadFrameError
from waystation.push.wire import client_messages as wire

TEXT = dashed(CHANNEL)


def decoded(message: Any) -> wire.ClientMessage:
    return wire.decode_client(msgspec.json.encode(message))


class TestMessagesOfUserAgents:
    @pytest.mark.parametrize(
        "message, value",
        [
            ({"messageType": "hello"}, wire.Hello()),
            (
                {
                    "messageType": "hello",
                    "uaid": "u",
                    "use_webpush": True,
                    "broadcasts": {"a": "1"},
                },
                wire.Hello(uaid="u", use_webpush=True, broadcasts={"a": "1"}),
            ),
            (
                {"messageType": "register", "channelID": TEXT, "key": KEY},
                wire.Register(TEXT, KEY),
            ),
            ({"messageType": "unregister", "channelID": TEXT}, wire.Unregister(TEXT)),
            ({"messageType": "nack", "version": "v", "code": 301}, wire.Nack("v", 301)),
            ({"messageType": "ping"}, wire.Ping()),
            ({}, wire.Ping()),
            (
                {"messageType": "broadcast_subscribe", "broadcasts": {"a": "1"}},
                wire.BroadcastSubscribe({"a": "1"}),
            ),
            (
                {"messageType": "ack", "updates": [{"channelID": TEXT, "version": "v"}]},
                wire.Ack([wire.AckUpdate("v", TEXT)]),
            ),
            (
                {"messageType": "ack", "updates": [{"channelID": TEXT, "version": 12}]},
                wire.Ack([wire.AckUpdate(12, TEXT)]),
            ),
        ],
        ids=range(10),
    )
    def test_a_message_becomes_a_value(self, message: Any, value: wire.ClientMessage) -> None:
        assert decoded(message) == value

    def test_unknown_fields_are_ignored_wherever_they_stand(self) -> None:
        """C-017"""
        assert wire.decode_client(b'{"x":[{}],"messageType":"ping","y":null}') == wire.Ping()

    @pytest.mark.parametrize(
        "text",
        [
            b"",
            b"no json",
            b"[]",
            b"1",
            b'"{}"',
            b'{"messageType":"hello"',
            b'{"messageType":"hello"}{}',
            b'{"messageType":"unknown"}',
            b'{"messageType":7}',
            b'{"uaid":"x"}',
            b'{"messageType":"hello","uaid":7}',
            b'{"messageType":"hello","broadcasts":{"a":1}}',
            b'{"messageType":"hello","uaid":"\xff"}',
            b'{"messageType":"nack"}',
            b'{"messageType":"broadcast_subscribe"}',
            b'{"messageType":"ping","x":' + b"[" * 20_000,
            b'{"x":' * 10_000,
        ],
        ids=range(17),
    )
    def test_anything_else_is_a_bad_frame(self, text: bytes) -> None:
        """C-010, C-011; however deep it is nested."""
        with pytest.raises(BadFrameError):
            wire.decode_client(text)

    @pytest.mark.parametrize(
        "updates",
        [None, 7, "x", {}, [None], [{"version": 1.5}], [{"version": "v", "code": 65_536}]],
    )
    def test_an_ack_that_cannot_be_read_is_an_ack_of_nothing(self, updates: Any) -> None:
        """C-031"""
        assert decoded({"messageType": "ack", "updates": updates}) == wire.Ack([])

    def test_an_ack_of_more_than_a_thousand_is_not_read(self) -> None:
        many = [{"version": str(n)} for n in range(1001)]

        assert decoded({"messageType": "ack", "updates": many}) == wire.Ack([])
        assert decoded({"messageType": "ack", "updates": many[:1000]}) != wire.Ack([])

    @pytest.mark.parametrize(
        "text, kind",
        [
            (b'{"messageType":"register"}', "register"),
            (b'{"messageType":7}', "error"),
            (b"[1]", "error"),
            (b"x", "error"),
            (b"\xff", "error"),
        ],
    )
    def test_an_error_reply_names_the_kind_of_message(self, text: bytes, kind: str) -> None:
        assert wire.message_type(text) == kind


class TestMessagesToUserAgents:
    def test_a_hello_is_answered_with_five_keys(self) -> None:
        """C-001"""
        assert wire.hello_reply("ab", {}, webpush=True) == (
            b'{"messageType":"hello","uaid":"ab","status":200,"use_webpush":true,"broadcasts":{}}'
        )

    def test_a_notification_has_data_and_headers(self) -> None:
        """C-033"""
        frame = msgspec.json.decode(wire.notification_message(notification(1)))

        assert frame == {
            "messageType": "notification",
            "channelID": TEXT,
            "version": "m-00001",
            "data": "AbC_",
            "headers": {"encoding": "aes128gcm"},
        }

    def test_a_notification_without_a_body_has_neither(self) -> None:
        """C-060, C-061"""
        frame = msgspec.json.decode(wire.notification_message(notification(1, data=None)))

        assert frame.keys() == {"messageType", "channelID", "version"}

    def test_headers_without_data_are_not_sent(self) -> None:
        """C-061"""
        one = msgspec.structs.replace(notification(1), data=None, headers={"encoding": "x"})

        assert "headers" not in msgspec.json.decode(wire.notification_message(one))

    def test_data_without_headers_is_sent(self) -> None:
        one = msgspec.structs.replace(notification(1), headers=None)

        assert msgspec.json.decode(wire.notification_message(one))["data"] == "AbC_"

    def test_topic_and_ttl_stay_with_us(self) -> None:
        """C-036"""
        frame = msgspec.json.decode(wire.notification_message(notification(1, topic="news")))

        assert frame.keys() == {"messageType", "channelID", "version", "data", "headers"}

    def test_a_tracked_one_carries_its_id_whatever_is_in_it(self) -> None:
        """C-157"""
        one = msgspec.structs.replace(notification(1, data=None), reliability_id='a"\\é')

        assert msgspec.json.decode(wire.notification_message(one))["reliability_id"] == 'a"\\é'

    def test_versions_of_simplepush_travel_together_with_data_where_there_is_any(self) -> None:
        """C-147, C-151"""
        frame = msgspec.json.decode(wire.updates_message([update(5, data="hi"), update(6)]))

        assert frame == {
            "messageType": "notification",
            "updates": [
                {"channelID": TEXT, "version": 5, "data": "hi"},
                {"channelID": TEXT, "version": 6},
            ],
        }


class TestPublicKeys:
    @pytest.mark.parametrize("text", [KEY, KEY + "=", KEY + "==="])
    def test_padding_is_tolerated(self, text: str) -> None:
        """C-020"""
        assert wire.public_key(text) == b"\x04" + bytes(64)

    @pytest.mark.parametrize(
        "text", ["", "A", "AAAA", "A" + KEY, KEY[1:], " " + KEY, "é" * 87, "+/" + KEY[2:], "!" * 87]
    )
    def test_anything_else_is_no_key(self, text: str) -> None:
        """C-021"""
        assert wire.public_key(text) is None
