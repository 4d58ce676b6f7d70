"""The hellos: their result, and what closes a connection without an answer."""

import pytest
from cryptography.hazmat.primitives.asymmetric.ed448 import Ed448PrivateKey
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from tests.unit.queue.wire.chains import NOW, SigningKey, chain
from waystation.queue.errors import BadHelloError, Broker, Code, RefusedError
from waystation.queue.model import (
    CURRENT_VERSIONS,
    LEGACY_VERSIONS,
    DhKey,
    ServiceRole,
    SessionId,
    VersionRange,
)
from waystation.queue.wire.block import (
    BLOCK_BYTES,
    ChainedBlocks,
    PlainBlocks,
    chain_keys,
    seal_plain,
)
from waystation.queue.wire.boxes import new_dh_pair
from waystation.queue.wire.certificates import fingerprint_of, leaf_key, verify_chain
from waystation.queue.wire.fields import FieldError
from waystation.queue.wire.handshake import (
    Agreement,
    ClientHello,
    ServerHandshake,
    ServerHello,
    ServiceHello,
    agreement,
    decode_client_hello,
    decode_server_hello,
    encode_client_hello,
    encode_server_hello,
    server_hello_of,
)
from waystation.queue.wire.signed_key import open_signed_key, sign_key

SESSION_ID = SessionId(b"\xaa" * 32)
CHAIN, LEAF_KEY = chain()
IDENTITY = fingerprint_of(CHAIN[1])


def greet(versions: VersionRange = CURRENT_VERSIONS) -> ServerHandshake:
    return ServerHandshake(versions=versions, session_id=SESSION_ID, chain=CHAIN, leaf_key=LEAF_KEY)


def say(hello: ClientHello, extra: bytes = b"") -> bytes:
    return seal_plain(encode_client_hello(hello) + extra)


def both_sides(
    version: int, *, with_key: bool = True, is_proxy: bool = False
) -> tuple[Agreement, Agreement]:
    """Server and client after a handshake."""
    server = greet(LEGACY_VERSIONS)
    hello = server_hello_of(server.hello())
    signed = open_signed_key(hello.signed_key, leaf_key(hello.chain))
    public, private = new_dh_pair()
    client_hello = ClientHello(version, IDENTITY, public if with_key else None, is_proxy)
    client = agreement(
        version=version,
        session_id=hello.session_id,
        own=private,
        peer=signed if with_key else None,
        is_proxy=is_proxy,
        is_server=False,
    )
    return server.accept(say(client_hello)), client


def refusal(server: ServerHandshake, block: bytes) -> Broker:
    with pytest.raises(BadHelloError) as refused:
        server.accept(block)
    return refused.value.kind


@pytest.mark.parametrize("kind", [Ed25519PrivateKey, Ed448PrivateKey])
@pytest.mark.parametrize("length", [2, 3, 4])
def test_a_hello_carries_the_session_and_the_chain(length: int, kind: type[SigningKey]) -> None:
    """Q-001, Q-002: the second certificate is the identity, whatever the length."""
    certificates, key = chain(length, kind)
    server = ServerHandshake(
        versions=CURRENT_VERSIONS, session_id=SESSION_ID, chain=certificates, leaf_key=key
    )

    block = server.hello()
    hello = server_hello_of(block)

    assert len(block) == BLOCK_BYTES
    assert hello.session_id == SESSION_ID
    assert hello.versions == VersionRange(8, 18)
    assert list(hello.chain) == certificates
    leaf = verify_chain(hello.chain, fingerprint_of(certificates[1]), NOW)
    assert len(open_signed_key(hello.signed_key, leaf)) == 32
    assert len(hello.signed_key) == (122 if kind is Ed25519PrivateKey else 173)


def test_another_servers_fingerprint_ends_the_connection() -> None:
    """Q-003"""
    assert refusal(greet(), say(ClientHello(18, b"x" * 32))) is Broker.HANDSHAKE_IDENTITY


def test_the_legacy_range_shows_no_key() -> None:
    """Q-004: what is offered where no ALPN was negotiated."""
    server = greet(VersionRange(6, 6))

    hello = server_hello_of(server.hello())

    assert hello == ServerHello(VersionRange(6, 6), SESSION_ID)
    agreed = server.accept(say(ClientHello(6, IDENTITY)))
    assert agreed.session_key is None
    assert agreed.secret is None
    assert isinstance(agreed.blocks, PlainBlocks)


@pytest.mark.parametrize("version", [0, 7, 19, 65535])
def test_a_version_that_was_not_offered_ends_the_connection(version: int) -> None:
    """Q-005"""
    assert refusal(greet(), say(ClientHello(version, IDENTITY))) is Broker.TRANSPORT_VERSION


@pytest.mark.parametrize("version", [8, 11, 14, 18])
def test_without_a_clients_key_nothing_is_encrypted(version: int) -> None:
    """Q-006"""
    server, client = both_sides(version, with_key=False)

    assert server.dialect.version == version
    assert isinstance(server.blocks, PlainBlocks)
    assert isinstance(client.blocks, PlainBlocks)
    assert server.secret is None
    assert server.session_key is not None  # authenticators need no client's key


@pytest.mark.parametrize("version", [11, 12, 14, 18])
def test_ten_blocks_each_way_keep_the_chains_in_step(version: int) -> None:
    """Q-007"""
    server, client = both_sides(version)

    assert isinstance(server.blocks, ChainedBlocks)
    for turn in range(10):
        content = bytes((turn,)) * 16366
        assert client.blocks.open(server.blocks.seal(content)) == content
        assert server.blocks.open(client.blocks.seal(b"up")) == b"up"
    assert server.secret == client.secret


def test_before_version_11_blocks_are_plain() -> None:
    server, client = both_sides(10)

    assert isinstance(server.blocks, PlainBlocks)
    assert server.secret == client.secret
    assert server.secret is not None


@pytest.mark.parametrize("version, encrypted", [(11, True), (14, False), (18, False)])
def test_a_proxy_encrypts_by_itself(version: int, encrypted: bool) -> None:
    """Q-008; below version 14 nobody can say that they are a proxy."""
    server, _ = both_sides(version, is_proxy=True)

    assert isinstance(server.blocks, ChainedBlocks) is encrypted
    assert server.is_proxy is not encrypted
    assert server.secret is not None


@pytest.mark.parametrize("version", [7, 9, 14, 15, 16, 18])
def test_what_follows_the_known_fields_is_passed_over(version: int) -> None:
    """Q-009"""
    hello = ClientHello(version, IDENTITY, new_dh_pair()[0])

    agreed = greet(LEGACY_VERSIONS).accept(say(hello, b"something of the future"))

    assert agreed.dialect.version == version
    assert decode_server_hello(encode_server_hello(SERVER_HELLO) + b"more") == SERVER_HELLO


SERVER_HELLO = ServerHello(CURRENT_VERSIONS, SESSION_ID, tuple(CHAIN), b"signed")


@pytest.mark.parametrize("bit", [0, 13, 200, 366, 400, 900])
def test_a_flipped_bit_of_the_signed_key_is_seen(bit: int) -> None:
    """Q-010"""
    public, _ = new_dh_pair()
    der = bytearray(sign_key(public, LEAF_KEY))
    der[bit // 8] ^= 1 << bit % 8

    with pytest.raises(FieldError):
        open_signed_key(bytes(der), LEAF_KEY.public_key())


def test_the_signature_covers_the_wrapper() -> None:
    """Q-010: forty-six bytes, and no more."""
    public, _ = new_dh_pair()
    der = sign_key(public, LEAF_KEY)

    LEAF_KEY.public_key().verify(der[-64:], der[2:48])
    assert der[2:6] == bytes.fromhex("302c302a")
    with pytest.raises(FieldError):
        open_signed_key(der + b"\0", LEAF_KEY.public_key())
    with pytest.raises(FieldError):
        open_signed_key(der, Ed448PrivateKey.generate().public_key())


@pytest.mark.parametrize(
    "block",
    [
        b"",
        b"\0",
        seal_plain(b""),
        seal_plain(b"\0\x12"),
        seal_plain(b"\0\x12\x20" + IDENTITY),
        seal_plain(b"\0\x12\x20" + IDENTITY + b"F"),
        seal_plain(b"\0\x12\x20" + IDENTITY + b"X0"),
        seal_plain(b"\0\x12\x20" + IDENTITY + b"F1X\0"),
        b"\xff\xff" + bytes(16382),
    ],
)
def test_what_is_no_hello(block: bytes) -> None:
    assert refusal(greet(), block) is Broker.HANDSHAKE_PARSE


def test_a_key_of_small_order_ends_the_connection() -> None:
    assert refusal(greet(), say(ClientHello(18, IDENTITY, DhKey(bytes(32))))) is (
        Broker.HANDSHAKE_BAD_AUTH
    )


def test_a_certificate_of_a_service_is_not_taken() -> None:
    """Nobody asked for one in TLS, so there is nothing that it could equal."""
    service = ServiceHello(ServiceRole.NOTIFIER, tuple(CHAIN), b"signed")
    hello = ClientHello(18, IDENTITY, None, False, service)

    assert decode_client_hello(encode_client_hello(hello)) == hello
    assert refusal(greet(), say(hello)) is Broker.HANDSHAKE_BAD_SERVICE


def test_a_block_that_does_not_open_costs_one_link_of_the_chain() -> None:
    """Q-012: the next valid block is served."""
    server, client = both_sides(18)
    broken = client.blocks.seal(b"one")

    with pytest.raises(RefusedError) as refused:
        server.blocks.open(broken[:-1] + bytes((broken[-1] ^ 1,)))

    assert refused.value.fault is Code.BLOCK
    assert server.blocks.open(client.blocks.seal(b"two")) == b"two"


def test_a_plain_block_must_be_padded() -> None:
    """Q-012"""
    for block in (b"\xff\xff" + bytes(16382), b"\x3f\xff" + bytes(16382)):
        with pytest.raises(RefusedError):
            PlainBlocks().open(block)
    assert PlainBlocks().open(b"\x3f\xfe" + bytes(16382)) == bytes(16382)


def test_the_two_ends_use_the_two_keys_crosswise() -> None:
    server, client = both_sides(18)
    assert server.secret is not None
    to_client, to_server = chain_keys(SESSION_ID, server.secret)

    assert server.blocks.seal(b"x") == ChainedBlocks(to_client, to_server).seal(b"x")
    assert client.blocks.seal(b"x") == ChainedBlocks(to_server, to_client).seal(b"x")
