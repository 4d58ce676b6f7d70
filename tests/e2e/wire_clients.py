"""Clients that speak the wire as the specification writes it down, byte for byte.

They share no code with the project's own client library: a mistake that both ends made in the
same way would never show. The user agent runs on `websockets`, the raw one on a bare stream, the
app server on HTTP written by hand, signatures on `cryptography`.
"""

import asyncio
import base64
import contextlib
import hashlib
import json
import os
import ssl
import struct
import time
import uuid
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from types import TracebackType
from typing import Any, NamedTuple, Self, cast
from urllib.parse import urlsplit

from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.utils import decode_dss_signature
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed
from websockets.typing import Subprotocol

EXPECT_S = 20.0  # generous: the machine may be busy
SILENCE_S = 0.3
BODY = b"\x01\x02binary \xff"  # opaque to every server

Message = dict[str, Any]


def b64url(raw: bytes) -> str:
    return base64.urlsafe_b64encode(raw).rstrip(b"=").decode()


def from_b64url(text: str) -> bytes:
    return base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))


def new_channel() -> str:
    return str(uuid.uuid4())


# --- the user agent ---------------------------------------------------------------------------


class UserAgent:
    """A device: one socket at a time, a uaid that it keeps over reconnects."""

    def __init__(self, url: str, *, tls: ssl.SSLContext | None = None) -> None:
        self.url = url
        self.uaid = ""
        self._tls = tls
        self._socket: ClientConnection | None = None
        self._acked = False  # since the server last answered something

    async def open(self, *, subprotocols: Sequence[str] = ()) -> Self:
        """Upgraded, but without a word yet."""
        self._socket = await connect(
            self.url,
            ssl=self._tls,
            subprotocols=[Subprotocol(name) for name in subprotocols] or None,
            compression=None,
            ping_interval=None,
            proxy=None,
            close_timeout=2,
        )
        return self

    async def hello(self, **fields: Any) -> Message:
        """Says hello on an open socket and waits for the answer."""
        message = {"messageType": "hello", "use_webpush": True, **fields}
        if self.uaid:
            message.setdefault("uaid", self.uaid)
        await self.send(message)
        reply = await self.expect("hello")
        assert reply["status"] == 200, reply
        self.uaid = reply["uaid"]
        return reply

    async def connect(self, **fields: Any) -> Message:
        await self.open()
        return await self.hello(**fields)

    async def reconnect(self) -> Message:
        await self.leave()
        return await self.connect()

    @property
    def socket(self) -> ClientConnection:
        assert self._socket is not None
        return self._socket

    async def send(self, message: object) -> None:
        await self.socket.send(message if isinstance(message, str) else json.dumps(message))

    async def receive(self, timeout_s: float = EXPECT_S) -> Message:
        async with asyncio.timeout(timeout_s):
            text = await self.socket.recv()
        assert isinstance(text, str), "a server never sends binary frames"
        return json.loads(text)

    async def expect(self, kind: str, timeout_s: float = EXPECT_S) -> Message:
        message = await self.receive(timeout_s)
        assert message.get("messageType") == kind, message
        return message

    async def notification(self, *, ack: bool = False, timeout_s: float = EXPECT_S) -> Message:
        message = await self.expect("notification", timeout_s)
        if ack:
            await self.ack(message)
        return message

    async def notifications(self, count: int, *, ack: bool = False) -> list[Message]:
        return [await self.notification(ack=ack) for _ in range(count)]

    async def expect_silence(self, seconds: float = SILENCE_S) -> None:
        """Nothing comes."""
        try:
            message = await self.receive(seconds)
        except TimeoutError:
            return
        raise AssertionError(f"there should be silence, but there was {message}")

    async def register(self, channel_id: str | None = None, **fields: Any) -> Message:
        channel_id = channel_id or new_channel()
        await self.send({"messageType": "register", "channelID": channel_id, **fields})
        reply = await self.expect("register")
        assert reply["channelID"] == channel_id
        return reply

    async def subscribe(self, channel_id: str | None = None, **fields: Any) -> str:
        """The endpoint of a new subscription."""
        reply = await self.register(channel_id, **fields)
        assert reply["status"] == 200, reply
        return reply["pushEndpoint"]

    async def unregister(self, channel_id: str, **fields: Any) -> Message:
        await self.send({"messageType": "unregister", "channelID": channel_id, **fields})
        return await self.expect("unregister")

    async def ack(self, *messages: Message, code: int = 100) -> None:
        updates = [
            {"channelID": one["channelID"], "version": one["version"], "code": code}
            for one in messages
        ]
        self._acked = True
        await self.send({"messageType": "ack", "updates": updates})

    async def settled(self) -> None:
        """All acks are recorded: a command after them is answered, an unregister of nothing."""
        await self.unregister(new_channel())
        self._acked = False

    async def closed(self, timeout_s: float = EXPECT_S) -> int:
        """The server's close code, after whatever else it had to say."""
        async with asyncio.timeout(timeout_s):
            while True:
                try:
                    await self.socket.recv()
                except ConnectionClosed:
                    break
        code = self.socket.close_code
        assert code is not None
        return code

    async def leave(self) -> None:
        """Closes as a browser does that ends; the server has recorded every ack by then.

        It would take acks of the last moment as well, but may not have written them down before
        the next connection, on another worker, is told what waits.
        """
        if self._socket is not None:
            if self._acked:
                with contextlib.suppress(ConnectionClosed):
                    await self.send({"messageType": "unregister", "channelID": new_channel()})
                    while (await self.receive())["messageType"] != "unregister":
                        pass  # not acked, so it comes again
                self._acked = False
            await self._socket.close()
            self._socket = None

    async def vanish(self) -> None:
        """The connection is cut without a word."""
        if self._socket is not None:
            self._socket.transport.abort()
            await self._socket.wait_closed()
            self._socket = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None
    ) -> None:
        await self.vanish()


@contextlib.asynccontextmanager
async def user_agent(url: str, **fields: Any) -> AsyncIterator[UserAgent]:
    """One that has said hello."""
    async with UserAgent(url) as agent:
        await agent.connect(**fields)
        yield agent


class Frame(NamedTuple):
    opcode: int
    payload: bytes


TEXT, BINARY, CLOSE, PING, PONG = 1, 2, 8, 9, 10


class RawSocket:
    """A WebSocket that answers nothing by itself: no Pong, no Close."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self.answer = b""

    @classmethod
    async def open(cls, url: str, *headers: str) -> Self:
        parts = urlsplit(url)
        reader, writer = await asyncio.open_connection(parts.hostname, parts.port)
        raw = cls(reader, writer)
        key = base64.b64encode(os.urandom(16)).decode()
        lines = [
            "GET / HTTP/1.1",
            f"Host: {parts.netloc}",
            "Upgrade: websocket",
            "Connection: Upgrade",
            "Sec-WebSocket-Version: 13",
            f"Sec-WebSocket-Key: {key}",
            *headers,
        ]
        writer.write("\r\n".join([*lines, "", ""]).encode())
        async with asyncio.timeout(EXPECT_S):
            raw.answer = await reader.readuntil(b"\r\n\r\n")
        return raw

    def send(self, opcode: int, payload: bytes, *, fin: bool = True) -> None:
        mask = os.urandom(4)
        head = bytes([(0x80 if fin else 0) | opcode])
        if len(payload) < 126:
            head += bytes([0x80 | len(payload)])
        elif len(payload) < 65_536:
            head += bytes([0x80 | 126]) + struct.pack("!H", len(payload))
        else:
            head += bytes([0x80 | 127]) + struct.pack("!Q", len(payload))
        masked = bytes(byte ^ mask[index % 4] for index, byte in enumerate(payload))
        self._writer.write(head + mask + masked)

    def say(self, message: object) -> None:
        self.send(TEXT, json.dumps(message).encode())

    async def frame(self, timeout_s: float = EXPECT_S) -> Frame:
        async with asyncio.timeout(timeout_s):
            first, second = await self._reader.readexactly(2)
            length = second & 0x7F
            if length == 126:
                (length,) = struct.unpack("!H", await self._reader.readexactly(2))
            elif length == 127:
                (length,) = struct.unpack("!Q", await self._reader.readexactly(8))
            return Frame(first & 0x0F, await self._reader.readexactly(length))

    def stop_reading(self) -> None:
        """The socket fills up."""
        self._transport.pause_reading()

    def start_reading(self) -> None:
        self._transport.resume_reading()

    @property
    def _transport(self) -> asyncio.ReadTransport:
        return cast(asyncio.ReadTransport, self._writer.transport)

    async def ended(self, timeout_s: float = EXPECT_S) -> None:
        """The server closes TCP; a Close frame of ours is not waited for."""
        async with asyncio.timeout(timeout_s):
            while await self._reader.read(65_536):
                pass

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None
    ) -> None:
        self._writer.transport.abort()


# --- HTTP ---------------------------------------------------------------------------------------


class Answer(NamedTuple):
    status: int
    headers: Mapping[str, str]  # names in lower case
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def errno(self) -> int | None:
        return self.json["errno"]

    @property
    def error(self) -> tuple[int, int | None]:
        """Status and errno, as the specification writes them."""
        return self.status, self.errno


async def http(
    method: str,
    url: str,
    headers: Mapping[str, str] | Iterable[tuple[str, str]] = (),
    body: bytes = b"",
    *,
    timeout_s: float = 10.0,
    tls: ssl.SSLContext | None = None,
) -> Answer:
    """One request on a connection of its own, headers exactly as given."""
    parts = urlsplit(url)
    secure = parts.scheme == "https"
    async with asyncio.timeout(timeout_s):
        reader, writer = await asyncio.open_connection(
            parts.hostname, parts.port or (443 if secure else 80), ssl=tls if secure else None
        )
        try:
            target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
            given = list(headers.items() if isinstance(headers, Mapping) else headers)
            lines = [f"{method} {target} HTTP/1.1", f"Host: {parts.netloc}", "Connection: close"]
            lines += [f"{name}: {value}" for name, value in given]
            if body or method in ("POST", "PUT"):
                lines.append(f"Content-Length: {len(body)}")
            writer.write("\r\n".join([*lines, "", ""]).encode() + body)
            return await read_answer(reader, method)
        finally:
            writer.transport.abort()


async def read_answer(reader: asyncio.StreamReader, method: str) -> Answer:
    head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
    status = int(head[0].split(" ")[1])
    found: dict[str, str] = {}
    for line in head[1:]:
        name, colon, value = line.partition(":")
        if colon:
            found[name.lower()] = value.strip()
    length = int(found.get("content-length", "0"))
    body = b"" if method == "HEAD" or not length else await reader.readexactly(length)
    return Answer(status, found, body)


# --- the app server -----------------------------------------------------------------------------


class Vapid:
    """An app server's key pair, and the tokens it signs."""

    def __init__(self) -> None:
        self.private = ec.generate_private_key(ec.SECP256R1())
        self.public = self.private.public_key().public_bytes(
            serialization.Encoding.X962, serialization.PublicFormat.UncompressedPoint
        )

    @property
    def key(self) -> str:
        return b64url(self.public)

    @property
    def key_hash(self) -> bytes:
        return hashlib.sha256(self.public).digest()

    def token(
        self,
        endpoint: str,
        *,
        header: Mapping[str, Any] | None = None,
        without: Sequence[str] = (),
        **claims: Any,
    ) -> str:
        """For the origin of `endpoint`, an hour from now, unless `claims` say otherwise."""
        parts = urlsplit(endpoint)
        all_claims = {
            "aud": f"{parts.scheme}://{parts.netloc}",
            "exp": int(time.time()) + 3600,
            "sub": "mailto:ops@example.org",
            **claims,
        }
        for name in without:
            del all_claims[name]
        signed = ".".join(
            b64url(json.dumps(part).encode())
            for part in (header or {"typ": "JWT", "alg": "ES256"}, all_claims)
        )
        r, s = decode_dss_signature(self.private.sign(signed.encode(), ec.ECDSA(hashes.SHA256())))
        return f"{signed}.{b64url(r.to_bytes(32, 'big') + s.to_bytes(32, 'big'))}"

    def vapid(self, endpoint: str, **claims: Any) -> dict[str, str]:
        """RFC 8292."""
        return {"Authorization": f"vapid t={self.token(endpoint, **claims)}, k={self.key}"}

    def webpush(self, endpoint: str, *, scheme: str = "WebPush", **claims: Any) -> dict[str, str]:
        """The drafts before it."""
        return {
            "Authorization": f"{scheme} {self.token(endpoint, **claims)}",
            "Crypto-Key": f"p256ecdsa={self.key}",
        }


async def post(
    endpoint: str,
    body: bytes = BODY,
    *,
    ttl: int | str | None = 300,
    vapid: Vapid | None = None,
    topic: str | None = None,
    encoding: str | None = "aes128gcm",
    headers: Mapping[str, str] | None = None,
    tls: ssl.SSLContext | None = None,
) -> Answer:
    """What an app server sends; `headers` come last and win."""
    lines: dict[str, str] = {}
    if ttl is not None:
        lines["TTL"] = str(ttl)
    if topic is not None:
        lines["Topic"] = topic
    if body and encoding is not None:
        lines["Content-Encoding"] = encoding
    if vapid is not None:
        lines |= vapid.vapid(endpoint)
    return await http("POST", endpoint, {**lines, **(headers or {})}, body, tls=tls)


async def accepted(endpoint: str, body: bytes = BODY, **options: Any) -> Answer:
    """A POST that must be answered 201."""
    answer = await post(endpoint, body, **options)
    assert answer.status == 201, answer
    return answer


def version_of(answer: Answer) -> str:
    """The message id in a Location."""
    return answer.headers["location"].rpartition("/m/")[2]
