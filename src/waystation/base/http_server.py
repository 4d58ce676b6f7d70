"""A thin HTTP/1.1 server on asyncio's protocols. It knows nothing of push.

It listens, owns the connections, and sweeps them once a second: a client that is slow to send or
slow to read is let go without a timer of its own. What happens on a connection is in
`http_connection`.
"""

import asyncio
import email.utils
import socket
import ssl
from collections.abc import Callable
from typing import Final, cast

from waystation.base.clock import Clock
from waystation.base.http_connection import HttpConnection
from waystation.base.http_limits import HttpLimits
from waystation.base.http_message import Handler, Request, Response, Upgrade
from waystation.base.http_usual import Bounds

__all__ = ["Handler", "HttpLimits", "HttpServer", "Request", "Response", "Upgrade", "no_body"]

_SWEEP_S: Final = 1.0


class HttpServer:
    """Listens, owns the connections, sweeps them once a second."""

    def __init__(
        self,
        handler: Handler,
        *,
        loop: asyncio.AbstractEventLoop,
        clock: Clock,
        body_limit: Callable[[Request], int],
        on_failure: Callable[[Request, BaseException], Response],
        limits: HttpLimits | None = None,
        upgrades: frozenset[bytes] = frozenset(),
    ) -> None:
        self.handler = handler
        self.loop = loop
        self.on_failure = on_failure  # a handler raised: the answer to that
        self.limits = limits or HttpLimits()
        self.bounds = Bounds(self.limits.headers_max, body_limit)
        self.upgrades = upgrades  # what `Upgrade:` may ask for; others are ignored
        self.connections: set[HttpConnection] = set()
        self.tasks: set[asyncio.Task[Response]] = set()
        self.draining = False
        self.refused_connections = 0
        self.tick = 0  # seconds, as the sweep counts them
        self.date = self.empty = b""
        self._clock = clock
        self._servers: list[asyncio.Server] = []  # referenced, or the collector closes them
        self._timer: asyncio.TimerHandle | None = None
        self._emptied: asyncio.Event | None = None
        self._answered: list[HttpConnection] = []  # in this turn
        self._read_clock()

    def connection(self) -> HttpConnection:
        """The protocol factory, for whoever makes the listening socket."""
        return HttpConnection(self)

    async def listen(
        self,
        host: str,
        port: int,
        *,
        reuse_port: bool = False,
        backlog: int = 1024,
        tls: ssl.SSLContext | None = None,
        sock: socket.socket | None = None,
    ) -> int:
        """The port that is bound, for those who asked for port 0. `sock` listens there already.
        `::` is every address of the machine, IPv4 as well."""
        if sock is None and host == "::":  # left to the loop it would be IPv6 alone
            sock = socket.create_server(
                (host, port),
                family=socket.AF_INET6,
                backlog=backlog,
                reuse_port=reuse_port,
                dualstack_ipv6=True,
            )
        server = await (
            self.loop.create_server(
                self.connection,
                host,
                port,
                reuse_port=reuse_port or None,
                backlog=backlog,
                ssl=tls,
            )
            if sock is None
            else self.loop.create_server(self.connection, sock=sock, backlog=backlog, ssl=tls)
        )
        self._servers.append(server)
        self.start_sweeping()
        return cast(int, server.sockets[0].getsockname()[1])

    def start_sweeping(self) -> None:
        if self._timer is None:
            self._timer = self.loop.call_later(_SWEEP_S, self._sweep)

    def _sweep(self) -> None:
        self._timer = self.loop.call_later(_SWEEP_S, self._sweep)
        self.tick += 1
        self._read_clock()
        for connection in list(self.connections):
            connection.check_age()

    def _read_clock(self) -> None:
        date = email.utils.formatdate(self._clock.now_ms() / 1000, usegmt=True)
        self.date = b"Date: " + date.encode() + b"\r\n"
        self.empty = self.date + b"Content-Length: 0\r\n\r\n"

    def answered(self, connection: HttpConnection) -> None:
        if not self._answered:
            self.loop.call_soon(self._flush_answered)
        self._answered.append(connection)

    def _flush_answered(self) -> None:
        answered, self._answered = self._answered, []
        for connection in answered:
            connection.flush()

    def left(self, connection: HttpConnection) -> None:
        self.connections.discard(connection)
        if self._emptied is not None and not self.connections:
            self._emptied.set()

    def stop_accepting(self) -> None:
        self.draining = True
        for server in self._servers:
            server.close()
        self._servers.clear()

    async def close(self, timeout_s: float = 5.0) -> None:
        """Stop accepting, answer what is under way, then close; after the timeout, cut."""
        self.stop_accepting()
        self._emptied = asyncio.Event()
        for connection in list(self.connections):
            connection.drain()
        if self.connections:
            try:
                await asyncio.wait_for(self._emptied.wait(), timeout_s)
            except TimeoutError:
                for connection in list(self.connections):
                    connection.abort()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self.tasks:
            await asyncio.wait(self.tasks, timeout=timeout_s)


def no_body(_request: Request) -> int:
    """A `body_limit` for ports whose requests have none."""
    return 0
