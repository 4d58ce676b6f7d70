"""An HTTP/2 server of the tests that writes single frames: what `h2` itself would not write."""

import asyncio
from collections.abc import Callable

from h2.settings import SettingCodes
from hpack import Encoder
from hyperframe.frame import DataFrame, Frame, HeadersFrame, SettingsFrame

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
_HEAD_BYTES = 9
Scene = Callable[["Actor", Frame], None]


class Actor(asyncio.Protocol):
    """One connection. `scene` sees every frame of the client and writes what it likes."""

    def __init__(self, stage: "Http2Script") -> None:
        self._stage = stage
        self._encoder = Encoder()
        self._unread = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        self._stage.actors.append(self)
        self._stage.opening(self)

    def connection_lost(self, exc: Exception | None) -> None:
        del exc
        self._stage.lost += 1

    def data_received(self, data: bytes) -> None:
        data = (self._unread + data).removeprefix(PREFACE)
        while len(data) >= _HEAD_BYTES:
            frame, length = Frame.parse_frame_header(memoryview(data[:_HEAD_BYTES]))
            if len(data) < _HEAD_BYTES + length:
                break
            frame.parse_body(memoryview(data[_HEAD_BYTES : _HEAD_BYTES + length]))
            data = data[_HEAD_BYTES + length :]
            self._stage.frames.append(frame)
            self._stage.scene(self, frame)
        self._unread = data

    def write(self, *frames: Frame) -> None:
        """In one piece, so that the client reads them at once."""
        self.transport.write(b"".join(frame.serialize() for frame in frames))

    def settings(self, **values: int) -> None:
        self.write(SettingsFrame(0, {SettingCodes[name]: value for name, value in values.items()}))

    def head(self, stream_id: int, *headers: tuple[str, str | bytes], end: bool) -> HeadersFrame:
        frame = HeadersFrame(stream_id, self._encoder.encode(headers))
        frame.flags |= {"END_HEADERS", *(["END_STREAM"] if end else ())}
        return frame

    def answer(self, stream_id: int, status: str = "200") -> None:
        self.write(self.head(stream_id, (":status", status), end=True))


class Http2Script:
    """`opening` is called for each new connection, `scene` for each frame that comes."""

    def __init__(
        self, scene: Scene, *, opening: Callable[[Actor], None] = lambda actor: actor.settings()
    ) -> None:
        self.scene = scene
        self.opening = opening
        self.actors: list[Actor] = []
        self.frames: list[Frame] = []  # of all connections
        self.lost = 0

    async def __aenter__(self) -> "Http2Script":
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(lambda: Actor(self), "127.0.0.1", 0)
        self.url = f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        for actor in self.actors:
            actor.transport.abort()
        await self._server.wait_closed()


def ends(frame: Frame) -> bool:
    """The last frame of a request."""
    return isinstance(frame, (DataFrame, HeadersFrame)) and "END_STREAM" in frame.flags
