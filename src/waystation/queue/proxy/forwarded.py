"""Commands that other servers' clients send through a proxy to the cluster (RFWD).

The edge holds the session's key, so it opens both layers; the command inside goes to the owner of
its slot like any other, on a stream that is marked as forwarded, and the answer is sealed here.
"""

import asyncio

from waystation.base.clock import Clock
from waystation.queue.errors import TRY_LATER, Broker, BrokerFault, Code, RefusedError
from waystation.queue.model import CorrId, EntityId
from waystation.queue.proxy.edge import Edge
from waystation.queue.proxy.guest import Guest
from waystation.queue.proxy.visitor import Visitor
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


class ForwardedDesk:
    def __init__(self, edge: Edge, clock: Clock) -> None:
        self._edge = edge
        self._clock = clock
        self._guests: dict[tuple[Visitor, int], Guest] = {}  # by the version inside
        self._waiting: dict[_Waiting, asyncio.Future[bytes | None]] = {}

    def takes(self, sent: Transmission) -> bool:
        return isinstance(sent.command, Rfwd)

    async def take_in(self, visitor: Visitor, sent: Transmission) -> Response:
        assert isinstance(sent.command, Rfwd)
        agreed = visitor.session.agreement
        if agreed.secret is None or agreed.session_key is None:
            return Err(BrokerFault(Broker.TRANSPORT_NO_AUTH))
        key = box_key(agreed.secret)
        try:
            inner = open_forwarded(key, sent.corr_id, sent.command.encrypted, agreed.session_key)
        except RefusedError as refused:
            return Err(refused.fault)
        item = await self._ask(visitor, inner)
        content = join_batch([item])
        if len(content) > INNER_BYTES - 2:
            answer = decode_answer(item, self._dialect(visitor, inner))
            error = Err(Code.LARGE_MSG)
            content = join_batch(
                [self._say(visitor, inner, answer.corr_id, answer.entity_id, error)]
            )
        return Rres(seal_answer(key, sent.corr_id, inner, content))

    async def _ask(self, visitor: Visitor, inner: Inner) -> bytes:
        """The answer to the command inside, as it is to go."""
        dialect = self._dialect(visitor, inner)
        received = decode_transmission(inner.transmission, dialect)
        corr_id, entity_id = received.corr_id, received.entity_id
        if not isinstance(received, Transmission):
            return self._say(visitor, inner, corr_id, entity_id, Err(received.fault))
        if not is_forwardable(received.command):
            return self._say(visitor, inner, corr_id, entity_id, Err(Code.CMD_PROHIBITED))
        guest = self._guest(visitor, inner)
        waiting = (guest.stream, corr_id, entity_id)
        answered: asyncio.Future[bytes | None] = asyncio.get_running_loop().create_future()
        self._waiting[waiting] = answered
        try:
            self._edge.received(guest, [inner.transmission], self._clock.mono())
            item = await answered
        finally:
            self._waiting.pop(waiting, None)
        if item is None:
            return self._say(visitor, inner, corr_id, entity_id, Err(TRY_LATER))
        return item

    def answered(self, guest: Guest, item: bytes) -> None:
        try:
            answer = decode_answer(item, guest.dialect)
        except FieldError:
            return
        self._settle((guest.stream, answer.corr_id, answer.entity_id), item)

    def ended(self, guest: Guest) -> None:
        """Nothing more comes on this stream."""
        for waiting in [one for one in self._waiting if one[0] == guest.stream]:
            self._settle(waiting, None)
        for key in [key for key, one in self._guests.items() if one is guest]:
            del self._guests[key]

    def left(self, visitor: Visitor) -> None:
        for key in [key for key in self._guests if key[0] is visitor]:
            guest = self._guests[key]
            self.ended(guest)
            if not guest.gone:
                self._edge.closed(guest)

    def _settle(self, waiting: _Waiting, item: bytes | None) -> None:
        answered = self._waiting.get(waiting)
        if answered is not None and not answered.done():
            answered.set_result(item)

    def _guest(self, visitor: Visitor, inner: Inner) -> Guest:
        key = (visitor, inner.forwarded.version)
        guest = self._guests.get(key)
        if guest is None:
            session_key = visitor.session.agreement.session_key
            dialect = self._dialect(visitor, inner)
            self._guests[key] = guest = self._edge.opened(dialect, session_key, forwarded=True)
        return guest

    def _dialect(self, visitor: Visitor, inner: Inner) -> Dialect:
        session_id = visitor.session.agreement.dialect.session_id
        return Dialect(inner.forwarded.version, session_id)

    def _say(
        self, visitor: Visitor, inner: Inner, corr_id: bytes, entity_id: bytes, response: Response
    ) -> bytes:
        dialect = self._dialect(visitor, inner)
        return encode_answer(
            corr_id, entity_id, encode_response(response, dialect.version), dialect
        )
