"""An HTTP/2 server of the tests: it answers as it is told, or hangs, cuts, resets, goes away."""

import asyncio
import enum
import json
import ssl
from collections.abc import Callable
from typing import Any

import msgspec
from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.errors import ErrorCodes
from h2.events import DataReceived, RequestReceived, StreamEnded, StreamReset
from h2.exceptions import ProtocolError
from h2.settings import SettingCodes, Settings
from hyperframe.frame import GoAwayFrame


class Asked(msgspec.Struct, frozen=True):
    path: str
    headers: dict[str, str]
    body: bytes


class Said(msgspec.Struct, frozen=True):
    status: int
    body: bytes = b""
    headers: tuple[tuple[str, str], ...] = ()

    @classmethod
    def of(cls, status: int, body: object, *headers: tuple[str, str]) -> "Said":
        return cls(status, json.dumps(body).encode(), headers)


class Fault(enum.Enum):
    HANG = "no answer, ever"
    CUT = "the connection ends without a word"
    RESET = "RST_STREAM with INTERNAL_ERROR"
    REFUSE = "RST_STREAM with REFUSED_STREAM: not seen"
    GOAWAY_BEFORE = "GOAWAY, this request not seen"
    GOAWAY_AFTER = "the answer follows a GOAWAY"


Handler = Callable[[Asked], Said | tuple[Fault, Said] | Fault]


class Http2Double:
    """`answer` decides about each request; GOAWAY_AFTER comes with what is said after it."""

    def __init__(self, answer: Handler, *, streams_max: int = 100) -> None:
        self.answer = answer
        self.streams_max = streams_max
        self.connections: set[_Peer] = set()
        self.connections_seen = 0
        self.most_streams = 0  # open at once on one connection
        self._server: asyncio.Server | None = None
        self.url = ""

    async def start(self, tls: ssl.SSLContext | None = None, port: int = 0) -> None:
        loop = asyncio.get_running_loop()
        if tls is not None:
            tls.set_alpn_protocols(["h2"])
        self._server = await loop.create_server(
            lambda: _Peer(self), "127.0.0.1", port, ssl=tls, backlog=128
        )
        number = self._server.sockets[0].getsockname()[1]
        self.url = f"{'http' if tls is None else 'https'}://127.0.0.1:{number}"

    async def close(self) -> None:
        assert self._server is not None
        self._server.close()
        for peer in list(self.connections):
            peer.cut()
        await self._server.wait_closed()

    async def __aenter__(self) -> "Http2Double":
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()


class _Peer(asyncio.Protocol):
    def __init__(self, double: Http2Double) -> None:
        self._double = double
        self._h2 = H2Connection(H2Configuration(client_side=False, header_encoding="utf-8"))
        self._heads: dict[int, dict[str, str]] = {}
        self._bodies: dict[int, bytes] = {}
        self._ignored = 1 << 31  # streams from here on are not answered: a GOAWAY came before

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self._double.connections.add(self)
        self._double.connections_seen += 1
        self._h2.local_settings = Settings(
            client=False,
            initial_values={SettingCodes.MAX_CONCURRENT_STREAMS: self._double.streams_max},
        )
        self._h2.initiate_connection()
        self._flush()

    def connection_lost(self, exc: Exception | None) -> None:
        del exc
        self._double.connections.discard(self)

    def cut(self) -> None:
        self._transport.abort()

    def data_received(self, data: bytes) -> None:
        try:
            events = self._h2.receive_data(data)
        except ProtocolError:
            self.cut()
            return
        for event in events:
            match event:
                case RequestReceived(stream_id=int(stream_id), headers=headers):
                    self._heads[stream_id] = {str(k): str(v) for k, v in headers or ()}
                    self._bodies[stream_id] = b""
                    double = self._double
                    double.most_streams = max(double.most_streams, len(self._heads))
                case DataReceived(stream_id=int(stream_id), data=bytes(part)):
                    self._bodies[stream_id] += part
                    size = event.flow_controlled_length or 0
                    self._h2.acknowledge_received_data(size, stream_id)
                case StreamEnded(stream_id=int(stream_id)):
                    self._ended(stream_id)
                case StreamReset(stream_id=int(stream_id)):
                    self._heads.pop(stream_id, None)
                case _:
                    pass
        self._flush()

    def _ended(self, stream_id: int) -> None:
        head = self._heads.get(stream_id)
        if head is None or stream_id >= self._ignored:
            return
        asked = Asked(head[":path"], head, self._bodies.pop(stream_id))
        match self._double.answer(asked):
            case Said() as said:
                self._say(stream_id, said)
            case (Fault.GOAWAY_AFTER, Said() as said):
                self._goaway(stream_id)
                # In a moment: the client has seen the GOAWAY by then.
                asyncio.get_running_loop().call_later(0.01, self._say, stream_id, said)
            case Fault.HANG:
                pass
            case Fault.CUT:
                self.cut()
            case Fault.RESET:
                self._reset(stream_id, ErrorCodes.INTERNAL_ERROR)
            case Fault.REFUSE:
                self._reset(stream_id, ErrorCodes.REFUSED_STREAM)
            case Fault.GOAWAY_BEFORE:
                self._goaway(stream_id - 2)
            case other:
                raise AssertionError(f"{other} needs something said with it")

    def _say(self, stream_id: int, said: Said) -> None:
        if self._transport.is_closing() or self._heads.pop(stream_id, None) is None:
            return
        head: list[tuple[str, Any]] = [(":status", str(said.status)), *said.headers]
        self._h2.send_headers(stream_id, head, end_stream=not said.body)
        if said.body:
            self._h2.send_data(stream_id, said.body, end_stream=True)
        self._flush()

    def _reset(self, stream_id: int, code: ErrorCodes) -> None:
        self._heads.pop(stream_id, None)
        self._h2.reset_stream(stream_id, code)

    def _goaway(self, last_stream_id: int) -> None:
        """`h2` would close the connection with it; open streams are still answered."""
        self._flush()
        self._ignored = min(self._ignored, last_stream_id + 1)
        frame = GoAwayFrame(0)
        frame.last_stream_id = max(0, last_stream_id)
        self._transport.write(frame.serialize())
        for stream_id in [one for one in self._heads if one > last_stream_id]:
            del self._heads[stream_id]

    def _flush(self) -> None:
        data = self._h2.data_to_send()
        if data and not self._transport.is_closing():
            self._transport.write(data)
