"""The life of one session from the client's side: join, resume, hand-off, standby, leave. No I/O.

Rule 1: streams come and go, the session stays: every new stream begins with JOIN, the same ids, the
        newest resume token, what is known (`party_seq`) and what is not yet acknowledged.
Rule 2: a broken stream is replaced after a random part of a time that doubles from `backoff_min_s`
        to `backoff_max_s`. When nothing was acknowledged for a TTL, continuity is lost: the
        application is told once, and the next JOIN begins anew.
Rule 3: with a standby, the failure of the primary (its end, no answer, DRAIN or HANDOFF) makes
        the standby the primary by PROMOTE; its place is taken by another node, for `avoid_s` not
        by the one that failed.
Rule 4: HANDOFF without a standby opens the next stream with the ticket while the old one is still
        read; the old one is let go when the new one is answered.
Rule 5: what the application is told is free of duplicates, whichever streams it came on.
"""

import random
from collections.abc import Sequence

from waystation.base.errors import BusyError
from waystation.presence.wire import party_presence_pb2 as pb
from waystation.presence.wire.party_presence_pb2 import ClientMessage

from .acks import AckBatch
from .advice import Advice, advise, advise_grpc, code_name
from .backoff import Backoff
from .effects import Close, Effect, FetchToken, FindNodes, Finish, Open, Say, Tell
from .line import Line, Role
from .model import ContinuityLost, Event, State, StateChanged, TokenRefused, Wishes
from .nodes import Nodes
from .view import View
from .words import Words

SIGNALS_MAX = 64  # sent and not answered
FIND_AGAIN_S = 10.0


class Session:
    def __init__(
        self, wishes: Wishes, endpoints: Sequence[str], *, chance: random.Random, now: float
    ) -> None:
        self._wishes = wishes
        self._nodes = Nodes(endpoints, avoid_s=wishes.avoid_s)
        self._lines: dict[int, Line] = {}
        self._line_count = 0
        self._primary: Line | None = None
        self._standby: Line | None = None
        self._words = Words(wishes)
        self._resume_token = b""
        self._ttl_s = wishes.session_ttl_ms / 1000
        self._joined_once = False
        self._lost_told = False
        self._with_seq = True  # a broker that has lost its log refuses the position we name
        self._token_asked = False
        self._first_list = True
        self._backoff = Backoff(wishes.backoff_min_s, wishes.backoff_max_s, chance)
        self._retry_at: float | None = now
        self._answered_at = now
        self._find_at = now
        self._leaving_until: float | None = None
        self._signals: dict[int, ClientMessage] = {}
        self._acks = AckBatch(delay_s=wishes.ack_delay_s, batch=wishes.ack_batch)
        self._effects: list[Effect] = []
        self.view = View()
        self.state = State.IDLE
        self.resumes = 0

    # --- inputs ----------------------------------------------------------------------------------

    def received(self, number: int, message: ClientMessage, now: float) -> list[Effect]:
        line = self._lines.get(number)
        if line is not None and self.state is not State.CLOSED:
            self._take(line, message, now)
        return self._taken()

    def ended(self, number: int, grpc_status: int, now: float) -> list[Effect]:
        """The stream is over, or could not be opened."""
        line = self._lines.get(number)
        if line is not None and self.state is not State.CLOSED:
            leaving = self._leaving_until is not None and line is self._primary
            if leaving and grpc_status == 0:
                self._finish(0, "left")
            else:
                self._gone(line, *advise_grpc(grpc_status), now)
        return self._taken()

    def nodes_found(self, endpoints: Sequence[str], now: float) -> list[Effect]:
        self._nodes.add(endpoints)
        self._seek_standby(now)
        return self._taken()

    def renewed(self, token: str, now: float) -> list[Effect]:
        """A new JWT is there; streams that open from now on use it."""
        for line in self._lines.values():
            if line.up and line.role is not Role.FORMER:
                self._say(line, pb.AUTH, now, auth_token=token)
        return self._taken()

    def signal(self, payload: bytes, now: float) -> list[Effect]:
        if len(self._signals) >= SIGNALS_MAX:
            raise BusyError("too many signals wait for their answer")
        message = self._words.message(pb.SIGNAL, payload=payload)
        self._signals[message.message_id] = message
        if self._primary is not None and self._primary.up:
            self._send(self._primary, message, now)
        return self._taken()

    def leave(self, now: float) -> list[Effect]:
        if self.state is State.CLOSED:
            return []
        self._leaving_until = now + self._wishes.leave_timeout_s
        if self._primary is not None and self._primary.up:
            self._say(self._primary, pb.LEAVE, now)
        elif not self._joined_once and not self._lines:
            self._finish(0, "left before it had joined")
        return self._taken()

    def wake(self, now: float) -> list[Effect]:
        """Does what is due. Call it at `wake_at()`."""
        if self.state is State.CLOSED:
            return []
        if self._leaving_until is not None and now >= self._leaving_until:
            self._finish(0, "left without an answer")
            return self._taken()
        for line in list(self._lines.values()):
            dead_at = line.dead_at(self._wishes.answer_s)
            if dead_at is not None and now >= dead_at:
                self._effects.append(Close(line.number))
                self._gone(line, Advice.RESUME, pb.INTERNAL_ERROR, now)
            elif (
                ping_at := line.ping_at(self._wishes.ping_s(self._ttl_s))
            ) is not None and now >= ping_at:
                self._say(line, pb.PING, now)
        self._wake_session(now)
        return self._taken()

    def wake_at(self) -> float | None:
        if self.state is State.CLOSED:
            return None
        times = [self._leaving_until, self._retry_at]
        for line in self._lines.values():
            times += [
                line.dead_at(self._wishes.answer_s),
                line.ping_at(self._wishes.ping_s(self._ttl_s)),
            ]
        if self._primary is not None and self._primary.up:
            times.append(self._acks.due_at)
            if self._lacks_standby():
                times.append(self._find_at)
        elif not self._lost_told and self._joined_once:
            times.append(self._answered_at + self._ttl_s)
        return min((time for time in times if time is not None), default=None)

    # --- messages --------------------------------------------------------------------------------

    def _take(self, line: Line, message: ClientMessage, now: float) -> None:
        kind = message.message_type
        if kind == pb.ACK:
            self._acked(line, message, now)
            return
        if kind == pb.ERROR:
            self._failed(line, message, now)
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
            self._handed_off(line, message, now)
        elif kind == pb.DRAIN:
            self._nodes.recommend(message.handoff.endpoints)
            self._drained(line, now)
        elif kind == pb.AUTH:
            self._effects.append(FetchToken())
        if event is not None:
            self._effects.append(Tell(event))
        self._flush_acks(now)

    def _acked(self, line: Line, message: ClientMessage, now: float) -> None:
        ids = list(message.ack_message_ids)
        line.answered(ids)
        self._answered_at = now
        for message_id in ids:
            self._signals.pop(message_id, None)
        if line.join_id in ids and not line.up:
            self._attached(line, message, now)

    def _attached(self, line: Line, message: ClientMessage, now: float) -> None:
        line.up = True
        line.node_id = message.node_id
        if message.session_ttl_ms:
            self._ttl_s = message.session_ttl_ms / 1000
        if message.status_code == pb.STANDBY_ATTACHED:
            line.role = Role.STANDBY
            self._standby = line
            self._enter(State.PAIRED)
            return
        if message.resume_token:
            self._resume_token = message.resume_token
        self._let_go_of_others(line)
        self._primary = line
        line.role = Role.PRIMARY
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
        self._lost_told = False
        self._enter(State.PAIRED if self._standby is not None else State.SINGLE)
        for signal in list(self._signals.values()):
            self._send(line, signal, now)
        if self._leaving_until is not None:
            self._say(line, pb.LEAVE, now)
        self._seek_standby(now)

    def _failed(self, line: Line, message: ClientMessage, now: float) -> None:
        code = message.status_code
        ids = list(message.ack_message_ids)
        line.answered(ids)
        advice = advise(code, message.retry_after_ms)
        if line.join_id in ids and not line.up:
            self._join_failed(line, message, advice, now)
        elif advice is not Advice.GO_ON:
            self._nodes.recommend(message.handoff.endpoints)
            self._effects.append(Close(line.number))
            self._gone(line, advice, code, now, message.retry_after_ms)
        elif code == pb.TOKEN_REJECTED:
            self._effects.append(Tell(TokenRefused()))
        for message_id in ids:
            self._signals.pop(message_id, None)

    def _join_failed(self, line: Line, message: ClientMessage, advice: Advice, now: float) -> None:
        code = message.status_code
        self._nodes.recommend(message.handoff.endpoints)
        if line.role is Role.STANDBY:
            advice = Advice.RESUME  # this node will not be it; another may
        elif code == pb.INVALID_FIELD and self._with_seq:
            self._with_seq = False
            self._join(line, now)
            return
        elif code == pb.SESSION_NOT_FOUND and self._leaving_until is not None:
            self._finish(0, "left")
            return
        elif code == pb.SESSION_ID_IN_USE and self._line_count > 1:
            advice = Advice.RESUME  # by a stream of ours whose end was not noticed yet
        elif code in {pb.STORE_BUSY, pb.RATE_LIMITED} or (
            line.ticket and advice is Advice.DROP_TOKEN
        ):
            advice = Advice.RESUME
        elif advice is Advice.GO_ON:
            advice = Advice.GIVE_UP
        self._effects.append(Close(line.number))
        self._gone(line, advice, code, now, message.retry_after_ms)

    # --- lines -----------------------------------------------------------------------------------

    def _open(self, role: Role, endpoint: str, now: float, ticket: bytes = b"") -> Line:
        self._line_count += 1
        line = Line(self._line_count, endpoint, role, now)
        line.ticket = ticket
        self._lines[line.number] = line
        self._effects.append(Open(line.number, endpoint))
        self._join(line, now)
        return line

    def _join(self, line: Line, now: float) -> None:
        message = self._words.join(
            line.ticket or self._resume_token,
            standby=line.role is Role.STANDBY,
            only_resume=self._leaving_until is not None,
        )
        if line.role is not Role.STANDBY and self._joined_once and not self._lost_told:
            message.ack_message_ids.extend(self._acks.take())
            if self._with_seq and line.role is Role.PRIMARY:
                message.party_seq = self.view.seq
        line.join_id = message.message_id
        self._send(line, message, now)

    def _gone(
        self, line: Line, advice: Advice, code: int, now: float, retry_after_ms: int = 0
    ) -> None:
        """A line is over. What follows depends on what it was to us."""
        self._lines.pop(line.number, None)
        if line is self._standby or line.role is Role.STANDBY:
            if line is self._standby:
                self._standby = None
            self._nodes.avoid(line.endpoint, now)
            if self.state is State.PROMOTING:
                self._reconnect(now)
            elif self.state is State.PAIRED:
                self._enter(State.SINGLE)
            self._find_at = now + self._backoff.next_s()
            return
        if line.role is Role.FORMER or self._primary not in {None, line}:
            return  # a hand-off that came to nothing: the old line is still there
        self._primary = None
        heir = next((one for one in self._lines.values() if one.role is Role.SUCCESSOR), None)
        if heir is not None:
            heir.role = Role.PRIMARY
            return
        if self.state is State.PROMOTING:
            return
        self._nodes.avoid(line.endpoint, now)
        if self._standby is not None and advice is Advice.RESUME:
            self._promote(now)
            return
        if self._prepare_return(advice):
            self._reconnect(now, retry_after_ms / 1000)
        else:
            self._finish(code, code_name(code))

    def _prepare_return(self, advice: Advice) -> bool:
        """Whether there is any use in coming back."""
        if advice is Advice.DROP_TOKEN:
            had, self._resume_token = self._resume_token, b""
            return bool(had)
        if advice is Advice.NEW_JWT:
            asked, self._token_asked = self._token_asked, True
            self._effects.append(FetchToken())
            return not asked
        if advice is Advice.JOIN_ANEW:
            self._lose_continuity()
        return advice is not Advice.GIVE_UP

    def _reconnect(self, now: float, at_least_s: float = 0.0) -> None:
        self._primary = None
        for line in self._lines.values():
            if line.role is not Role.STANDBY:
                line.role = Role.FORMER
        self._enter(State.CONNECTING)
        self._retry_at = now + max(at_least_s, self._backoff.next_s())

    def _let_go_of_others(self, line: Line) -> None:
        """`line` carries the session now."""
        for other in list(self._lines.values()):
            if other is not line and other is not self._standby and other.role is not Role.STANDBY:
                other.role = Role.FORMER
                self._effects.append(Close(other.number))
                del self._lines[other.number]
        if line is self._standby:
            self._standby = None

    def _handed_off(self, line: Line, message: ClientMessage, now: float) -> None:
        self._nodes.recommend(message.handoff.endpoints)
        if self._drained(line, now) or line is not self._primary:
            return
        if message.handoff.endpoints:
            where = message.handoff.endpoints[0]
            self._open(Role.SUCCESSOR, where, now, message.handoff.ticket)

    def _drained(self, line: Line, now: float) -> bool:
        """Rule 3: whether the standby takes over from a node that is about to go."""
        if line is not self._primary or self._standby is None:
            return False
        if self.state is State.PROMOTING:
            return True
        self._flush_acks(now, at_once=True)
        self._nodes.avoid(line.endpoint, now)
        self._promote(now)
        return True

    def _promote(self, now: float) -> None:
        standby = self._standby
        assert standby is not None
        self._enter(State.PROMOTING)
        standby.up = False
        message = self._words.message(pb.PROMOTE)
        standby.join_id = message.message_id
        self._send(standby, message, now)

    # --- standby ---------------------------------------------------------------------------------

    def _lacks_standby(self) -> bool:
        return (
            self._wishes.highly_available
            and self.state is State.SINGLE
            and self._leaving_until is None
            and not any(line.role is Role.STANDBY for line in self._lines.values())
        )

    def _seek_standby(self, now: float) -> None:
        if not self._lacks_standby() or self._primary is None or not self._primary.up:
            return
        endpoint = self._nodes.another(self._primary.endpoint, now)
        if endpoint is not None:
            self._open(Role.STANDBY, endpoint, now)

    # --- time, words, ends -----------------------------------------------------------------------

    def _wake_session(self, now: float) -> None:
        if self._retry_at is not None and now >= self._retry_at:
            self._retry_at = None
            self._enter(State.CONNECTING)
            self._open(Role.PRIMARY, self._nodes.next(now), now)
        up = self._primary is not None and self._primary.up
        if up:
            self._flush_acks(now)
        elif self._joined_once and not self._lost_told and now >= self._answered_at + self._ttl_s:
            self._lose_continuity()
        if self._lacks_standby() and now >= self._find_at:
            self._find_at = now + FIND_AGAIN_S
            self._effects.append(FindNodes())
            self._seek_standby(now)

    def _flush_acks(self, now: float, *, at_once: bool = False) -> None:
        primary = self._primary
        due = self._acks.due_at
        if primary is not None and primary.up and due is not None and (at_once or now >= due):
            self._say(primary, pb.ACK, now)

    def _lose_continuity(self) -> None:
        if not self._lost_told:
            self._lost_told = True
            self.view.forget()
            self._effects.append(Tell(ContinuityLost()))

    def _say(self, line: Line, kind: int, now: float, **fields: object) -> None:
        message = self._words.message(kind, **fields)
        if line is self._primary and kind in {pb.ACK, pb.PING, pb.LEAVE}:
            message.ack_message_ids.extend(self._acks.take())
        self._send(line, message, now)

    def _send(self, line: Line, message: ClientMessage, now: float) -> None:
        line.said(message, now)
        self._effects.append(Say(line.number, message))

    def _enter(self, state: State) -> None:
        if state is not self.state:
            self.state = state
            self._effects.append(Tell(StateChanged(state)))

    def _finish(self, code: int, reason: str) -> None:
        for line in self._lines.values():
            self._effects.append(Close(line.number))
        self._lines.clear()
        self._primary = self._standby = None
        self._enter(State.CLOSED)
        self._effects.append(Finish(code, reason))

    def _taken(self) -> list[Effect]:
        effects, self._effects = self._effects, []
        return effects
