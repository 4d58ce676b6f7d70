"""Commands that clients of other servers send to the cluster through an SMP proxy (RFWD).

The edge holds the session's key, so it opens both layers. The inner command is sent to the owner of
its slot like any other, on a stream marked as forwarded, and the answer is encrypted here.
"""

import asyncio

from waystation.base.clock import Clock
from waystation.queue.edge.client_connection import EdgeClient
from waystation.queue.edge.client_session import ClientSession
from waystation.queue.edge.edge import Edge
from waystation.queue.errors import TRY_LATER, Broker, BrokerFault, Code, RefusedError
from waystation.queue.model import CorrId, EntityId
from waystation.queue.wire.boxes import box_key
from waystation.queue.wire.commands import Rfwd
from waystation.queue.wire.fields import FieldError
from waystation.queue.wire.forwarding import (
    INNER_BYTES,
    Inner,
    is_forwardable,
    open_forwarded,
    seal_answer,
)
from waystation.queue.wire.responses import Err, Response, Rres, encode_response
from waystation.queue.wire.transmission import (
    Dialect,
    Transmission,
    decode_answer,
    decode_transmission,
    encode_answer,
    join_batch,
)

_Waiting = tuple[int, CorrId, EntityId]


class ForwardedCommands:
    def __init__(self, edge: Edge, clock: Clock) -> None:
        self._edge = edge
        self._clock = clock
        self._sessions: dict[tuple[EdgeClient, int], ClientSession] = {}  # by the version inside
        self._waiting: dict[_Waiting, asyncio.Future[bytes | None]] = {}

    def takes(self, sent: Transmission) -> bool:
        return isinstance(sent.command, Rfwd)

    async def take_in(self, connection: EdgeClient, sent: Transmission) -> Response:
        assert isinstance(sent.command, Rfwd)
        agreed = connection.session.agreement
        if agreed.secret is None or agreed.session_key is None:
            return Err(BrokerFault(Broker.TRANSPORT_NO_AUTH))
        key = box_key(agreed.secret)
        try:
            inner = open_forwarded(key, sent.corr_id, sent.command.encrypted, agreed.session_key)
        except RefusedError as refused:
            return Err(refused.fault)
        item = await self._ask(connection, inner)
        content = join_batch([item])
        if len(content) > INNER_BYTES - 2:
            answer = decode_answer(item, self._dialect(connection, inner))
            error = Err(Code.LARGE_MSG)
            content = join_batch(
                [self._say(connection, inner, answer.corr_id, answer.entity_id, error)]
            )
        return Rres(seal_answer(key, sent.corr_id, inner, content))

    async def _ask(self, connection: EdgeClient, inner: Inner) -> bytes:
        """The encoded answer to the inner command."""
        dialect = self._dialect(connection, inner)
        received = decode_transmission(inner.transmission, dialect)
        corr_id, entity_id = received.corr_id, received.entity_id
        if not isinstance(received, Transmission):
            return self._say(connection, inner, corr_id, entity_id, Err(received.fault))
        if not is_forwardable(received.command):
            return self._say(connection, inner, corr_id, entity_id, Err(Code.CMD_PROHIBITED))
        client_session = self._client_session(connection, inner)
        waiting = (client_session.stream, corr_id, entity_id)
        answered: asyncio.Future[bytes | None] = asyncio.get_running_loop().create_future()
        self._waiting[waiting] = answered
        try:
            self._edge.received(client_session, [inner.transmission], self._clock.mono())
            item = await answered
        finally:
            self._waiting.pop(waiting, None)
        if item is None:
            return self._say(connection, inner, corr_id, entity_id, Err(TRY_LATER))
        return item

    def answered(self, client_session: ClientSession, item: bytes) -> None:
        try:
            answer = decode_answer(item, client_session.dialect)
        except FieldError:
            return
        self._settle((client_session.stream, answer.corr_id, answer.entity_id), item)

    def ended(self, client_session: ClientSession) -> None:
        """The stream has ended: no more answers arrive."""
        for waiting in [one for one in self._waiting if one[0] == client_session.stream]:
            self._settle(waiting, None)
        for key in [key for key, one in self._sessions.items() if one is client_session]:
            del self._sessions[key]

    def left(self, connection: EdgeClient) -> None:
        for key in [key for key in self._sessions if key[0] is connection]:
            client_session = self._sessions[key]
            self.ended(client_session)
            if not client_session.gone:
                self._edge.closed(client_session)

    def _settle(self, waiting: _Waiting, item: bytes | None) -> None:
        answered = self._waiting.get(waiting)
        if answered is not None and not answered.done():
            answered.set_result(item)

    def _client_session(self, connection: EdgeClient, inner: Inner) -> ClientSession:
        key = (connection, inner.forwarded.version)
        client_session = self._sessions.get(key)
        if client_session is None:
            session_key = connection.session.agreement.session_key
            dialect = self._dialect(connection, inner)
            self._sessions[key] = client_session = self._edge.opened(
                dialect, session_key, forwarded=True
            )
        return client_session

    def _dialect(self, connection: EdgeClient, inner: Inner) -> Dialect:
        session_id = connection.session.agreement.dialect.session_id
        return Dialect(inner.forwarded.version, session_id)

    def _say(
        self,
        connection: EdgeClient,
        inner: Inner,
        corr_id: bytes,
        entity_id: bytes,
        response: Response,
    ) -> bytes:
        dialect = self._dialect(connection, inner)
        return encode_answer(
            corr_id, entity_id, encode_response(response, dialect.version), dialect
        )
