"""Every answer and event of the protocol, and invalid bytes."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from waystation.client.queue.answers import (
    Answer,
    Deleted,
    End,
    Forwarded,
    Ids,
    Info,
    Link,
    Message,
    Notification,
    NotifierIds,
    Ok,
    Pong,
    Refused,
    Relayed,
    RelaySession,
    ServiceEnded,
    ServiceSubscribed,
    Subscribed,
    decode_answer,
)
from waystation.client.queue.commands import LinkData
from waystation.client.queue.encoding import BadBytesError
from waystation.client.queue.error_replies import ErrorReply
from waystation.client.queue.keys import PublicKey

RAW = b"d" * 32
DH = b"\x2c" + PublicKey("x25519", RAW).der
IDS = b"IDS \x03rid\x03sid" + DH


def ids(**more: object) -> Ids:
    return Ids(recipient_id=b"rid", sender_id=b"sid", server_dh=RAW, **more)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "data, expected",
    [
        (b"OK", Ok()),
        (b"SOK 0", Subscribed()),
        (b"SOK 1\x03svc", Subscribed(b"svc")),
        (b"SOKS " + bytes(7) + b"\x05", ServiceSubscribed(5)),
        (b"ENDS " + bytes(7) + b"\x05", ServiceEnded(5)),
        (b"MSG \x03midbody", Message(b"mid", b"body")),
        (b"NID \x03nid" + DH, NotifierIds(b"nid", RAW)),
        (b"NMSG " + b"n" * 24 + b"\x90" + b"m" * 144, Notification(b"n" * 24, b"m" * 144)),
        (b"LNK \x03sid\x00\x01f\x00\x02us", Link(b"sid", LinkData(b"f", b"us"))),
        (b'INFO {"qiSize":2}', Info({"qiSize": 2})),
        (b"END", End()),
        (b"DELD", Deleted()),
        (b"PONG", Pong()),
        (
            b"PKEY \x03ses\x00\x08\x00\x11\x02\x00\x01a\x00\x01b\x00\x03key",
            RelaySession(b"ses", 8, 17, (b"a", b"b"), b"key"),
        ),
        (b"PRES x y", Forwarded(b"x y")),
        (b"RRES x", Relayed(b"x")),
        (b"ERR AUTH", Refused(ErrorReply("AUTH"))),
    ],
)
def test_an_answer_is_understood(data: bytes, expected: Answer) -> None:
    assert decode_answer(data, 18) == expected


@pytest.mark.parametrize(
    "versions, more, expected",
    [
        ((6, 7, 8), b"", ids()),
        (range(9, 15), b"T", ids(mode="M")),
        (range(9, 15), b"F", ids(mode="C")),
        ((15,), b"1M1\x03lnk", ids(mode="M", link_id=b"lnk")),
        ((15,), b"00", ids()),
        ((16,), b"1C00", ids(mode="C")),
        ((16,), b"1C01\x03svc", ids(mode="C", service_id=b"svc")),
        ((17, 18), b"1M000", ids(mode="M")),
        (
            (17, 18),
            b"1M001\x03nid" + DH,
            ids(mode="M", notifier=NotifierIds(b"nid", RAW)),
        ),
    ],
)
def test_ids_are_decoded_by_version(versions: tuple[int, ...], more: bytes, expected: Ids) -> None:
    for version in versions:
        assert decode_answer(IDS + more, version) == expected


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"HELLO",
        b"OK ",
        b"MSG",
        b"SUB",
        IDS,
        IDS + b"1M0000",
        IDS + b"1X000",
        b"SOK 2",
        b"NMSG " + b"n" * 24 + b"\x02mm",
        b"INFO [1]",
        b"INFO nothing",
        b"PKEY \x03ses\x00\x11\x00\x08\x01\x00\x01a\x00\x03key",
        b"ERR WHATEVER",
        b"NID \x03nid\x2c" + PublicKey("ed25519", RAW).der,
    ],
)
def test_bytes_that_are_no_answer_are_refused(data: bytes) -> None:
    with pytest.raises(BadBytesError):
        decode_answer(data, 18)


@given(st.binary(max_size=200), st.integers(6, 18))
def test_hostile_bytes_are_refused_and_nothing_else_happens(data: bytes, version: int) -> None:
    tags = (b"", b"IDS ", b"MSG ", b"NID ", b"NMSG ", b"LNK ", b"INFO ", b"SOK ", b"PKEY ", b"ERR ")
    for tag in tags:
        try:
            answer = decode_answer(tag + data, version)
        except BadBytesError:
            continue
        assert answer is not None
