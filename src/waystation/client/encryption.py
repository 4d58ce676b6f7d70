"""Message encryption between app server and user agent; the push service never reads it.

`aes128gcm` is RFC 8291 over RFC 8188, `aesgcm` the older draft-ietf-webpush-encryption-04 that
some senders still use. Nothing here does I/O.

Rule 1: we encrypt into a single record (RFC 8291 §4); the record size grows with the plaintext.
Rule 2: we decrypt any number of records, because senders that cut long texts exist.
Rule 3: whatever is wrong with a body or key has an error of its own; no error carries contents.
"""

import hashlib
import hmac
import secrets
from binascii import Error as Base64Error
from collections.abc import Callable, Mapping
from typing import Literal, Self

import msgspec
import pybase64
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.serialization import Encoding as KeyEncoding
from cryptography.hazmat.primitives.serialization import PublicFormat

from waystation.base.errors import RejectedError

Encoding = Literal["aes128gcm", "aesgcm"]

CURVE = ec.SECP256R1()
SALT_BYTES = 16
AUTH_BYTES = 16
POINT_BYTES = 65
TAG_BYTES = 16
RECORD_BYTES = 4096  # the record size every receiver knows (RFC 8291 §4)
RECORD_BYTES_MAX = 2**31 - 1
_HEADER_BYTES = SALT_BYTES + 4 + 1  # salt, record size, length of the key id (RFC 8188 §2.1)


class EncryptionError(RejectedError):
    """Something about a key, a body or its headers is wrong."""

    label = "encryption"


class BadKeyError(EncryptionError):
    """A key, salt or secret has the wrong length, alphabet or is no point of the curve."""

    label = "bad_key"


class TruncatedError(EncryptionError):
    """The body ends before its last record does."""

    label = "truncated"


class NotForUsError(EncryptionError):
    """Encrypted for other keys, or changed on the way."""

    label = "not_for_us"


class BadPaddingError(EncryptionError):
    """Decrypted, but delimiter or padding are not what the encoding demands."""

    label = "bad_padding"


def b64url(data: bytes) -> str:
    """Without padding, as every form of Web Push writes it."""
    return pybase64.urlsafe_b64encode(data).rstrip(b"=").decode("ascii")


def from_b64url(text: str, what: str) -> bytes:
    """Padding may be there or not; `what` names the value in the error."""
    stripped = text.strip().rstrip("=")
    if "+" in stripped or "/" in stripped:  # the other alphabet, which the decoder would let pass
        raise BadKeyError(f"{what} is not base64url")
    try:
        return pybase64.b64decode(
            stripped + "=" * (-len(stripped) % 4), altchars=b"-_", validate=True
        )
    except (Base64Error, ValueError) as exc:
        raise BadKeyError(f"{what} is not base64url") from exc


class PublicKeys(msgspec.Struct, frozen=True):
    """What a subscription tells its app server: the user agent's point and the shared secret."""

    p256dh: bytes
    auth: bytes

    def __post_init__(self) -> None:
        if len(self.p256dh) != POINT_BYTES:
            raise BadKeyError(f"p256dh has {len(self.p256dh)} bytes, an uncompressed point has 65")
        if len(self.auth) != AUTH_BYTES:
            raise BadKeyError(f"auth has {len(self.auth)} bytes instead of 16")

    @classmethod
    def from_json(cls, keys: Mapping[str, str]) -> Self:
        """From the `keys` of a browser's `PushSubscription.toJSON()`."""
        for name in ("p256dh", "auth"):
            if name not in keys:
                raise BadKeyError(f"keys without {name}")
        return cls(from_b64url(keys["p256dh"], "p256dh"), from_b64url(keys["auth"], "auth"))

    @classmethod
    def from_compact(cls, text: str) -> Self:
        """From `P256DH.AUTH`, the one-word form for command lines."""
        p256dh, dot, auth = text.partition(".")
        if not dot:
            raise BadKeyError("keys are written P256DH.AUTH")
        return cls(from_b64url(p256dh, "p256dh"), from_b64url(auth, "auth"))

    def to_json(self) -> dict[str, str]:
        return {"p256dh": b64url(self.p256dh), "auth": b64url(self.auth)}

    def to_compact(self) -> str:
        return f"{b64url(self.p256dh)}.{b64url(self.auth)}"


class AgentKeys(msgspec.Struct, frozen=True):
    """What a user agent keeps to itself for one subscription."""

    private: bytes  # the scalar, 32 bytes
    auth: bytes

    def __post_init__(self) -> None:
        if len(self.private) != 32:
            raise BadKeyError(f"private key has {len(self.private)} bytes instead of 32")
        if len(self.auth) != AUTH_BYTES:
            raise BadKeyError(f"auth has {len(self.auth)} bytes instead of 16")

    @classmethod
    def generate(cls) -> Self:
        scalar = ec.generate_private_key(CURVE).private_numbers().private_value
        return cls(scalar.to_bytes(32), secrets.token_bytes(AUTH_BYTES))

    def private_key(self) -> ec.EllipticCurvePrivateKey:
        try:
            return ec.derive_private_key(int.from_bytes(self.private), CURVE)
        except ValueError as exc:
            raise BadKeyError("private key is not a scalar of P-256") from exc

    @property
    def public(self) -> PublicKeys:
        return PublicKeys(point_of(self.private_key()), self.auth)


class Sealed(msgspec.Struct, frozen=True):
    """A body ready to be posted, and the headers that go with it."""

    body: bytes
    headers: dict[str, str]


def encrypt(
    plaintext: bytes,
    keys: PublicKeys,
    *,
    encoding: Encoding = "aes128gcm",
    padding_bytes: int = 0,
    sender: ec.EllipticCurvePrivateKey | None = None,
    salt: bytes | None = None,
) -> Sealed:
    """`sender` and `salt` are for test vectors: reusing a pair of them gives the plaintext away."""
    assert padding_bytes >= 0
    if sender is None:
        sender = ec.generate_private_key(CURVE)
    if salt is None:
        salt = secrets.token_bytes(SALT_BYTES)
    if len(salt) != SALT_BYTES:
        raise BadKeyError(f"salt has {len(salt)} bytes instead of 16")
    sender_point = point_of(sender)
    shared = sender.exchange(ec.ECDH(), _public_key(keys.p256dh, "p256dh"))
    if encoding == "aes128gcm":
        cek, nonce = _derive_aes128gcm(shared, keys.auth, salt, keys.p256dh, sender_point)
        record = plaintext + b"\x02" + bytes(padding_bytes)
        record_bytes = max(RECORD_BYTES, len(record) + TAG_BYTES)
        header = salt + record_bytes.to_bytes(4) + bytes([POINT_BYTES]) + sender_point
        return Sealed(
            header + AESGCM(cek).encrypt(nonce, record, None), {"Content-Encoding": "aes128gcm"}
        )
    cek, nonce = _derive_aesgcm(shared, keys.auth, salt, keys.p256dh, sender_point)
    if padding_bytes > 0xFFFF:
        raise BadPaddingError("aesgcm has room for 65,535 bytes of padding")
    record = padding_bytes.to_bytes(2) + bytes(padding_bytes) + plaintext
    encryption = f"salt={b64url(salt)}"
    if len(record) >= RECORD_BYTES:  # a record as long as `rs` would say that another one follows
        encryption += f";rs={len(record) + 1}"
    return Sealed(
        AESGCM(cek).encrypt(nonce, record, None),
        {
            "Content-Encoding": "aesgcm",
            "Encryption": encryption,
            "Crypto-Key": f"dh={b64url(sender_point)}",
        },
    )


def decrypt(
    body: bytes,
    keys: AgentKeys,
    *,
    encoding: str = "aes128gcm",
    encryption: str = "",
    crypto_key: str = "",
) -> bytes:
    """`encryption` and `crypto_key` are the headers of the same name, which aesgcm needs."""
    if encoding == "aes128gcm":
        return _decrypt_aes128gcm(body, keys)
    if encoding == "aesgcm":
        return _decrypt_aesgcm(body, keys, encryption, crypto_key)
    raise EncryptionError("encoding is neither aes128gcm nor aesgcm")


def point_of(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.public_key().public_bytes(KeyEncoding.X962, PublicFormat.UncompressedPoint)


def _decrypt_aes128gcm(body: bytes, keys: AgentKeys) -> bytes:
    if len(body) < _HEADER_BYTES:
        raise TruncatedError(f"{len(body)} bytes are less than the header of aes128gcm")
    salt = body[:SALT_BYTES]
    record_bytes = int.from_bytes(body[SALT_BYTES : SALT_BYTES + 4])
    key_end = _HEADER_BYTES + body[_HEADER_BYTES - 1]
    point = body[_HEADER_BYTES:key_end]
    if len(body) < key_end:
        raise TruncatedError("the body ends inside the sender's key")
    if not TAG_BYTES + 2 <= record_bytes <= RECORD_BYTES_MAX:
        raise EncryptionError(f"record size {record_bytes} is not possible")
    private = keys.private_key()
    shared = private.exchange(ec.ECDH(), _public_key(point, "the sender's key"))
    cek, nonce = _derive_aes128gcm(shared, keys.auth, salt, point_of(private), point)
    return _records(body[key_end:], cek, nonce, record_bytes, _unpad_aes128gcm)


def _unpad_aes128gcm(record: bytes, last: bool) -> bytes:
    text = record.rstrip(b"\x00")
    if not text:
        raise BadPaddingError("a record of zeros only")
    if text[-1] != (2 if last else 1):
        raise BadPaddingError("the delimiter of the last record is not 2" if last else
                              "the delimiter of a record before the last is not 1")  # fmt: skip
    return text[:-1]


def _decrypt_aesgcm(body: bytes, keys: AgentKeys, encryption: str, crypto_key: str) -> bytes:
    parameters = _parameters(encryption, "salt", "Encryption")
    salt = from_b64url(parameters["salt"], "salt")
    if len(salt) != SALT_BYTES:
        raise BadKeyError(f"salt has {len(salt)} bytes instead of 16")
    size = parameters.get("rs", str(RECORD_BYTES))
    if not size.isdecimal() or not 3 <= int(size) <= RECORD_BYTES_MAX:
        raise EncryptionError("rs in Encryption is not a possible record size")
    dh = from_b64url(_parameters(crypto_key, "dh", "Crypto-Key")["dh"], "dh")
    private = keys.private_key()
    shared = private.exchange(ec.ECDH(), _public_key(dh, "dh"))
    cek, nonce = _derive_aesgcm(shared, keys.auth, salt, point_of(private), dh)
    stride = int(size) + TAG_BYTES  # here the tag does not count into the record size
    if len(body) % stride == 0:
        raise TruncatedError("a full record is followed by nothing")
    return _records(body, cek, nonce, stride, _unpad_aesgcm)


def _unpad_aesgcm(record: bytes, last: bool) -> bytes:
    del last  # this encoding tells the last record by its length
    if len(record) < 2:
        raise BadPaddingError("no room for the length of the padding")
    end = 2 + int.from_bytes(record[:2])
    if end > len(record) or any(record[2:end]):
        raise BadPaddingError("the padding is longer than its record or not zero")
    return record[end:]


def _records(
    body: bytes, cek: bytes, nonce: bytes, stride: int, unpad: Callable[[bytes, bool], bytes]
) -> bytes:
    if not body:
        raise TruncatedError("no record")
    aead = AESGCM(cek)
    texts: list[bytes] = []
    for number, start in enumerate(range(0, len(body), stride)):
        sealed = body[start : start + stride]
        if len(sealed) < TAG_BYTES + 1:
            raise TruncatedError(f"record {number} is shorter than its tag")
        counted = nonce[:4] + (int.from_bytes(nonce[4:]) ^ number).to_bytes(8)
        try:
            record = aead.decrypt(counted, sealed, None)
        except InvalidTag as exc:
            raise NotForUsError(f"record {number} does not open with these keys") from exc
        texts.append(unpad(record, start + stride >= len(body)))
    return b"".join(texts)


def _parameters(header: str, needed: str, name: str) -> dict[str, str]:
    """The first section of a header that has `needed` (`a=1;b=2,a=3`)."""
    for section in header.split(","):
        found: dict[str, str] = {}
        for item in section.split(";"):
            key, equals, value = item.partition("=")
            if equals:
                found[key.strip().lower()] = value.strip().strip('"')
        if needed in found:
            return found
    raise BadKeyError(f"no {needed} in {name}")


def _public_key(point: bytes, what: str) -> ec.EllipticCurvePublicKey:
    if len(point) != POINT_BYTES:
        raise BadKeyError(f"{what} has {len(point)} bytes, an uncompressed point has 65")
    try:
        return ec.EllipticCurvePublicKey.from_encoded_point(CURVE, point)
    except ValueError as exc:
        raise BadKeyError(f"{what} is not a point of P-256") from exc


def _hmac(key: bytes, data: bytes) -> bytes:
    return hmac.digest(key, data, hashlib.sha256)


def _derive_aes128gcm(
    shared: bytes, auth: bytes, salt: bytes, agent_point: bytes, sender_point: bytes
) -> tuple[bytes, bytes]:
    """RFC 8291 §3.4: HKDF written out, since every output fits into one block."""
    ikm = _hmac(_hmac(auth, shared), b"WebPush: info\0" + agent_point + sender_point + b"\x01")
    prk = _hmac(salt, ikm)
    return (
        _hmac(prk, b"Content-Encoding: aes128gcm\0\x01")[:16],
        _hmac(prk, b"Content-Encoding: nonce\0\x01")[:12],
    )


def _derive_aesgcm(
    shared: bytes, auth: bytes, salt: bytes, agent_point: bytes, sender_point: bytes
) -> tuple[bytes, bytes]:
    """draft-ietf-webpush-encryption-04 §3.3 and draft-ietf-httpbis-encryption-encoding-03 §4.2."""
    ikm = _hmac(_hmac(auth, shared), b"Content-Encoding: auth\0\x01")
    prk = _hmac(salt, ikm)
    context = b"P-256\0" + b"".join(
        len(point).to_bytes(2) + point for point in (agent_point, sender_point)
    )
    return (
        _hmac(prk, b"Content-Encoding: aesgcm\0" + context + b"\x01")[:16],
        _hmac(prk, b"Content-Encoding: nonce\0" + context + b"\x01")[:12],
    )
