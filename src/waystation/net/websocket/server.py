"""A port of WebSockets. It knows nothing of push.

The opening request is read by `net.http1`, whose connection then hands its socket over.

Rule 1: a full port refuses upgrades with 503 and still answers health routes: a load balancer must
        not take it for dead.
Rule 2: a plain request gets one answer, and the connection ends. Where `http` has no answer it is
        400 on `/` and 404 elsewhere, whatever the method: the node API is not on the public port.
"""

import socket
import ssl
from collections.abc import Callable
from typing import Final

import msgspec

from waystation.base.clock import Clock
from waystation.net.http1.limits import HttpLimits
from waystation.net.http1.message import Request, Response
from waystation.net.http1.message import Upgrade as SwitchProtocols
from waystation.net.http1.server import HttpServer, no_body
from waystation.net.loop import NetLoop, Port
from waystation.net.websocket.connection import Handler, WebSocket
from waystation.net.websocket.frames import FrameReader
from waystation.net.websocket.limits import WebSocketLimits
from waystation.net.websocket.upgrade import (
    TOKEN,
    Upgrade,
    accept_headers,
    read_upgrade,
    refusal,
)

CLOSED_S: Final = 2.0  # for the last bytes of all connections


class WebSocketServer:
    """`make_handler` gives an accepted connection its handler; `http` answers plain requests."""

    def __init__(
        self,
        net: NetLoop,
        *,
        make_handler: Callable[[WebSocket, Upgrade], Handler],
        http: Callable[[Request], Response | None],
        clock: Clock,
        limits: WebSocketLimits | None = None,
    ) -> None:
        self.make_handler = make_handler
        self._plain_answer = http
        limits = WebSocketLimits() if limits is None else limits
        self._connections_max = limits.connections_max
        self.reader = FrameReader(message_bytes_max=limits.message_bytes_max)
        self.port = Port(
            net, send_high_bytes=limits.send_high_bytes, send_bytes_max=limits.send_bytes_max
        )
        self.http = HttpServer(
            self._answer,
            net=net,
            clock=clock,
            body_limit=no_body,
            on_failure=self._failed,
            limits=HttpLimits(
                head_bytes_max=limits.head_bytes_max,
                connections_max=limits.upgrading_max,
                idle_timeout_s=limits.upgrade_timeout_s,
                request_timeout_s=limits.upgrade_timeout_s,
            ),
            upgrades=frozenset({TOKEN}),
        )
        self.refused = 0  # upgrades, ever, by a limit

    @property
    def connections(self) -> int:
        """Upgraded connections whose conversation goes on."""
        return self.port.connections

    @property
    def descriptors(self) -> int:
        """All sockets of clients: open, before their upgrade, and ending."""
        return self.port.descriptors + self.http.port.descriptors

    @property
    def accepted(self) -> int:
        return self.http.port.accepted

    def listen(self, sock: socket.socket, tls: ssl.SSLContext | None = None) -> None:
        """Takes over a bound socket; give each worker its own with SO_REUSEPORT."""
        self.http.listen_on(sock, tls)

    def use_certificate(self, tls: ssl.SSLContext) -> None:
        """New connections of TLS listeners use this context; established ones keep theirs."""
        self.http.use_certificate(tls)

    def stop_accepting(self) -> None:
        """Who has connected is still served; the port is free afterwards."""
        self.http.stop_accepting()

    async def close_all(self, code: int, reason: str = "") -> None:
        """Close every connection, and wait until they are gone; to spread that is the driver's."""
        for connection in self.port.open_connections():
            assert isinstance(connection, WebSocket)
            connection.close(code, reason)
        await self.port.until_empty(CLOSED_S)
        await self.http.close(CLOSED_S)

    def _answer(self, request: Request) -> Response:
        upgrade = read_upgrade(request)
        if isinstance(upgrade, Upgrade):
            if self.port.connections >= self._connections_max > 0:
                self.refused += 1
                return refusal(503, b"too many connections")
            return SwitchProtocols.to(WebSocket(self, upgrade), TOKEN, accept_headers(upgrade))
        if upgrade is not None:
            return upgrade
        answer = None
        if request.method in (b"GET", b"HEAD"):
            answer = self._plain_answer(request)
        if answer is None:
            if request.path == b"/":
                return refusal(400, b"this is a WebSocket server")
            return refusal(404, b"not found")
        return msgspec.structs.replace(answer, close=True)

    def _failed(self, _request: Request, error: BaseException) -> Response:
        """A health check must not take the node down."""
        self.port.net.report("answering a plain request", error)
        return refusal(500, b"internal error")
