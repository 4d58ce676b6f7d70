"""Commands of clients, and the faults that answer invalid ones."""

import pytest

from waystation.queue.errors import Code, RefusedError
from waystation.queue.model import (
    AuthKey,
    CorrId,
    DhKey,
    EntityId,
    Fingerprint,
    KeyKind,
    LinkData,
    LinkId,
    MessageId,
    QueueMode,
    SenderId,
    SessionId,
    SubMode,
)
from waystation.queue.wire import commands as c
from waystation.queue.wire import fields
from waystation.queue.wire.transmission import (
    Dialect,
    Refusal,
    Transmission,
    decode_transmission,
    encode_transmission,
)

DIALECT = Dialect(18, SessionId(b"\xaa" * 32))
CORR_ID = CorrId(b"abcdabcdabcdabcdabcdabcd")
ENTITY_ID = EntityId(b"12345678")
SIGNATURE = b"s" * 64
ED25519 = AuthKey(KeyKind.ED25519, b"k" * 32)
ED448 = AuthKey(KeyKind.ED448, b"q" * 57)
X25519 = AuthKey(KeyKind.X25519, b"x" * 32)
DH_KEY = DhKey(b"d" * 32)
X448_SPKI = bytes.fromhex("3042300506032b656f033900") + b"y" * 56
KEY = fields.auth_key(ED25519)
NEW_18 = b"NEW " + KEY + fields.dh_key(DH_KEY) + b"0S00"


def answer(
    command: bytes, *, proof: bytes = SIGNATURE, entity_id: bytes = ENTITY_ID
) -> Code | Transmission:
    """The fault that the command gets before anything is looked up, or the command itself."""
    data = encode_transmission(CORR_ID, entity_id, command, DIALECT, proof)
    received = decode_transmission(data, DIALECT)
    if isinstance(received, Transmission):
        return received
    assert (received.corr_id, received.entity_id) == (CORR_ID, entity_id)
    assert isinstance(received.fault, Code)
    return received.fault


def assert_understood(command: bytes, entity_id: bytes = ENTITY_ID) -> None:
    assert isinstance(answer(command, entity_id=entity_id), Transmission)


def test_an_unknown_command() -> None:
    """Q-020"""
    assert answer(b"HELLO") is Code.CMD_UNKNOWN
    assert answer(b"HELLO world") is Code.CMD_UNKNOWN
    assert answer(b"") is Code.CMD_UNKNOWN
    assert answer(b" SUB") is Code.CMD_UNKNOWN
    assert answer(b"sub") is Code.CMD_UNKNOWN


def test_new_without_parameters() -> None:
    """Q-021"""
    assert answer(b"NEW", entity_id=b"") is Code.CMD_SYNTAX
    assert answer(b"NEW ", entity_id=b"") is Code.CMD_SYNTAX


def test_new_with_a_malformed_first_parameter() -> None:
    """Q-022"""
    assert answer(b"NEW 1" + NEW_18[4:], entity_id=b"") is Code.CMD_SYNTAX
    assert answer(NEW_18 + b"0", entity_id=b"") is Code.CMD_SYNTAX


def test_new_without_a_signature() -> None:
    """Q-023"""
    assert_understood(NEW_18, b"")
    assert answer(NEW_18, proof=b"", entity_id=b"") is Code.CMD_NO_AUTH


def test_new_with_an_entity() -> None:
    """Q-024"""
    assert answer(NEW_18) is Code.CMD_HAS_AUTH


def test_key_with_the_right_syntax_goes_on_to_the_queue() -> None:
    """Q-025: whether there is such a queue is not for the syntax to say."""
    assert_understood(b"KEY " + KEY)


@pytest.mark.parametrize("command", [b"KEY", b"KEY ", b"KEY 1" + KEY, b"KEY " + KEY + b"#"])
def test_key_without_a_proper_key(command: bytes) -> None:
    """Q-026"""
    assert answer(command) is Code.CMD_SYNTAX


@pytest.mark.parametrize(
    "command", [b"KEY " + KEY, b"SUB", b"OFF", b"DEL", b"GET", b"QUE", b"NSUB", b"ACK \0", b"SUBS"]
)
def test_commands_that_need_signature_and_entity(command: bytes) -> None:
    """Q-027, Q-028, Q-030, Q-032: without either it is NO_AUTH; with both it goes on."""
    assert_understood(command)
    assert answer(command, proof=b"") is Code.CMD_NO_AUTH
    assert answer(command, entity_id=b"") is Code.CMD_NO_AUTH
    assert answer(command, proof=b"", entity_id=b"") is Code.CMD_NO_AUTH


@pytest.mark.parametrize("word", [b"SUB", b"OFF", b"DEL"])
def test_bytes_after_a_command_without_parameters(word: bytes) -> None:
    """Q-029"""
    assert answer(word + b"=") is Code.CMD_UNKNOWN
    assert answer(word + b" ") is Code.CMD_SYNTAX
    assert answer(word + b" x") is Code.CMD_SYNTAX


def test_send() -> None:
    """Q-031"""
    assert_understood(b"SEND F hello")
    assert answer(b"SEND") is Code.CMD_SYNTAX
    assert answer(b"SEND ") is Code.CMD_SYNTAX
    assert answer(b"SEND F") is Code.CMD_SYNTAX
    assert answer(b"SEND  hello") is Code.CMD_SYNTAX
    assert answer(b"SEND X hello") is Code.CMD_SYNTAX
    assert answer(b"SEND F hello", entity_id=b"") is Code.CMD_NO_ENTITY
    assert isinstance(answer(b"SEND F hello", proof=b""), Transmission)


@pytest.mark.parametrize(
    "text, command",
    [
        (b"SEND T hello", c.Send(True, b"hello")),
        (b"SEND F  two", c.Send(False, b" two")),
        (b"SEND T ", c.Send(True, b"")),
        (b"SEND Tfuture body", c.Send(True, b"body")),
    ],
)
def test_the_flags_of_send_leave_room_for_later(text: bytes, command: c.Send) -> None:
    """One letter counts; up to six more belong to versions that do not exist yet."""
    assert c.decode_command(text, 18) == command
    assert answer(b"SEND Tfutures body") is Code.CMD_SYNTAX


def test_ack() -> None:
    """Q-032"""
    assert_understood(b"ACK \x04abcd")
    assert answer(b"ACK") is Code.CMD_SYNTAX
    assert answer(b"ACK abcd") is Code.CMD_SYNTAX
    assert answer(b"ACK \x04abcde") is Code.CMD_SYNTAX


@pytest.mark.parametrize(
    "word", [b"OK", b"MSG x", b"IDS x", b"ERR AUTH", b"PONG", b"END", b"DELD", b"SOK 0", b"INFO {}"]
)
def test_tags_of_responses_are_unknown_commands(word: bytes) -> None:
    """Q-033"""
    assert answer(word) is Code.CMD_UNKNOWN


def test_keys_of_the_wrong_kind() -> None:
    """Q-034"""
    assert answer(b"KEY " + fields.short(X448_SPKI)) is Code.CMD_SYNTAX
    assert answer(b"NKEY " + KEY + KEY) is Code.CMD_SYNTAX
    assert answer(b"NEW " + KEY + KEY + b"0S00", entity_id=b"") is Code.CMD_SYNTAX
    assert answer(b"KEY " + fields.short(fields.to_spki(ED25519)[:-1])) is Code.CMD_SYNTAX
    for key in (ED25519, ED448, X25519):
        assert_understood(b"KEY " + fields.auth_key(key))


def test_syntax_errors_echo_both_ids() -> None:
    """Q-035"""
    data = encode_transmission(CORR_ID, ENTITY_ID, b"HELLO", DIALECT, SIGNATURE)

    assert decode_transmission(data, DIALECT) == Refusal(CORR_ID, ENTITY_ID, Code.CMD_UNKNOWN)


def test_ping_stands_alone() -> None:
    """Q-017"""
    assert isinstance(answer(b"PING", proof=b"", entity_id=b""), Transmission)
    assert answer(b"PING", entity_id=b"") is Code.CMD_HAS_AUTH
    assert answer(b"PING", proof=b"") is Code.CMD_HAS_AUTH


def test_a_link_is_read_without_signature() -> None:
    """Q-089: the signed one is HAS_AUTH. Q-087: LKEY is the other way round."""
    assert isinstance(answer(b"LGET", proof=b""), Transmission)
    assert answer(b"LGET") is Code.CMD_HAS_AUTH
    assert answer(b"LGET", proof=b"", entity_id=b"") is Code.CMD_NO_ENTITY
    assert answer(b"LKEY " + KEY, proof=b"") is Code.CMD_NO_AUTH


def test_tags_are_understood_at_every_version() -> None:
    assert c.decode_command(b"LGET", 9) == c.Lget()
    assert c.decode_command(b"SKEY " + KEY, 8) == c.Skey(ED25519)


LINK = LinkData(b"fixed", b"user")
NEW = c.New(ED25519, DH_KEY)
SHAPES = [
    (6, c.New(ED25519, DH_KEY, None, SubMode.CREATE), b"C"),
    (8, c.New(ED25519, DH_KEY, b"pw", SubMode.SUBSCRIBE), b"A\x02pwS"),
    (9, c.New(ED25519, DH_KEY, None, SubMode.SUBSCRIBE, QueueMode.MESSAGING), b"0ST"),
    (14, c.New(ED25519, DH_KEY, b"pw", SubMode.CREATE, QueueMode.CONTACT), b"1\x02pwCF"),
    (15, NEW, b"0S0"),
    (16, c.New(ED25519, DH_KEY, mode=QueueMode.MESSAGING), b"0S1M0"),
    (
        16,
        c.New(ED25519, DH_KEY, mode=QueueMode.MESSAGING, link=c.NewLink(SenderId(b"s"), LINK)),
        b"0S1M1\x01s\0\x05fixed\0\x04user",
    ),
    (
        17,
        c.New(
            ED25519,
            DH_KEY,
            mode=QueueMode.CONTACT,
            link=c.NewLink(SenderId(b"s"), LINK, LinkId(b"l")),
        ),
        b"0S1C1\x01l\x01s\0\x05fixed\0\x04user0",
    ),
    (
        18,
        c.New(ED25519, DH_KEY, notifier=c.NewNotifier(X25519, DH_KEY)),
        b"0S01" + fields.auth_key(X25519) + fields.dh_key(DH_KEY),
    ),
]


@pytest.mark.parametrize("version, command, end", SHAPES)
def test_the_shapes_of_new(version: int, command: c.New, end: bytes) -> None:
    data = b"NEW " + KEY + fields.dh_key(DH_KEY) + end

    assert c.decode_command(data, version) == command
    assert c.encode_command(command, version) == data


def test_the_shapes_of_new_do_not_pass_for_each_other() -> None:
    """What a version adds is a syntax error before it, and what it needs one after."""
    for version, command, end in SHAPES:
        data = b"NEW " + KEY + fields.dh_key(DH_KEY) + end
        for other in (v for v in range(6, 19) if _family(v) != _family(version)):
            try:
                decoded = c.decode_command(data, other)
            except RefusedError:
                continue
            assert decoded != command or c.encode_command(command, other) == data


def _family(version: int) -> int:
    return sum(version >= edge for edge in (9, 15, 17))


@pytest.mark.parametrize(
    "command, data",
    [
        (c.Rkey((ED25519, ED448)), b"RKEY \x02" + KEY + fields.auth_key(ED448)),
        (c.Lset(LinkId(b"l"), LINK), b"LSET \x01l\0\x05fixed\0\x04user"),
        (c.Nkey(X25519, DH_KEY), b"NKEY " + fields.auth_key(X25519) + fields.dh_key(DH_KEY)),
        (c.Ack(MessageId(b"m" * 24)), b"ACK \x18" + b"m" * 24),
        (
            c.Prxy(c.RelayAddress((b"a.example", b"b"), b"", Fingerprint(b"f" * 32)), b"pw"),
            b"PRXY \x02\x09a.example\x01b\0\x20" + b"f" * 32 + b"1\x02pw",
        ),
        (c.Pfwd(17, DH_KEY, b"layers"), b"PFWD \0\x11" + fields.dh_key(DH_KEY) + b"layers"),
        (c.Rfwd(b"layers"), b"RFWD layers"),
        (c.Nsubs(), b"NSUBS"),
    ],
)
def test_the_other_shapes(command: c.Command, data: bytes) -> None:
    assert c.decode_command(data, 18) == command
    assert c.encode_command(command, 18) == data


@pytest.mark.parametrize(
    "data",
    [
        b"RKEY \0",
        b"PRXY \0\0\x20" + b"f" * 32 + b"0",
        b"PRXY \x01a\0\x1f" + b"f" * 31 + b"0",
        b"PRXY \x01\x01a\0\x20" + b"f" * 32 + b"2",
        b"PFWD \0",
        NEW_18[:-3] + b"X00",
        NEW_18[:-2] + b"1X00",
        b"LSET \x01l\0\x05fixed\0\x04use",
    ],
)
def test_lists_need_items_and_letters_have_meanings(data: bytes) -> None:
    with pytest.raises(RefusedError) as refused:
        c.decode_command(data, 18)

    assert refused.value.fault is Code.CMD_SYNTAX


def test_the_party_of_every_command() -> None:
    assert c.Sub.party is c.Party.RECIPIENT
    assert c.Send.party is c.Party.SENDER
    assert c.Lget.party is c.Party.LINK
    assert c.Nsub.party is c.Party.NOTIFIER
    assert c.New.party is c.Party.CREATOR
    assert c.Nsubs.party is c.Party.SERVICE
