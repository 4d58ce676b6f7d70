"""What the broker does because time passes: timers, saved positions, sessions nobody attends.

`tick` is called every `tick_s`; the wheel says what is due. Everything that is due more than once a
session's life is in the wheel; what concerns the node as a whole is called by its owner.
"""

from typing import TYPE_CHECKING, Final

from waystation.base.tasks import each

from .conversation import Conversation, Phase
from .delivery import Delivery
from .errors import STORE_TROUBLE
from .grants import Grant
from .log import Now
from .model import EXTENDED, Detached, MessageType, SessionKey, SessionRecord, Status
from .registry import Timer
from .session import Session, State
from .store import CursorRow
from .wire import broker as write

if TYPE_CHECKING:
    from .broker import Broker

CURSORS_AT_ONCE_MAX: Final = 5000
TRY_AGAIN_S: Final = 1.0


class Timekeeper:
    def __init__(self, broker: "Broker") -> None:
        self._broker = broker
        self._registry = broker.registry

    def tick(self) -> bool:
        """Handle what is due; whether more is due already."""
        broker, registry = self._broker, self._registry
        due = registry.due(registry.now().mono)
        each(due, self._perform, self._failed)
        if registry.unjoined:
            now = registry.now()
            each(registry.late_to_join(now.mono), lambda one: self._late(one, now), self._failed)
        broker.reports.look_at_latencies()
        return len(due) > 0

    def _perform(self, timer: Timer) -> None:
        departures, now = self._broker.departures, self._registry.now()
        if isinstance(timer, Session):
            departures.life(timer, now)
        elif isinstance(timer, Delivery):
            session = timer.holder
            if isinstance(session, Session) and not session.life_handle:
                departures.life(session, now)  # its entry waited for this one
            timer.retry(now)
        elif isinstance(timer, Conversation):
            self._late(timer, now)
        else:
            timer(now)

    def _failed(self, error: Exception) -> None:
        self._broker.reports.trouble("timer.failed", error)

    def _late(self, conversation: Conversation, now: Now) -> None:
        """Its JOIN should be here by now."""
        conversation.join_handle = 0
        if conversation.phase is not Phase.OPEN:
            return
        if conversation.busy:
            # Its JOIN is with the store, which may refuse it: then time counts again.
            conversation.join_handle = self._registry.arm(now.mono + TRY_AGAIN_S, conversation)
        else:
            self._broker.end(conversation, Status.JOIN_REQUIRED)

    def expect(self, record: SessionRecord) -> None:
        """A session that a process before us left: it has the time that is left to it."""
        left_s = max(0.0, (record.deadline_ms - self._registry.now().ms) / 1000)
        self._expect(record.key, record.fence, Detached(record.cause).leave_reason, left_s)

    def _expect(self, key: SessionKey, fence: int, code: Status, left_s: float) -> None:
        def over(_now: Now) -> None:
            del registry.unattended[key]
            self._broker.run("expire", self._end_unattended(key, fence, code))

        registry = self._registry
        registry.unattended[key] = registry.arm(registry.now().mono + left_s, over)

    async def _end_unattended(self, key: SessionKey, fence: int, code: Status) -> None:
        try:
            await self._broker.store.leave(key, fence, code)
        except STORE_TROUBLE as exc:
            self._broker.reports.store_trouble("leave", exc)
            self._expect(key, fence, code, TRY_AGAIN_S)

    # --- tokens ----------------------------------------------------------------------------------

    def watch_token(
        self, session: Session, conversation: Conversation, grant: Grant, now: Now
    ) -> None:
        """Ask for a new one in time; without it the stream ends when the leeway does."""
        auth = self._broker.settings.auth
        left_s = (grant.expires_at_ms - now.ms) / 1000
        warn_s = left_s - auth.warn_s

        def over(_now: Now) -> None:
            session.token_handle = 0
            if session.conversation is conversation and conversation.grant is grant:
                self._broker.end(conversation, Status.REAUTHENTICATE, cause=Detached.TOKEN)

        def warn(at: Now) -> None:
            session.token_handle = self._registry.arm(
                at.mono + min(auth.warn_s, left_s) + auth.leeway_s, over
            )
            if session.conversation is conversation and session.flags & EXTENDED:
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
        """Streams whose token was withdrawn; once a second."""
        authority = self._broker.authority
        if authority is None:
            return
        for conversation in list(self._registry.conversations):
            grant = conversation.grant
            if grant is not None and authority.revoked(grant):
                self._broker.end(conversation, Status.REAUTHENTICATE, cause=Detached.TOKEN)

    # --- positions -------------------------------------------------------------------------------

    async def save_cursors(self) -> None:
        """Positions that have moved on since they were saved."""
        rows: list[CursorRow] = []
        for session in self._registry.sessions.values():
            if session.state is State.ACTIVE:
                cursor = session.delivery.saved_cursor
                if cursor > session.cursor_saved:
                    session.cursor_saved = cursor
                    rows.append(CursorRow(session.key, session.fence, cursor))
        for at in range(0, len(rows), CURSORS_AT_ONCE_MAX):
            await self._broker.store.save_cursors(rows[at : at + CURSORS_AT_ONCE_MAX])
