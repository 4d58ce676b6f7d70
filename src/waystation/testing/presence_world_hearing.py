"""What one session of a guest has heard, and the two pictures that it may make of its party."""

from waystation.presence.model import MessageType, Status
from waystation.presence.wire.party_presence_pb2 import ClientMessage
from waystation.testing.presence_world_truth import Member


class Hearing:
    """What a session has heard since it began, and how it pictures its party."""

    def __init__(self) -> None:
        self.heard: set[tuple[int, int]] = set()  # epoch and seq
        self.covered: dict[int, int] = {}  # epoch -> the highest LIST_RESYNC
        self.began: tuple[int, int] | None = None  # epoch and seq of its first LIST
        self.simple: set[Member] = set()  # takes everything at face value
        self.careful: set[Member] = set()  # keeps the view rule of the protocol
        self._floor = 0
        self._last_list = 0
        self._applied: dict[Member, int] = {}

    def listed(self, message: ClientMessage) -> None:
        members = members_of(message)
        self.simple = set(members)
        if message.message_id != self._last_list:  # whoever is careful knows what it has had
            self._last_list = message.message_id
            self.careful = set(members)
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
        (self.simple.add if joined else self.simple.discard)(member)
        if seq > self._floor and seq > self._applied.get(member, 0):
            self._applied[member] = seq
            (self.careful.add if joined else self.careful.discard)(member)


def members_of(message: ClientMessage) -> set[Member]:
    return {
        (entry.client_id, session)
        for entry in message.participant_client_ids
        for session in entry.session_id
    }
