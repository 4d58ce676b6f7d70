"""VAPID: verifies which app server signed a request (RFC 8292 and two earlier drafts).

Rule 1: the signature is checked first, then types and presence of the claims, `exp`, and `aud`.
Rule 2: only verified tokens are cached, keyed by the exact header bytes, for at most five minutes
        and not beyond the token's `exp`, which is checked every time.
Rule 3: keys are accepted with or without padding and in both base64 alphabets, because deployed
        senders use all of these.

No I/O and no clock: `now_s` is passed with each call.
"""

from collections.abc import Mapping
from typing import Any, Final
from urllib.parse import urlsplit

import msgspec
import pybase64

from waystation.base.limits import BoundedLru
from waystation.push import p256
from waystation.push.errors import InvalidEncryptionError, VapidError
from waystation.push.wire.webpush import find_item, parse_sections

LEEWAY_S: Final = 60
LIFETIME_MAX_S: Final = 86_400
REMEMBER_S: Final = 300
KEYS_MAX: Final = 4_096  # parsed public keys in the cache

_DOT, _PLUS, _SLASH = b".+/"  # numbers: `find` with one takes a tenth of the time
_PADDINGS: Final = (b"", b"===", b"==", b"=")  # by length modulo 4; a remainder of 1 is invalid

_ALGS_MAX: Final = 64  # JOSE headers in the cache; senders' libraries produce only a few

_BAD_CLAIM: Final = (
    "Invalid VAPID token: A value in the vapid claims is either missing or incorrectly specified"
    ' (`exp` is a number of seconds, `aud` a string, such as {"aud":"https://host","exp":1700000000})'
)


class Sender(msgspec.Struct, frozen=True, gc=False):
    """An authenticated app server."""

    key_hash: bytes  # SHA-256 of the 65 bytes of its public key
    public_key: bytes
    exp_s: float
    aud: str
    draft: int  # 1: `WebPush` or `Bearer` with Crypto-Key; 2: `vapid`
    sub: str | None = None


class _Header(msgspec.Struct, frozen=True):
    alg: str


class _Claims(msgspec.Struct, frozen=True):
    exp: int | float | None = None
    aud: str | None = None
    sub: Any = None  # not validated, only counted


_header_decoder = msgspec.json.Decoder(_Header)
_claims_decoder = msgspec.json.Decoder(_Claims)
_algs: dict[bytes, str] = {}  # JOSE header -> its `alg`


class Vapid:
    """Verifies the `Authorization` header of app servers for one audience."""

    __slots__ = ("_audience", "_keys", "_verified")

    def __init__(self, audience: str, *, cache_max: int = 16_384) -> None:
        self._audience = audience
        self._keys: BoundedLru[bytes, p256.PublicKey] = BoundedLru(KEYS_MAX)
        self._verified: BoundedLru[bytes, Sender] | None = (
            BoundedLru(cache_max) if cache_max else None
        )

    def sender_of(self, headers: Mapping[bytes, bytes], now_s: float) -> Sender | None:
        """`verify` for a request with these headers; None if it is not signed."""
        authorization = headers.get(b"authorization")
        if authorization is None:
            return None
        return self.verify(authorization, headers.get(b"crypto-key"), now_s)

    def verify(self, authorization: bytes, crypto_key: bytes | None, now_s: float) -> Sender:
        """Steps 3, 4 and 5 of a POST. Raises `VapidError`, or `InvalidEncryptionError` for a bad
        Crypto-Key of a legacy scheme."""
        if self._verified is None:
            return self._verify(authorization, crypto_key, now_s)
        seen = authorization
        sender = self._verified.get(seen, now_s)
        if sender is None and authorization[:6].lower() != b"vapid ":
            # Legacy schemes have the key in another header. The line end separates the two:
            # no header contains one, so the look-up above cannot match such an entry.
            seen = authorization + b"\n" + (crypto_key or b"")
            sender = self._verified.get(seen, now_s)
        if sender is not None:
            # Cached tokens have our audience; only the time has to be checked again.
            if not now_s - LEEWAY_S <= sender.exp_s <= now_s + LIFETIME_MAX_S:
                self._check_time_and_audience(sender.exp_s, sender.aud, now_s)
            return sender
        sender = self._verify(authorization, crypto_key, now_s)
        self._verified.put(seen, sender, min(sender.exp_s + LEEWAY_S, now_s + REMEMBER_S))
        return sender

    def _verify(self, authorization: bytes, crypto_key: bytes | None, now_s: float) -> Sender:
        draft, token, key_text = read_authorization(authorization)
        if key_text is None:
            key_text = _legacy_key(crypto_key)
        public_key = self._public_key(key_text)
        claims = _verified_claims(token, public_key)
        if claims.exp is not None and claims.exp < 0:
            raise VapidError(_BAD_CLAIM)
        if claims.exp is None:
            raise VapidError("Missing required exp")
        self._check_time_and_audience(claims.exp, claims.aud, now_s)
        return Sender(
            public_key.hash,
            public_key.point,
            claims.exp,
            self._audience,  # equal to the claim; one shared object for all cached senders
            draft,
            claims.sub if isinstance(claims.sub, str) else None,
        )

    def _check_time_and_audience(self, exp_s: float, aud: str | None, now_s: float) -> None:
        if exp_s < now_s - LEEWAY_S:
            raise VapidError("The VAPID token has expired")
        if exp_s > now_s + LIFETIME_MAX_S:
            raise VapidError("The VAPID token expiration is too long")
        if aud != self._audience:
            raise VapidError("Invalid VAPID audience")

    def _public_key(self, text: bytes) -> p256.PublicKey:
        public_key = self._keys.get(text)
        if public_key is None:
            point = decode_public_key(text)
            if point is None:
                raise VapidError("Invalid VAPID public key")
            try:
                public_key = p256.PublicKey(point)
            except ValueError:
                raise VapidError("Invalid VAPID public key") from None
            self._keys.put(text, public_key)
        return public_key


def read_authorization(authorization: bytes) -> tuple[int, bytes, bytes | None]:
    """(draft, token, key). The key is None if it must be in Crypto-Key."""
    scheme, blank, rest = authorization.strip().partition(b" ")
    rest = rest.replace(b" ", b"").replace(b"\t", b"")
    if not blank or not rest:
        raise VapidError("Missing VAPID token")
    match scheme.lower():
        case b"vapid":
            parameters: dict[bytes, bytes] = {}
            for part in rest.split(b","):
                name, _, value = part.partition(b"=")
                parameters.setdefault(name.lower(), value.strip(b'"'))
            key = parameters.get(b"k")
            if not key:
                raise VapidError("Missing VAPID public key")
            token = parameters.get(b"t")
            if not token:
                raise VapidError("Missing VAPID token")
            return 2, token, key
        case b"webpush" | b"bearer":
            return 1, rest, None
        case _:
            raise VapidError("Unknown auth scheme")


def _legacy_key(crypto_key: bytes | None) -> bytes:
    if crypto_key is None:
        raise InvalidEncryptionError("Missing Crypto-Key header")
    sections = parse_sections(crypto_key)
    if sections is None:
        raise InvalidEncryptionError("Invalid Crypto-Key header")
    key = find_item(sections, "p256ecdsa")
    if not key:
        raise InvalidEncryptionError("Missing p256ecdsa in Crypto-Key header")
    return key.encode()


def decode_public_key(text: bytes | str) -> bytes | None:
    """65 bytes that begin with 0x04, else None. Whether it is a curve point is not checked."""
    if isinstance(text, str):
        if not text.isascii():
            return None
        text = text.encode()
    text = text.rstrip(b"=")
    standard = b"/" in text or b"+" in text
    try:
        point = pybase64.b64decode(text, b"+/" if standard else b"-_", validate=True, padded=False)
    except ValueError:
        return None
    return point if len(point) == p256.POINT_BYTES and point[0] == 0x04 else None


def _verified_claims(token: bytes, key: p256.PublicKey) -> _Claims:
    signed, dot, signature_text = token.rpartition(b".")
    header_text, second_dot, claims_text = signed.partition(b".")
    if not dot or not second_dot or _DOT in claims_text:
        raise VapidError("Invalid VAPID token: a JWT has three parts")
    try:
        alg = _algs.get(header_text) or _read_alg(header_text)
        signature = _unpadded(signature_text)
    except (ValueError, msgspec.MsgspecError):
        raise VapidError("Invalid VAPID token: the JOSE header cannot be read") from None
    if alg != "ES256":
        raise VapidError("Invalid VAPID token: alg must be ES256")
    if len(signature) != p256.SIGNATURE_BYTES or not key.signed(signed, signature):
        raise VapidError("Invalid VAPID token: InvalidSignature")
    try:
        return _claims_decoder.decode(_unpadded(claims_text))
    except (ValueError, msgspec.MsgspecError):
        raise VapidError(_BAD_CLAIM) from None


def _read_alg(header_text: bytes) -> str:
    alg = _header_decoder.decode(_unpadded(header_text)).alg
    if len(_algs) >= _ALGS_MAX:
        _algs.clear()
    _algs[header_text] = alg
    return alg


def _unpadded(text: bytes) -> bytes:
    """Base64url, padded or not. With padding the decoder itself takes half the time."""
    if text.endswith(b"="):
        text = text.rstrip(b"=")
    if _PLUS in text or _SLASH in text:
        raise ValueError("standard base64 alphabet, which the decoder would accept")
    return pybase64.b64decode(text + _PADDINGS[len(text) % 4], b"-_", True)


def audience_of(endpoint_url: str) -> str:
    """The `aud` of VAPID tokens for this server: the origin, without a default port."""
    parts = urlsplit(endpoint_url)
    host = parts.hostname or ""
    host = f"[{host}]" if ":" in host else host
    implied = {"http": 80, "https": 443}.get(parts.scheme)
    port = "" if parts.port in (None, implied) else f":{parts.port}"
    return f"{parts.scheme}://{host}{port}"
