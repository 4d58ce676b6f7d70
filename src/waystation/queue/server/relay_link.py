"""A connection to a relay: its hello, blocks in both directions, waiting requests.

Rule 1: a request without an answer after `request_timeout_s` ends with `TIMEOUT`. If the relay sent
        nothing at all in that time, the connection is closed as well: it may be half open.
Rule 2: when the connection ends, all waiting requests get `NETWORK`, which clients take as
        temporary.
Rule 3: at most `REQUESTS_MAX` commands are in flight; further ones get a temporary error.

The process has to run under the packaged OpenSSL configuration (`openssl.cnf`).
"""

import asyncio
import contextlib
import datetime as dt
import ipaddress
import socket
import ssl
from collections.abc import Callable
from typing import Final

from waystation.base.clock import Clock
from waystation.net.blocks import Blocks
from waystation.net.loop import NetLoop, Port
from waystation.queue.errors import TRY_LATER, BadHelloError, Broker, BrokerFault, RefusedError
from waystation.queue.model import CorrId, SessionId
from waystation.queue.server.relay_session import RelaySession
from waystation.queue.server.tls import ALPN
from waystation.queue.wire.commands import RelayAddress
from waystation.queue.wire.forwarding import Forwarded
from waystation.queue.wire.responses import Err, Pkey, Pres

REQUESTS_MAX: Final = 1024
SEND_BYTES_MAX: Final = 32 << 20  # twice the size of `REQUESTS_MAX` blocks
DEFAULT_PORT: Final = 5223
VANISHED_S: Final = 90  # until the kernel closes a connection to a silent relay
_SESSION_ID_BYTES: Final = 32
# RFC 6052: an IPv4 address in the last four bytes. 64:ff9b:1::/48, for local use, is private.
_NAT64: Final = ipaddress.IPv6Network("64:ff9b::/96")
_GLOBAL_UNICAST: Final = ipaddress.IPv6Network("2000::/3")
# Ranges that `is_global` of Python 3.11 does not refuse, or only in some of its releases.
_NOT_PUBLIC_IPV6: Final = (
    ipaddress.IPv6Network("2001::/23"),  # protocol assignments, among them Teredo
    ipaddress.IPv6Network("2001:db8::/32"),  # documentation
    ipaddress.IPv6Network("2002::/16"),  # 6to4
    ipaddress.IPv6Network("3fff::/20"),  # documentation
)
_NOT_PUBLIC_IPV4: Final = (
    ipaddress.IPv4Network("192.0.0.0/24"),  # protocol assignments
    ipaddress.IPv4Network("192.88.99.0/24"),  # relays of 6to4
)


def relay_tls() -> ssl.SSLContext:
    """TLS verifies nothing: the hello shows whose chain it is (rule 1 of `relay_session`)."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.set_alpn_protocols([ALPN])
    return context


class RelayLink(Blocks):
    def __init__(
        self, port: Port, address: RelayAddress, *, clock: Clock, request_timeout_s: float
    ) -> None:
        super().__init__(port)
        self._address = address
        self._clock = clock
        self._timeout_s = request_timeout_s
        self._loop = asyncio.get_running_loop()
        self._session = RelaySession()
        self._heard_at = clock.mono()
        self._waiting: dict[CorrId, asyncio.Future[Pres | Err]] = {}
        self.greeted: asyncio.Future[Pkey] = self._loop.create_future()
        self.greeted.add_done_callback(_look_at)
        self.on_closed: Callable[[RelayLink], None] | None = None
        self.is_over = False

    # Called by the proxy

    @property
    def pkey(self) -> Pkey:
        assert self._session.pkey is not None
        return self._session.pkey

    async def forward(self, forwarded: Forwarded) -> Pres | Err:
        if not self.is_open:
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
        self.send(block)
        timer = self._loop.call_later(self._timeout_s, self._too_late, corr_id, sent_at)
        try:
            return await answer
        finally:
            timer.cancel()
            self._waiting.pop(corr_id, None)
            self._session.forget(corr_id)

    def close(self) -> None:
        if self.carrier is not None:
            self.abort()
        self.closed()

    def _too_late(self, corr_id: CorrId, sent_at: float) -> None:
        answer = self._waiting.get(corr_id)
        if answer is not None and not answer.done():
            answer.set_result(Err(BrokerFault(Broker.TIMEOUT)))
        if self._heard_at < sent_at:
            self.close()

    # Called by the loop

    def block_received(self, block: bytes) -> None:
        self._heard_at = self._clock.mono()
        if not self.greeted.done():
            self._greet(block)
            return
        for corr_id, answer in self._session.receive(block):
            waiting = self._waiting.get(corr_id)
            if waiting is not None and not waiting.done():
                waiting.set_result(answer)

    def _greet(self, block: bytes) -> None:
        secure = self.secure
        assert secure is not None, "a hello is bound to its TLS session"
        session_id, chain = secure.binding, secure.peer_chain
        try:
            if len(session_id) != _SESSION_ID_BYTES:
                raise BadHelloError(Broker.TRANSPORT_SESSION)
            hello = self._session.greet(
                block,
                expected=self._address.fingerprint,
                session_id=SessionId(session_id),
                leaf=chain[0] if chain else b"",
                now=dt.datetime.fromtimestamp(self._clock.now_ms() / 1000, dt.UTC),
            )
        except BadHelloError as error:
            self.greeted.set_exception(error)
            self.close()
            return
        self.send(hello)
        self.greeted.set_result(self.pkey)

    def closed(self) -> None:
        if self.is_over:
            return
        self.is_over = True
        if not self.greeted.done():
            self.greeted.set_exception(ConnectionResetError("closed before its hello"))
        for answer in self._waiting.values():
            if not answer.done():
                answer.set_result(Err(BrokerFault(Broker.NETWORK)))
        if self.on_closed is not None:
            self.on_closed(self)


def _look_at(greeted: "asyncio.Future[Pkey]") -> None:
    """Retrieves the exception of an abandoned attempt, or asyncio would log it."""
    if not greeted.cancelled():
        greeted.exception()


class Connector:
    """Opens connections to relays."""

    def __init__(
        self,
        net: NetLoop,
        *,
        clock: Clock,
        connect_timeout_s: float,
        request_timeout_s: float,
        private_hosts: bool = False,
    ) -> None:
        self._port = Port(net, send_bytes_max=SEND_BYTES_MAX, vanished_s=VANISHED_S)
        self._clock = clock
        self._private_hosts = private_hosts
        self._connect_timeout_s = connect_timeout_s
        self._request_timeout_s = request_timeout_s
        self._tls = relay_tls()

    async def connect(self, address: RelayAddress) -> RelayLink:
        """Returns after the hellos. Raises `RefusedError` with the fault for the client."""
        endpoint = usable_endpoint(address)
        if endpoint is None:
            raise RefusedError(BrokerFault(Broker.HOST))
        link = RelayLink(
            self._port, address, clock=self._clock, request_timeout_s=self._request_timeout_s
        )
        try:
            async with asyncio.timeout(self._connect_timeout_s):
                if not self._private_hosts:
                    # Connect to the address that was checked: the name may resolve differently.
                    endpoint = await _public_endpoint(*endpoint)
                await self._port.connect(link, endpoint, tls=self._tls)
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
    """A public address of this host; `RefusedError` if it has none."""
    loop = asyncio.get_running_loop()
    for *_, address in await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM):
        if is_public(str(address[0])):
            return str(address[0]), port
    raise RefusedError(BrokerFault(Broker.HOST))


def is_public(text: str) -> bool:
    """Whether this is an address of one machine on the public internet.

    An IPv6 address that carries an IPv4 address (IPv4-mapped, NAT64) is judged by the latter. Of
    the others only global unicast is public, without the ranges of tunnels: a 6to4 or Teredo
    address can lead to a private IPv4 address behind the next gateway.
    """
    address = ipaddress.ip_address(text.partition("%")[0])
    if isinstance(address, ipaddress.IPv6Address):
        carried = address.ipv4_mapped
        if address in _NAT64:
            carried = ipaddress.IPv4Address(address.packed[-4:])
        if carried is None:
            tunnelled = any(address in network for network in _NOT_PUBLIC_IPV6)
            return address in _GLOBAL_UNICAST and address.is_global and not tunnelled
        address = carried
    in_special_range = any(address in network for network in _NOT_PUBLIC_IPV4)
    return address.is_global and not address.is_multicast and not in_special_range


def usable_endpoint(address: RelayAddress) -> tuple[str, int] | None:
    """The first host that is not an onion address, and the port."""
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
