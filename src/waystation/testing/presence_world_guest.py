"""A guest of the world of presence: a client on a bad network, with manners of its own.

It knows what the protocol's pages say and no more: joins, acknowledges, pings, comes back when its
stream breaks, leaves. What it makes of what it hears is in `presence_world_witness`.
"""

import asyncio
from itertools import count
from typing import TYPE_CHECKING, Any, Final

from tests.sim.sockets import SimHost
from waystation.net.http2.port import GrpcStatus
from waystation.presence.model import (
    ClientId,
    MessageType,
    PartyId,
    SessionId,
    SessionKey,
    Status,
)
from waystation.presence.wire.party_presence_pb2 import ClientMessage
from waystation.testing.presence_world_hearing import Hearing, Receipts
from waystation.testing.presence_world_node import PORT
from waystation.testing.presence_world_wire import Wire
from waystation.testing.presence_world_witness import Witness

if TYPE_CHECKING:
    from waystation.testing.presence_world import PresenceWorld

PONG_S: Final = 1.2  # without an answer for so long, the stream is dead
PARTY_KINDS: Final = (MessageType.JOIN, MessageType.LEAVE, MessageType.SIGNAL)
WANT_UPDATES: Final = 4
RESUME_ONLY: Final = 1


class Guest(Witness):
    def __init__(self, world: "PresenceWorld", number: int, party: int) -> None:
        super().__init__(world, SessionKey(PartyId(party), ClientId(number), SessionId(0)))
        self.number = number
        self.rng = world.rng
        self._sessions = count(1)
        self._ids = count(1)
        self.extended = self.rng.random() < 0.7
        self.deaf_share = self.rng.choice((0.0, 0.0, 0.3))  # what it reads and forgets
        self.ack_wait_s = self.rng.choice((0.0, 0.05, 0.5))
        self.stubborn = False  # acknowledges nothing
        self._token = b""
        self._host: SimHost | None = None
        self._wire: Wire | None = None
        self._asked: dict[int, tuple[int, float]] = {}  # id -> kind, when it was said
        self._left = False  # the LEAVE was acknowledged
        self._known = False  # a session of this key may exist
        self._acks: list[int] = []
        self._ack_due = False
        self._next_try_s = 0.0
        self.new_life()

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
        self._receipts = Receipts()
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
        self._check_view_now()
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
        self._next_try_s = self.world.now_s + 0.2 * self.rng.random()
        if self._host is None:
            self._host = self.world.network.host(f"guest.{self.number}")
        self._wire = Wire(self._host, (node.name, PORT), self)
        self._asked.clear()
        self._acks.clear()
        self._receipts.connected()
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
        self._receipts.said(message.ack_message_ids, now_s)
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
        self._receipts.owes(message, self.world.now_s)
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
            self._check_left(message)
        elif kind == MessageType.SIGNAL:
            self.hearing.heard.add((self._epoch, message.party_seq))
        self._receipts.answered(said_s, entered=kind == MessageType.JOIN)

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
