"""The client's checks of the server's identity."""

import hashlib

import msgspec
import pytest

from tests.unit.client.queue.certificates import NOW, SESSION_KEY, Authority
from waystation.client.queue.encoding import BadBytesError, large, short, u16
from waystation.client.queue.hello import (
    IdentityError,
    ServerHello,
    Session,
    VersionError,
    block_ends,
    check_chain,
    check_server,
    common_version,
    decode_server_hello,
    encode_client_hello,
    encode_signed_key,
    open_signed_key,
)
from waystation.client.queue.keys import PrivateKey

SESSION_ID = b"t" * 32
AUTHORITY = Authority()


def fingerprint(authority: Authority) -> bytes:
    return hashlib.sha256(authority.chain[1]).digest()


def hello(authority: Authority = AUTHORITY, **changes: object) -> ServerHello:
    made = ServerHello(8, 18, SESSION_ID, authority.chain, authority.signed_key)
    return msgspec.structs.replace(made, **changes)


def checked(said: ServerHello, authority: Authority = AUTHORITY) -> bytes:
    return check_server(
        said,
        session_id=SESSION_ID,
        leaf=authority.chain[0],
        fingerprint=fingerprint(authority),
        now=NOW,
    )


@pytest.mark.parametrize("length", [2, 3, 4])
@pytest.mark.parametrize("ed448", [False, True])
def test_a_chain_of_two_to_four_certificates_is_accepted(length: int, ed448: bool) -> None:
    authority = Authority(length, ed448=ed448)

    assert checked(hello(authority), authority) == SESSION_KEY.public.raw


def test_a_server_with_another_identity_is_refused() -> None:
    with pytest.raises(IdentityError, match="fingerprint"):
        check_chain(AUTHORITY.chain, AUTHORITY.signed_key, fingerprint=b"o" * 32, now=NOW)


def test_a_hello_of_another_tls_session_is_refused() -> None:
    with pytest.raises(IdentityError, match="another TLS session"):
        checked(hello(session_id=b"o" * 32))


def test_a_hello_with_another_leaf_than_tls_is_refused() -> None:
    other = Authority()

    with pytest.raises(IdentityError, match="not that of TLS"):
        checked(hello(other))
    with pytest.raises(IdentityError, match="not that of TLS"):
        checked(hello(chain=()))


def test_a_leaf_that_the_identity_did_not_sign_is_refused() -> None:
    other = Authority()
    chain = (other.chain[0], AUTHORITY.chain[1])

    with pytest.raises(IdentityError, match="not signed by their issuers"):
        check_chain(chain, other.signed_key, fingerprint=fingerprint(AUTHORITY), now=NOW)


@pytest.mark.parametrize("length", [1, 5])
def test_chains_of_other_lengths_are_refused(length: int) -> None:
    chain = (AUTHORITY.chain * 3)[:length]

    with pytest.raises(IdentityError, match="a chain of"):
        check_chain(chain, AUTHORITY.signed_key, fingerprint=fingerprint(AUTHORITY), now=NOW)


def test_an_identity_that_is_no_ca_is_refused() -> None:
    authority = Authority(ca=False)

    with pytest.raises(IdentityError, match="is no CA"):
        checked(hello(authority), authority)


def test_certificates_that_have_expired_are_refused() -> None:
    authority = Authority(days=30)

    with pytest.raises(IdentityError, match="expired or is not yet valid"):
        checked(hello(authority), authority)


def test_bytes_that_are_no_certificate_are_refused() -> None:
    chain = (b"leaf", AUTHORITY.chain[1])

    with pytest.raises(IdentityError):
        check_chain(chain, AUTHORITY.signed_key, fingerprint=fingerprint(AUTHORITY), now=NOW)


@pytest.mark.parametrize("kind", ["ed25519", "ed448"])
def test_a_session_key_opens_only_as_it_was_signed(kind: str) -> None:
    signer = PrivateKey.generate("ed448" if kind == "ed448" else "ed25519")
    signed = encode_signed_key(SESSION_KEY.public, signer)

    assert open_signed_key(signed, signer.public) == SESSION_KEY.public.raw
    assert len(signed) == (173 if kind == "ed448" else 122)
    for at in range(len(signed)):
        bent = signed[:at] + bytes([signed[at] ^ 1]) + signed[at + 1 :]
        with pytest.raises(BadBytesError):
            open_signed_key(bent, signer.public)


def test_a_server_hello_is_read_and_what_follows_is_left_to_later_versions() -> None:
    said = u16(8) + u16(18) + short(SESSION_ID) + b"\x02" + large(b"leaf") + large(b"ca")
    expected = ServerHello(8, 18, SESSION_ID, (b"leaf", b"ca"), b"key")

    assert decode_server_hello(said + large(b"key") + b"more") == expected
    assert decode_server_hello(u16(6) + u16(6) + short(b"s")) == ServerHello(6, 6, b"s")


def test_the_highest_common_version_is_taken() -> None:
    assert common_version(8, 18, (8, 18)) == 18
    assert common_version(6, 12, (8, 18)) == 12
    assert common_version(10, 20, (8, 18)) == 18
    with pytest.raises(VersionError, match="the server speaks versions 19–20, this client 8–18"):
        common_version(19, 20, (8, 18))


def test_a_client_hello_grows_with_the_version() -> None:
    key = SESSION_KEY.public
    print_ = b"f" * 32

    assert encode_client_hello(6, print_, key) == u16(6) + short(print_)
    assert encode_client_hello(13, print_, key) == u16(13) + short(print_) + short(key.der)
    assert encode_client_hello(14, print_, key).endswith(short(key.der) + b"F")
    assert encode_client_hello(15, print_, key, as_proxy=True).endswith(short(key.der) + b"T")
    assert encode_client_hello(16, print_, None) == u16(16) + short(print_) + b"F0"


@pytest.mark.parametrize(
    "version, keyed, as_proxy, encrypted",
    [
        *((10, True, False, False), (11, True, False, True), (18, False, False, False)),
        *((18, True, True, False), (18, True, False, True)),
    ],
)
def test_inner_encryption_is_on_from_version_11_with_a_key_and_not_for_proxies(
    version: int, keyed: bool, as_proxy: bool, encrypted: bool
) -> None:
    session = Session(version, SESSION_ID, SESSION_KEY.public.raw)
    private = PrivateKey.generate("x25519") if keyed else None
    _, writer = block_ends(session, private, as_proxy=as_proxy)

    assert (b"hello" not in writer.write(b"hello")) == encrypted
