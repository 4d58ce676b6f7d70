"""Clients as light as they can be: one protocol object a connection, bytes prepared beforehand.

They take a well-behaved server for granted; whatever they do not expect is an error that ends the
measurement, never something that is measured.
"""

import asyncio
import base64
import secrets
import socket
from collections.abc import Callable
from time import perf_counter
from typing import cast
from urllib.parse import urlsplit

import msgspec
from websockets.speedups import apply_mask

_MASK = b"\x5a\x3c\x69\x0f"


class LoadError(Exception):
    """The server did something that makes the measurement void."""


class PostConnection(asyncio.Protocol):
    """One keep-alive HTTP connection with one request under way."""

    __slots__ = ("_buffer", "_on_answer", "sent_at", "sequence", "transport")

    def __init__(self, on_answer: Callable[["PostConnection", int], None]) -> None:
        self._on_answer = on_answer
        self._buffer = b""
        self.sent_at = 0.0
        self.sequence = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        no_delay(self.transport)

    def send(self, request: bytes) -> None:
        self.sent_at = perf_counter()
        self.transport.write(request)

    def data_received(self, data: bytes) -> None:
        if self._buffer:
            data = self._buffer + data
        end = data.find(b"\r\n\r\n")
        if end < 0:
            self._buffer = data
            return
        head = data[:end].lower()
        at = head.find(b"\r\ncontent-length:")
        length = 0 if at < 0 else int(head[at + 17 : (head.find(b"\r", at + 17) + 1 or None)])
        if len(data) < end + 4 + length:
            self._buffer = data
            return
        self._buffer = b""
        self._on_answer(self, int(data[9:12]))

    def connection_lost(self, exc: Exception | None) -> None:
        self._on_answer(self, 0)


class AskedConnection(PostConnection):
    """The same for a coroutine that waits for each answer."""

    __slots__ = ("_answer",)

    def __init__(self) -> None:
        super().__init__(lambda _, status: self._heard(status))
        self._answer: asyncio.Future[int] | None = None

    async def ask(self, request: bytes) -> int:
        """The status; 0 if the server hung up instead."""
        self._answer = asyncio.get_running_loop().create_future()
        self.send(request)
        return await self._answer

    def _heard(self, status: int) -> None:
        if self._answer is not None and not self._answer.done():
            self._answer.set_result(status)


class AgentConnection(asyncio.Protocol):
    """A WebSocket client: text frames in, masked text frames out."""

    __slots__ = (
        "_buffer",
        "_host",
        "_open",
        "agent",
        "closed",
        "on_text",
        "opened",
        "pings",
        "transport",
    )

    def __init__(self, host: str, on_text: Callable[["AgentConnection", bytes], None]) -> None:
        self._host = host
        self._buffer = b""
        self._open = False
        self.on_text = on_text
        self.opened: asyncio.Future[None] | None = None
        self.closed = False
        self.pings = 0  # that came
        self.agent: object = None  # whose connection this is

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        no_delay(self.transport)
        key = base64.b64encode(secrets.token_bytes(16)).decode()
        self.transport.write(
            (
                f"GET / HTTP/1.1\r\nHost: {self._host}\r\nUpgrade: websocket\r\n"
                f"Connection: Upgrade\r\nSec-WebSocket-Key: {key}\r\n"
                "Sec-WebSocket-Version: 13\r\nSec-WebSocket-Protocol: push-notification\r\n\r\n"
            ).encode()
        )

    def say(self, text: bytes) -> None:
        self.transport.write(client_frame(0x81, text))

    def data_received(self, data: bytes) -> None:
        if self._buffer:
            data = self._buffer + data
            self._buffer = b""
        if not self._open:
            end = data.find(b"\r\n\r\n")
            if end < 0:
                self._buffer = data
                return
            if not data.startswith(b"HTTP/1.1 101"):
                self.fail(LoadError(f"no upgrade: {data[:40]!r}"))
                return
            self._open = True
            if self.opened is not None and not self.opened.done():
                self.opened.set_result(None)
            data = data[end + 4 :]
        at = 0
        total = len(data)
        while total - at >= 2:
            length = data[at + 1]
            start = at + 2
            if length == 126:
                start += 2
                length = int.from_bytes(data[at + 2 : start])
            elif length == 127:
                start += 8
                length = int.from_bytes(data[at + 2 : start])
            if total < start + length:
                break
            opcode = data[at]
            payload = data[start : start + length]
            at = start + length
            if opcode == 0x81:
                self.on_text(self, payload)
            elif opcode == 0x89:
                self.pings += 1
                self.transport.write(client_frame(0x8A, payload))
            elif opcode == 0x88:
                self.transport.close()
                return
        self._buffer = data[at:] if at < total else b""

    def fail(self, error: Exception) -> None:
        if self.opened is not None and not self.opened.done():
            self.opened.set_exception(error)
        self.transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        self.closed = True
        if self.opened is not None and not self.opened.done():
            self.opened.set_exception(LoadError("the server hung up during the upgrade"))


def client_frame(opcode: int, payload: bytes) -> bytes:
    length = len(payload)
    if length < 126:
        head = bytes((opcode, 0x80 | length))
    else:
        head = bytes((opcode, 0xFE)) + length.to_bytes(2)
    return head + _MASK + apply_mask(payload, _MASK)


def no_delay(transport: asyncio.Transport) -> None:
    sock = transport.get_extra_info("socket")
    if sock is not None:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)


def host_and_port(url: str) -> tuple[str, int]:
    parts = urlsplit(url)
    if parts.scheme not in {"http", "ws"} or not parts.hostname or not parts.port:
        raise LoadError(f"{url}: plain http:// and ws:// URLs with a port can be measured")
    return parts.hostname, parts.port


class Said(msgspec.Struct):
    """What a node may say; everything else in a frame is skipped."""

    kind: str = msgspec.field(default="", name="messageType")
    status: int = 0
    uaid: str = ""
    channel_id: str = msgspec.field(default="", name="channelID")
    endpoint: str = msgspec.field(default="", name="pushEndpoint")
    version: str = ""
    data: str = ""


decode_said = msgspec.json.Decoder(Said).decode
