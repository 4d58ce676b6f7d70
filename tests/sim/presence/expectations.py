"""What a simulated client checks about the messages that it receives.

Messages are compared with the party histories: each on arrival, the views whenever the client is up
to date, and everything at the end.
"""

from typing import TYPE_CHECKING

from tests.sim.presence.client_view import AckTracker, ClientView, members_of
from tests.sim.presence.party_history import EpochHistory, Member, WrittenEntry, excuse
from waystation.presence.model import MessageType, SessionKey, Status
from waystation.presence.wire.party_presence_pb2 import ClientMessage

if TYPE_CHECKING:
    from tests.sim.presence.world import PresenceWorld


class ClientExpectations:
    extended: bool  # else it is too old for signals

    def __init__(self, world: "PresenceWorld", key: SessionKey) -> None:
        self.world = world
        self.key = key
        self.wants_to_be_joined = False
        self.lost_for_good = False
        self.had_no_acks = False  # has acknowledged nothing for a while
        self.joined = False  # on the current call
        self.view = ClientView()
        self._acks_owed = AckTracker()
        self._sent_leave = False
        self._position: tuple[int, int] | None = None  # on the call: epoch and seq
        self._floor = 0
        self._again = 0

    @property
    def name(self) -> str:
        return f"client {self.key.client_id}/{self.key.session_id}"

    @property
    def member(self) -> Member:
        return int(self.key.client_id), int(self.key.session_id)

    def _complain(self, what: str) -> None:
        self.world.complain(f"{self.name}: {what}")

    def _check_list(self, message: ClientMessage) -> None:
        if not self.joined:
            self._complain("a LIST came before the ACK of its JOIN")
        epoch, seq = message.party_epoch, message.party_seq
        if self._position is None:
            self._position, self._floor = (epoch, seq), seq
        elif message.status_code == Status.LIST_RESYNC:
            before = self._position[1] if self._position[0] == epoch else 0
            self._position = (epoch, max(before, seq))
        history = self.world.histories.history(self.key.party_id, epoch)
        if seq in history.facts:
            expected = set(history.members_at(seq)) - {self.member}
            if members_of(message) != expected:
                self._complain(f"the LIST at {seq} is {members_of(message)}, not {expected}")
        else:
            self.world.check_reset(self.key.party_id, epoch, seq)

    def _check_order(self, message: ClientMessage) -> None:
        epoch, seq = message.party_epoch, message.party_seq
        fact = self.world.histories.history(self.key.party_id, epoch).facts.get(seq)
        if fact is None:
            self._complain(f"heard {seq}, which nobody wrote")
            return
        self._check_content(message, fact)
        if message.delivery_attempt:
            return
        if self._position is None:
            self._complain(f"heard {seq} before its LIST")
            return
        if epoch == self._position[0] and seq <= self._floor:
            if seq <= self._again:
                self._complain(f"{seq} was delivered again after {self._again}")
            self._again = seq
            return
        if epoch != self._position[0]:
            self._complain(f"{seq} is of another process of the party")
            return
        facts = self.world.histories.history(self.key.party_id, epoch).facts
        for missing in range(self._position[1] + 1, seq):
            if not self._passes_over(facts[missing]):
                self._complain(f"{missing} is missing before {seq}")
        if seq <= self._position[1]:
            self._complain(f"{seq} comes after {self._position[1]}")
        self._position = (epoch, max(seq, self._position[1]))

    def _passes_over(self, fact: WrittenEntry) -> bool:
        """What it is not told: its own, and signals if it is too old to know them."""
        entry = fact.entry
        own = (entry.client_id, entry.session_id) == self.member
        return own or (entry.kind is MessageType.SIGNAL and not self.extended)

    def _check_content(self, message: ClientMessage, fact: WrittenEntry) -> None:
        entry = fact.entry
        told = (message.message_id, message.message_type, message.client_id, message.session_id)
        if told != (entry.message_id, int(entry.kind), entry.client_id, entry.session_id):
            self._complain(f"{entry.seq} has two contents")
        if (message.status_code, message.timestamp) != (entry.code, entry.at_ms):
            self._complain(f"{entry.seq} has two reasons, or two times")
        if (entry.client_id, entry.session_id) == self.member:
            self._complain(f"was told of itself at {entry.seq}")

    def _check_left(self, ack: ClientMessage) -> None:
        """The ACK of a LEAVE has its position (6.7); a delayed JOIN may follow."""
        facts = self.world.histories.history(self.key.party_id, ack.party_epoch).facts
        fact = facts.get(ack.party_seq)
        if fact is None or (fact.entry.kind, fact.member) != (MessageType.LEAVE, self.member):
            self._complain("its LEAVE was acknowledged and is not in the log")

    def removed(self, fact: WrittenEntry) -> None:
        """A LEAVE of the session was written."""
        why = excuse(fact, self._acks_owed.read, self.world.ttl_s, sent_leave=self._sent_leave)
        for_receipts = fact.entry.code == Status.ACK_TIMEOUT
        if for_receipts and self._acks_owed.neglected():
            why = "was sent away for the receipt of something that was not said again"
        if why and not (self.had_no_acks and for_receipts):
            self._complain(why)

    def _check_view_now(self) -> None:
        """It has heard all there is, owes nothing, and something that it said since was answered:
        if its view is wrong now, nothing that is on its way puts it right."""
        if not self.joined or self._position is None or not self._acks_owed.at_rest():
            return
        epoch, seq = self._position
        facts = self.world.histories.history(self.key.party_id, epoch).facts
        if seq in facts and seq + 1 not in facts:
            self._compare_views(set(facts[seq].members) - {self.member})

    def _compare_views(self, expected: set[Member]) -> None:
        for name, view in (("naive", self.view.naive), ("deduplicated", self.view.deduplicated)):
            for ghost in view - expected:
                self._complain(f"its {name} view shows {ghost}, who is not there: a ghost")
            for hole in expected - view:
                self._complain(f"its {name} view does not show {hole}")

    def check_at_rest(self) -> None:
        """Nothing has happened for a while: what it knows is how it is."""
        histories = self.world.histories
        if self.lost_for_good or not self.wants_to_be_joined:
            if histories.is_in(self.key):
                self._complain("is gone, and still listed: a ghost")
            return
        if not self.joined:
            self._complain("has not come back in")
            return
        if not histories.is_in(self.key):
            self._complain("is there, and is not listed")
        expected = set(histories.present.get(self.key.party_id, {})) - {self.member}
        self._compare_views(expected)
        self._check_completeness()

    def _joined_at(self, history: EpochHistory) -> int:
        """Where its session began: it may have ended and begun anew without its knowing."""
        joins = [
            seq
            for seq, fact in history.facts.items()
            if fact.entry.kind is MessageType.JOIN
            and (fact.entry.client_id, fact.entry.session_id) == self.member
        ]
        return max(joins, default=0)

    def _check_completeness(self) -> None:
        began, view = self.view.began, self.view
        if began is None:
            self._complain("has joined, and was sent no LIST")
            return
        for (party_id, epoch), history in self.world.histories.histories.items():
            if party_id != self.key.party_id or epoch != began[0]:
                continue
            covered = max(view.covered.get(epoch, 0), began[1], self._joined_at(history))
            for seq, fact in history.facts.items():
                if seq <= covered or (epoch, seq) in view.heard or self._passes_over(fact):
                    continue
                self._complain(f"never heard {seq}")
