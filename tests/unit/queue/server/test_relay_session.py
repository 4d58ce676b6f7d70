"""A proxy's session with a relay, and the relays that it refuses."""

import datetime as dt

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from tests.unit.queue.wire.chains import NOW, chain
from waystation.queue.errors import (
    BadHelloError,
    Broker,
    BrokerFault,
    Code,
    RefusedError,
    RelayFault,
)
from waystation.queue.model import (
    CURRENT_VERSIONS,
    CorrId,
    DhKey,
    Fingerprint,
    SessionId,
    VersionRange,
)
from waystation.queue.server.relay_session import RelaySession
from waystation.queue.wire.block import PlainBlocks, seal_plain
from waystation.queue.wire.boxes import agree, box_key, new_dh_pair
from waystation.queue.wire.certificates import fingerprint_of, leaf_key
from waystation.queue.wire.commands import Rfwd
from waystation.queue.wire.forwarding import (
    Forwarded,
    open_forwarded,
    open_inner_answer,
    seal_answer,
    seal_inner,
)
from waystation.queue.wire.handshake import (
    Agreement,
    ServerHandshake,
    ServerHello,
    encode_server_hello,
)
from waystation.queue.wire.responses import (
    OK,
    Err,
    Pres,
    Response,
    Rres,
    encode_response,
)
from waystation.queue.wire.signed_key import open_signed_key, sign_key
from waystation.queue.wire.transmission import (
    Transmission,
    decode_batch,
    encode_answer,
    join_batch,
)

SESSION_ID = SessionId(b"\xaa" * 32)
CHAIN, LEAF_KEY = chain()
IDENTITY = fingerprint_of(CHAIN[1])
CORR_ID = CorrId(b"N" * 24)


class Relay:
    """The other side: a server's handshake, and whatever answers a test wants."""

    def __init__(self, versions: VersionRange = CURRENT_VERSIONS) -> None:
        self.handshake = ServerHandshake(
            versions=versions, session_id=SESSION_ID, chain=CHAIN, leaf_key=LEAF_KEY
        )
        self.agreed: Agreement | None = None

    def meet(self, session: RelaySession) -> "Relay":
        hello = greet(session, self.handshake.hello())
        self.agreed = self.handshake.accept(hello)
        return self

    def read(self, block: bytes) -> Transmission:
        assert self.agreed is not None
        (received,) = decode_batch(self.agreed.blocks.open(block), self.agreed.dialect)
        assert isinstance(received, Transmission)
        return received

    def say(self, *answers: tuple[bytes, Response]) -> bytes:
        assert self.agreed is not None
        dialect = self.agreed.dialect
        items = [
            encode_answer(corr_id, b"", encode_response(response, dialect.version), dialect)
            for corr_id, response in answers
        ]
        return self.agreed.blocks.seal(join_batch(items))


def greet(
    session: RelaySession,
    block: bytes,
    *,
    expected: Fingerprint = IDENTITY,
    session_id: SessionId = SESSION_ID,
    leaf: bytes = CHAIN[0],
    now: dt.datetime = NOW,
) -> bytes:
    return session.greet(block, expected=expected, session_id=session_id, leaf=leaf, now=now)


class Sender:
    """A client behind the proxy, with its layer around one command."""

    def __init__(self, session: RelaySession, content: bytes = b"\x01\0\x04PING") -> None:
        pkey = session.pkey
        assert pkey is not None
        relay_key = open_signed_key(pkey.signed_key, leaf_key(pkey.chain))
        public, private = new_dh_pair()
        self.key = agree(relay_key, private)
        self.forwarded = Forwarded(CORR_ID, 17, public, seal_inner(self.key, CORR_ID, content))


@pytest.fixture
def session() -> RelaySession:
    return RelaySession()


@pytest.mark.parametrize(
    "relay, agreed, shown",
    [
        (VersionRange(8, 18), 18, VersionRange(8, 17)),
        (VersionRange(6, 18), 18, VersionRange(8, 17)),
        (VersionRange(8, 14), 14, VersionRange(8, 14)),
        (VersionRange(8, 13), 10, VersionRange(8, 13)),
        (VersionRange(8, 11), 10, VersionRange(8, 11)),
        (VersionRange(6, 8), 8, VersionRange(8, 8)),
        (VersionRange(9, 25), 18, VersionRange(9, 17)),
    ],
)
def test_which_version_is_spoken_and_which_are_shown(
    session: RelaySession, relay: VersionRange, agreed: int, shown: VersionRange
) -> None:
    """Q-101: relays whose highest is 11 to 13 are asked for 10. Q-094: within 8..17."""
    met = Relay(relay).meet(session)

    assert met.agreed is not None
    assert met.agreed.dialect.version == agreed
    assert isinstance(met.agreed.blocks, PlainBlocks)  # never encrypted twice
    assert session.pkey is not None
    assert session.pkey.versions == shown
    assert fingerprint_of(session.pkey.chain[1]) == IDENTITY


@pytest.mark.parametrize(
    "versions", [VersionRange(6, 6), VersionRange(6, 7), VersionRange(11, 13), VersionRange(19, 20)]
)
def test_a_relay_without_a_common_version(session: RelaySession, versions: VersionRange) -> None:
    """Q-101"""
    with pytest.raises(BadHelloError) as refused:
        Relay(versions).meet(session)

    assert refused.value.kind is Broker.TRANSPORT_VERSION
    assert session.pkey is None


def test_a_relay_that_is_not_the_one_that_was_asked_for(session: RelaySession) -> None:
    hello = Relay().handshake.hello()
    signed = sign_key(DhKey(b"k" * 32), Ed25519PrivateKey.generate())
    forged = ServerHello(CURRENT_VERSIONS, SESSION_ID, tuple(CHAIN), signed)
    cases = [
        ({"expected": Fingerprint(b"x" * 32)}, hello, Broker.HANDSHAKE_IDENTITY),
        ({"leaf": CHAIN[1]}, hello, Broker.HANDSHAKE_IDENTITY),
        ({"now": NOW + dt.timedelta(days=9)}, hello, Broker.HANDSHAKE_IDENTITY),
        ({"session_id": SessionId(b"\xbb" * 32)}, hello, Broker.TRANSPORT_SESSION),
        ({}, seal_plain(encode_server_hello(forged)), Broker.HANDSHAKE_BAD_AUTH),
        ({}, seal_plain(b"hello"), Broker.HANDSHAKE_PARSE),
    ]
    for changed, block, kind in cases:
        with pytest.raises(BadHelloError) as refused:
            greet(session, block, **changed)
        assert refused.value.kind is kind


def test_a_command_goes_to_the_relay_and_its_answer_comes_back(session: RelaySession) -> None:
    """Q-095"""
    relay = Relay().meet(session)
    sender = Sender(session)

    corr_id, block = session.forward(sender.forwarded)
    received = relay.read(block)
    assert relay.agreed is not None
    assert relay.agreed.secret is not None
    assert relay.agreed.session_key is not None
    assert isinstance(received.command, Rfwd)
    key = box_key(relay.agreed.secret)
    inner = open_forwarded(
        key, received.corr_id, received.command.encrypted, relay.agreed.session_key
    )
    answer = Rres(seal_answer(key, received.corr_id, inner, b"\x01\0\x04PONG"))
    ((named, response),) = session.receive(relay.say((received.corr_id, answer)))

    assert inner.transmission == b"PING"
    assert named == corr_id == received.corr_id
    assert isinstance(response, Pres)
    assert open_inner_answer(sender.key, CORR_ID, response.encrypted) == b"\x01\0\x04PONG"


@pytest.mark.parametrize(
    "said, told",
    [
        (Err(Code.CRYPTO), RelayFault(Code.CRYPTO)),
        (Err(Code.BLOCK), RelayFault(Code.BLOCK)),
        (
            Err(BrokerFault(Broker.TRANSPORT_NO_AUTH)),
            RelayFault(BrokerFault(Broker.TRANSPORT_NO_AUTH)),
        ),
        (OK, BrokerFault(Broker.UNEXPECTED, b"OK")),
        (Rres(b"x" * 100), BrokerFault(Broker.RESPONSE, b"box does not decrypt")),
    ],
)
def test_the_fault_that_a_client_gets_for_a_relays_fault(
    session: RelaySession, said: Response, told: object
) -> None:
    """Q-098"""
    relay = Relay().meet(session)
    corr_id, _ = session.forward(Sender(session).forwarded)

    assert session.receive(relay.say((corr_id, said))) == [(corr_id, Err(told))]  # pyright: ignore[reportArgumentType]


def test_answers_that_fit_nothing_are_passed_over(session: RelaySession) -> None:
    relay = Relay().meet(session)
    corr_id, _ = session.forward(Sender(session).forwarded)
    error = Err(Code.AUTH)

    assert session.receive(relay.say((b"", error), (b"another", error))) == []
    assert session.receive(b"\xff" * 16384) == []
    assert session.receive(seal_plain(b"\0")) == []
    assert session.receive(seal_plain(b"\x01\0\x01\xff")) == []
    session.forget(corr_id)
    assert session.receive(relay.say((corr_id, error))) == []


def test_two_answers_in_one_block(session: RelaySession) -> None:
    relay = Relay().meet(session)
    first, _ = session.forward(Sender(session).forwarded)
    second, _ = session.forward(Sender(session).forwarded)

    answers = session.receive(relay.say((second, Err(Code.CRYPTO)), (first, Err(Code.BLOCK))))

    assert [corr_id for corr_id, _ in answers] == [second, first]


def test_the_longest_layer_fits_and_a_longer_one_is_refused(session: RelaySession) -> None:
    Relay().meet(session)
    forwarded = Sender(session, bytes(16224)).forwarded
    too_long = Forwarded(CORR_ID, 17, forwarded.key, forwarded.encrypted + bytes(100))

    assert len(session.forward(forwarded)[1]) == 16384
    with pytest.raises(RefusedError) as refused:
        session.forward(too_long)
    assert refused.value.fault == BrokerFault(Broker.TRANSPORT_LARGE_MSG)
