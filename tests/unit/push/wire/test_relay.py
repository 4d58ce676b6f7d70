import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from waystation.push.errors import BadBodyError, BadFrameError, InvalidMessageIdError
from waystation.push.model import (
    ChannelId,
    MessageId,
    Notification,
    SortKey,
    Uaid,
    Update,
    Urgency,
)
from waystation.push.wire.link_frames import (
    CheckStored,
    Displace,
    Frame,
    Prove,
    Push,
    PushUpdate,
    Reply,
    decode_frame,
    encode_frame,
)
from waystation.push.wire.relay import Answer, answer_of_status, decode_push, encode_push

CHID = ChannelId(bytes.fromhex("c0ffee0012344abc8def0123456789ab"))
UAID = Uaid(bytes(range(16)))
SORT_KEY = SortKey("02:1700000000123:c0ffee00-1234-4abc-8def-0123456789ab:0000abcd")
FULL = Notification(
    CHID,
    MessageId("gAAAAAB"),
    SORT_KEY,
    1_700_000_000_123,
    60,
    topic="Inbox",
    data="AbC_",
    headers={"encoding": "aes128gcm"},
    reliability_id="r1",
    reliable_state="received",
)


def sort_key_of(version: str) -> SortKey:
    if version != "gAAAAAB":
        raise InvalidMessageIdError
    return SORT_KEY


def _with(name: str, number: bytes) -> bytes:
    """A body with a number that does not fit where the node keeps it."""
    fields = {"timestamp": b"1700000000", "ttl": b"60"} | {name: number}
    return (
        b'{"channelID":"c0ffee0012344abc8def0123456789ab","version":"gAAAAAB",'
        b'"timestamp":%(timestamp)b,"ttl":%(ttl)b}'
        % {key.encode(): value for key, value in fields.items()}
    )


class TestJson:
    def test_it_is_what_mozillas_nodes_read(self) -> None:
        assert json.loads(encode_push(FULL)) == {
            "channelID": "c0ffee00-1234-4abc-8def-0123456789ab",
            "version": "gAAAAAB",
            "ttl": 60,
            "topic": "Inbox",
            "timestamp": 1_700_000_000,
            "data": "AbC_",
            "headers": {"encoding": "aes128gcm"},
            "sortkey_timestamp": 1_700_000_000_123,
            "reliability_id": "r1",
            "reliable_state": "received",
        }

    def test_data_and_headers_are_absent_from_a_tickle(self) -> None:
        tickle = Notification(CHID, MessageId("gAAAAAB"), SORT_KEY, 1_700_000_000_123, 0)
        body = json.loads(encode_push(tickle))

        assert not {"data", "headers", "reliability_id"} & set(body)
        assert decode_push(encode_push(tickle), sort_key_of) == [tickle]

    def test_what_was_encoded_comes_back(self) -> None:
        update = Update(CHID, 12, "hi", 1_700_000_000_000)

        assert decode_push(encode_push(FULL), sort_key_of) == [FULL]
        assert decode_push(encode_push(update), sort_key_of) == [update]

    def test_mozillas_own_json_is_understood(self) -> None:
        body = (
            b'{"channelID":"c0ffee0012344abc8def0123456789ab","version":"gAAAAAB","topic":null,'
            b'"timestamp":1700000000,"data":"A","headers":{"encoding":"aes128gcm"},"new":[1]}'
        )
        (notification,) = decode_push(body, sort_key_of)

        assert isinstance(notification, Notification)
        assert notification.ttl_s == 0
        assert notification.accepted_at_ms == 1_700_000_000_000

    def test_the_first_design_sends_lists_of_updates(self) -> None:
        one = json.loads(encode_push(Update(CHID, 1)))
        two = json.loads(encode_push(Update(CHID, 2, "x")))

        assert decode_push(json.dumps([one, two]).encode(), sort_key_of) == [
            Update(CHID, 1),
            Update(CHID, 2, "x"),
        ]

    @pytest.mark.parametrize(
        "body",
        [
            b"",
            b"{}",
            b"5",
            b"null",
            b'{"channelID":"x","version":1}',
            b'{"channelID":"c0ffee0012344abc8def0123456789ab"}',
            b'{"channelID":"c0ffee0012344abc8def0123456789ab","version":-1}',
            b'{"channelID":"c0ffee0012344abc8def0123456789ab","version":1.5}',
            b'{"channelID":"c0ffee0012344abc8def0123456789ab","version":"gAAAAAB"}',
            b'{"channelID":"c0ffee0012344abc8def0123456789ab","version":"?","timestamp":1}',
            b'{"channelID":"c0ffee0012344abc8def0123456789ab","version":"gAAAAAB","timestamp":-1}',
            b'{"channelID":"c0ffee0012344abc8def0123456789ab","version":9223372036854775808}',
            _with("timestamp", b"1%s" % (b"0" * 30)),
            _with("timestamp", b"9223372036854775807"),
            _with("ttl", b"9223372036854775807"),
            b'{"channelID":"c0ffee0012344abc8def0123456789ab","version":1,"data":"a\x86"}',
            b"[" * 5000,
        ],
    )
    def test_anything_else_is_a_bad_body(self, body: bytes) -> None:
        """C-081"""
        with pytest.raises(BadBodyError):
            decode_push(body, sort_key_of)

    def test_statuses_become_answers(self) -> None:
        assert [answer_of_status(s) for s in (200, 202, 404, 503, 500, 0, 1)] == [
            Answer.TAKEN,
            Answer.FLAGGED,
            Answer.ABSENT,
            Answer.BUSY,
            Answer.UNEXPECTED,
            Answer.UNEXPECTED,
            Answer.UNEXPECTED,
        ]


FRAMES: list[Frame] = [
    Push(1, UAID, FULL),
    Push(
        2,
        UAID,
        Notification(CHID, MessageId("m"), SORT_KEY, 5, 0, urgency=Urgency.HIGH, sender=b"s" * 32),
    ),
    PushUpdate(3, UAID, Update(CHID, 9, "d")),
    PushUpdate(3, UAID, Update(CHID, 9, "d", 1_700_000_000_123)),
    CheckStored(4, UAID),
    Displace(5, UAID, 1_700_000_000_000),
    Reply(6, 503),
    Prove(b"p" * 32),
]


class TestFrames:
    @pytest.mark.parametrize("frame", FRAMES)
    def test_every_frame_comes_back_as_it_was(self, frame: Frame) -> None:
        assert decode_frame(encode_frame(frame)) == frame

    @given(st.binary(max_size=200))
    def test_noise_is_a_bad_frame(self, noise: bytes) -> None:
        try:
            frame = decode_frame(noise)
        except BadFrameError:
            return
        assert encode_frame(frame)
