"""HTTP/1.1 server on the event loop of all sockets; independent of any service.

It listens, owns the connections, and sweeps them once a second, so that timeouts of slow clients
need no timers of their own. The protocol is in `connection`.
"""

import asyncio
import email.utils
import socket
import ssl
from collections.abc import Callable
from typing import Final

from waystation.base.clock import Clock
from waystation.base.tasks import each, told_to
from waystation.net.http1.connection import HttpConnection
from waystation.net.http1.limits import HttpLimits
from waystation.net.http1.message import Handler, Request, Response, Upgrade
from waystation.net.loop import NetLoop, Port, bound_socket

__all__ = ["Handler", "HttpLimits", "HttpServer", "Request", "Response", "Upgrade", "no_body"]

_SWEEP_S: Final = 1.0


class HttpServer:
    """Listens, owns the connections, sweeps them once a second."""

    def __init__(
        self,
        handler: Handler,
        *,
        net: NetLoop,
        clock: Clock,
        body_limit: Callable[[Request], int],
        on_failure: Callable[[Request, BaseException], Response],
        limits: HttpLimits | None = None,
        upgrades: frozenset[bytes] = frozenset(),
    ) -> None:
        self.handler = handler
        self.loop = asyncio.get_running_loop()
        self.port = Port(net, send_bytes_max=0)  # a congested client's next request waits
        self.on_failure = on_failure  # makes the answer when a handler raised
        self.limits = limits or HttpLimits()
        self.body_limit = body_limit
        self.upgrades = upgrades  # supported values of `Upgrade:`; others are ignored
        self.connections: dict[
            HttpConnection, None
        ] = {}  # in order, also before TLS is established
        self.tasks: dict[asyncio.Task[Response], None] = {}
        self.draining = False
        self.refused_connections = 0
        self.tick = 0  # seconds, as the sweep counts them
        self.date = b""
        self._clock = clock
        self._timer: asyncio.TimerHandle | None = None
        self._read_clock()

    def listen(
        self,
        host: str,
        port: int,
        *,
        reuse_port: bool = False,
        tls: ssl.SSLContext | None = None,
    ) -> int:
        """Returns the bound port, for callers that asked for port 0."""
        return self.listen_on(bound_socket(host, port, reuse_port=reuse_port), tls)

    def listen_on(self, sock: socket.socket, tls: ssl.SSLContext | None = None) -> int:
        """Take over a bound socket."""
        self.port.listen(sock, self._make, tls)
        if self._timer is None:
            self._timer = self.loop.call_later(_SWEEP_S, self._sweep)
        return sock.getsockname()[1]

    def use_certificate(self, tls: ssl.SSLContext) -> None:
        """Use another certificate for new connections; established ones keep theirs."""
        self.port.use_certificate(tls)

    def _make(self, _address: str) -> HttpConnection | None:
        """Above `connections_max` a connection is answered 503; above twice that, refused."""
        if self.port.descriptors >= 2 * self.limits.connections_max > 0:
            self.refused_connections += 1
            return None
        connection = HttpConnection(self)
        self.connections[connection] = None
        return connection

    def _sweep(self) -> None:
        self._timer = self.loop.call_later(_SWEEP_S, self._sweep)
        self.tick += 1
        self._read_clock()
        each(list(self.connections), HttpConnection.check_age, told_to(self.loop, "a timeout"))

    def _read_clock(self) -> None:
        date = email.utils.formatdate(self._clock.now_ms() / 1000, usegmt=True)
        self.date = b"Date: " + date.encode() + b"\r\n"

    def left(self, connection: HttpConnection) -> None:
        self.connections.pop(connection, None)

    def stop_accepting(self) -> None:
        self.port.stop_accepting()
        self.draining = True

    async def close(self, timeout_s: float = 5.0) -> None:
        """Stop accepting, answer running requests, then close; after the timeout, abort."""
        self.stop_accepting()
        for connection in list(self.connections):
            connection.drain()
        if not await self.port.until_empty(timeout_s):
            for connection in list(self.connections):
                connection.abort()
            await self.port.until_empty(timeout_s)
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self.tasks:
            await asyncio.wait(list(self.tasks), timeout=timeout_s)


def no_body(_request: Request) -> int:
    """A `body_limit` for ports whose requests have none."""
    return 0
