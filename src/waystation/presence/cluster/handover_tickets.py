"""Tickets: allow a client to continue a session here that another node hands over.

A ticket is 128 random bits, valid once, for one session, for `ticket_s`. Only its hash is kept. The
offer for which it was issued holds the position from which the session continues.
"""

import hashlib
import hmac
import secrets
from collections.abc import Callable
from typing import Final

import msgspec

from waystation.base.limits import BoundedLru
from waystation.presence.model import SessionKey

TICKET_BYTES: Final = 16
TICKETS_MAX: Final = 50_000


class HandoverOffer(msgspec.Struct, frozen=True, kw_only=True):
    """State of a session, sent by the node that hands it over."""

    key: SessionKey
    fence: int
    cursor: int
    acked_above_cursor: tuple[int, ...] = ()
    recent_client_ids: tuple[int, ...] = ()


class HandoverTickets:
    def __init__(
        self, ticket_s: float, *, make: Callable[[int], bytes] = secrets.token_bytes
    ) -> None:
        self._ticket_s = ticket_s
        self._make = make
        self._open: BoundedLru[SessionKey, tuple[bytes, HandoverOffer]] = BoundedLru(TICKETS_MAX)
        self._redeemed: BoundedLru[SessionKey, HandoverOffer] = BoundedLru(TICKETS_MAX)

    def issue(self, offer: HandoverOffer, mono: float) -> bytes:
        ticket = self._make(TICKET_BYTES)
        digest = hashlib.sha256(ticket).digest()
        self._open.put(offer.key, (digest, offer), mono + self._ticket_s)
        return ticket

    def redeem(self, key: SessionKey, ticket: bytes, mono: float) -> bool:
        """Whether the ticket is valid; a valid one is used up."""
        found = self._open.get(key, mono)
        if found is None:
            return False
        digest, offer = found
        if not hmac.compare_digest(digest, hashlib.sha256(ticket).digest()):
            return False
        self._open.pop(key)
        self._redeemed.put(key, offer)
        return True

    def give_back(self, key: SessionKey, ticket: bytes, mono: float) -> None:
        """Makes a redeemed ticket valid again: the attach failed."""
        offer = self._redeemed.pop(key)
        if offer is not None:
            digest = hashlib.sha256(ticket).digest()
            self._open.put(key, (digest, offer), mono + self._ticket_s)

    def __len__(self) -> int:
        return len(self._open)

    def take_over(self, key: SessionKey) -> HandoverOffer | None:
        """Removes and returns the offer of a redeemed ticket."""
        return self._redeemed.pop(key)
