"""The encoding of every command in every version."""

import pytest

from waystation.client.queue.commands import (
    Ack,
    Command,
    Delete,
    DeleteLink,
    DeleteNotifier,
    Forward,
    Get,
    GetLink,
    Inspect,
    Key,
    LinkData,
    New,
    NewLink,
    NewNotifier,
    NotifierKey,
    NotifierSub,
    Off,
    OpenRelay,
    Ping,
    RecipientKeys,
    Relay,
    SecureByLink,
    Send,
    SenderKey,
    SetLink,
    Sub,
    encode_command,
    message_bytes_max,
)
from waystation.client.queue.encoding import BadBytesError
from waystation.client.queue.keys import PublicKey

KEY = PublicKey("ed25519", b"k" * 32)
DH = PublicKey("x25519", b"d" * 32)
ED = b"\x2c" + KEY.der
XD = b"\x2c" + DH.der
DATA = LinkData(b"fixed", b"user")
LARGE = b"\x00\x05fixed\x00\x04user"
LINK = NewLink(b"SSS", DATA, b"LLL")
NEW = New(recipient_key=KEY, dh=DH)
PASSWORD = New(recipient_key=KEY, dh=DH, password=b"pw", subscribe=False, mode="C")
LINKED = New(recipient_key=KEY, dh=DH, link=LINK)
CONTACT = New(recipient_key=KEY, dh=DH, mode="C", link=LINK)
NOTIFIED = New(recipient_key=KEY, dh=DH, notifier=NewNotifier(KEY, DH))
PLAIN = New(recipient_key=KEY, dh=DH, mode=None)


@pytest.mark.parametrize(
    "command, expected",
    [
        (Sub(), b"SUB"),
        (Key(KEY), b"KEY " + ED),
        (RecipientKeys((KEY, DH)), b"RKEY \x02" + ED + XD),
        (SetLink(b"LLL", DATA), b"LSET \x03LLL" + LARGE),
        (DeleteLink(), b"LDEL"),
        (NotifierKey(KEY, DH), b"NKEY " + ED + XD),
        (DeleteNotifier(), b"NDEL"),
        (Get(), b"GET"),
        (Ack(b"mid"), b"ACK \x03mid"),
        (Off(), b"OFF"),
        (Delete(), b"DEL"),
        (Inspect(), b"QUE"),
        (SenderKey(KEY), b"SKEY " + ED),
        (Send(b"a b"), b"SEND F a b"),
        (Send(b"", notify=True), b"SEND T "),
        (SecureByLink(KEY), b"LKEY " + ED),
        (GetLink(), b"LGET"),
        (NotifierSub(), b"NSUB"),
        (Ping(), b"PING"),
        (
            OpenRelay(("a.example", "b"), "5223", b"f" * 32),
            b"PRXY \x02\x09a.example\x01b\x045223\x20" + b"f" * 32 + b"0",
        ),
        (
            OpenRelay(("a",), "", b"f" * 32, b"pw"),
            b"PRXY \x01\x01a\x00\x20" + b"f" * 32 + b"1\x02pw",
        ),
        (Forward(17, DH, b"sealed"), b"PFWD \x00\x11" + XD + b"sealed"),
        (Relay(b"sealed"), b"RFWD sealed"),
    ],
)
@pytest.mark.parametrize("version", [8, 18])
def test_a_command_has_the_same_shape_in_all_versions(
    command: Command, expected: bytes, version: int
) -> None:
    assert encode_command(command, version) == expected


@pytest.mark.parametrize(
    "new, versions, expected",
    [
        (NEW, (6, 7, 8), ED + XD + b"S"),
        (PASSWORD, (6, 7, 8), ED + XD + b"A\x02pwC"),
        (NEW, range(9, 15), ED + XD + b"0ST"),
        (PASSWORD, range(9, 15), ED + XD + b"1\x02pwCF"),
        (NEW, (15, 16), ED + XD + b"0S1M0"),
        (PASSWORD, (15, 16), ED + XD + b"1\x02pwC1C0"),
        (PLAIN, (15, 16), ED + XD + b"0S0"),
        (LINKED, (15, 16), ED + XD + b"0S1M1\x03SSS" + LARGE),
        (CONTACT, (15, 16), ED + XD + b"0S1C1\x03LLL\x03SSS" + LARGE),
        (NEW, (17, 18), ED + XD + b"0S1M00"),
        (LINKED, (17, 18), ED + XD + b"0S1M1\x03SSS" + LARGE + b"0"),
        (NOTIFIED, (17, 18), ED + XD + b"0S1M01" + ED + XD),
    ],
)
def test_a_new_queue_is_asked_for_in_the_shape_of_the_version(
    new: New, versions: tuple[int, ...], expected: bytes
) -> None:
    for version in versions:
        assert encode_command(new, version) == b"NEW " + expected


def test_what_a_version_cannot_say_is_refused() -> None:
    with pytest.raises(BadBytesError, match="version 15"):
        encode_command(LINKED, 14)
    with pytest.raises(BadBytesError, match="version 17"):
        encode_command(NOTIFIED, 16)


def test_the_longest_body_depends_on_the_version() -> None:
    longest = {version: message_bytes_max(version) for version in range(6, 19)}

    assert {longest[6], longest[7]} == {16_088}
    assert {longest[8], longest[10]} == {16_064}
    assert {longest[11], longest[18]} == {16_048}
