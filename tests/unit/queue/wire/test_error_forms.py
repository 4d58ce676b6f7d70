"""The encoding of faults; old clients get one that they know."""

import pytest

from waystation.queue.errors import (
    Blocked,
    Broker,
    BrokerFault,
    Code,
    Fault,
    RelayFault,
    StoreFault,
)
from waystation.queue.model import Blocking, BlockReason, Notice
from waystation.queue.wire.error_forms import decode_fault, encode_fault
from waystation.queue.wire.fields import FieldError
from waystation.queue.wire.responses import Err, decode_response, encode_response

FORMS: list[tuple[Fault, bytes]] = [
    (Code.AUTH, b"AUTH"),
    (Code.CMD_NO_AUTH, b"CMD NO_AUTH"),
    (Code.PROXY_BASIC_AUTH, b"PROXY BASIC_AUTH"),
    (Code.PROXY_NO_SESSION, b"PROXY NO_SESSION"),
    (BrokerFault(Broker.TIMEOUT), b"PROXY BROKER TIMEOUT"),
    (BrokerFault(Broker.NETWORK), b"PROXY BROKER NETWORK"),
    (BrokerFault(Broker.TRANSPORT_VERSION), b"PROXY BROKER TRANSPORT VERSION"),
    (BrokerFault(Broker.HANDSHAKE_IDENTITY), b"PROXY BROKER TRANSPORT HANDSHAKE IDENTITY"),
    (BrokerFault(Broker.UNEXPECTED, b"what"), b"PROXY BROKER UNEXPECTED \x04what"),
    (BrokerFault(Broker.RESPONSE, b""), b"PROXY BROKER RESPONSE \0"),
    (RelayFault(Code.CRYPTO), b"PROXY PROTOCOL CRYPTO"),
    (
        RelayFault(BrokerFault(Broker.TRANSPORT_NO_AUTH)),
        b"PROXY PROTOCOL PROXY BROKER TRANSPORT NO_AUTH",
    ),
    (StoreFault("disk full – no"), "STORE disk full – no".encode()),
    (Blocked(Blocking(BlockReason.SPAM)), b"BLOCKED reason=spam"),
    (Blocked(Blocking(BlockReason.CONTENT, Notice())), b"BLOCKED reason=content,notice={}"),
    (
        Blocked(Blocking(BlockReason.CONTENT, Notice(3600))),
        b'BLOCKED reason=content,notice={"ttl":3600}',
    ),
]


@pytest.mark.parametrize("fault, form", FORMS, ids=[form.decode() for _, form in FORMS])
def test_every_fault_has_its_form(fault: Fault, form: bytes) -> None:
    assert encode_fault(fault, 18) == form
    assert decode_fault(form) == fault
    assert decode_response(b"ERR " + form, 18) == Err(fault)


@pytest.mark.parametrize("kind", [*Code, *Broker])
def test_no_fault_is_without_a_form(kind: Code | Broker) -> None:
    fault = kind if isinstance(kind, Code) else BrokerFault(kind)

    assert decode_fault(encode_fault(fault, 18)) == fault


@pytest.mark.parametrize(
    "version, form",
    [
        (8, b"ERR AUTH"),
        (11, b"ERR AUTH"),
        (12, b"ERR BLOCKED reason=spam"),
        (17, b"ERR BLOCKED reason=spam"),
        (18, b'ERR BLOCKED reason=spam,notice={"ttl":60}'),
    ],
)
def test_old_clients_do_not_see_a_notice_or_the_blocking(version: int, form: bytes) -> None:
    """Q-109"""
    blocked = Err(Blocked(Blocking(BlockReason.SPAM, Notice(60))))

    assert encode_response(blocked, version) == form


@pytest.mark.parametrize(
    "form",
    [
        b"",
        b"auth",
        b"AUTH ",
        b"CMD",
        b"CMD NEVER",
        b"PROXY",
        b"PROXY BROKER",
        b"PROXY BROKER TRANSPORT",
        b"PROXY BROKER RESPONSE",
        b"PROXY BROKER RESPONSE \x05abc",
        b"PROXY BROKER NETWORK more",
        b"PROXY PROTOCOL NEVER",
        b"PROXY PROTOCOL " * 40 + b"AUTH",
        b"BLOCKED",
        b"BLOCKED spam",
        b"BLOCKED reason=taste",
        b"BLOCKED reason=spam,",
        b"BLOCKED reason=spam,notice=",
        b"BLOCKED reason=spam,notice=[]",
        b'BLOCKED reason=spam,notice={"ttl":"x"}',
        b"BLOCKED reason=\xff",
        b"STORE \xff",
    ],
)
def test_what_is_no_fault(form: bytes) -> None:
    with pytest.raises(FieldError):
        decode_fault(form)
