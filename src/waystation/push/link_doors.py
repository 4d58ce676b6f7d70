"""How a link begins: over a unix socket between workers, by an upgrade between machines.

Rule 1: between machines both sides prove that they know `cluster.secret`, and the secret itself
        never travels: each signs the other's nonce (HMAC-SHA-256), with its role and the path, so
        that no answer can be played back to its sender.
Rule 2: inside a machine the file's mode is the lock: 0600, in the data directory.

    client   GET /w/2/link   Upgrade: waystation-link   Waystation-Nonce: <its nonce>
    server   101   Waystation-Nonce: <its nonce>   Waystation-Proof: HMAC("server", …)
                   Waystation-Node: <what its events call it>
    client   first frame: Prove(HMAC("client", …))
"""

import asyncio
import hmac
import os
import re
import secrets
import ssl
from typing import Final, cast

import pybase64

from waystation.base.http_message import Request, Response, Upgrade
from waystation.push.link import LinkConnection, LinkServer, NotALinkError
from waystation.push.wire.link_frames import Prove, encode_frame
from waystation.push.wire.relay import Node
from waystation.telemetry.contract import NODE_PATTERN

TOKEN: Final = b"waystation-link"
PATH_END: Final = "/link"
NONCE_BYTES: Final = 24
ANSWER_BYTES_MAX: Final = 8_192
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
    node: Node,
    secret: bytes,
    loop: asyncio.AbstractEventLoop,
    *,
    name: str = "",
) -> Response:
    """The answer to a request whose `upgrade` is `TOKEN`; `node` is the one that its path names,
    and `name` is what its events call it."""
    client_nonce = request.headers.get(b"waystation-nonce", b"")
    if len(client_nonce) != _NONCE_LETTERS:
        return Response.of(400, close=True)
    server_nonce = _letters(secrets.token_bytes(NONCE_BYTES))
    nonces = client_nonce + server_nonce
    expected = _proof(secret, b"client", request.path, nonces)
    shown = _letters(_proof(secret, b"server", request.path, nonces))
    named = b"Waystation-Node: %b\r\n" % name.encode() if name else b""
    return Upgrade.to(
        LinkServer(node, loop, proof=expected),
        TOKEN,
        b"Waystation-Nonce: %b\r\nWaystation-Proof: %b\r\n%b" % (server_nonce, shown, named),
    )


async def serve_link_socket(
    path: str, node: Node, loop: asyncio.AbstractEventLoop
) -> asyncio.Server:
    """Listen for the other workers of this node. Keep the result, and close it at the end."""
    if os.path.exists(path):  # noqa: ASYNC240 one look at start-up
        os.unlink(path)  # of a worker that died; the role's lock says that it is not in use
    mask = os.umask(0o177)
    try:
        return await loop.create_unix_server(lambda: LinkServer(node, loop), path)
    finally:
        os.umask(mask)


# The client's side


class UnixDial:
    """To a worker of this node."""

    def __init__(self, path: str, loop: asyncio.AbstractEventLoop, timeout_s: float) -> None:
        self._path = path
        self._loop = loop
        self._timeout_s = timeout_s

    async def __call__(self, protocol: LinkConnection, /) -> None:
        async with asyncio.timeout(self._timeout_s):
            await self._loop.create_unix_connection(lambda: protocol, self._path)


class UpgradeDial:
    """To a node on another machine."""

    def __init__(
        self,
        host: str,
        port: int,
        path: str,
        *,
        secret: bytes,
        loop: asyncio.AbstractEventLoop,
        timeout_s: float,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self._host = host
        self._port = port
        self._path = path.encode()
        self._secret = secret
        self._loop = loop
        self._timeout_s = timeout_s
        self._tls = tls
        self.peer_name = ""  # as it said when the link began

    async def __call__(self, protocol: LinkConnection, /) -> None:
        nonce = _letters(secrets.token_bytes(NONCE_BYTES))
        request = (
            b"GET %b HTTP/1.1\r\nHost: %b:%d\r\nConnection: Upgrade\r\nUpgrade: %b\r\n"
            b"Waystation-Nonce: %b\r\n\r\n"
            % (self._path, self._host.encode(), self._port, TOKEN, nonce)
        )
        async with asyncio.timeout(self._timeout_s):
            transport, door = await self._loop.create_connection(
                lambda: _Door(request, self._loop), self._host, self._port, ssl=self._tls
            )
            try:
                self._check(await door.answered, nonce, protocol, transport)
            except BaseException:
                transport.abort()
                raise
        if door.rest:
            protocol.data_received(door.rest)

    def _check(
        self,
        head: bytes,
        nonce: bytes,
        protocol: LinkConnection,
        transport: asyncio.BaseTransport,
    ) -> None:
        status_line, *lines = head.split(b"\r\n")
        if b" 101" not in status_line[:13]:
            raise NotALinkError
        headers = {
            name.strip().lower(): value.strip()
            for name, _, value in (line.partition(b":") for line in lines)
        }
        nonces = nonce + headers.get(b"waystation-nonce", b"")
        expected = _letters(_proof(self._secret, b"server", self._path, nonces))
        if not hmac.compare_digest(expected, headers.get(b"waystation-proof", b"")):
            raise NotALinkError  # somebody with another secret; the HTTP form needs none
        name = headers.get(b"waystation-node", b"").decode("latin-1")
        if re.fullmatch(NODE_PATTERN, name):
            self.peer_name = name
        transport = cast(asyncio.Transport, transport)
        transport.set_protocol(protocol)
        protocol.connection_made(transport)
        protocol.send(encode_frame(Prove(_proof(self._secret, b"client", self._path, nonces))))


class _Door(asyncio.Protocol):
    """Asks for the upgrade and waits for the head of the answer."""

    def __init__(self, request: bytes, loop: asyncio.AbstractEventLoop) -> None:
        self._request = request
        self.rest = b""  # what came after the head
        self.answered: asyncio.Future[bytes] = loop.create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        cast(asyncio.Transport, transport).write(self._request)

    def data_received(self, data: bytes) -> None:
        self.rest += data
        if self.answered.done():
            return
        head, end, rest = self.rest.partition(b"\r\n\r\n")
        if end:
            self.rest = rest
            self.answered.set_result(head)
        elif len(self.rest) > ANSWER_BYTES_MAX:
            self.answered.set_exception(NotALinkError())

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.answered.done():
            self.answered.set_exception(exc or ConnectionResetError("closed during the upgrade"))
