"""Requests of a joined stream: each message is answered with exactly one ACK or ERROR.

Exception: a valid ACK is answered only with `answer_acks`.
"""

from collections.abc import Callable
from typing import Final

from waystation.presence.errors import STORE_TROUBLE, NotAllowedError, PresenceStoreError
from waystation.presence.grants import Authority
from waystation.presence.model import Now, Status
from waystation.presence.node_state import NodeState
from waystation.presence.party.registry import Registry
from waystation.presence.reports import Reports
from waystation.presence.store import Duplicate, PresenceStore, Signalled
from waystation.presence.wire import server_messages as write
from waystation.presence.wire.client_messages import (
    Ack,
    Auth,
    ClientInput,
    Leave,
    ListRequest,
    Promote,
    Signal,
)

from .client_stream import ClientStream, StreamControl
from .session import Admission, Refusal, Session, store_busy
from .session_end import SessionEnd

# Module constants: reading enum members and comparing several types is slow.
_FRESH: Final = Admission.FRESH
_REPEATED: Final = Admission.REPEATED
_NEEDS_STORE_OR_KEYS: Final = (Signal, Auth)
_OPTIONAL: Final = frozenset((Signal, Auth, Promote))


class Requests:
    def __init__(
        self,
        control: StreamControl,
        registry: Registry,
        store: PresenceStore,
        session_end: SessionEnd,
        reports: Reports,
        *,
        node: NodeState,
        authority: Authority | None,
        watch_token: Callable[[Session, ClientStream, Now], None],
    ) -> None:
        self._control = control
        self._registry = registry
        self._settings = registry.settings
        self._store = store
        self._session_end = session_end
        self._reports = reports
        self._node = node
        self._authority = authority
        self._watch_token = watch_token

    def take(self, client: ClientStream, session: Session, message: ClientInput, now: Now) -> None:
        kind = type(message)
        refusal = None
        if kind in _OPTIONAL:
            refusal = self._refusal(client, session, message)
        verdict = session.admit(message, now, refusal)
        if verdict is _FRESH and kind is Ack:
            if self._settings.answer_acks:
                client.ack(message.message_id, now)
        elif isinstance(verdict, Refusal):
            self._control.refuse(client, verdict, message.message_id)
        elif verdict is _REPEATED:
            client.ack(message.message_id, now)
        elif isinstance(message, Leave):
            session.leaving = True
            self._wait(client, "leave", session, message)
        elif isinstance(message, _NEEDS_STORE_OR_KEYS):
            self._wait(client, "signal", session, message)
        else:
            client.ack(message.message_id, now)
            if isinstance(message, ListRequest):
                session.delivery.list_when_caught_up(Status.OK, now)

    def _refusal(
        self, client: ClientStream, session: Session, message: ClientInput
    ) -> Refusal | None:
        """Refuses what is switched off or not allowed here; such a message is not valid."""
        if isinstance(message, Signal):
            if not self._settings.signal_enabled:
                return Refusal(Status.NOT_SUPPORTED, "presence.signal_enabled is off")
            if len(message.payload) > self._settings.signal_bytes_max:
                size, most = len(message.payload), self._settings.signal_bytes_max
                return Refusal(Status.PAYLOAD_TOO_LARGE, f"payload of {size} bytes (limit {most})")
            grant = client.grant
            if grant is not None and not grant.allows("signal", session.key.party_id):
                return Refusal(
                    Status.NOT_SUPPORTED, "the token does not grant `signal` in this party"
                )
        elif isinstance(message, Promote):
            return Refusal(Status.NOT_STANDBY, "this stream is the primary already")
        elif self._authority is None:
            return Refusal(Status.NOT_SUPPORTED, "presence.auth.mode is off")
        return None

    def _wait(
        self, client: ClientStream, name: str, session: Session, message: ClientInput
    ) -> None:
        client.busy = True
        self._control.run(name, self._with_store(client, session, message))

    async def _with_store(
        self, client: ClientStream, session: Session, message: ClientInput
    ) -> None:
        try:
            if self._node.fenced() and not isinstance(message, Auth):
                session.leaving = False
                raise PresenceStoreError("the node could not renew its lease")
            if isinstance(message, Leave):
                await self._session_end.leave(client, session, message.message_id)
            elif isinstance(message, Auth):
                await self._renew(client, session, message)
            else:
                assert isinstance(message, Signal)
                await self._signal(client, session, message)
        except STORE_TROUBLE as exc:
            self._reports.store_trouble("request", exc)
            session.forget_id(message.message_id)
            self._control.refuse(client, store_busy(self._settings), message.message_id)
        except Exception as exc:
            self._control.failed(client, exc)
            return
        if not client.over:
            self._control.go_on(client)

    async def _signal(self, client: ClientStream, session: Session, message: Signal) -> None:
        result = await self._store.signal(
            session.key, session.fence, origin_id=message.message_id, payload=message.payload
        )
        now = self._registry.now()
        if isinstance(result, Duplicate):
            client.ack(message.message_id, now)
        elif isinstance(result, Signalled):
            session.last_signal_id = message.message_id
            client.send(write.ack_seq(client.next_id(), now.ms, message.message_id, result.seq))
        else:
            self._session_end.drop(session, Status.TAKEN_OVER)

    async def _renew(self, client: ClientStream, session: Session, message: Auth) -> None:
        assert self._authority is not None, "AUTH is refused without an authority"
        try:
            grant = await self._authority.verify(message.token)
        except NotAllowedError:
            grant = None
        old, key = client.grant, session.key
        if (
            grant is None
            or grant.client_id != key.client_id
            or not grant.allows("join", key.party_id)
            or (old is not None and old.issuer != grant.issuer)
        ):
            self._reports.auth("rejected")
            refusal = Refusal(Status.TOKEN_REJECTED, "the old token stays valid until it expires")
            self._control.refuse(client, refusal, message.message_id)
            return
        self._reports.auth("renewed")
        client.grant = grant
        now = self._registry.now()
        self._watch_token(session, client, now)
        client.send(
            write.ack_with(
                client.next_id(),
                now.ms,
                (message.message_id,),
                status=Status.TOKEN_ACCEPTED,
            )
        )
