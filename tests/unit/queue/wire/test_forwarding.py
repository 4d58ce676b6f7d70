"""Both layers of a forwarded command, from the client to the relay and back."""

import pytest

from waystation.queue.errors import Code, RefusedError
from waystation.queue.model import BoxKey, CorrId, DhKey, SessionId
from waystation.queue.wire import forwarding
from waystation.queue.wire.boxes import agree, box_key, new_dh_pair, seal
from waystation.queue.wire.commands import Lget, New, Pfwd, Rfwd, Send, Sub, encode_command
from waystation.queue.wire.fields import FieldError, short
from waystation.queue.wire.forwarding import Forwarded
from waystation.queue.wire.transmission import (
    BATCH_BYTES_MAX,
    Dialect,
    encode_transmission,
    join_batch,
)

SESSION_ID = SessionId(b"\xaa" * 32)
SESSION: BoxKey = box_key(b"secret of proxy and relay".ljust(32))
RELAY_KEY, RELAY_PRIVATE = new_dh_pair()
CLIENT_CORR_ID, PROXY_CORR_ID = CorrId(b"N" * 23 + b"n"), CorrId(b"M" * 23 + b"m")
BODY_BYTES = 16048


class Traveller:
    """A client, the layers that it makes, and what the proxy makes of them."""

    def __init__(self, content: bytes) -> None:
        self.public, private = new_dh_pair()
        self.key = agree(RELAY_KEY, private)
        self.inner = forwarding.seal_inner(self.key, CLIENT_CORR_ID, content)
        self.forwarded = Forwarded(CLIENT_CORR_ID, 17, self.public, self.inner)
        self.outer = forwarding.seal_forwarded(SESSION, PROXY_CORR_ID, self.forwarded)

    def at_relay(self) -> forwarding.Inner:
        return forwarding.open_forwarded(SESSION, PROXY_CORR_ID, self.outer, RELAY_PRIVATE)


def send(body: bytes = b"hello", proof: bytes = b"") -> bytes:
    dialect = Dialect(17, SESSION_ID)
    return encode_transmission(b"c" * 24, b"e" * 24, b"SEND F " + body, dialect, proof)


def fault_at_relay(outer: bytes, session: BoxKey = SESSION) -> object:
    with pytest.raises(RefusedError) as refused:
        forwarding.open_forwarded(session, PROXY_CORR_ID, outer, RELAY_PRIVATE)
    return refused.value.fault


def test_there_and_back() -> None:
    """Q-095"""
    traveller = Traveller(join_batch([send()]))
    inner = traveller.at_relay()

    outer_answer = forwarding.seal_answer(SESSION, PROXY_CORR_ID, inner, b"\x01\0\x02OK")
    corr_id, answer = forwarding.open_forwarded_answer(SESSION, PROXY_CORR_ID, outer_answer)

    assert inner.transmission == send()
    assert inner.forwarded == traveller.forwarded
    assert corr_id == CLIENT_CORR_ID
    assert len(traveller.inner) == len(answer) == forwarding.INNER_ENCRYPTED_BYTES
    opened = forwarding.open_inner_answer(traveller.key, CLIENT_CORR_ID, answer)
    assert opened == b"\x01\0\x02OK"


def test_an_answer_is_sealed_with_the_reversed_nonce() -> None:
    traveller = Traveller(join_batch([send()]))

    answer = forwarding.seal_answer(SESSION, PROXY_CORR_ID, traveller.at_relay(), b"\x01\0\0")

    turned = CorrId(PROXY_CORR_ID[::-1])
    _, inner = forwarding.open_forwarded_answer(SESSION, PROXY_CORR_ID, answer)
    with pytest.raises(FieldError):
        forwarding.open_forwarded_answer(SESSION, turned, answer)
    with pytest.raises(FieldError):
        forwarding.open_inner_answer(traveller.key, CorrId(CLIENT_CORR_ID[::-1]), inner)


def test_the_longest_body_fits_both_layers() -> None:
    """Q-095: 16048 bytes with an Ed448 signature; ten bytes are left in the block of PFWD."""
    traveller = Traveller(join_batch([send(bytes(BODY_BYTES), bytes(114))]))
    command = encode_command(Pfwd(17, traveller.public, traveller.inner), 18)
    to_proxy = encode_transmission(CLIENT_CORR_ID, SESSION_ID, command, Dialect(18, SESSION_ID))
    command = encode_command(Rfwd(traveller.outer), 18)
    to_relay = encode_transmission(PROXY_CORR_ID, b"", command, Dialect(18, SESSION_ID))

    assert 2 + len(to_proxy) + 10 == BATCH_BYTES_MAX
    assert 2 + len(to_relay) <= BATCH_BYTES_MAX
    assert traveller.at_relay().transmission == send(bytes(BODY_BYTES), bytes(114))


def test_a_corrupted_layer_is_crypto() -> None:
    """Q-098"""
    traveller = Traveller(join_batch([send()]))
    outer = traveller.outer
    broken_inner = Forwarded(
        CLIENT_CORR_ID, 17, traveller.public, bytes([traveller.inner[0] ^ 1]) + traveller.inner[1:]
    )
    weak = Forwarded(CLIENT_CORR_ID, 17, DhKey(bytes(32)), traveller.inner)

    assert fault_at_relay(outer[:-1] + bytes((outer[-1] ^ 1,))) is Code.CRYPTO
    assert fault_at_relay(outer, box_key(bytes(32))) is Code.CRYPTO
    assert fault_at_relay(b"") is Code.CRYPTO
    for forwarded in (broken_inner, weak):
        sealed = forwarding.seal_forwarded(SESSION, PROXY_CORR_ID, forwarded)
        assert fault_at_relay(sealed) is Code.CRYPTO


def test_a_structure_that_no_proxy_makes_is_syntax() -> None:
    for plain in (b"", b"\x05abc", short(CLIENT_CORR_ID) + b"\0\x11\x01k"):
        assert fault_at_relay(seal(SESSION, PROXY_CORR_ID, plain)) is Code.CMD_SYNTAX


@pytest.mark.parametrize(
    "content", [b"", b"\0", join_batch([send(), send()]), join_batch([send()]) + b"more"]
)
def test_anything_but_one_transmission_is_block(content: bytes) -> None:
    """Q-098"""
    assert fault_at_relay(Traveller(content).outer) is Code.BLOCK


def test_only_commands_of_senders_and_links_are_forwarded() -> None:
    """Q-098"""
    assert forwarding.is_forwardable(Send(False, b""))
    assert forwarding.is_forwardable(Lget())
    assert not forwarding.is_forwardable(Sub())
    assert New not in forwarding.FORWARDABLE
