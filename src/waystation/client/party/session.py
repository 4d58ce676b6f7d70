"""A session on the client's side: join, resume, hand-off, standby, leave. No I/O.

Rule 1: a session outlives its streams. Each new stream begins with a JOIN that carries the same
        ids, the newest resume token, the position reached (`party_seq`) and the waiting acks.
Rule 2: a broken stream is replaced after a random wait, whose limit doubles from `backoff_min_s`
        to `backoff_max_s`. When the broker has acknowledged nothing for a TTL, continuity is lost:
        one event says so, and the next JOIN starts a new session.
Rule 3: when the primary fails (its end, no answer, DRAIN or HANDOFF), PROMOTE makes the standby the
        primary. The next standby is opened on another node; the failed one is avoided for
        `avoid_s`.
Rule 4: HANDOFF without a standby opens the next stream with the ticket while the old one is still
        read. The old stream is closed when the JOIN of the new one is answered.
Rule 5: events for the application contain no duplicates, on whichever streams messages arrive.
"""

import random
from collections.abc import Sequence

from waystation.base.errors import BusyError
from waystation.presence.wire import party_presence_pb2 as pb
from waystation.presence.wire.party_presence_pb2 import ClientMessage

from .acks import AckBatch
from .backoff import Backoff
from .effects import Close, Effect, FetchToken, FindNodes, Finish, Notify, Open, Send
from .error_actions import ErrorAction, action_for_grpc_status, action_for_status, code_name
from .model import ContinuityLost, Event, SessionOptions, State, StateChanged, TokenRefused
from .nodes import Nodes
from .outgoing_messages import OutgoingMessages
from .session_stream import Role, SessionStream
from .view import PartyView

SIGNALS_MAX = 64  # waiting for their answer
FIND_AGAIN_S = 10.0


class Session:
    def __init__(
        self,
        options: SessionOptions,
        endpoints: Sequence[str],
        *,
        chance: random.Random,
        now: float,
    ) -> None:
        self._options = options
        self._nodes = Nodes(endpoints, avoid_s=options.avoid_s)
        self._streams: dict[int, SessionStream] = {}
        self._stream_count = 0
        self._primary: SessionStream | None = None
        self._standby: SessionStream | None = None
        self._outgoing = OutgoingMessages(options)
        self._resume_token = b""
        self._ttl_s = options.session_ttl_ms / 1000
        self._joined_once = False
        self._loss_reported = False
        self._with_seq = True  # False after a broker that lost its log refused our position
        self._token_asked = False
        self._first_list = True
        self._backoff = Backoff(options.backoff_min_s, options.backoff_max_s, chance)
        self._retry_at: float | None = now
        self._answered_at = now
        self._find_at = now
        self._leaving_until: float | None = None
        self._signals: dict[int, ClientMessage] = {}
        self._acks = AckBatch(delay_s=options.ack_delay_s, batch=options.ack_batch)
        self._effects: list[Effect] = []
        self.view = PartyView()
        self.state = State.IDLE
        self.resumes = 0

    # --- inputs ----------------------------------------------------------------------------------

    def received(self, number: int, message: ClientMessage, now: float) -> list[Effect]:
        stream = self._streams.get(number)
        if stream is not None and self.state is not State.CLOSED:
            self._take(stream, message, now)
        return self._taken()

    def ended(self, number: int, grpc_status: int, now: float) -> list[Effect]:
        """The stream has ended, or could not be opened."""
        stream = self._streams.get(number)
        if stream is not None and self.state is not State.CLOSED:
            leaving = self._leaving_until is not None and stream is self._primary
            if leaving and grpc_status == 0:
                self._finish(0, "left")
            else:
                self._stream_ended(stream, *action_for_grpc_status(grpc_status), now)
        return self._taken()

    def nodes_found(self, endpoints: Sequence[str], now: float) -> list[Effect]:
        self._nodes.add(endpoints)
        self._seek_standby(now)
        return self._taken()

    def renewed(self, token: str, now: float) -> list[Effect]:
        """Sends a new JWT on the open streams; later streams begin with it."""
        for stream in self._streams.values():
            if stream.up and stream.role is not Role.FORMER:
                self._send_new(stream, pb.AUTH, now, auth_token=token)
        return self._taken()

    def signal(self, payload: bytes, now: float) -> list[Effect]:
        if len(self._signals) >= SIGNALS_MAX:
            raise BusyError(f"{SIGNALS_MAX} signals wait for their answer (limit {SIGNALS_MAX})")
        message = self._outgoing.message(pb.SIGNAL, payload=payload)
        self._signals[message.message_id] = message
        if self._primary is not None and self._primary.up:
            self._send(self._primary, message, now)
        return self._taken()

    def leave(self, now: float) -> list[Effect]:
        if self.state is State.CLOSED:
            return []
        self._leaving_until = now + self._options.leave_timeout_s
        if self._primary is not None and self._primary.up:
            self._send_new(self._primary, pb.LEAVE, now)
        elif not self._joined_once and not self._streams:
            self._finish(0, "left before it had joined")
        return self._taken()

    def wake(self, now: float) -> list[Effect]:
        """Performs what is due; to be called at `wake_at()`."""
        if self.state is State.CLOSED:
            return []
        if self._leaving_until is not None and now >= self._leaving_until:
            self._finish(0, "left without an answer")
            return self._taken()
        for stream in list(self._streams.values()):
            dead_at = stream.dead_at(self._options.answer_s)
            if dead_at is not None and now >= dead_at:
                self._effects.append(Close(stream.number))
                self._stream_ended(stream, ErrorAction.RESUME, pb.INTERNAL_ERROR, now)
            elif (
                ping_at := stream.ping_at(self._options.ping_s(self._ttl_s))
            ) is not None and now >= ping_at:
                self._send_new(stream, pb.PING, now)
        self._wake_session(now)
        return self._taken()

    def wake_at(self) -> float | None:
        if self.state is State.CLOSED:
            return None
        times = [self._leaving_until, self._retry_at]
        for stream in self._streams.values():
            times += [
                stream.dead_at(self._options.answer_s),
                stream.ping_at(self._options.ping_s(self._ttl_s)),
            ]
        if self._primary is not None and self._primary.up:
            times.append(self._acks.due_at)
            if self._lacks_standby():
                times.append(self._find_at)
        elif not self._loss_reported and self._joined_once:
            times.append(self._answered_at + self._ttl_s)
        return min((time for time in times if time is not None), default=None)

    # --- messages --------------------------------------------------------------------------------

    def _take(self, stream: SessionStream, message: ClientMessage, now: float) -> None:
        kind = message.message_type
        if kind == pb.ACK:
            self._acked(stream, message, now)
            return
        if kind == pb.ERROR:
            self._failed(stream, message, now)
            return
        self._acks.add(message.message_id, now)
        event: Event | None = None
        if kind == pb.LIST:
            covers = not self._first_list
            self._first_list = False
            event = self.view.listed(message, covers=covers or message.status_code != pb.OK)
        elif kind in {pb.JOIN, pb.LEAVE, pb.SIGNAL, pb.UPDATE}:
            event = self.view.announced(message)
        elif kind == pb.HANDOFF:
            self._handed_off(stream, message, now)
        elif kind == pb.DRAIN:
            self._nodes.recommend(message.handoff.endpoints)
            self._drained(stream, now)
        elif kind == pb.AUTH:
            self._effects.append(FetchToken())
        if event is not None:
            self._effects.append(Notify(event))
        self._flush_acks(now)

    def _acked(self, stream: SessionStream, message: ClientMessage, now: float) -> None:
        ids = list(message.ack_message_ids)
        stream.answered(ids)
        self._answered_at = now
        for message_id in ids:
            self._signals.pop(message_id, None)
        if stream.join_id in ids and not stream.up:
            self._attached(stream, message, now)

    def _attached(self, stream: SessionStream, message: ClientMessage, now: float) -> None:
        stream.up = True
        stream.node_id = message.node_id
        if message.session_ttl_ms:
            self._ttl_s = message.session_ttl_ms / 1000
        if message.status_code == pb.STANDBY_ATTACHED:
            stream.role = Role.STANDBY
            self._standby = stream
            self._enter(State.PAIRED)
            return
        if message.resume_token:
            self._resume_token = message.resume_token
        self._close_others(stream)
        self._primary = stream
        stream.role = Role.PRIMARY
        self._backoff.reset()
        self._retry_at = None
        self._with_seq = True
        self._token_asked = False
        resumed = message.status_code in {pb.SESSION_RESUMED, pb.PROMOTED}
        if self._joined_once and not resumed:
            self._lose_continuity()
        self.resumes += resumed
        self._first_list = resumed
        self._joined_once = True
        self._loss_reported = False
        self._enter(State.PAIRED if self._standby is not None else State.SINGLE)
        for signal in list(self._signals.values()):
            self._send(stream, signal, now)
        if self._leaving_until is not None:
            self._send_new(stream, pb.LEAVE, now)
        self._seek_standby(now)

    def _failed(self, stream: SessionStream, message: ClientMessage, now: float) -> None:
        code = message.status_code
        ids = list(message.ack_message_ids)
        stream.answered(ids)
        action = action_for_status(code, message.retry_after_ms)
        if stream.join_id in ids and not stream.up:
            self._join_failed(stream, message, action, now)
        elif action is not ErrorAction.GO_ON:
            self._nodes.recommend(message.handoff.endpoints)
            self._effects.append(Close(stream.number))
            self._stream_ended(stream, action, code, now, message.retry_after_ms)
        elif code == pb.TOKEN_REJECTED:
            self._effects.append(Notify(TokenRefused()))
        for message_id in ids:
            self._signals.pop(message_id, None)

    def _join_failed(
        self, stream: SessionStream, message: ClientMessage, action: ErrorAction, now: float
    ) -> None:
        code = message.status_code
        self._nodes.recommend(message.handoff.endpoints)
        if stream.role is Role.STANDBY:
            action = ErrorAction.RESUME  # another node may accept the standby
        elif code == pb.INVALID_FIELD and self._with_seq:
            self._with_seq = False
            self._join(stream, now)
            return
        elif code == pb.SESSION_NOT_FOUND and self._leaving_until is not None:
            self._finish(0, "left")
            return
        elif code == pb.SESSION_ID_IN_USE and self._stream_count > 1:
            action = ErrorAction.RESUME  # the broker still holds an earlier stream of ours
        elif code in {pb.STORE_BUSY, pb.RATE_LIMITED} or (
            stream.ticket and action is ErrorAction.DROP_TOKEN
        ):
            action = ErrorAction.RESUME
        elif action is ErrorAction.GO_ON:
            action = ErrorAction.GIVE_UP
        self._effects.append(Close(stream.number))
        self._stream_ended(stream, action, code, now, message.retry_after_ms)

    # --- streams ---------------------------------------------------------------------------------

    def _open(self, role: Role, endpoint: str, now: float, ticket: bytes = b"") -> SessionStream:
        self._stream_count += 1
        stream = SessionStream(self._stream_count, endpoint, role, now)
        stream.ticket = ticket
        self._streams[stream.number] = stream
        self._effects.append(Open(stream.number, endpoint))
        self._join(stream, now)
        return stream

    def _join(self, stream: SessionStream, now: float) -> None:
        message = self._outgoing.join(
            stream.ticket or self._resume_token,
            standby=stream.role is Role.STANDBY,
            only_resume=self._leaving_until is not None,
        )
        if stream.role is not Role.STANDBY and self._joined_once and not self._loss_reported:
            message.ack_message_ids.extend(self._acks.take())
            if self._with_seq and stream.role is Role.PRIMARY:
                message.party_seq = self.view.seq
        stream.join_id = message.message_id
        self._send(stream, message, now)

    def _stream_ended(
        self,
        stream: SessionStream,
        action: ErrorAction,
        code: int,
        now: float,
        retry_after_ms: int = 0,
    ) -> None:
        """Reacts to the end of a stream, according to its role."""
        self._streams.pop(stream.number, None)
        if stream is self._standby or stream.role is Role.STANDBY:
            if stream is self._standby:
                self._standby = None
            self._nodes.avoid(stream.endpoint, now)
            if self.state is State.PROMOTING:
                self._reconnect(now)
            elif self.state is State.PAIRED:
                self._enter(State.SINGLE)
            self._find_at = now + self._backoff.next_s()
            return
        if stream.role is Role.FORMER or self._primary not in {None, stream}:
            return  # a failed hand-off: the old stream still works
        self._primary = None
        successor = next(
            (one for one in self._streams.values() if one.role is Role.SUCCESSOR), None
        )
        if successor is not None:
            successor.role = Role.PRIMARY
            return
        if self.state is State.PROMOTING:
            return
        self._nodes.avoid(stream.endpoint, now)
        if self._standby is not None and action is ErrorAction.RESUME:
            self._promote(now)
            return
        if self._prepare_return(action):
            self._reconnect(now, retry_after_ms / 1000)
        else:
            self._finish(code, code_name(code))

    def _prepare_return(self, action: ErrorAction) -> bool:
        """Whether the session can be joined again."""
        if action is ErrorAction.DROP_TOKEN:
            had, self._resume_token = self._resume_token, b""
            return bool(had)
        if action is ErrorAction.NEW_JWT:
            asked, self._token_asked = self._token_asked, True
            self._effects.append(FetchToken())
            return not asked
        if action is ErrorAction.JOIN_ANEW:
            self._lose_continuity()
        return action is not ErrorAction.GIVE_UP

    def _reconnect(self, now: float, at_least_s: float = 0.0) -> None:
        self._primary = None
        for stream in self._streams.values():
            if stream.role is not Role.STANDBY:
                stream.role = Role.FORMER
        self._enter(State.CONNECTING)
        self._retry_at = now + max(at_least_s, self._backoff.next_s())

    def _close_others(self, stream: SessionStream) -> None:
        """Closes all streams but `stream`, the new primary, and the standby."""
        for other in list(self._streams.values()):
            if (
                other is not stream
                and other is not self._standby
                and other.role is not Role.STANDBY
            ):
                other.role = Role.FORMER
                self._effects.append(Close(other.number))
                del self._streams[other.number]
        if stream is self._standby:
            self._standby = None

    def _handed_off(self, stream: SessionStream, message: ClientMessage, now: float) -> None:
        self._nodes.recommend(message.handoff.endpoints)
        if self._drained(stream, now) or stream is not self._primary:
            return
        if message.handoff.endpoints:
            where = message.handoff.endpoints[0]
            self._open(Role.SUCCESSOR, where, now, message.handoff.ticket)

    def _drained(self, stream: SessionStream, now: float) -> bool:
        """Rule 3: whether the standby takes over from a node that drains."""
        if stream is not self._primary or self._standby is None:
            return False
        if self.state is State.PROMOTING:
            return True
        self._flush_acks(now, at_once=True)
        self._nodes.avoid(stream.endpoint, now)
        self._promote(now)
        return True

    def _promote(self, now: float) -> None:
        standby = self._standby
        assert standby is not None
        self._enter(State.PROMOTING)
        standby.up = False
        message = self._outgoing.message(pb.PROMOTE)
        standby.join_id = message.message_id
        self._send(standby, message, now)

    # --- standby ---------------------------------------------------------------------------------

    def _lacks_standby(self) -> bool:
        return (
            self._options.highly_available
            and self.state is State.SINGLE
            and self._leaving_until is None
            and not any(stream.role is Role.STANDBY for stream in self._streams.values())
        )

    def _seek_standby(self, now: float) -> None:
        if not self._lacks_standby() or self._primary is None or not self._primary.up:
            return
        endpoint = self._nodes.another(self._primary.endpoint, now)
        if endpoint is not None:
            self._open(Role.STANDBY, endpoint, now)

    # --- time, messages, ends --------------------------------------------------------------------

    def _wake_session(self, now: float) -> None:
        if self._retry_at is not None and now >= self._retry_at:
            self._retry_at = None
            self._enter(State.CONNECTING)
            self._open(Role.PRIMARY, self._nodes.next(now), now)
        up = self._primary is not None and self._primary.up
        if up:
            self._flush_acks(now)
        elif (
            self._joined_once and not self._loss_reported and now >= self._answered_at + self._ttl_s
        ):
            self._lose_continuity()
        if self._lacks_standby() and now >= self._find_at:
            self._find_at = now + FIND_AGAIN_S
            self._effects.append(FindNodes())
            self._seek_standby(now)

    def _flush_acks(self, now: float, *, at_once: bool = False) -> None:
        primary = self._primary
        due = self._acks.due_at
        if primary is not None and primary.up and due is not None and (at_once or now >= due):
            self._send_new(primary, pb.ACK, now)

    def _lose_continuity(self) -> None:
        if not self._loss_reported:
            self._loss_reported = True
            self.view.forget()
            self._effects.append(Notify(ContinuityLost()))

    def _send_new(self, stream: SessionStream, kind: int, now: float, **fields: object) -> None:
        message = self._outgoing.message(kind, **fields)
        if stream is self._primary and kind in {pb.ACK, pb.PING, pb.LEAVE}:
            message.ack_message_ids.extend(self._acks.take())
        self._send(stream, message, now)

    def _send(self, stream: SessionStream, message: ClientMessage, now: float) -> None:
        stream.said(message, now)
        self._effects.append(Send(stream.number, message))

    def _enter(self, state: State) -> None:
        if state is not self.state:
            self.state = state
            self._effects.append(Notify(StateChanged(state)))

    def _finish(self, code: int, reason: str) -> None:
        for stream in self._streams.values():
            self._effects.append(Close(stream.number))
        self._streams.clear()
        self._primary = self._standby = None
        self._enter(State.CLOSED)
        self._effects.append(Finish(code, reason))

    def _taken(self) -> list[Effect]:
        effects, self._effects = self._effects, []
        return effects
