"""What a joined stream asks for, and its answer: exactly one ACK or ERROR each.

An ACK is the exception: a well-formed one is answered only with `answer_acks`.
"""

from typing import TYPE_CHECKING, Final

from .conversation import Conversation
from .errors import STORE_TROUBLE, NotAllowedError, PresenceStoreError
from .log import Now
from .model import EXTENDED, Status
from .session import Admission, Refusal, Session
from .store import Duplicate, Signalled
from .wire import broker as write
from .wire.client import Ack, Auth, ClientInput, Leave, ListRequest, Promote, Signal

if TYPE_CHECKING:
    from .broker import Broker


# Made once: asking an enum for a member, or an object for each of several types, takes its time.
_FRESH: Final = Admission.FRESH
_REPEATED: Final = Admission.REPEATED
_ASK_SOMEBODY: Final = (Signal, Auth)
_OPTIONAL: Final = frozenset((Signal, Auth, Promote))


class Requests:
    def __init__(self, broker: "Broker") -> None:
        self._broker = broker
        self._settings = broker.settings

    def take(
        self, conversation: Conversation, session: Session, message: ClientInput, now: Now
    ) -> None:
        kind = type(message)
        objection = None
        if kind in _OPTIONAL:
            objection = self._objection(conversation, session, message)
        verdict = session.admit(message, now, objection)
        if verdict is _FRESH and kind is Ack:
            if self._settings.answer_acks:
                conversation.ack(message.message_id, now)
        elif isinstance(verdict, Refusal):
            self._broker.refuse(conversation, verdict, message.message_id)
        elif verdict is _REPEATED:
            conversation.ack(message.message_id, now)
        elif isinstance(message, Leave):
            session.leaving = True
            self._wait(conversation, "leave", session, message)
        elif isinstance(message, _ASK_SOMEBODY):
            self._wait(conversation, "signal", session, message)
        else:
            conversation.ack(message.message_id, now)
            if isinstance(message, ListRequest):
                session.delivery.list_when_caught_up(Status.OK, now)

    def _objection(
        self, conversation: Conversation, session: Session, message: ClientInput
    ) -> Refusal | None:
        """What is switched off or out of place; such a message does not count as valid."""
        if isinstance(message, Signal):
            if not self._settings.signal_enabled:
                return Refusal(Status.NOT_SUPPORTED, "SIGNAL is switched off")
            if len(message.payload) > self._settings.signal_bytes_max:
                return Refusal(Status.PAYLOAD_TOO_LARGE, "the payload is too long")
            grant = conversation.grant
            if grant is not None and not grant.allows("signal", session.key.party_id):
                return Refusal(Status.NOT_SUPPORTED, "the token does not grant signals")
        elif isinstance(message, Promote):
            return Refusal(Status.NOT_STANDBY, "the stream is the primary one")
        elif self._broker.authority is None:
            return Refusal(Status.NOT_SUPPORTED, "there is no authentication")
        return None

    def _wait(
        self, conversation: Conversation, name: str, session: Session, message: ClientInput
    ) -> None:
        conversation.busy = True
        self._broker.run(name, self._with_store(conversation, session, message))

    async def _with_store(
        self, conversation: Conversation, session: Session, message: ClientInput
    ) -> None:
        broker = self._broker
        try:
            if broker.fenced() and not isinstance(message, Auth):
                session.leaving = False
                raise PresenceStoreError("the node could not renew its lease")
            if isinstance(message, Leave):
                await broker.departures.leave(conversation, session, message.message_id)
            elif isinstance(message, Auth):
                await self._renew(conversation, session, message)
            else:
                assert isinstance(message, Signal)
                await self._signal(conversation, session, message)
        except STORE_TROUBLE as exc:
            broker.reports.store_trouble("request", exc)
            session.forget_id(message.message_id)
            retry_ms = round(self._settings.store_busy_s * 1000)
            refusal = Refusal(Status.STORE_BUSY, "the store does not answer", retry_ms)
            broker.refuse(conversation, refusal, message.message_id)
        except Exception as exc:
            broker.failed(conversation, exc)
            return
        if not conversation.over:
            broker.go_on(conversation)

    async def _signal(self, conversation: Conversation, session: Session, message: Signal) -> None:
        result = await self._broker.store.signal(
            session.key, session.fence, origin_id=message.message_id, payload=message.payload
        )
        now = self._broker.registry.now()
        if isinstance(result, Duplicate):
            conversation.ack(message.message_id, now)
        elif isinstance(result, Signalled):
            session.last_signal_id = message.message_id
            conversation.send(
                write.ack_seq(conversation.next_id(), now.ms, message.message_id, result.seq)
            )
        else:
            self._broker.departures.gone(session, Status.TAKEN_OVER)

    async def _renew(self, conversation: Conversation, session: Session, message: Auth) -> None:
        broker = self._broker
        assert broker.authority is not None, "without one AUTH is refused"
        try:
            grant = await broker.authority.verify(message.token)
        except NotAllowedError:
            grant = None
        old, key = conversation.grant, session.key
        if (
            grant is None
            or grant.client_id != key.client_id
            or not grant.allows("join", key.party_id)
            or (old is not None and old.issuer != grant.issuer)
        ):
            broker.reports.auth("rejected")
            refusal = Refusal(Status.TOKEN_REJECTED, "the token before stays in force")
            broker.refuse(conversation, refusal, message.message_id)
            return
        broker.reports.auth("renewed")
        conversation.grant = grant
        now = broker.registry.now()
        broker.watch_token(session, conversation, now)
        conversation.send(
            write.ack_with(
                conversation.next_id(),
                now.ms,
                (message.message_id,),
                status=Status.TOKEN_ACCEPTED,
            )
        )

    @staticmethod
    def extended(session: Session) -> bool:
        """Whether it may be sent what only newer clients know."""
        return bool(session.flags & EXTENDED)
