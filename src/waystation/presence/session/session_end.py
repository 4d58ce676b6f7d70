"""Detaches and ends sessions: LEAVE, timeout, removal, lost stream, attached elsewhere.

Rule 1: a session ends when the store has recorded its LEAVE, not before. While the store does not
        answer, no session ends.
Rule 2: the store's fence decides races: the second caller finds the session ended or attached
        elsewhere.
Rule 3: a lost stream does not end its session, which waits for one TTL. Only participants that
        asked for updates are told.
"""

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, Final

from waystation.base.limits import BoundedLru
from waystation.net.http2.port import GrpcStatus
from waystation.presence.errors import STORE_TROUBLE
from waystation.presence.model import Detached, Entry, MessageType, Now, PartyId, SessionKey, Status
from waystation.presence.node_state import NodeState
from waystation.presence.party.party import Party
from waystation.presence.party.registry import Registry
from waystation.presence.reports import Reports
from waystation.presence.store import Left, Notice, PresenceStore
from waystation.presence.wire import server_messages as write
from waystation.presence.wire.party_presence_pb2 import HandoffInfo

from .client_stream import ClientStream
from .session import Session, State

MOVED_MAX: Final = 100_000
TRY_AGAIN_S: Final = 1.0  # after the store failed to record a timeout
VERIFY_LOOKS: Final = 3
VERIFYING_MAX: Final = 10_000

# Module constants: reading an enum member takes a third of a delivery's time.
_OK: Final = Status.OK
_CALL_OK: Final = GrpcStatus.OK
_LEFT: Final = State.LEFT
_ENDED: Final = (State.LEFT, State.EXPIRED)

Run = Callable[[str, Coroutine[Any, Any, None]], None]


class SessionEnd:
    def __init__(
        self, registry: Registry, store: PresenceStore, reports: Reports, run: Run, node: NodeState
    ) -> None:
        self._registry = registry
        self._store = store
        self._reports = reports
        self._run = run
        self._node = node
        self.detaching: dict[SessionKey, asyncio.Event] = {}  # detaches that the store is recording
        self._seen_leaves: dict[SessionKey, Left] = {}  # LEAVEs in the log, of sessions that end
        self._verifying = 0
        # Parties moved to another node -> its endpoint for clients.
        self.moved: BoundedLru[PartyId, str] = BoundedLru(MOVED_MAX)

    # --- without a stream ------------------------------------------------------------------------

    def detach(self, session: Session, cause: Detached, now: Now) -> None:
        if session.state is not State.ACTIVE:
            return
        if session.key.party_id in self.moved:
            self.drop(session, Status.OK)
            return
        cursor = session.delivery.saved_cursor
        if session.stall_handle:
            self._registry.wheel.cancel(session.stall_handle)
            session.stall_handle = 0
        session.detached(cause, now.mono)
        self._registry.arm_life(session)
        self._reports.detached(session, cause)
        recorded = self.detaching[session.key] = asyncio.Event()
        self._run(
            "detach", self._record_detach(session.key, session.fence, cursor, cause, recorded)
        )

    async def _record_detach(
        self, key: SessionKey, fence: int, cursor: int, cause: Detached, recorded: asyncio.Event
    ) -> None:
        try:
            await self._store.detach(key, fence, cursor=cursor, cause=cause)
        except STORE_TROUBLE as exc:
            # Our timer ends the session in time; if this node dies, its lease ends it.
            self._reports.store_trouble("detach", exc)
        finally:
            recorded.set()
            if self.detaching.get(key) is recorded:  # not the event of a later detach
                del self.detaching[key]

    def verify_later(self, key: SessionKey, token_hash: bytes) -> None:
        """The answer to a join or attach was lost: if the store applied it, the session has no
        stream. The client was told to join again."""
        if self._verifying < VERIFYING_MAX:  # above the limit, the end of our lease detaches it
            self._verifying += 1
            self._run("verify", self._detach_unknown(key, token_hash))

    async def _detach_unknown(self, key: SessionKey, token_hash: bytes) -> None:
        looks = 0
        while looks < VERIFY_LOOKS:  # the lost request may reach the store after the first look
            await asyncio.sleep(TRY_AGAIN_S)
            try:
                snapshot = await self._store.snapshot(key.party_id)
                for record in snapshot.sessions if snapshot is not None else ():
                    session = self._registry.sessions.get(key)
                    known = session is not None and session.fence >= record.fence
                    if record.key == key and record.token_hash == token_hash and not known:
                        await self._store.detach(
                            key, record.fence, cursor=record.cursor, cause=Detached.TRANSPORT
                        )
                        looks = VERIFY_LOOKS
                looks += 1
            except STORE_TROUBLE as exc:
                self._reports.store_trouble("verify", exc)
        self._verifying -= 1

    async def wait_for_detach(self, key: SessionKey) -> None:
        """Waits until the store has recorded a detach, so that a client that reconnects at once is
        not refused with SESSION_ID_IN_USE."""
        recording = self.detaching.get(key)
        if recording is not None:
            await recording.wait()

    def end_stream(
        self,
        client: ClientStream,
        status: Status,
        now: Now,
        *,
        cause: Detached,
        answers: int = 0,
        detail: str = "",
        discard_unsent: bool = False,
        handoff: HandoffInfo | None = None,
    ) -> None:
        """Ends the stream with an error and detaches its session, if it has one."""
        session = client.session
        self._reports.error(status)
        client.end(
            status,
            now,
            answers=answers,
            detail=detail,
            discard_unsent=discard_unsent,
            handoff=handoff,
        )
        if session is not None:
            self.detach(session, cause, now)

    # --- time ------------------------------------------------------------------------------------

    def timer_due(self, session: Session, now: Now) -> None:
        """The session's timer is due."""
        session.life_handle = 0
        if session.state in _ENDED:
            return
        if session.leaving or self._node.fenced():  # a LEAVE may still fail
            session.life_handle = self._registry.arm(now.mono + TRY_AGAIN_S, session)
            return
        status = session.overdue(now.mono)
        if status is not None:
            session.leaving = True
            self._run("expire", self._expire(session, status))
            return
        if session.state is State.DETACHED and not session.update_told:
            session.update_told = True
            self._run("update", self.tell(session, Status.PARTICIPANT_DETACHED))
        self._registry.arm_life(session)

    async def tell(self, session: Session, status: Status) -> None:
        try:
            await self._store.tell(
                Notice(
                    key=session.key, status=status, fence=session.fence, node_id=self._node.node_id
                )
            )
        except STORE_TROUBLE as exc:
            self._reports.store_trouble("update", exc)

    async def _expire(self, session: Session, code: Status) -> None:
        left = await self._leave(session, code)
        if left is not None:
            self._finish(session, State.EXPIRED, code, left, self._registry.now())

    async def _leave(self, session: Session, code: Status) -> Left | None:
        """Records a LEAVE; None if the store did not answer or the session has moved."""
        try:
            left = await self._record_leave(session, code)
        except STORE_TROUBLE:
            if session.life_handle:
                self._registry.wheel.cancel(session.life_handle)
            at = self._registry.now().mono + TRY_AGAIN_S
            session.life_handle = self._registry.arm(at, session)
            return None
        if left is None:
            self.drop(session, Status.TAKEN_OVER)
        return left

    async def _record_leave(self, session: Session, code: Status) -> Left | None:
        """Raises `STORE_TROUBLE` unless the log has shown the LEAVE already."""
        key = session.key
        try:
            return await self._store.leave(key, session.fence, code)
        except STORE_TROUBLE as exc:
            self._reports.store_trouble("leave", exc)
            if key in self._seen_leaves:
                return self._seen_leaves[key]
            session.leaving = False
            session.may_have_left = True
            raise
        finally:
            self._seen_leaves.pop(key, None)

    # --- ends ------------------------------------------------------------------------------------

    async def leave(self, client: ClientStream, session: Session, message_id: int) -> None:
        """A client sent LEAVE."""
        left = await self._record_leave(session, _OK)
        now = self._registry.now()
        if left is None:
            self.drop(session, Status.TAKEN_OVER)
            return
        client.send(
            write.ack_at(
                session.delivery.next_id(), now.ms, message_id, left.seq, session.party.epoch
            )
        )
        client.finish(_CALL_OK)
        self._finish(session, _LEFT, _OK, left, now)

    async def remove(self, session: Session, code: Status) -> None:
        """Ends a session for an operator, or because its party is closed."""
        session.leaving = True
        left = await self._leave(session, code)
        if left is not None:
            self._finish(session, _LEFT, code, left, self._registry.now())

    def removed_elsewhere(self, session: Session, entry: Entry) -> None:
        """Applies a LEAVE from the log to a session of this node."""
        if session.joined_seq >= entry.seq:
            return
        left = Left(entry.seq, session.party.roster.size, entry.count)
        if session.leaving:  # our own LEAVE; kept in case the answer of the store is lost
            self._seen_leaves[session.key] = left
        else:
            self._finish(session, _LEFT, Status(entry.code), left, self._registry.now())

    def _finish(self, session: Session, state: State, code: Status, left: Left, now: Now) -> None:
        if session.state in _ENDED:
            return
        client = session.client
        if isinstance(client, ClientStream) and not client.over:
            if code is _OK:  # a repeated LEAVE: the answer to the first one was lost
                client.finish(GrpcStatus.OK)
            else:
                self._reports.error(code)
                client.end(code, now)
        self._reports.left(session, code, left.seq, now)
        if not left.party_size:
            party = session.party
            lived_s = now.mono - party.opened_mono
            self._reports.closed(party.party_id, size_max=party.size_max, lived_s=lived_s)
        session.ended(state)
        self._registry.drop(session)
        if not session.party.sessions:
            self.release(session.party)

    def attached_elsewhere(self, session: Session, *, peer: str = "") -> None:
        """Another node has attached the session, after a hand-off or a reconnect."""
        handed = session.handed_until > 0
        if handed:
            self._reports.handed_off("moved")
        self.drop(session, Status.OK if handed else Status.TAKEN_OVER, peer=peer)

    def drop(self, session: Session, status: Status, *, peer: str = "") -> None:
        """Drops a session that is on another node or ended; the party is not told."""
        if session.state in _ENDED:
            return
        now = self._registry.now()
        client = session.client
        endpoint = self.moved.get(session.key.party_id)
        if endpoint is not None and status is Status.TAKEN_OVER:
            status = Status.SESSION_MOVED
        if isinstance(client, ClientStream) and not client.over:
            if status is Status.OK:
                client.finish(GrpcStatus.OK)
            else:
                self._reports.error(status)
                handoff = write.handoff_info([endpoint]) if endpoint is not None else None
                client.end(status, now, handoff=handoff)
        self._reports.counters.abandoned += len(session.delivery.inflight)
        self._reports.moved(session, peer)
        session.ended(State.LEFT)
        self._registry.drop(session)
        self.release(session.party)

    def release(self, party: Party) -> None:
        """Drops a party without sessions and requests on this node."""
        if not party.idle or self._registry.parties.get(party.party_id) is not party:
            return
        del self._registry.parties[party.party_id]
        self._store.unsubscribe(party.party_id)

    # --- updates ---------------------------------------------------------------------------------

    def connectivity(self, party: Party, notice: Notice, now: Now) -> None:
        """Sends UPDATE to sessions that asked: a participant lost or regained its stream."""
        key = notice.key
        if (key.client_id, key.session_id) not in party.roster:
            return
        away = notice.status is Status.PARTICIPANT_DETACHED
        party.roster.set_detached(key.client_id, key.session_id, detached=away)
        for session in list(party.sessions.values()):
            delivery = session.delivery
            if not delivery.detached_marks or delivery.stream is None or session.key == key:
                continue
            if delivery.has_room():  # best effort
                message_id = delivery.next_id()
                data = write.update(
                    message_id,
                    max(now.ms, party.at_ms),
                    key=key,
                    seq=party.seq,
                    status=notice.status,
                )
                delivery.send_local(message_id, data, MessageType.UPDATE, now.mono)

    def standby_pinged(self, key: SessionKey, now: Now) -> None:
        """A standby of the session, on another node, sent PING."""
        session = self._registry.sessions.get(key)
        if session is not None and session.state is State.ACTIVE:
            session.last_rx = now.mono

    def send_drain(self, endpoints: Sequence[str], deadline_ms: int, now: Now) -> None:
        """Sends DRAIN to every session whose client knows it."""
        for session in list(self._registry.sessions.values()):
            delivery = session.delivery
            if delivery.stream is None or delivery.seed:
                continue
            message_id = delivery.next_id()
            info = write.handoff_info(endpoints, deadline_ms=deadline_ms)
            data = write.advice(
                message_id, now.ms, MessageType.DRAIN, status=Status.DRAINING, handoff=info
            )
            delivery.send_local(message_id, data, MessageType.DRAIN, now.mono)
