"""Responses of servers by version."""

import pytest

from waystation.queue.model import (
    DhKey,
    LinkData,
    LinkId,
    MessageId,
    NotifierId,
    QueueMode,
    RecipientId,
    SenderId,
    ServiceId,
    SessionId,
    VersionRange,
)
from waystation.queue.wire import fields
from waystation.queue.wire import responses as r
from waystation.queue.wire.fields import FieldError

DH_KEY = DhKey(b"d" * 32)
KEY = fields.dh_key(DH_KEY)
RECIPIENT, SENDER = RecipientId(b"rr"), SenderId(b"ss")
MODE = QueueMode.MESSAGING
NOTIFIER = r.NewNotifierIds(NotifierId(b"n"), DH_KEY)
IDS = b"IDS \x02rr\x02ss" + KEY


@pytest.mark.parametrize(
    "version, ids, end",
    [
        (6, r.Ids(RECIPIENT, SENDER, DH_KEY), b""),
        (8, r.Ids(RECIPIENT, SENDER, DH_KEY), b""),
        (9, r.Ids(RECIPIENT, SENDER, DH_KEY, MODE), b"T"),
        (14, r.Ids(RECIPIENT, SENDER, DH_KEY, QueueMode.CONTACT), b"F"),
        (15, r.Ids(RECIPIENT, SENDER, DH_KEY), b"00"),
        (15, r.Ids(RECIPIENT, SENDER, DH_KEY, MODE, LinkId(b"l")), b"1M1\x01l"),
        (16, r.Ids(RECIPIENT, SENDER, DH_KEY, MODE), b"1M00"),
        (16, r.Ids(RECIPIENT, SENDER, DH_KEY, MODE, None, ServiceId(b"v")), b"1M01\x01v"),
        (17, r.Ids(RECIPIENT, SENDER, DH_KEY, MODE), b"1M000"),
        (18, r.Ids(RECIPIENT, SENDER, DH_KEY, MODE, None, None, NOTIFIER), b"1M001\x01n" + KEY),
    ],
)
def test_the_shapes_of_ids(version: int, ids: r.Ids, end: bytes) -> None:
    assert r.encode_response(ids, version) == IDS + end
    assert r.decode_response(IDS + end, version) == ids


@pytest.mark.parametrize(
    "version, mode, end",
    [(8, MODE, b""), (14, MODE, b"T"), (14, None, b"F"), (15, MODE, b"1M0"), (18, MODE, b"1M000")],
)
def test_older_clients_get_fewer_fields_of_a_queue(
    version: int, mode: QueueMode | None, end: bytes
) -> None:
    assert r.encode_response(r.Ids(RECIPIENT, SENDER, DH_KEY, mode), version) == IDS + end


@pytest.mark.parametrize(
    "version, sok, deleted",
    [(8, b"OK", b"END"), (10, b"OK", b"DELD"), (15, b"OK", b"DELD"), (16, b"SOK 0", b"DELD")],
)
def test_older_clients_get_older_responses(version: int, sok: bytes, deleted: bytes) -> None:
    """Q-058: DELD is END below version 10; SOK is OK below version 16."""
    assert r.encode_response(r.SUBSCRIBED, version) == sok
    assert r.encode_response(r.DELETED, version) == deleted


@pytest.mark.parametrize(
    "response, data",
    [
        (r.OK, b"OK"),
        (r.PONG, b"PONG"),
        (r.END, b"END"),
        (r.DELETED, b"DELD"),
        (r.Sok(), b"SOK 0"),
        (r.Sok(ServiceId(b"v")), b"SOK 1\x01v"),
        (r.Soks(3), b"SOKS \0\0\0\0\0\0\0\x03"),
        (r.Ends(-1), b"ENDS " + b"\xff" * 8),
        (r.Msg(MessageId(b"m" * 24), b"body"), b"MSG \x18" + b"m" * 24 + b"body"),
        (r.Nid(NotifierId(b"n"), DH_KEY), b"NID \x01n" + KEY),
        (r.Nmsg(b"o" * 24, b"meta"), b"NMSG " + b"o" * 24 + b"\x04meta"),
        (r.Lnk(SENDER, LinkData(b"f", b"u")), b"LNK \x02ss\0\x01f\0\x01u"),
        (r.Info(b'{"qiSnd":true}'), b'INFO {"qiSnd":true}'),
        (
            r.Pkey(SessionId(b"sid"), VersionRange(8, 17), (b"leaf", b"ca"), b"key"),
            b"PKEY \x03sid\0\x08\0\x11\x02\0\x04leaf\0\x02ca\0\x03key",
        ),
        (r.Pres(b"layer"), b"PRES layer"),
        (r.Rres(b"layers"), b"RRES layers"),
    ],
)
def test_every_response(response: r.Response, data: bytes) -> None:
    assert r.encode_response(response, 18) == data
    assert r.decode_response(data, 18) == response


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"OK ",
        b"OKAY",
        b"SUB",
        b"MSG",
        b"MSG \x18short",
        b"NMSG " + bytes(23),
        b"SOK",
        b"SOK 2",
        b"SOKS \0",
        b"PKEY \x03sid\0\x11\0\x08\x01\0\x01c\0\x01k",
        b"PKEY \x03sid\0\x08\0\x11\0\0\x01k",
        IDS,
        IDS + b"1X000",
        IDS + b"00000",
    ],
)
def test_what_no_server_says(data: bytes) -> None:
    with pytest.raises(FieldError):
        r.decode_response(data, 18)
