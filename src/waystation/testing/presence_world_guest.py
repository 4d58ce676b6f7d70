"""A guest of the world of presence: a client on a bad network, with manners of its own.

It knows what the protocol's pages say and no more: joins, acknowledges, pings, comes back when its
stream breaks, leaves. What it hears is compared with the truth at once.
"""

import asyncio
from itertools import count
from typing import TYPE_CHECKING, Any, Final

from waystation.presence.model import (
    ClientId,
    MessageType,
    PartyId,
    SessionId,
    SessionKey,
    Status,
)
from waystation.presence.transport.port import GrpcStatus
from waystation.presence.wire.party_presence_pb2 import ClientMessage
from waystation.testing.presence_world_hearing import Hearing, members_of
from waystation.testing.presence_world_truth import Fact, History, Member, excuse
from waystation.testing.presence_world_way import Wire

if TYPE_CHECKING:
    from waystation.testing.presence_world import PresenceWorld

PONG_S: Final = 1.2  # without an answer for so long, the stream is dead
PARTY_KINDS: Final = (MessageType.JOIN, MessageType.LEAVE, MessageType.SIGNAL)
WANT_UPDATES: Final = 4
RESUME_ONLY: Final = 1


class Guest:
    def __init__(self, world: "PresenceWorld", number: int, party: int) -> None:
        self.world = world
        self.number = number
        self.rng = world.rng
        self._sessions = count(1)
        self._ids = count(1)
        self.key = SessionKey(PartyId(party), ClientId(number), SessionId(0))
        self.extended = self.rng.random() < 0.7
        self.deaf_share = self.rng.choice((0.0, 0.0, 0.3))  # what it reads and forgets
        self.ack_wait_s = self.rng.choice((0.0, 0.05, 0.5))
        self.wants_in = False
        self.gone_for_good = False
        self.stubborn = False  # acknowledges nothing
        self.was_stubborn = False
        self.joined = False  # on the present wire
        self.hearing = Hearing()
        self._token = b""
        self._wire: Wire | None = None
        self._asked: dict[int, tuple[int, float]] = {}  # id -> kind, when it was said
        self._answered_at_s: float | None = None  # when the last was said that was answered
        self._said_leave = False
        self._left = False  # the LEAVE was acknowledged
        self._known = False  # a session of this key may exist
        self._acks: list[int] = []
        self._ack_due = False
        self._position: tuple[int, int] | None = None  # on the wire: epoch and seq
        self._floor = 0
        self._again = 0
        self._next_try_s = 0.0
        self.new_life()

    @property
    def name(self) -> str:
        return f"guest {self.number}/{self.key.session_id}"

    @property
    def member(self) -> Member:
        return int(self.key.client_id), int(self.key.session_id)

    def new_life(self) -> None:
        """A session of its own, under a new id or, now and then, the old one."""
        if self.key.session_id == 0 or self.rng.random() < 0.8:
            self.key = self.key._replace(
                session_id=SessionId(self.number * 1000 + next(self._sessions))
            )
            self._ids = count(1)
        self._forget_session()

    def _forget_session(self) -> None:
        self.hearing = Hearing()
        self._token = b""
        self._said_leave = self._left = self._known = False
        self._answered_at_s = None
        self.was_stubborn = self.stubborn
        self._acks.clear()

    # --- what it does ----------------------------------------------------------------------------

    async def live(self) -> None:
        while not self.world.over:
            await asyncio.sleep(0.1 + self.rng.random() * 0.3)
            self._look()

    def _look(self) -> None:
        now_s = self.world.now_s
        if self.gone_for_good:
            return
        if self._wire is None:
            wanted = self.wants_in or (self._said_leave and not self._left)
            if wanted and now_s >= self._next_try_s:
                self._connect()
            return
        waited = [said_s for _, said_s in self._asked.values()]
        if waited and now_s - min(waited) > PONG_S:
            self._drop("no answer")
        elif not self.joined and now_s - self._said_at_s > PONG_S:
            self._drop("it was refused, and the end of the call did not arrive")
        elif self.joined and self._said_leave and not self._left:
            if not any(kind == MessageType.LEAVE for kind, _ in self._asked.values()):
                self._say(MessageType.LEAVE)
        elif self.joined and not waited and now_s - self._said_at_s > self.world.ping_s:
            self._say(MessageType.PING, **self._ack_fields())

    def _connect(self) -> None:
        node = self.rng.choice(self.world.nodes)
        wire = node.call(self)
        if wire is None:
            self._next_try_s = self.world.now_s + 0.2 * self.rng.random()
            return
        self._wire = wire
        self._asked.clear()
        self._acks.clear()
        self.joined = False
        self._position = None
        self._floor = self._again = 0
        fields: dict[str, Any] = {}
        if self.extended:
            fields["session_ttl_ms"] = round(self.world.ttl_s * 1000)
            fields["flags"] = (WANT_UPDATES if self.number % 3 == 0 else 0) | (
                RESUME_ONLY if self._said_leave else 0
            )
        if self._token:
            fields["resume_token"] = self._token
        self._known = True
        self._say(
            MessageType.JOIN,
            session_id=self.key.session_id,
            client_id=self.key.client_id,
            party_id=self.key.party_id,
            **fields,
        )

    _said_at_s = 0.0

    def _say(self, kind: MessageType, **fields: Any) -> None:
        wire = self._wire
        assert wire is not None
        self._said_at_s = now_s = self.world.now_s
        message = ClientMessage(message_type=int(kind), **fields)  # pyright: ignore[reportArgumentType]
        if kind is not MessageType.ACK:
            message.message_id = next(self._ids)
            self._asked[message.message_id] = (kind, now_s)
        wire.say(message.SerializeToString())

    def _drop(self, why: str) -> None:
        wire, self._wire = self._wire, None
        self.joined = False
        if wire is not None:
            wire.hang_up()

    def leave(self) -> None:
        self.wants_in = False
        self._said_leave = True

    def come_back(self) -> None:
        """After a LEAVE that was acknowledged, as a new session."""
        if self._left:
            self.new_life()
            self.wants_in = True

    def cut(self) -> None:
        """Bad luck with the network, of one kind or another."""
        wire = self._wire
        if wire is None:
            return
        draw = self.rng.random()
        if draw < 0.4:
            soon = self.rng.uniform(0, 0.3)
            wire.break_off(node_learns_s=soon, guest_learns_s=self.rng.uniform(0, 0.3))
        elif draw < 0.7:  # nobody is told: a black hole
            wire.break_off(node_learns_s=self.rng.uniform(0.5, 3), guest_learns_s=None)
        elif draw < 0.85:
            wire.half_close()
            wire.hang_up()
            self._wire, self.joined = None, False
        else:
            self._drop("it hangs up")

    def vanish(self) -> None:
        """It goes away without a word and does not come back."""
        self.gone_for_good = True
        self.wants_in = False
        self.world.say(f"{self.name} vanishes")
        if self._wire is not None:
            learns_s = self.rng.choice((0.05, 3.0))
            self._wire.break_off(node_learns_s=learns_s, guest_learns_s=None)
        self._wire, self.joined = None, False

    def take_over(self) -> None:
        """A second stream while the first is still there."""
        if self.joined and self._token:
            self._wire, self.joined = None, False

    def stall(self, seconds: float) -> None:
        wire = self._wire
        if wire is not None:
            wire.stall(stalled=True)
            asyncio.get_running_loop().call_later(seconds, lambda: wire.stall(stalled=False))

    def signal(self) -> None:
        if self.joined and self.world.settings.signal_enabled and self._wire is not None:
            self._say(MessageType.SIGNAL, payload=b"%d" % self.number)

    def be_stubborn(self) -> None:
        self.stubborn = self.was_stubborn = True

    def ask_for_list(self) -> None:
        if self.joined and self._wire is not None:
            self._say(MessageType.LIST)

    # --- what it hears ---------------------------------------------------------------------------

    def ended(self, wire: Wire, status: GrpcStatus | None) -> None:
        if wire is self._wire:
            self._wire, self.joined = None, False

    def heard(self, wire: Wire, data: bytes) -> None:
        if wire is not self._wire:
            return  # of a stream that it has given up
        message = ClientMessage.FromString(data)
        kind = message.message_type
        if kind in (MessageType.ACK, MessageType.ERROR):
            self._answer(message)
            return
        if kind == MessageType.LIST:
            self._check_list(message)
            self.hearing.listed(message)
        elif kind in PARTY_KINDS:
            self._check_order(message)
            known = (message.party_epoch, message.party_seq) in self.hearing.heard
            if not known and self.world.luck.hits(self.deaf_share):
                return
            self.hearing.told(message)
        self._acknowledge(message.message_id)

    def _answer(self, message: ClientMessage) -> None:
        status = Status(message.status_code)
        for one in message.ack_message_ids:
            asked = self._asked.pop(one, None)
            if asked is None:
                self._complain(f"{status.name} answers what was not asked, or again")
                continue
            kind, said_s = asked
            if message.message_type == MessageType.ACK:
                self._accepted(kind, said_s, message, status)
            elif kind == MessageType.LEAVE and status is not Status.STORE_BUSY:
                self._complain(f"its LEAVE was answered {status.name}")
        if message.message_type == MessageType.ERROR:
            self._refused(status, message.retry_after_ms / 1000)

    def _accepted(self, kind: int, said_s: float, message: ClientMessage, status: Status) -> None:
        if kind == MessageType.JOIN:
            if status is Status.OK and self.hearing.began is not None:
                wants_out = self._said_leave
                self._forget_session()  # the session before has ended: that is a new one
                self._said_leave = wants_out
            self._known = self.joined = True
            self._token = message.resume_token if self.extended else b""
        elif kind == MessageType.LEAVE:
            self._left = True
            self._wire, self.joined = None, False
            if self.world.truth.is_in(self.key):
                self._complain("its LEAVE was acknowledged and is not in the log")
        elif kind == MessageType.SIGNAL:
            self.hearing.heard.add((self._epoch, message.party_seq))
        if self._answered_at_s is None or said_s > self._answered_at_s:
            self._answered_at_s = said_s

    @property
    def _epoch(self) -> int:
        return self._position[0] if self._position is not None else 0

    def _refused(self, status: Status, wait_s: float) -> None:
        now_s = self.world.now_s
        if status in (Status.INTERNAL_ERROR, Status.INVALID_FIELD, Status.PROTOCOL_VIOLATION):
            self._complain(f"was told {status.name}")
        if 32 <= status < 64:
            if not self.joined:  # a JOIN that did not go through: another node may do better
                self._drop("refused")
                self._next_try_s = now_s + min(wait_s, 1.0)
            return
        if status in (Status.SESSION_NOT_FOUND, Status.CLIENT_TIMEOUT, Status.ACK_TIMEOUT):
            self._left = self._said_leave
            self._begin_anew()
        elif status is Status.RESUME_REJECTED:
            # The token is of a session that has ended, and its id is in use again, or was too old.
            self._token = b""
        self._next_try_s = now_s + max(0.1, min(wait_s, 1.0))

    def _begin_anew(self) -> None:
        if self.wants_in:
            self.new_life()

    def _acknowledge(self, message_id: int) -> None:
        if self.stubborn:
            return
        self._acks.append(message_id)
        if self._ack_due:
            return
        if not self.ack_wait_s:
            self._send_acks()
        else:
            self._ack_due = True
            asyncio.get_running_loop().call_later(
                self.ack_wait_s * self.rng.random(), self._send_acks
            )

    def _ack_fields(self) -> dict[str, Any]:
        acks, self._acks = self._acks, []
        self.rng.shuffle(acks)
        return {"ack_message_ids": acks} if acks else {}

    def _send_acks(self) -> None:
        self._ack_due = False
        if self._acks and self._wire is not None and self.joined:
            self._say(MessageType.ACK, **self._ack_fields())

    # --- what it checks --------------------------------------------------------------------------

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
        history = self.world.truth.history(self.key.party_id, epoch)
        if seq in history.facts:
            expected = set(history.members_at(seq)) - {self.member}
            if members_of(message) != expected:
                self._complain(f"the LIST at {seq} is {members_of(message)}, not {expected}")
        else:
            self.world.check_reset(self.key.party_id, epoch, seq)

    def _check_order(self, message: ClientMessage) -> None:
        epoch, seq = message.party_epoch, message.party_seq
        fact = self.world.truth.history(self.key.party_id, epoch).facts.get(seq)
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
            self._complain(f"{seq} is of another life of the party")
            return
        facts = self.world.truth.history(self.key.party_id, epoch).facts
        for missing in range(self._position[1] + 1, seq):
            if not self._passes_over(facts[missing]):
                self._complain(f"{missing} is missing before {seq}")
        if seq <= self._position[1]:
            self._complain(f"{seq} comes after {self._position[1]}")
        self._position = (epoch, max(seq, self._position[1]))

    def _passes_over(self, fact: Fact) -> bool:
        """What it is not told: its own, and signals if it is too old to know them."""
        entry = fact.entry
        own = (entry.client_id, entry.session_id) == self.member
        return own or (entry.kind is MessageType.SIGNAL and not self.extended)

    def _check_content(self, message: ClientMessage, fact: Fact) -> None:
        entry = fact.entry
        told = (message.message_id, message.message_type, message.client_id, message.session_id)
        if told != (entry.message_id, int(entry.kind), entry.client_id, entry.session_id):
            self._complain(f"{entry.seq} has two contents")
        if (message.status_code, message.timestamp) != (entry.code, entry.at_ms):
            self._complain(f"{entry.seq} has two reasons, or two times")
        if (entry.client_id, entry.session_id) == self.member:
            self._complain(f"was told of itself at {entry.seq}")

    def removed(self, fact: Fact) -> None:
        """A LEAVE of its session was written."""
        why = excuse(fact, self._answered_at_s, self.world.ttl_s, said_leave=self._said_leave)
        if why and not (self.was_stubborn and fact.entry.code == Status.ACK_TIMEOUT):
            self._complain(why)

    def check_at_rest(self) -> None:
        """Nothing has happened for a while: what it knows is how it is."""
        truth = self.world.truth
        if self.gone_for_good or not self.wants_in:
            if truth.is_in(self.key):
                self._complain("is gone, and still listed: a ghost")
            return
        if not self.joined:
            self._complain("has not come back in")
            return
        if not truth.is_in(self.key):
            self._complain("is there, and is not listed")
        expected = set(truth.present.get(self.key.party_id, {})) - {self.member}
        for name, view in (("simple", self.hearing.simple), ("careful", self.hearing.careful)):
            for ghost in view - expected:
                self._complain(f"its {name} view shows {ghost}, who is not there: a ghost")
            for hole in expected - view:
                self._complain(f"its {name} view does not show {hole}")
        self._check_completeness()

    def _joined_at(self, history: History) -> int:
        """Where its session began: it may have ended and begun anew without its knowing."""
        joins = [
            seq
            for seq, fact in history.facts.items()
            if fact.entry.kind is MessageType.JOIN
            and (fact.entry.client_id, fact.entry.session_id) == self.member
        ]
        return max(joins, default=0)

    def _check_completeness(self) -> None:
        began, hearing = self.hearing.began, self.hearing
        assert began is not None
        for (party_id, epoch), history in self.world.truth.histories.items():
            if party_id != self.key.party_id or epoch != began[0]:
                continue
            covered = max(hearing.covered.get(epoch, 0), began[1], self._joined_at(history))
            for seq, fact in history.facts.items():
                if seq <= covered or (epoch, seq) in hearing.heard or self._passes_over(fact):
                    continue
                self._complain(f"never heard {seq}")
