"""Registration secrets, which authenticate bridged user agents (webpush §4.7).

The first key signs and all keys verify, so keys are rotated by putting a new one in front.
"""

import hmac

from waystation.base.ids import simple
from waystation.push.model import Uaid
from waystation.push.token import parse_list


class AuthKeys:
    """The keys of `push.auth_keys`, newest first."""

    __slots__ = ("_keys",)

    def __init__(self, keys: list[str]) -> None:
        assert keys
        self._keys = [key.encode() for key in keys]

    @classmethod
    def parse(cls, text: str) -> "AuthKeys | None":
        """None if the list has no key."""
        keys = parse_list(text)
        return cls(keys) if keys else None

    def secret_of(self, uaid: Uaid) -> str:
        return _secret(self._keys[0], uaid)

    def verify(self, uaid: Uaid, secret: bytes) -> bool:
        """All keys are tried, so that the time does not reveal which one matched."""
        found = False
        for key in self._keys:
            found |= hmac.compare_digest(_secret(key, uaid).encode(), secret)
        return found


def _secret(key: bytes, uaid: Uaid) -> str:
    """Hex of HMAC-SHA-256; the key is the configured text, the message the uaid in hex."""
    return hmac.digest(key, simple(uaid).encode(), "sha256").hex()
