"""The example of RFC 8291, foreign libraries in both directions, and invalid bodies."""

import http_ece
import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from hypothesis import given, settings
from hypothesis import strategies as st
from pywebpush import WebPusher

from waystation.client.encryption import (
    AgentKeys,
    BadKeyError,
    BadPaddingError,
    Encoding,
    EncryptionError,
    NotForUsError,
    PublicKeys,
    Sealed,
    TruncatedError,
    b64url,
    decrypt,
    encrypt,
    from_b64url,
    point_of,
)

# RFC 8291, section 5 and appendix A.
TEXT = b"When I grow up, I want to be a watermelon"
SENDER = ec.derive_private_key(
    int.from_bytes(from_b64url("yfWPiYE-n46HLnH0KqZOF1fJJU3MYrct3AELtAQ-oRw", "")),
    ec.SECP256R1(),
)
AGENT = AgentKeys(
    from_b64url("q1dXpw3UpT5VOmu_cf_v6ih07Aems3njxI-JWgLcM94", ""),
    from_b64url("BTBZMqHH6r4Tts7J_aSIgg", ""),
)
SALT = from_b64url("DGv6ra1nlYgDCS1FRnbzlw", "")
BODY = from_b64url(
    "DGv6ra1nlYgDCS1FRnbzlwAAEABBBP4z9KsN6nGRTbVYI_c7VJSPQTBtkgcy27ml"
    "mlMoZIIgDll6e3vCYLocInmYWAmS6TlzAC8wEqKK6PBru3jl7A_yl95bQpu6cVPT"
    "pK4Mqgkf1CXztLVBSt2Ks3oZwbuwXPXLWyouBWLVWGNWQexSgSxsj_Qulcy4a-fN",
    "",
)

ENCODINGS: list[Encoding] = ["aes128gcm", "aesgcm"]


def unseal(sealed: Sealed, keys: AgentKeys) -> bytes:
    return decrypt(
        sealed.body,
        keys,
        encoding=sealed.headers["Content-Encoding"],
        encryption=sealed.headers.get("Encryption", ""),
        crypto_key=sealed.headers.get("Crypto-Key", ""),
    )


def test_the_example_of_rfc_8291_is_encrypted_byte_for_byte() -> None:
    sealed = encrypt(TEXT, AGENT.public, sender=SENDER, salt=SALT)

    assert sealed.body == BODY
    assert sealed.headers == {"Content-Encoding": "aes128gcm"}


def test_the_example_of_rfc_8291_is_decrypted() -> None:
    assert decrypt(BODY, AGENT) == TEXT
    assert AGENT.public.to_json()["p256dh"].startswith("BCVxsr7N_eNgVRqvHtD0zTZsEc6")


@pytest.mark.parametrize("encoding", ENCODINGS)
@given(text=st.binary(max_size=6000), padding=st.integers(0, 300))
@settings(max_examples=40, deadline=None)
def test_what_we_encrypt_http_ece_decrypts(encoding: Encoding, text: bytes, padding: int) -> None:
    sealed = encrypt(text, AGENT.public, encoding=encoding, padding_bytes=padding)
    private = AGENT.private_key()

    if encoding == "aes128gcm":
        opened = http_ece.decrypt(sealed.body, private_key=private, auth_secret=AGENT.auth)
    else:
        salt, _, size = sealed.headers["Encryption"].removeprefix("salt=").partition(";rs=")
        opened = http_ece.decrypt(
            sealed.body,
            salt=from_b64url(salt, ""),
            private_key=private,
            dh=from_b64url(sealed.headers["Crypto-Key"].removeprefix("dh="), ""),
            auth_secret=AGENT.auth,
            rs=int(size or 4096),
            version="aesgcm",
        )
    assert opened == text


@pytest.mark.parametrize("encoding", ENCODINGS)
@given(text=st.binary(min_size=1, max_size=9000), size=st.sampled_from([25, 100, 4096]))
@settings(max_examples=40, deadline=None)
def test_what_http_ece_encrypts_we_decrypt_in_any_number_of_records(
    encoding: Encoding, text: bytes, size: int
) -> None:
    body = http_ece.encrypt(
        text,
        salt=SALT,
        private_key=SENDER,
        dh=AGENT.public.p256dh,
        auth_secret=AGENT.auth,
        rs=size,
        version=encoding,
    )

    assert (
        decrypt(
            body,
            AGENT,
            encoding=encoding,
            encryption=f'keyid=p256dh;salt="{b64url(SALT)}==";rs={size}',
            crypto_key=f"p256ecdsa=BAAA,keyid=p256dh;dh={b64url(point_of(SENDER))}",
        )
        == text
    )


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_what_pywebpush_encodes_we_decrypt(encoding: Encoding) -> None:
    info = {"endpoint": "https://push.example.org/wpush/v1/x", "keys": AGENT.public.to_json()}
    encoded = WebPusher(info).encode(TEXT, content_encoding=encoding)
    assert encoded is not None

    def parameter(name: str) -> str:
        value = encoded.get(name, b"")
        return value.decode() if isinstance(value, bytes) else str(value)

    opened = decrypt(
        encoded["body"],
        AGENT,
        encoding=encoding,
        encryption=f"salt={parameter('salt')}",
        crypto_key=f"dh={parameter('crypto_key')}",
    )
    assert opened == TEXT


@pytest.mark.parametrize("encoding", ENCODINGS)
@pytest.mark.parametrize("length", [0, 1, 3993, 4093, 4094, 4095, 4096, 5000])
def test_every_length_comes_back(encoding: Encoding, length: int) -> None:
    text = b"x" * length

    assert unseal(encrypt(text, AGENT.public, encoding=encoding), AGENT) == text


def test_an_ordinary_text_fits_into_the_body_that_every_push_service_accepts() -> None:
    """RFC 8291 section 4: 3993 bytes of text in a body of 4096."""
    assert len(encrypt(b"x" * 3993, AGENT.public).body) == 4096


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_a_body_for_another_recipient_is_not_decrypted(encoding: Encoding) -> None:
    sealed = encrypt(TEXT, AGENT.public, encoding=encoding)

    with pytest.raises(NotForUsError):
        unseal(sealed, AgentKeys.generate())


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_a_changed_byte_is_noticed(encoding: Encoding) -> None:
    sealed = encrypt(TEXT, AGENT.public, encoding=encoding)
    changed = Sealed(sealed.body[:-1] + bytes([sealed.body[-1] ^ 1]), sealed.headers)

    with pytest.raises(NotForUsError):
        unseal(changed, AGENT)


@pytest.mark.parametrize("length", [0, 10, 20, 21, 60, 85, 86, 102])
def test_a_truncated_aes128gcm_body_says_so(length: int) -> None:
    with pytest.raises(TruncatedError):
        decrypt(BODY[:length], AGENT)


def test_an_aesgcm_body_that_ends_with_a_full_record_is_truncated() -> None:
    with pytest.raises(TruncatedError):
        decrypt(
            bytes(50 + 16),
            AGENT,
            encoding="aesgcm",
            encryption=f"salt={b64url(SALT)};rs=50",
            crypto_key=f"dh={b64url(point_of(SENDER))}",
        )


@pytest.mark.parametrize("record", [b"text\x01", b"text\x03\x00", bytes(8), b"text"])
def test_a_wrong_delimiter_is_named(record: bytes) -> None:
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

    from waystation.client import encryption

    point = point_of(SENDER)
    shared = SENDER.exchange(ec.ECDH(), AGENT.private_key().public_key())
    cek, nonce = encryption._derive_aes128gcm(shared, AGENT.auth, SALT, AGENT.public.p256dh, point)
    body = (
        SALT + (4096).to_bytes(4) + bytes([65]) + point + AESGCM(cek).encrypt(nonce, record, None)
    )

    with pytest.raises(BadPaddingError):
        decrypt(body, AGENT)


@pytest.mark.parametrize("record", [b"\x00", b"\x00\x05abc", b"\x00\x01\x01text", b""])
def test_wrong_padding_of_aesgcm_is_named(record: bytes) -> None:
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

    from waystation.client import encryption

    point = point_of(SENDER)
    shared = SENDER.exchange(ec.ECDH(), AGENT.private_key().public_key())
    cek, nonce = encryption._derive_aesgcm(shared, AGENT.auth, SALT, AGENT.public.p256dh, point)

    with pytest.raises((BadPaddingError, TruncatedError)):
        decrypt(
            AESGCM(cek).encrypt(nonce, record, None),
            AGENT,
            encoding="aesgcm",
            encryption=f"salt={b64url(SALT)}",
            crypto_key=f"dh={b64url(point)}",
        )


@pytest.mark.parametrize(
    "changes, message",
    [
        ({"encryption": "salt=AAAA"}, "salt has 3 bytes"),
        ({"encryption": "salt=!!!"}, "salt is not base64url"),
        ({"encryption": ""}, "no salt in Encryption"),
        ({"encryption": f"salt={b64url(SALT)};rs=x"}, "record size"),
        ({"encryption": f"salt={b64url(SALT)};rs=2"}, "record size"),
        ({"crypto_key": ""}, "no dh in Crypto-Key"),
        ({"crypto_key": "dh=AAAA"}, "dh has 3 bytes"),
        ({"crypto_key": f"dh={b64url(bytes([4]) + bytes(64))}"}, "not a point"),
        ({"encoding": "aesgcm128"}, "neither aes128gcm nor aesgcm"),
    ],
)
def test_wrong_headers_are_named(changes: dict[str, str], message: str) -> None:
    sealed = encrypt(TEXT, AGENT.public, encoding="aesgcm")
    good = {
        "encoding": "aesgcm",
        "encryption": sealed.headers["Encryption"],
        "crypto_key": sealed.headers["Crypto-Key"],
    }

    with pytest.raises(EncryptionError, match=message):
        decrypt(sealed.body, AGENT, **(good | changes))


def test_an_impossible_record_size_is_named() -> None:
    with pytest.raises(EncryptionError, match="record size 17"):
        decrypt(BODY[:16] + (17).to_bytes(4) + BODY[20:], AGENT)


def test_keys_of_the_wrong_length_are_refused() -> None:
    with pytest.raises(BadKeyError, match="64 bytes"):
        PublicKeys(bytes(64), bytes(16))
    with pytest.raises(BadKeyError, match="15 bytes"):
        PublicKeys(bytes(65), bytes(15))
    with pytest.raises(BadKeyError, match="31 bytes"):
        AgentKeys(bytes(31), bytes(16))
    with pytest.raises(BadKeyError, match="scalar"):
        _ = AgentKeys(bytes(32), bytes(16)).public
    with pytest.raises(BadKeyError, match="not a point"):
        encrypt(TEXT, PublicKeys(b"\x04" + bytes(64), bytes(16)))


def test_keys_are_written_as_json_and_as_one_string() -> None:
    keys = AgentKeys.generate().public

    assert PublicKeys.from_json(keys.to_json()) == keys
    assert PublicKeys.from_compact(keys.to_compact()) == keys
    padded = {"p256dh": keys.to_json()["p256dh"] + "=", "auth": keys.to_json()["auth"] + "=="}
    assert PublicKeys.from_json(padded) == keys


@pytest.mark.parametrize("word", ["", "abc", "abc.!", "a+/.b"])
def test_a_string_that_is_no_pair_of_keys_is_refused(word: str) -> None:
    with pytest.raises(BadKeyError):
        PublicKeys.from_compact(word)
    with pytest.raises(BadKeyError, match="without auth"):
        PublicKeys.from_json({"p256dh": "x"})
