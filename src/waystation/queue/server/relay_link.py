"""A connection to a relay: TLS, blocks in and out, and who waits for which answer.

Rule 1: an answer that has not come after `request_timeout_s` is `TIMEOUT`. If the relay said
        nothing at all in that time, the connection is given up as well: it may be half dead.
Rule 2: when the connection ends, everybody who waits gets `NETWORK`, which clients take as
        temporary.
Rule 3: at most `REQUESTS_MAX` commands are under way; beyond that clients are asked to come back.

The process has to run under the packaged OpenSSL configuration (`openssl.cnf`).
"""

import asyncio
import contextlib
import datetime as dt
import ipaddress
import socket
import ssl
from collections.abc import Callable
from typing import Final, cast

from waystation.base.clock import Clock
from waystation.queue.errors import TRY_LATER, BadHelloError, Broker, BrokerFault, RefusedError
from waystation.queue.model import CorrId, SessionId
from waystation.queue.server.relay_session import RelaySession
from waystation.queue.wire.block import BLOCK_BYTES
from waystation.queue.wire.commands import RelayAddress
from waystation.queue.wire.forwarding import Forwarded
from waystation.queue.wire.responses import Err, Pkey, Pres

REQUESTS_MAX: Final = 1024
DEFAULT_PORT: Final = 5223
ALPN: Final = "smp/1"
_SESSION_ID_BYTES: Final = 32
_KEEPALIVE: Final = (
    ("TCP_KEEPIDLE", 30),
    ("TCP_KEEPINTVL", 15),
    ("TCP_KEEPCNT", 4),
)


def relay_tls() -> ssl.SSLContext:
    """Nothing is verified by TLS itself: the hello shows whose chain it is (rule 1 there)."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.set_alpn_protocols([ALPN])
    return context


class RelayLink(asyncio.Protocol):
    def __init__(self, address: RelayAddress, *, clock: Clock, request_timeout_s: float) -> None:
        self._address = address
        self._clock = clock
        self._timeout_s = request_timeout_s
        self._loop = asyncio.get_running_loop()
        self._session = RelaySession()
        self._transport: asyncio.Transport | None = None
        self._kept = bytearray()
        self._heard_at = clock.mono()
        self._waiting: dict[CorrId, asyncio.Future[Pres | Err]] = {}
        self.greeted: asyncio.Future[Pkey] = self._loop.create_future()
        self.greeted.add_done_callback(_look_at)
        self.on_closed: Callable[[RelayLink], None] | None = None
        self.closed = False

    # For the proxy

    @property
    def pkey(self) -> Pkey:
        assert self._session.pkey is not None
        return self._session.pkey

    async def forward(self, forwarded: Forwarded) -> Pres | Err:
        if self.closed or self._transport is None:
            return Err(BrokerFault(Broker.NETWORK))
        if len(self._waiting) >= REQUESTS_MAX:
            return Err(TRY_LATER)
        sent_at = self._clock.mono()
        try:
            corr_id, block = self._session.forward(forwarded)
        except RefusedError as refused:
            return Err(refused.fault)
        answer: asyncio.Future[Pres | Err] = self._loop.create_future()
        self._waiting[corr_id] = answer
        self._transport.write(block)
        timer = self._loop.call_later(self._timeout_s, self._too_late, corr_id, sent_at)
        try:
            return await answer
        finally:
            timer.cancel()
            self._waiting.pop(corr_id, None)
            self._session.forget(corr_id)

    def close(self) -> None:
        if self._transport is not None:
            self._transport.abort()
        self._end()

    def _too_late(self, corr_id: CorrId, sent_at: float) -> None:
        answer = self._waiting.get(corr_id)
        if answer is not None and not answer.done():
            answer.set_result(Err(BrokerFault(Broker.TIMEOUT)))
        if self._heard_at < sent_at:
            self.close()

    # For the loop

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's are no subclass of it
        sock: socket.socket | None = transport.get_extra_info("socket")
        if sock is not None:
            _keep_alive(sock)

    def data_received(self, data: bytes) -> None:
        self._heard_at = self._clock.mono()
        kept = self._kept
        kept += data
        while len(kept) >= BLOCK_BYTES and not self.closed:
            block = bytes(kept[:BLOCK_BYTES])
            del kept[:BLOCK_BYTES]
            if self.greeted.done():
                for corr_id, answer in self._session.receive(block):
                    waiting = self._waiting.get(corr_id)
                    if waiting is not None and not waiting.done():
                        waiting.set_result(answer)
            else:
                self._greet(block)

    def _greet(self, block: bytes) -> None:
        transport = self._transport
        assert transport is not None
        tls: ssl.SSLObject = transport.get_extra_info("ssl_object")
        session_id = tls.get_channel_binding("tls-unique") or b""
        try:
            if len(session_id) != _SESSION_ID_BYTES:
                raise BadHelloError(Broker.TRANSPORT_SESSION)
            hello = self._session.greet(
                block,
                expected=self._address.fingerprint,
                session_id=SessionId(session_id),
                leaf=tls.getpeercert(binary_form=True) or b"",
                now=dt.datetime.fromtimestamp(self._clock.now_ms() / 1000, dt.UTC),
            )
        except BadHelloError as error:
            self.greeted.set_exception(error)
            self.close()
            return
        transport.write(hello)
        self.greeted.set_result(self.pkey)

    def connection_lost(self, exc: Exception | None) -> None:
        self._end()

    def _end(self) -> None:
        if self.closed:
            return
        self.closed = True
        if not self.greeted.done():
            self.greeted.set_exception(ConnectionResetError("closed before its hello"))
        for answer in self._waiting.values():
            if not answer.done():
                answer.set_result(Err(BrokerFault(Broker.NETWORK)))
        if self.on_closed is not None:
            self.on_closed(self)


def _look_at(greeted: "asyncio.Future[Pkey]") -> None:
    """An attempt that was given up has nobody who would look at how it failed."""
    if not greeted.cancelled():
        greeted.exception()


def _keep_alive(sock: socket.socket) -> None:
    with contextlib.suppress(OSError):  # a relay that goes silent is noticed later, then
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for name, value in _KEEPALIVE:
            option = getattr(socket, name, None)
            if option is not None:
                sock.setsockopt(socket.IPPROTO_TCP, option, value)


class Connector:
    """Opens links to relays."""

    def __init__(
        self,
        *,
        clock: Clock,
        connect_timeout_s: float,
        request_timeout_s: float,
        private_hosts: bool = False,
    ) -> None:
        self._clock = clock
        self._private_hosts = private_hosts
        self._connect_timeout_s = connect_timeout_s
        self._request_timeout_s = request_timeout_s
        self._tls = relay_tls()

    async def connect(self, address: RelayAddress) -> RelayLink:
        """A link that is greeted. Raises `RefusedError` with what the client is to be told."""
        endpoint = usable_endpoint(address)
        if endpoint is None:
            raise RefusedError(BrokerFault(Broker.HOST))
        link = RelayLink(address, clock=self._clock, request_timeout_s=self._request_timeout_s)
        try:
            async with asyncio.timeout(self._connect_timeout_s):
                loop = asyncio.get_running_loop()
                if not self._private_hosts:
                    # The address that was looked at is the one that is used: names may change.
                    endpoint = await _public_endpoint(*endpoint)
                await loop.create_connection(
                    lambda: link, *endpoint, ssl=self._tls, server_hostname=""
                )
                await link.greeted
        except BadHelloError as error:
            raise RefusedError(BrokerFault(error.kind)) from error
        except TimeoutError as error:
            link.close()
            raise RefusedError(BrokerFault(Broker.TIMEOUT)) from error
        except (OSError, ValueError) as error:
            link.close()
            raise RefusedError(BrokerFault(Broker.NETWORK)) from error
        return link


async def _public_endpoint(host: str, port: int) -> tuple[str, int]:
    """An address of this host that anybody could reach; `RefusedError` if it has none."""
    loop = asyncio.get_running_loop()
    for *_, address in await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM):
        if _is_public(str(address[0])):
            return str(address[0]), port
    raise RefusedError(BrokerFault(Broker.HOST))


def _is_public(text: str) -> bool:
    address = ipaddress.ip_address(text.partition("%")[0])
    inside = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return (inside or address).is_global


def usable_endpoint(address: RelayAddress) -> tuple[str, int] | None:
    """The first host that we can reach without help (an onion address needs some), and the port."""
    if address.port and not (address.port.isdigit() and 0 < int(address.port) < 65536):
        return None
    port = int(address.port) if address.port else DEFAULT_PORT
    for raw in address.hosts:
        try:
            host = raw.decode("ascii").strip("[]")
        except UnicodeDecodeError:
            continue
        if host and not host.endswith(".onion") and _is_host(host):
            return host, port
    return None


def _is_host(host: str) -> bool:
    with contextlib.suppress(ValueError):
        ipaddress.ip_address(host)
        return True
    labels = host.rstrip(".").split(".")
    return len(host) <= 253 and all(
        0 < len(label) <= 63 and label.replace("-", "").replace("_", "").isalnum()
        for label in labels
    )
