"""VAPID for app servers (RFC 8292): a P-256 key pair, and tokens signed with it.

Rule 1: one token is reused for each push origin until shortly before it expires, so that push
        services can remember it and neither side signs or verifies for every message.
Rule 2: a key file is created with mode 0600 and never overwritten.
"""

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Self
from urllib.parse import urlsplit

import msgspec
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.utils import decode_dss_signature
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
)

from waystation.base.limits import BoundedLru

from .encryption import CURVE, BadKeyError, b64url, point_of

LIFETIME_S_MAX = 86_400  # RFC 8292 §2
_JOSE_HEADER = b64url(b'{"typ":"JWT","alg":"ES256"}')


def origin_of(url: str) -> str:
    """`scheme://host[:port]` with the default port left out: the audience of a token."""
    parts = urlsplit(url)
    if parts.scheme not in {"http", "https"} or not parts.hostname:
        raise ValueError("a push endpoint is an http:// or https:// URL")
    host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
    default = 443 if parts.scheme == "https" else 80
    port = "" if parts.port in {None, default} else f":{parts.port}"
    return f"{parts.scheme}://{host}{port}"


class VapidKey:
    """The identity of an app server."""

    def __init__(self, private: ec.EllipticCurvePrivateKey) -> None:
        if not isinstance(private.curve, ec.SECP256R1):
            raise BadKeyError("a VAPID key is on the curve P-256")
        self._private = private
        self.public = point_of(private)  # 65 bytes
        self.public_text = b64url(self.public)

    @classmethod
    def generate(cls) -> Self:
        return cls(ec.generate_private_key(CURVE))

    @classmethod
    def load(cls, path: Path) -> Self:
        try:
            private = load_pem_private_key(path.read_bytes(), password=None)
        except (ValueError, TypeError) as exc:
            raise BadKeyError(f"{path} does not hold an unencrypted PEM private key") from exc
        if not isinstance(private, ec.EllipticCurvePrivateKey):
            raise BadKeyError(f"{path} holds another kind of key than P-256")
        return cls(private)

    @classmethod
    def load_or_create(cls, path: Path) -> Self:
        if path.exists():
            return cls.load(path)
        key = cls.generate()
        key.save(path)
        return key

    def save(self, path: Path) -> None:
        """Creates `path`; a file that is already there is left alone (FileExistsError)."""
        pem = self._private.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
        path.parent.mkdir(parents=True, exist_ok=True)
        with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
            file.write(pem)

    def sign(self, audience: str, *, expires_at_s: int, subject: str = "") -> str:
        """The JWT alone."""
        claims: dict[str, str | int] = {"aud": audience, "exp": expires_at_s}
        if subject:
            claims["sub"] = subject
        signed = f"{_JOSE_HEADER}.{b64url(msgspec.json.encode(claims))}"
        der = self._private.sign(signed.encode("ascii"), ec.ECDSA(hashes.SHA256()))
        r, s = decode_dss_signature(der)
        return f"{signed}.{b64url(r.to_bytes(32) + s.to_bytes(32))}"

    def authorization(self, audience: str, *, expires_at_s: int, subject: str = "") -> str:
        """The whole header value."""
        token = self.sign(audience, expires_at_s=expires_at_s, subject=subject)
        return f"vapid t={token}, k={self.public_text}"


class VapidSigner:
    """Gives out the `Authorization` for an endpoint, signing only when it must."""

    def __init__(
        self,
        key: VapidKey,
        *,
        subject: str = "",
        lifetime_s: int = 12 * 3600,
        renew_before_s: int = 600,
        origins_max: int = 1024,
        now_s: Callable[[], float] = time.time,
    ) -> None:
        assert 0 <= renew_before_s < lifetime_s <= LIFETIME_S_MAX
        self.key = key
        self._subject = subject
        self._lifetime_s = lifetime_s
        self._renew_before_s = renew_before_s
        self._now_s = now_s
        self._headers: BoundedLru[str, str] = BoundedLru(origins_max)

    def authorization(self, endpoint_url: str) -> str:
        origin = origin_of(endpoint_url)
        now_s = self._now_s()
        header = self._headers.get(origin, now_s)
        if header is None:
            expires_at_s = int(now_s) + self._lifetime_s
            header = self.key.authorization(
                origin, expires_at_s=expires_at_s, subject=self._subject
            )
            self._headers.put(origin, header, expires_at_s - self._renew_before_s)
        return header

    def forget(self, endpoint_url: str) -> None:
        """The push service did not like the token: sign a new one next time."""
        self._headers.pop(origin_of(endpoint_url))
