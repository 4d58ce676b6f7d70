"""The public keys that verify tokens: a JWK Set from a file or URL, refreshed in the background.

Rule 1: keys are used for `cache_s` and fetched again when 80 % of it is over.
Rule 2: a token with an unknown key id causes one fetch, at most every `unknown_key_s`. In between,
        such tokens are refused without a fetch.
Rule 3: while the source does not answer, the last set is used for `stale_s`.
Rule 4: RSA keys under 2048 bits are not used.
Rule 5: a set that was read replaces the last one, even if it has no usable key: a key that left the
        set verifies no token and revokes the grants that it verified.
"""

import asyncio
import hashlib
import urllib.request
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, Final

import msgspec
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from jwt import PyJWK
from jwt.exceptions import PyJWTError

from waystation.base.clock import Clock
from waystation.base.tasks import Tasks

from .errors import NotAllowedError, PresenceStoreError
from .settings import PresenceAuth

FETCH_TIMEOUT_S: Final = 5.0
JWKS_BYTES_MAX: Final = 1 << 20
RSA_BITS_MIN: Final = 2048
REFRESH_AT: Final = 0.8
RETRY_S: Final = 10.0

Fetch = Callable[[], Awaitable[bytes]]


class KeySource:
    """Reads a JWK Set from a file or URL."""

    def __init__(self, place: str) -> None:
        self._place = place

    async def __call__(self) -> bytes:
        return await asyncio.to_thread(self._read)

    def _read(self) -> bytes:
        if not self._place.startswith(("http://", "https://")):
            return Path(self._place).read_bytes()
        with urllib.request.urlopen(self._place, timeout=FETCH_TIMEOUT_S) as answer:  # noqa: S310 the operator's own setting, http(s) only
            return answer.read(JWKS_BYTES_MAX)


class Key(msgspec.Struct, frozen=True):
    """One key of the set. The fingerprint covers its id and its material."""

    jwk: PyJWK
    fingerprint: str


class JwkSet:
    def __init__(self, settings: PresenceAuth, clock: Clock, fetch: Fetch) -> None:
        self._settings = settings
        self._clock = clock
        self._fetch = fetch
        self._by_id: dict[str, Key] = {}
        self._fingerprints: frozenset[str] = frozenset()
        self._fetched_at = float("-inf")
        self._tried_at = float("-inf")
        self._fetching: asyncio.Future[None] | None = None

    async def start(self, tasks: Tasks) -> None:
        """Raises if the first fetch gives no usable key."""
        await self._refresh()
        if not self._by_id:
            raise PresenceStoreError("presence.auth.jwks: no usable key; check the file or URL")
        tasks.keep("jwks", self._keep_fresh)

    async def _keep_fresh(self) -> None:
        while True:
            age_s = self._clock.mono() - self._fetched_at
            wait_s = self._settings.cache_s * REFRESH_AT - age_s
            await asyncio.sleep(max(RETRY_S, wait_s) if wait_s <= 0 else wait_s)
            await self._refresh()

    def holds(self, fingerprint: str) -> bool:
        """Whether the last set that was read has this key."""
        return fingerprint in self._fingerprints

    @property
    def fresh(self) -> bool:
        return self._clock.mono() - self._fetched_at <= self._settings.cache_s

    async def get(self, key_id: str) -> Key:
        """Raises `NotAllowedError` for an unknown key id, or if the set is older than `stale_s`."""
        mono, settings = self._clock.mono(), self._settings
        if not self.fresh:
            await self._refresh_rarely(mono)
        key = self._by_id.get(key_id)
        if key is None:
            await self._refresh_rarely(mono)
            key = self._by_id.get(key_id)
        if key is None or self._clock.mono() - self._fetched_at > settings.stale_s:
            raise NotAllowedError("unknown key")
        return key

    async def _refresh_rarely(self, mono: float) -> None:
        if self._fetching is not None or mono - self._tried_at >= self._settings.unknown_key_s:
            await self._refresh()

    async def _refresh(self) -> None:
        """Fetches once for all callers that wait at the same time."""
        if self._fetching is not None:
            await asyncio.shield(self._fetching)
            return
        self._fetching = asyncio.get_running_loop().create_future()
        self._tried_at = self._clock.mono()
        try:
            self._by_id = _usable(await self._fetch(), self._settings.algorithms)
            self._fingerprints = frozenset(key.fingerprint for key in self._by_id.values())
            self._fetched_at = self._clock.mono()
        except (OSError, ValueError, PyJWTError, msgspec.MsgspecError):
            pass  # the last set stays in use; `start` raises if there is none
        finally:
            self._fetching.set_result(None)
            self._fetching = None


class _KeySet(msgspec.Struct):
    keys: list[dict[str, Any]]


def _usable(data: bytes, algorithms: tuple[str, ...]) -> dict[str, Key]:
    found: dict[str, Key] = {}
    for row in msgspec.json.decode(data, type=_KeySet).keys:
        if row.get("use", "sig") != "sig" or row.get("kty") == "oct":
            continue
        try:
            key = PyJWK(row, algorithm=row.get("alg") or _algorithm_of(row, algorithms))
        except (PyJWTError, ValueError, TypeError):
            continue
        bits: int = getattr(key.key, "key_size", RSA_BITS_MIN)
        if row.get("kty") == "RSA" and bits < RSA_BITS_MIN:
            continue
        key_id = str(row.get("kid", ""))
        found[key_id] = Key(key, _fingerprint(key_id, key))
    return found


def _fingerprint(key_id: str, key: PyJWK) -> str:
    material = key.key.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
    return hashlib.sha256(key_id.encode() + b"\0" + material).hexdigest()


def _algorithm_of(row: dict[str, Any], algorithms: tuple[str, ...]) -> str | None:
    """An algorithm for an RSA key that names none; the token says which one it uses."""
    if row.get("kty") == "RSA":
        return next((one for one in algorithms if one.startswith(("RS", "PS"))), "RS256")
    return None
