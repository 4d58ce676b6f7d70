"""The participants of a party at one position of its log, ready to be written as a LIST.

Clients and their sessions are in ascending order. Each client's entry is kept encoded, so that a
LIST of a large party is one join of bytes.
"""

from bisect import bisect_left, insort
from collections.abc import Iterable, Iterator

from waystation.presence.model import ClientId, Member, SessionId
from waystation.presence.wire.server_messages import participant


class Roster:
    __slots__ = ("_clients", "_order", "_written", "away", "size")

    def __init__(self, members: Iterable[Member] = ()) -> None:
        self._clients: dict[ClientId, list[SessionId]] = {}
        self._order: list[ClientId] = []
        self._written: list[bytes] = []  # the encoded entry of each client, in the same order
        self.away: set[tuple[ClientId, SessionId]] = set()  # detached, as far as known
        self.size = 0
        for client_id, session_id, detached in members:
            self.add(client_id, session_id)
            if detached:
                self.away.add((client_id, session_id))

    def add(self, client_id: ClientId, session_id: SessionId) -> None:
        sessions = self._clients.get(client_id)
        at = bisect_left(self._order, client_id)
        if sessions is None:
            sessions = self._clients[client_id] = [session_id]
            self._order.insert(at, client_id)
            self._written.insert(at, participant(client_id, sessions))
        elif session_id not in sessions:
            insort(sessions, session_id)
            self._written[at] = participant(client_id, sessions)
        else:
            return
        self.size += 1

    def remove(self, client_id: ClientId, session_id: SessionId) -> None:
        sessions = self._clients.get(client_id)
        if sessions is None or session_id not in sessions:
            return
        self.size -= 1
        if self.away:
            self.away.discard((client_id, session_id))
        at = bisect_left(self._order, client_id)
        if len(sessions) > 1:
            sessions.remove(session_id)
            self._written[at] = participant(client_id, sessions)
            return
        del self._clients[client_id]
        del self._order[at]
        del self._written[at]

    def set_detached(self, client_id: ClientId, session_id: SessionId, *, detached: bool) -> None:
        if not detached:
            self.away.discard((client_id, session_id))
        elif session_id in self._clients.get(client_id, ()):
            self.away.add((client_id, session_id))

    @property
    def clients(self) -> int:
        return len(self._clients)

    def count(self, client_id: ClientId) -> int:
        return len(self._clients.get(client_id, ()))

    def __contains__(self, member: tuple[ClientId, SessionId]) -> bool:
        return member[1] in self._clients.get(member[0], ())

    def __iter__(self) -> Iterator[tuple[ClientId, SessionId]]:
        return ((client, session) for client in self._order for session in self._clients[client])

    def entries(
        self, client_id: ClientId, session_id: SessionId, *, detached: bool = False
    ) -> list[bytes]:
        """Encoded entries without that session; with `detached`, detached sessions are marked."""
        parts = self._written.copy()
        if detached:
            for client in {client for client, _ in self.away}:
                sessions = self._clients[client]
                parts[bisect_left(self._order, client)] = self._marked(client, sessions)
        own = self._clients.get(client_id)
        if own is not None and session_id in own:
            at = bisect_left(self._order, client_id)
            others = [one for one in own if one != session_id]
            if not others:
                del parts[at]
            elif detached:
                parts[at] = self._marked(client_id, others)
            else:
                parts[at] = participant(client_id, others)
        return parts

    def _marked(self, client_id: ClientId, sessions: list[SessionId]) -> bytes:
        away = [one for one in sessions if (client_id, one) in self.away]
        return participant(client_id, sessions, away)
