"""Verifies tokens (JWT): the client id, the parties and the permissions that they grant.

Rule 1: a token is verified completely before its claims are used: algorithm on the list, key by
        its id, signature, issuer, audience, lifetime.
Rule 2: headers that carry a key (`jwk`, `jku`, `x5u`, `x5c`) or demand extensions (`crit`) are
        refused.
Rule 3: 64-bit ids in claims are strings, decimal or 0x-hexadecimal: a JSON number loses digits.
Rule 4: a verified token is cached by its hash until it expires or its key leaves the JWK Set. The
        token itself is not stored.
"""

import hashlib
from collections.abc import Mapping
from typing import Annotated, Any, Final

import jwt
import msgspec
from jwt import PyJWK
from jwt.exceptions import PyJWTError

from waystation.base.clock import Clock
from waystation.base.limits import BoundedLru
from waystation.base.tasks import Tasks

from .errors import NotAllowedError
from .grants import Authority, Grant
from .jwk_set import Fetch, JwkSet, KeySource
from .model import ID_MAX, ClientId, PartyId
from .settings import PresenceAuth

TOKEN_BYTES_MAX: Final = 8192
PERMISSIONS: Final = frozenset({"join", "signal", "observe", "kick"})
PARTIES_MAX: Final = 1000
DENIED_MAX: Final = 100_000
_SAFE_NUMBER: Final = 2**53
_FORBIDDEN_HEADERS: Final = ("crit", "jwk", "jku", "x5u", "x5c")


class _PartyGrant(msgspec.Struct):
    id: str | int
    perm: list[str] = []


class _Claims(msgspec.Struct):
    """The claims that are read; others are ignored."""

    iss: str
    exp: float
    nbf: float = 0.0
    iat: float = 0.0
    jti: str = ""
    cid: str | int | None = None
    parties: Annotated[list[_PartyGrant], msgspec.Meta(max_length=PARTIES_MAX)] = []
    max_sessions: Annotated[int, msgspec.Meta(ge=0)] | None = None
    adm: bool = False


class JwtAuthority:
    def __init__(self, settings: PresenceAuth, clock: Clock, keys: JwkSet | None) -> None:
        """`keys` is None for HS256, which has one secret."""
        self._settings = settings
        self._clock = clock
        self._keys = keys
        self._verified: BoundedLru[bytes, Grant] = BoundedLru(settings.verified_max)
        self._denied: BoundedLru[str, bool] = BoundedLru(DENIED_MAX)

    def deny(self, jti: str) -> None:
        """Refuses every token with this `jti` from now on."""
        self._denied.put(jti, True)

    def revoked(self, grant: Grant) -> bool:
        if grant.jti and grant.jti in self._denied:
            return True
        return self._keys is not None and not self._keys.holds(grant.key)

    async def verify(self, token: str) -> Grant:
        if len(token) > TOKEN_BYTES_MAX:
            raise NotAllowedError(f"the token is longer than {TOKEN_BYTES_MAX} bytes")
        digest = hashlib.sha256(token.encode()).digest()
        grant = self._verified.get(digest)
        if grant is None or not (self._keys is None or self._keys.fresh):
            grant = await self._check(token)
            self._verified.put(digest, grant)
        elif grant.expires_at_ms + self._settings.leeway_s * 1000 <= self._clock.now_ms():
            raise NotAllowedError("the token has expired")
        if self.revoked(grant):
            raise NotAllowedError("the token or its key was revoked")
        return grant

    async def _check(self, token: str) -> Grant:
        settings = self._settings
        try:
            header = jwt.get_unverified_header(token)
            algorithm = header.get("alg")
            if algorithm not in settings.algorithms:
                raise NotAllowedError(f"algorithm {algorithm} is not in presence.auth.algorithms")
            if any(name in header for name in _FORBIDDEN_HEADERS):
                raise NotAllowedError("the token carries a key or `crit` in its header")
            if self._keys is None:
                fingerprint = ""
                claims = _claims(token, settings.secret, [algorithm], settings)
            else:
                key = await self._keys.get(str(header.get("kid", "")))
                fingerprint = key.fingerprint
                claims = _claims(token, key.jwk, [algorithm], settings)
        except PyJWTError as exc:
            raise NotAllowedError(type(exc).__name__) from exc
        except (ValueError, TypeError) as exc:  # a key of another family than the algorithm
            raise NotAllowedError("the key does not fit the algorithm") from exc
        return self._grant(claims, fingerprint)

    def _grant(self, claims: Mapping[str, Any], key: str) -> Grant:
        settings = self._settings
        try:
            told = msgspec.convert(claims, _Claims)
        except msgspec.ValidationError as exc:
            raise NotAllowedError(str(exc)) from exc
        now_s, leeway_s = self._clock.now_ms() / 1000, settings.leeway_s
        if told.exp + leeway_s <= now_s:
            raise NotAllowedError("the token has expired")
        if max(told.nbf, told.iat) - leeway_s > now_s:
            raise NotAllowedError("the token is not valid yet")
        began_s = told.iat or told.nbf or now_s
        if told.exp - began_s > settings.lifetime_max_s + leeway_s:
            raise NotAllowedError(f"the lifetime is above {settings.lifetime_max_s:g} s")
        parties: dict[PartyId, frozenset[str]] = {}
        everywhere: frozenset[str] = frozenset()
        for row in told.parties:
            allowed = PERMISSIONS.intersection(row.perm)
            if row.id == "*":
                everywhere |= allowed
            else:
                party = PartyId(_id(row.id))
                parties[party] = parties.get(party, frozenset()) | allowed
        return Grant(
            client_id=None if told.cid is None else ClientId(_id(told.cid)),
            issuer=told.iss,
            expires_at_ms=int(told.exp * 1000),
            jti=told.jti,
            key=key,
            parties=parties,
            everywhere=everywhere,
            max_sessions=told.max_sessions,
            admin=told.adm,
        )


def _claims(
    token: str, key: PyJWK | str, algorithms: list[str], settings: PresenceAuth
) -> dict[str, Any]:
    """The claims, once signature, issuer and audience are right; raises `PyJWTError`. The caller
    checks the times, with its own clock."""
    secret = key if isinstance(key, str) else key.key
    return jwt.decode(
        token,
        secret,
        algorithms=algorithms,
        issuer=settings.issuer,
        audience=settings.audience,
        options={
            "require": ["exp", "iss", "aud"],
            "verify_exp": False,
            "verify_nbf": False,
            "verify_iat": False,
        },
    )


def _id(value: str | int) -> int:
    """A 64-bit id of a claim; a JSON number only up to 2^53, where it is exact."""
    try:
        if isinstance(value, str):
            number = int(value, 16) if value.lower().startswith("0x") else int(value, 10)
        elif value <= _SAFE_NUMBER:
            number = value
        else:
            raise NotAllowedError("an id above 2^53 is a number; write it as a string")
    except ValueError as exc:
        raise NotAllowedError("an id is not a number") from exc
    if not 0 < number <= ID_MAX:
        raise NotAllowedError("an id is not between 1 and 2^64 - 1")
    return number


async def open_authority(
    settings: PresenceAuth, clock: Clock, tasks: Tasks, fetch: Fetch | None = None
) -> Authority | None:
    """None with `auth.mode = "off"`. Raises if the JWK Set has no usable key."""
    if settings.mode == "off":
        return None
    if settings.secret and "HS256" in settings.algorithms:
        return JwtAuthority(settings, clock, None)
    keys = JwkSet(settings, clock, fetch or KeySource(settings.jwks))
    await keys.start(tasks)
    return JwtAuthority(settings, clock, keys)
