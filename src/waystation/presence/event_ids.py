"""Hashed ids of parties, clients and sessions in events; the ids themselves never appear.

Hashes are cached for one UTC day (their key changes with the quarter): a session has at least two
events, and its party one for each announcement.
"""

import struct
from typing import Final

from waystation.telemetry.hashes import DAY_MS, EventHashes

from .model import PartyId, SessionKey

IDS_MAX: Final = 8192
_id = struct.Struct(">Q")
_key = struct.Struct(">QQQ")  # party, client, session


class EventIds:
    __slots__ = ("_from_ms", "_hash", "_parties", "_sessions", "_until_ms")

    def __init__(self, hashes: EventHashes) -> None:
        self._hash = hashes.presence
        self._parties: dict[PartyId, int] = {}
        self._sessions: dict[SessionKey, tuple[int, int, int]] = {}
        self._from_ms = self._until_ms = 0

    def party(self, party_id: PartyId, ms: int) -> int:
        if not self._from_ms <= ms < self._until_ms:
            self._begin_day(ms)
        known = self._parties.get(party_id)
        if known is None:
            if len(self._parties) >= IDS_MAX:
                self._parties.clear()
            known = self._parties[party_id] = self._hash(_id.pack(party_id), ms)
        return known

    def session(self, key: SessionKey, ms: int) -> tuple[int, int, int]:
        """The hashes of the party, the client and the session."""
        if not self._from_ms <= ms < self._until_ms:
            self._begin_day(ms)
        known = self._sessions.get(key)
        if known is None:
            if len(self._sessions) >= IDS_MAX:
                self._sessions.clear()
            known = self._sessions[key] = (
                self.party(key.party_id, ms),
                self._hash(_id.pack(key.client_id), ms),
                self._hash(_key.pack(*key), ms),
            )
        return known

    def last_of(self, key: SessionKey, ms: int) -> tuple[int, int, int]:
        """As `session`, and removes it from the cache: the session has ended."""
        known = self.session(key, ms)
        del self._sessions[key]
        return known

    def _begin_day(self, ms: int) -> None:
        self._parties.clear()
        self._sessions.clear()
        self._from_ms = ms - ms % DAY_MS
        self._until_ms = self._from_ms + DAY_MS
