"""What a client has received: its views of the party, and its outstanding acks."""

from collections.abc import Iterable
from typing import Final

from tests.sim.presence.party_history import LastAnswers, Member
from waystation.presence.model import MessageType, Status
from waystation.presence.wire.party_presence_pb2 import ClientMessage

AGAIN_S: Final = (
    2.0  # longer than any wait of the ladder at the world's TTL, and the redis_connection
)


class ClientView:
    """The messages of one session since it began, and two views of its party."""

    def __init__(self) -> None:
        self.heard: set[tuple[int, int]] = set()  # epoch and seq
        self.covered: dict[int, int] = {}  # epoch -> the highest LIST_RESYNC
        self.began: tuple[int, int] | None = None  # epoch and seq of its first LIST
        self.naive: set[Member] = set()  # applies every message as it arrives
        self.deduplicated: set[Member] = set()  # follows the view rule of the protocol
        self._floor = 0
        self._last_list = 0
        self._applied: dict[Member, int] = {}

    def listed(self, message: ClientMessage) -> None:
        members = members_of(message)
        self.naive = set(members)
        if message.message_id != self._last_list:  # whoever is deduplicated knows what it has had
            self._last_list = message.message_id
            self.deduplicated = set(members)
            self._floor = message.party_seq
            self._applied.clear()
        if self.began is None:
            self.began = (message.party_epoch, message.party_seq)
        if message.status_code == Status.LIST_RESYNC:
            epoch = message.party_epoch
            self.covered[epoch] = max(self.covered.get(epoch, 0), message.party_seq)

    def told(self, message: ClientMessage) -> None:
        self.heard.add((message.party_epoch, message.party_seq))
        if message.message_type == MessageType.SIGNAL:
            return
        member, seq = (message.client_id, message.session_id), message.party_seq
        joined = message.message_type == MessageType.JOIN
        (self.naive.add if joined else self.naive.discard)(member)
        if seq > self._floor and seq > self._applied.get(member, 0):
            self._applied[member] = seq
            (self.deduplicated.add if joined else self.deduplicated.discard)(member)


class AckTracker:
    """Unacknowledged messages of a client, and what its broker has certainly read."""

    def __init__(self) -> None:
        self.read = LastAnswers()
        self._owed: dict[int, float] = {}  # heard on the call and not acknowledged, and when
        self._settled: list[float] = []  # on the call: when it owed nothing any more
        self._heard_s = 0.0

    def connected(self) -> None:
        """A new call: what was said on the one before may never be read."""
        self._owed.clear()
        self._settled.clear()

    def owes(self, message: ClientMessage, now_s: float) -> None:
        if message.status_code == Status.LIST_RESYNC:
            self._owed.clear()  # it replaces all earlier messages
        self._owed[message.message_id] = self._heard_s = now_s

    def said(self, acks: Iterable[int], now_s: float) -> None:
        owed = len(self._owed)
        for one in acks:
            self._owed.pop(one, None)
        if owed and not self._owed:
            self._settled.append(now_s)

    def at_rest(self) -> bool:
        """Whether it owes nothing, and has said something since it last owed, and was answered."""
        answered_s = self.read.answered_s
        return not self._owed and answered_s is not None and answered_s > self._heard_s

    def neglected(self) -> bool:
        """Whether it still owes a receipt of something that was not said again in time."""
        answered_s = self.read.answered_s or 0.0
        return any(answered_s > heard_s + AGAIN_S for heard_s in self._owed.values())

    def answered(self, said_s: float, *, entered: bool) -> None:
        """What was said earlier on the call was read earlier."""
        before = self.read
        settled = [at_s for at_s in self._settled if at_s <= said_s]
        self.read = LastAnswers(
            answered_s=max(said_s, before.answered_s or 0.0),
            entered_s=said_s if entered else before.entered_s,
            settled_s=settled[-1] if settled else before.settled_s,
        )


def members_of(message: ClientMessage) -> set[Member]:
    return {
        (entry.client_id, session)
        for entry in message.participant_client_ids
        for session in entry.session_id
    }
