"""Opens links: over a unix socket between workers, by an HTTP upgrade between machines.

Between machines both sides prove that they know `cluster.secret` without sending it: each signs
both nonces (HMAC-SHA-256) with its role and the path, so that a proof cannot be replayed to its
sender. Between workers of a machine the socket file's mode (0600) is the only check.

    client   GET /w/2/link   Upgrade: waystation-link   Waystation-Nonce: <its nonce>
    server   101   Waystation-Nonce: <its nonce>   Waystation-Proof: HMAC("server", …)
                   Waystation-Node: <its name in events>
                   Waystation-Clock: <its monotonic clock, in seconds>
    client   first frame: Prove(HMAC("client", …))
"""

import asyncio
import hmac
import re
import secrets
import ssl
from typing import Final

import pybase64

from waystation.base.clock import Clock
from waystation.net.http1.client import Answer, HttpClientConnection, MalformedAnswerError
from waystation.net.http1.message import Request, Response, Upgrade
from waystation.net.loop import NetLoop, Port, unix_socket
from waystation.push.wire.link_frames import Prove, encode_frame
from waystation.push.wire.relay import ServedNode
from waystation.telemetry.contract import NODE_PATTERN

from .link import LinkConnection, LinkServer, NotALinkError

TOKEN: Final = b"waystation-link"
PATH_END: Final = "/link"
NONCE_BYTES: Final = 24
_NONCE_LETTERS: Final = 32


def _proof(secret: bytes, role: bytes, path: bytes, nonces: bytes) -> bytes:
    return hmac.digest(
        secret, b"waystation-link\n" + role + b"\n" + path + b"\n" + nonces, "sha256"
    )


def _letters(raw: bytes) -> bytes:
    return pybase64.b64encode(raw, b"-_")


# The server's side


def accept_link(
    request: Request,
    port: Port,
    node: ServedNode,
    secret: bytes,
    clock: Clock,
    *,
    name: str = "",
) -> Response:
    """The answer to a request with `Upgrade: TOKEN`; `port` holds the links, `node` is the worker
    in the path and `name` its name in events."""
    client_nonce = request.headers.get(b"waystation-nonce", b"")
    if len(client_nonce) != _NONCE_LETTERS:
        return Response.of(400, close=True)
    server_nonce = _letters(secrets.token_bytes(NONCE_BYTES))
    nonces = client_nonce + server_nonce
    expected = _proof(secret, b"client", request.path, nonces)
    shown = _letters(_proof(secret, b"server", request.path, nonces))
    named = b"Waystation-Node: %b\r\n" % name.encode() if name else b""
    return Upgrade.to(
        LinkServer(port, node, clock, proof=expected),
        TOKEN,
        b"Waystation-Nonce: %b\r\nWaystation-Proof: %b\r\nWaystation-Clock: %.6f\r\n%b"
        % (server_nonce, shown, clock.mono(), named),
    )


def link_port(net: NetLoop) -> Port:
    """A port for links in both directions; `IN_FLIGHT_MAX` requests bound the sent bytes."""
    return Port(net, send_bytes_max=0)


def serve_link_socket(port: Port, path: str, node: ServedNode, clock: Clock) -> None:
    """Listen for the other workers of this node, until `port` stops."""
    port.listen(unix_socket(path), lambda _address: LinkServer(port, node, clock))


# The client's side


class UnixDial:
    """Opens links to a worker of this node."""

    def __init__(self, port: Port, path: str, timeout_s: float) -> None:
        self._port = port
        self._path = path
        self._timeout_s = timeout_s

    async def __call__(self, *, timeout_s: float) -> LinkConnection:
        connection = LinkConnection(self._port, timeout_s=timeout_s)
        connection.clock_ahead_s = 0.0
        async with asyncio.timeout(self._timeout_s):
            await self._port.connect(connection, self._path)
        return connection


class UpgradeDial:
    """Opens links to a node on another machine."""

    def __init__(
        self,
        port: Port,
        address: tuple[str, int],
        path: str,
        *,
        secret: bytes,
        timeout_s: float,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self._port = port
        self._address = address
        self._path = path.encode()
        self._secret = secret
        self._timeout_s = timeout_s
        self._tls = tls
        self.peer_name = ""  # sent by the node during the upgrade

    async def __call__(self, *, timeout_s: float) -> LinkConnection:
        host, number = self._address
        nonce = _letters(secrets.token_bytes(NONCE_BYTES))
        request = (
            b"GET %b HTTP/1.1\r\nHost: %b:%d\r\nConnection: Upgrade\r\nUpgrade: %b\r\n"
            b"Waystation-Nonce: %b\r\n\r\n" % (self._path, host.encode(), number, TOKEN, nonce)
        )
        http = HttpClientConnection(self._port)
        link = LinkConnection(self._port, timeout_s=timeout_s)
        async with asyncio.timeout(self._timeout_s):
            await self._port.connect(http, self._address, tls=self._tls, server_name=host)
            try:
                first = self._check(await http.ask(request), nonce, link)
                if not http.is_open:
                    raise ConnectionResetError("closed during the upgrade")
                http.become(link, http.rest)
            except MalformedAnswerError:
                raise NotALinkError from None
            except BaseException:
                http.abort()
                raise
        link.send_frame(first)
        return link

    def _check(self, answer: Answer, nonce: bytes, link: LinkConnection) -> bytes:
        """The first frame to send, if the answer accepts the link; else `NotALinkError`."""
        if answer.status != 101:
            raise NotALinkError
        headers = answer.headers
        nonces = nonce + headers.get(b"waystation-nonce", b"")
        expected = _letters(_proof(self._secret, b"server", self._path, nonces))
        if not hmac.compare_digest(expected, headers.get(b"waystation-proof", b"")):
            raise NotALinkError  # another secret: fall back to HTTP, which needs none
        name = headers.get(b"waystation-node", b"").decode("latin-1")
        if re.fullmatch(NODE_PATTERN, name):
            self.peer_name = name
        clock = headers.get(b"waystation-clock", b"")
        if re.fullmatch(rb"\d{1,12}\.\d{1,9}", clock):
            link.clock_ahead_s = float(clock) - asyncio.get_running_loop().time()
        return encode_frame(Prove(_proof(self._secret, b"client", self._path, nonces)))
