"""Who is in a party, as it stands at one position of its log, ready to be written as a LIST.

Clients ascend, and the sessions of each. What a client's entry looks like on the wire is kept until
it changes: a LIST of a large party is then one join of bytes.
"""

from bisect import bisect_left, insort
from collections.abc import Iterable, Iterator

from .model import ClientId, Member, SessionId
from .wire.broker import participant


class Roster:
    __slots__ = ("_clients", "_order", "_written", "away", "size")

    def __init__(self, members: Iterable[Member] = ()) -> None:
        self._clients: dict[ClientId, list[SessionId]] = {}
        self._order: list[ClientId] = []
        self.away: set[tuple[ClientId, SessionId]] = set()  # without a stream, as we were told
        self._written: dict[ClientId, bytes] = {}
        self.size = 0
        for client_id, session_id, detached in members:
            self.add(client_id, session_id)
            if detached:
                self.away.add((client_id, session_id))

    def add(self, client_id: ClientId, session_id: SessionId) -> None:
        sessions = self._clients.get(client_id)
        if sessions is None:
            self._clients[client_id] = [session_id]
            insort(self._order, client_id)
        elif session_id not in sessions:
            insort(sessions, session_id)
            self._written.pop(client_id, None)
        else:
            return
        self.size += 1

    def remove(self, client_id: ClientId, session_id: SessionId) -> None:
        sessions = self._clients.get(client_id)
        if sessions is None or session_id not in sessions:
            return
        self.size -= 1
        self.away.discard((client_id, session_id))
        self._written.pop(client_id, None)
        if len(sessions) > 1:
            sessions.remove(session_id)
            return
        del self._clients[client_id]
        del self._order[bisect_left(self._order, client_id)]

    def set_detached(self, client_id: ClientId, session_id: SessionId, *, detached: bool) -> None:
        if not detached:
            self.away.discard((client_id, session_id))
        elif session_id in self._clients.get(client_id, ()):
            self.away.add((client_id, session_id))

    def count(self, client_id: ClientId) -> int:
        return len(self._clients.get(client_id, ()))

    def __contains__(self, member: tuple[ClientId, SessionId]) -> bool:
        return member[1] in self._clients.get(member[0], ())

    def __iter__(self) -> Iterator[tuple[ClientId, SessionId]]:
        return ((client, session) for client in self._order for session in self._clients[client])

    def entries(
        self, client_id: ClientId, session_id: SessionId, *, detached: bool = False
    ) -> list[bytes]:
        """Everybody but that one session; with `detached`, who has no stream is marked."""
        written = self._written
        parts: list[bytes] = []
        for client in self._order:
            if client == client_id or detached:
                sessions = self._clients[client]
                if client == client_id:
                    sessions = [one for one in sessions if one != session_id]
                if sessions:
                    away = [s for s in sessions if (client, s) in self.away] if detached else ()
                    parts.append(participant(client, sessions, away))
                continue
            entry = written.get(client)
            if entry is None:
                entry = written[client] = participant(client, self._clients[client])
            parts.append(entry)
        return parts
