"""SMP proxying: commands that clients send through us, and commands that proxies bring.

As a proxy (PRXY, PFWD) we know the sender and not the message; as a relay (RFWD) the reverse.

Rule 1: as a proxy, forwarding may be switched off, and needs the password for creating queues;
        both are refused with `PROXY BASIC_AUTH`. Forwarded commands to us are never refused.
Rule 2: only commands of senders and readers of links may be forwarded; others are answered with
        `CMD PROHIBITED` inside the layers, where the proxy does not see it.
Rule 3: forwarded commands for one id are executed in order of arrival (`forwarded_order`).
"""

import hmac
from functools import partial
from typing import Final, Protocol

from waystation.queue.errors import Broker, BrokerFault, Code, Fault, RefusedError
from waystation.queue.model import SessionId
from waystation.queue.server.client import Client
from waystation.queue.server.dispatch import Caller
from waystation.queue.server.forwarded_order import Begun, ForwardedOrder
from waystation.queue.server.relays import Relays
from waystation.queue.settings import Queue as QueueSettings
from waystation.queue.statistics import Outcome
from waystation.queue.wire.boxes import box_key
from waystation.queue.wire.commands import Pfwd, Prxy, RelayAddress, Rfwd, Send
from waystation.queue.wire.forwarding import (
    INNER_BYTES,
    Forwarded,
    Inner,
    is_forwardable,
    open_forwarded,
    seal_answer,
)
from waystation.queue.wire.responses import Err, Response, Rres, encode_response
from waystation.queue.wire.transmission import (
    Dialect,
    Transmission,
    decode_transmission,
    encode_answer,
    join_batch,
)

_LARGE: Final = Err(Code.LARGE_MSG)


class ProxyObserver(Protocol):
    """Never blocks or raises."""

    def relay_asked(self, outcome: Outcome, *, own: bool) -> None:
        """PRXY; `own` if the relay's host is under one of our domains."""
        ...

    def passed_on(self, outcome: Outcome, *, own: bool) -> None:
        """PFWD."""
        ...

    def taken_in(self) -> None:
        """RFWD."""
        ...


class NoProxyObserver:
    def relay_asked(self, outcome: Outcome, *, own: bool) -> None:
        pass

    def passed_on(self, outcome: Outcome, *, own: bool) -> None:
        pass

    def taken_in(self) -> None:
        pass


class Answers(Protocol):
    """Takes a command from its look-up to its answer (`dispatch.Dispatch`)."""

    async def answer(
        self, caller: Caller, transmission: Transmission, begun: Begun | None = None
    ) -> Response: ...


class Proxying:
    """Implements `driver.Forwarder`."""

    def __init__(
        self,
        *,
        relays: Relays,
        dispatch: Answers,
        settings: QueueSettings,
        observer: ProxyObserver,
    ) -> None:
        self._relays = relays
        self._dispatch = dispatch
        self._observer = observer
        self._order = ForwardedOrder()
        self._is_on = settings.proxying
        self._password = settings.create_password.encode()
        self._own_domains = tuple(
            domain.strip().lower().encode().lstrip(b".")
            for domain in settings.proxy_own_domains.split(",")
            if domain.strip()
        )

    async def forward(self, client: Client, transmission: Transmission) -> Response:
        match transmission.command:
            case Rfwd() as command:
                return await self._take_in(client, transmission, command)
            case Pfwd() as command:
                return await self._pass_on(transmission, command)
            case Prxy() as command:
                return await self._introduce(command)
            case _:
                return Err(Code.CMD_PROHIBITED)

    def left(self, client: Client) -> None:
        """Running commands end by themselves; their answers are dropped."""

    # As a proxy

    async def _introduce(self, command: Prxy) -> Response:
        if not self._is_on or not self._knows_password(command.password):
            return Err(Code.PROXY_BASIC_AUTH)
        own = self._is_own(command.relay)
        try:
            link = await self._relays.link(command.relay)
        except RefusedError as refused:
            self._observer.relay_asked(outcome_of(refused.fault), own=own)
            return Err(refused.fault)
        self._observer.relay_asked(Outcome.SUCCESS, own=own)
        return link.pkey

    async def _pass_on(self, transmission: Transmission, command: Pfwd) -> Response:
        if not self._is_on:
            return Err(Code.PROXY_BASIC_AUTH)
        found = self._relays.by_session(SessionId(transmission.entity_id))
        if found is None:
            return Err(Code.PROXY_NO_SESSION)
        relay, link = found
        response = await link.forward(
            Forwarded(transmission.corr_id, command.version, command.key, command.encrypted)
        )
        fault = response.fault if isinstance(response, Err) else None
        self._observer.passed_on(
            Outcome.SUCCESS if fault is None else outcome_of(fault), own=self._is_own(relay)
        )
        return response

    def _knows_password(self, password: bytes | None) -> bool:
        return not self._password or hmac.compare_digest(password or b"", self._password)

    def _is_own(self, relay: RelayAddress) -> bool:
        host = relay.hosts[0].lower()
        return any(host == own or host.endswith(b"." + own) for own in self._own_domains)

    # As a relay

    async def _take_in(self, client: Client, sent: Transmission, command: Rfwd) -> Response:
        agreed = client.session.agreement
        if agreed.secret is None or agreed.session_key is None:
            return Err(BrokerFault(Broker.TRANSPORT_NO_AUTH))
        self._observer.taken_in()
        key = box_key(agreed.secret)
        try:
            inner = open_forwarded(key, sent.corr_id, command.encrypted, agreed.session_key)
        except RefusedError as refused:
            return Err(refused.fault)
        content = await self._answer_inner(client, inner)
        return Rres(seal_answer(key, sent.corr_id, inner, content))

    async def _answer_inner(self, client: Client, inner: Inner) -> bytes:
        """A batch with the one answer."""
        agreed = client.session.agreement
        version = inner.forwarded.version
        dialect = Dialect(version, agreed.dialect.session_id)
        received = decode_transmission(inner.transmission, dialect)
        if not isinstance(received, Transmission):
            response: Response = Err(received.fault)
        elif not is_forwardable(received.command):
            response = Err(Code.CMD_PROHIBITED)
        else:
            caller = Caller(client, version, agreed.session_key)
            response = await self._order.run(
                client,
                received.entity_id,
                partial(self._dispatch.answer, caller, received),
                is_message=isinstance(received.command, Send),
            )
        content = _batch(received.corr_id, received.entity_id, response, dialect)
        if len(content) > INNER_BYTES - 2:
            # Link data may fill a block of ours, and a layer has a little less room.
            content = _batch(received.corr_id, received.entity_id, _LARGE, dialect)
        return content


def _batch(corr_id: bytes, entity_id: bytes, response: Response, dialect: Dialect) -> bytes:
    encoded = encode_response(response, dialect.version)
    return join_batch([encode_answer(corr_id, entity_id, encoded, dialect)])


def outcome_of(fault: Fault) -> Outcome:
    match fault:
        case BrokerFault(Broker.NETWORK | Broker.TIMEOUT | Broker.HOST):
            return Outcome.CONNECT
        case BrokerFault(Broker.TRANSPORT_VERSION):
            return Outcome.COMPAT
        case _:
            return Outcome.OTHER
