"""A simulated client on a faulty network: joins, acknowledges, pings, reconnects, leaves.

It follows docs/protocols/presence.md only. `expectations` checks what it receives.
"""

import asyncio
from itertools import count
from typing import TYPE_CHECKING, Any, Final

from tests.sim.presence.client_call import ClientCall
from tests.sim.presence.client_view import AckTracker, ClientView
from tests.sim.presence.expectations import ClientExpectations
from tests.sim.presence.node import PORT
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

if TYPE_CHECKING:
    from tests.sim.presence.world import PresenceWorld

PONG_S: Final = 1.2  # without an answer for so long, the stream is dead
PARTY_KINDS: Final = (MessageType.JOIN, MessageType.LEAVE, MessageType.SIGNAL)
WANT_UPDATES: Final = 4
RESUME_ONLY: Final = 1


class SimClient(ClientExpectations):
    def __init__(self, world: "PresenceWorld", number: int, party: int) -> None:
        super().__init__(world, SessionKey(PartyId(party), ClientId(number), SessionId(0)))
        self.number = number
        self.rng = world.rng
        self._sessions = count(1)
        self._ids = count(1)
        self.extended = self.rng.random() < 0.7
        self.ignored_share = self.rng.choice((0.0, 0.0, 0.3))  # what it reads and forgets
        self.ack_wait_s = self.rng.choice((0.0, 0.05, 0.5))
        self.no_acks = False  # acknowledges nothing
        self._token = b""
        self._host: SimHost | None = None
        self._call: ClientCall | None = None
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
        self.view = ClientView()
        self._token = b""
        self._sent_leave = self._left = self._known = False
        self._acks_owed = AckTracker()
        self.had_no_acks = self.no_acks
        self._acks.clear()

    # --- what it does ----------------------------------------------------------------------------

    async def live(self) -> None:
        while not self.world.over:
            await asyncio.sleep(0.1 + self.rng.random() * 0.3)
            self._look()

    def _look(self) -> None:
        now_s = self.world.now_s
        if self.lost_for_good:
            return
        if self._call is None:
            wanted = self.wants_to_be_joined or (self._sent_leave and not self._left)
            if wanted and now_s >= self._next_try_s:
                self._connect()
            return
        self._check_view_now()
        waited = [said_s for _, said_s in self._asked.values()]
        if waited and now_s - min(waited) > PONG_S:
            self._drop("no answer")
        elif not self.joined and now_s - self._said_at_s > PONG_S:
            self._drop("it was refused, and the end of the call did not arrive")
        elif self.joined and self._sent_leave and not self._left:
            if not any(kind == MessageType.LEAVE for kind, _ in self._asked.values()):
                self._say(MessageType.LEAVE)
        elif self.joined and not waited and now_s - self._said_at_s > self.world.ping_s:
            self._say(MessageType.PING, **self._ack_fields())

    def _connect(self) -> None:
        node = self.rng.choice(self.world.nodes)
        self._next_try_s = self.world.now_s + 0.2 * self.rng.random()
        if self._host is None:
            self._host = self.world.network.host(f"client.{self.number}")
        self._call = ClientCall(self._host, (node.name, PORT), self)
        self._asked.clear()
        self._acks.clear()
        self._acks_owed.connected()
        self.joined = False
        self._position = None
        self._floor = self._again = 0
        fields: dict[str, Any] = {}
        if self.extended:
            fields["session_ttl_ms"] = round(self.world.ttl_s * 1000)
            fields["flags"] = (WANT_UPDATES if self.number % 3 == 0 else 0) | (
                RESUME_ONLY if self._sent_leave else 0
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
        call = self._call
        assert call is not None
        self._said_at_s = now_s = self.world.now_s
        message = ClientMessage(message_type=int(kind), **fields)  # pyright: ignore[reportArgumentType]
        self._acks_owed.said(message.ack_message_ids, now_s)
        if kind is not MessageType.ACK:
            message.message_id = next(self._ids)
            self._asked[message.message_id] = (kind, now_s)
        call.say(message.SerializeToString())

    def _drop(self, why: str) -> None:
        call, self._call = self._call, None
        self.joined = False
        if call is not None:
            call.close()

    def leave(self) -> None:
        self.wants_to_be_joined = False
        self._sent_leave = True

    def join_again(self) -> None:
        """After a LEAVE that was acknowledged, as a new session."""
        if self._left:
            self.new_life()
            self.wants_to_be_joined = True

    def cut(self) -> None:
        """Bad faults with the network, of one kind or another."""
        call = self._call
        if call is None:
            return
        draw = self.rng.random()
        if draw < 0.4:
            soon = self.rng.uniform(0, 0.3)
            call.break_off(node_learns_s=soon, guest_learns_s=self.rng.uniform(0, 0.3))
        elif draw < 0.7:  # nobody is told: a black hole
            call.break_off(node_learns_s=self.rng.uniform(0.5, 3), guest_learns_s=None)
        elif draw < 0.85:
            call.half_close()
            call.close()
            self._call, self.joined = None, False
        else:
            self._drop("it hangs up")

    def vanish(self) -> None:
        """It goes away without a word and does not come back."""
        self.lost_for_good = True
        self.wants_to_be_joined = False
        self.world.say(f"{self.name} vanishes")
        if self._call is not None:
            learns_s = self.rng.choice((0.05, 3.0))
            self._call.break_off(node_learns_s=learns_s, guest_learns_s=None)
        self._call, self.joined = None, False

    def take_over(self) -> None:
        """A second stream while the first is still there."""
        if self.joined and self._token:
            self._call, self.joined = None, False

    def stall(self, seconds: float) -> None:
        call = self._call
        if call is not None:
            call.stall(stalled=True)
            asyncio.get_running_loop().call_later(seconds, lambda: call.stall(stalled=False))

    def signal(self) -> None:
        if self.joined and self.world.settings.signal_enabled and self._call is not None:
            self._say(MessageType.SIGNAL, payload=b"%d" % self.number)

    def stop_acknowledging(self) -> None:
        self.no_acks = self.had_no_acks = True

    def request_list(self) -> None:
        if self.joined and self._call is not None:
            self._say(MessageType.LIST)

    # --- what it hears ---------------------------------------------------------------------------

    def ended(self, call: ClientCall, status: GrpcStatus | None) -> None:
        if call is self._call:
            self._call, self.joined = None, False

    def heard(self, call: ClientCall, data: bytes) -> None:
        if call is not self._call:
            return  # of a stream that it has given up
        message = ClientMessage.FromString(data)
        kind = message.message_type
        if kind in (MessageType.ACK, MessageType.ERROR):
            self._answer(message)
            return
        self._acks_owed.owes(message, self.world.now_s)
        if kind == MessageType.LIST:
            self._check_list(message)
            self.view.listed(message)
        elif kind in PARTY_KINDS:
            self._check_order(message)
            known = (message.party_epoch, message.party_seq) in self.view.heard
            if not known and self.world.faults.hits(self.ignored_share):
                return
            self.view.told(message)
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
            if status is Status.OK and self.view.began is not None:
                wants_out = self._sent_leave
                self._forget_session()  # the session before has ended: that is a new one
                self._sent_leave = wants_out
            self._known = self.joined = True
            self._token = message.resume_token if self.extended else b""
        elif kind == MessageType.LEAVE:
            self._left = True
            self._call, self.joined = None, False
            self._check_left(message)
        elif kind == MessageType.SIGNAL:
            self.view.heard.add((self._epoch, message.party_seq))
        self._acks_owed.answered(said_s, entered=kind == MessageType.JOIN)

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
            self._left = self._sent_leave
            self._begin_anew()
        elif status is Status.RESUME_REJECTED:
            # The token is of a session that has ended, and its id is in use again, or was too old.
            self._token = b""
        self._next_try_s = now_s + max(0.1, min(wait_s, 1.0))

    def _begin_anew(self) -> None:
        if self.wants_to_be_joined:
            self.new_life()

    def _acknowledge(self, message_id: int) -> None:
        if self.no_acks:
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
        if self._acks and self._call is not None and self.joined:
            self._say(MessageType.ACK, **self._ack_fields())
