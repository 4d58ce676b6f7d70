"""Periodic work of a node: due timers, saved cursors, expired tokens, sessions without a stream.

`tick` is called every `tick_s` and runs the timers that the wheel says are due. Timers of sessions
and streams are in the wheel; the server calls the work that concerns the whole node.
"""

from typing import Final

from waystation.base.tasks import each
from waystation.presence.party.registry import Registry, Timer
from waystation.presence.session.client_stream import ClientStream, Phase, StreamControl
from waystation.presence.session.delivery import Delivery
from waystation.presence.session.session import Session, State
from waystation.presence.session.session_end import SessionEnd

from .errors import STORE_TROUBLE
from .grants import Authority, Grant
from .model import EXTENDED, Detached, MessageType, Now, SessionKey, SessionRecord, Status
from .reports import Reports
from .store import CursorRow, PresenceStore
from .wire import server_messages as write

CURSORS_AT_ONCE_MAX: Final = 5000
TRY_AGAIN_S: Final = 1.0


class PeriodicWork:
    def __init__(
        self,
        control: StreamControl,
        registry: Registry,
        store: PresenceStore,
        session_end: SessionEnd,
        reports: Reports,
        *,
        authority: Authority | None,
    ) -> None:
        self._control = control
        self._registry = registry
        self._store = store
        self._session_end = session_end
        self._reports = reports
        self._authority = authority

    def tick(self) -> bool:
        """Runs due timers; returns whether more are due already."""
        registry = self._registry
        due = registry.due(registry.now().mono)
        each(due, self._perform, self._failed)
        if registry.unjoined:
            now = registry.now()
            each(registry.late_to_join(now.mono), lambda one: self._late(one, now), self._failed)
        self._reports.observe_latencies()
        return len(due) > 0

    def _perform(self, timer: Timer) -> None:
        session_end, now = self._session_end, self._registry.now()
        if isinstance(timer, Session):
            session_end.timer_due(timer, now)
        elif isinstance(timer, Delivery):
            session = timer.holder
            if isinstance(session, Session) and not session.life_handle:
                session_end.timer_due(session, now)  # its timer waits for this one
            timer.retry(now)
        elif isinstance(timer, ClientStream):
            self._late(timer, now)
        else:
            timer(now)

    def _failed(self, error: Exception) -> None:
        self._reports.trouble("timer.failed", error)

    def _late(self, client: ClientStream, now: Now) -> None:
        """`join_timeout_s` passed without a JOIN."""
        client.join_handle = 0
        if client.phase is not Phase.OPEN:
            return
        if client.busy:
            # The store is being asked and may refuse the JOIN: look again.
            client.join_handle = self._registry.arm(now.mono + TRY_AGAIN_S, client)
        else:
            self._control.end(client, Status.JOIN_REQUIRED)

    def expect(self, record: SessionRecord) -> None:
        """Arms the deadline of a session of an earlier process; its remaining TTL counts."""
        left_s = max(0.0, (record.deadline_ms - self._registry.now().ms) / 1000)
        self._expect(record.key, record.fence, Detached(record.cause).leave_reason, left_s)

    def _expect(self, key: SessionKey, fence: int, code: Status, left_s: float) -> None:
        def over(_now: Now) -> None:
            del registry.unattended[key]
            self._control.run("expire", self._end_unattended(key, fence, code))

        registry = self._registry
        registry.unattended[key] = registry.arm(registry.now().mono + left_s, over)

    async def _end_unattended(self, key: SessionKey, fence: int, code: Status) -> None:
        try:
            await self._store.leave(key, fence, code)
        except STORE_TROUBLE as exc:
            self._reports.store_trouble("leave", exc)
            self._expect(key, fence, code, TRY_AGAIN_S)

    # --- tokens ----------------------------------------------------------------------------------

    def watch_token(self, session: Session, client: ClientStream, grant: Grant, now: Now) -> None:
        """Asks for a new token `warn_s` before its end; ends the stream after the leeway."""
        auth = self._registry.settings.auth
        left_s = (grant.expires_at_ms - now.ms) / 1000
        warn_s = left_s - auth.warn_s

        def over(_now: Now) -> None:
            session.token_handle = 0
            if session.client is client and client.grant is grant:
                self._control.end(client, Status.REAUTHENTICATE, cause=Detached.TOKEN)

        def warn(at: Now) -> None:
            session.token_handle = self._registry.arm(
                at.mono + min(auth.warn_s, left_s) + auth.leeway_s, over
            )
            if session.client is client and session.flags & EXTENDED:
                delivery = session.delivery
                message_id = delivery.next_id()
                data = write.advice(
                    message_id, at.ms, MessageType.AUTH, status=Status.TOKEN_EXPIRING
                )
                delivery.send_local(message_id, data, MessageType.AUTH, at.mono)

        if warn_s > 0:
            session.token_handle = self._registry.arm(now.mono + warn_s, warn)
        else:
            warn(now)

    def end_revoked(self) -> None:
        """Ends streams whose token was revoked; called once a second."""
        authority = self._authority
        if authority is None:
            return
        for client in list(self._registry.open_streams):
            grant = client.grant
            if grant is not None and authority.revoked(grant):
                self._control.end(client, Status.REAUTHENTICATE, cause=Detached.TOKEN)

    # --- cursors ---------------------------------------------------------------------------------

    async def save_cursors(self) -> None:
        """Saves the cursors that have advanced since they were saved last."""
        rows: list[CursorRow] = []
        for session in self._registry.sessions.values():
            if session.state is State.ACTIVE:
                cursor = session.delivery.saved_cursor
                if cursor > session.cursor_saved:
                    session.cursor_saved = cursor
                    rows.append(CursorRow(session.key, session.fence, cursor))
        for at in range(0, len(rows), CURSORS_AT_ONCE_MAX):
            await self._store.save_cursors(rows[at : at + CURSORS_AT_ONCE_MAX])
