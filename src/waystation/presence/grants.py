"""Grants: the client, parties and permissions of a verified token."""

from typing import Protocol

import msgspec

from .errors import NotAllowedError
from .model import ClientId, PartyId


class Grant(msgspec.Struct, frozen=True, kw_only=True):
    """The claims of a verified token that presence uses."""

    client_id: ClientId | None
    issuer: str
    expires_at_ms: int
    jti: str = ""
    key: str = ""
    """The fingerprint of the key that verified it; empty with a shared secret."""
    parties: dict[PartyId, frozenset[str]] = {}
    everywhere: frozenset[str] = frozenset()
    """Permissions in any party: a grant for `*`."""
    max_sessions: int | None = None
    admin: bool = False

    def allows(self, permission: str, party_id: PartyId) -> bool:
        return permission in self.everywhere or permission in self.parties.get(party_id, ())


class Authority(Protocol):
    """Verifies tokens."""

    async def verify(self, token: str) -> Grant:
        """Raises `NotAllowedError`."""
        ...

    def revoked(self, grant: Grant) -> bool:
        """Whether its `jti` is denied or its key has left the JWK Set, as last fetched."""
        ...


def bearer(authorization: str | None) -> str:
    """The token of an `authorization` value; raises `NotAllowedError`."""
    scheme, _, token = (authorization or "").strip().partition(" ")
    if scheme.lower() != "bearer" or not token.strip():
        raise NotAllowedError("no bearer token")
    return token.strip()
