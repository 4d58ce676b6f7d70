"""A tap on the line between a browser and a server: sees every frame of both, may change some.

Rule 1: without a rule of the test, every byte goes through as it came, so that browser and server
        speak to each other and not to a third implementation.
Rule 2: frames go through whole, so that one of the test's own can stand between any two.
Rule 3: it keeps its port while the server behind it is stopped and started again.
"""

import asyncio
import contextlib
import json
import struct
import threading
import time
from collections.abc import Callable, Coroutine
from types import TracebackType
from typing import Any, NamedTuple, Self, TypeVar

WAIT_S = 15.0
TEXT, CLOSE = 1, 8
BROWSER, SERVER = "browser", "server"

Message = dict[str, Any]
Rule = Callable[
    [str, Message], Message | None
]  # (who says it, what) -> what arrives; None: nothing
T = TypeVar("T")


class Seen(NamedTuple):
    line: int  # which connection, counted from 0
    speaker: str
    message: Message  # of a Close frame {"close": code}, of the end of a stream {"end": True}
    mono: float


class _Line:
    def __init__(
        self, number: int, browser: asyncio.StreamWriter, server: asyncio.StreamWriter
    ) -> None:
        self.number = number
        self.browser = browser
        self.server = server

    def cut(self) -> None:
        self.browser.transport.abort()
        self.server.transport.abort()


class Tap:
    """Listens on loopback, from a thread with an event loop of its own."""

    def __init__(self, server_port: int) -> None:
        self._server_port = server_port
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever)
        self._listener: asyncio.Server | None = None
        self._lines: list[_Line] = []
        self._opened = 0
        self._tasks: set[asyncio.Task[None]] = set()
        self._news = threading.Condition()
        self._seen: list[Seen] = []
        self.rule: Rule | None = None
        self.refusing = False

    # --- for tests ---

    @property
    def url(self) -> str:
        assert self._listener is not None
        return f"ws://127.0.0.1:{self._listener.sockets[0].getsockname()[1]}/"

    @property
    def mark(self) -> int:
        """Now; what is seen after it counts."""
        with self._news:
            return len(self._seen)

    def seen(self, speaker: str, kind: str | None = None, *, since: int = 0) -> list[Message]:
        """Messages of one side; `kind` is a messageType, "{}", "close" or "end"."""
        with self._news:
            return [
                one.message
                for one in self._seen[since:]
                if one.speaker == speaker and (kind is None or kind_of(one.message) == kind)
            ]

    def wait(
        self,
        speaker: str,
        kind: str,
        *,
        since: int = 0,
        timeout_s: float = WAIT_S,
        **fields: object,
    ) -> Message:
        """The first message of that kind which has these fields."""

        def found() -> Message | None:
            for message in self.seen(speaker, kind, since=since):
                if fields.items() <= message.items():
                    return message
            return None

        deadline = time.monotonic() + timeout_s
        with self._news:
            while (message := found()) is None:
                left_s = deadline - time.monotonic()
                assert left_s > 0, f"no {kind} {fields} from the {speaker}, but {self._told(since)}"
                self._news.wait(left_s)
            return message

    def wait_ack(self, version: object, *, since: int = 0) -> int | None:
        """The code of the first ack for that version."""
        deadline = time.monotonic() + WAIT_S
        with self._news:
            while True:
                for update in self.acks(since=since):
                    if update["version"] == version:
                        return update.get("code")
                left_s = deadline - time.monotonic()
                assert left_s > 0, f"no ack of {version}, but {self._told(since)}"
                self._news.wait(left_s)

    def acks(self, *, since: int = 0) -> list[Message]:
        """All updates of all acks, in order."""
        return [
            update
            for message in self.seen(BROWSER, "ack", since=since)
            for update in message["updates"]
        ]

    def times(self, speaker: str, kind: str, *, since: int = 0) -> list[float]:
        """When each of these passed, on the monotonic clock."""
        with self._news:
            return [
                one.mono
                for one in self._seen[since:]
                if one.speaker == speaker and kind_of(one.message) == kind
            ]

    def _told(self, since: int) -> list[str]:
        """For a failed assertion: the kinds only."""
        return [f"{one.speaker} {kind_of(one.message)}" for one in self._seen[since:][-40:]]

    @property
    def connected(self) -> bool:
        return bool(self._lines)

    def say(self, message: object) -> None:
        """To the browser, as if the server had said it."""
        self._do(self._say(frame(TEXT, json.dumps(message).encode())))

    def close_browser(self, code: int) -> None:
        """A Close frame to the browser and the end of the stream, as if by the server."""
        self._do(self._say(frame(CLOSE, struct.pack("!H", code))))
        self._do(self._end())

    def cut(self) -> None:
        """Every connection, without a word."""
        self._do(self._cut())

    # --- the lines ---

    async def _say(self, data: bytes) -> None:
        assert self._lines, "the browser is not connected"
        self._lines[-1].browser.write(data)

    async def _end(self) -> None:
        line = self._lines[-1]
        line.server.transport.abort()
        line.browser.close()

    async def _cut(self) -> None:
        for line in list(self._lines):
            line.cut()

    def _opened_by_browser(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        task = self._loop.create_task(self._carry(reader, writer))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            if self.refusing:
                raise ConnectionRefusedError
            far_reader, far_writer = await asyncio.open_connection("127.0.0.1", self._server_port)
        except OSError:
            writer.transport.abort()
            return
        line = _Line(self._opened, writer, far_writer)
        self._opened += 1
        self._lines.append(line)
        try:
            await asyncio.gather(
                self._pass_on(line, BROWSER, reader, far_writer),
                self._pass_on(line, SERVER, far_reader, writer),
            )
        finally:
            self._lines.remove(line)
            line.cut()

    async def _pass_on(
        self, line: _Line, speaker: str, reader: asyncio.StreamReader, to: asyncio.StreamWriter
    ) -> None:
        with contextlib.suppress(OSError, asyncio.IncompleteReadError):
            to.write(await reader.readuntil(b"\r\n\r\n"))
            while True:
                opcode, payload, raw = await read_frame(reader)
                if opcode == TEXT:
                    said = json.loads(payload)
                    heard = said if self.rule is None else self.rule(speaker, said)
                    self._note(line, speaker, said)
                    if heard is None:
                        continue
                    if heard is not said:
                        text = json.dumps(heard).encode()
                        raw = frame(TEXT, text, masked=speaker == BROWSER)
                elif opcode == CLOSE:
                    code = struct.unpack("!H", payload[:2])[0] if payload else 1005
                    self._note(line, speaker, {"close": code})
                to.write(raw)
        self._note(line, speaker, {"end": True})
        to.close()

    def _note(self, line: _Line, speaker: str, message: Message) -> None:
        with self._news:
            self._seen.append(Seen(line.number, speaker, message, time.monotonic()))
            self._news.notify_all()

    # --- the thread ---

    def _do(self, coro: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(coro, self._loop).result(10)

    def __enter__(self) -> Self:
        self._thread.start()
        self._listener = self._do(asyncio.start_server(self._opened_by_browser, "127.0.0.1", 0))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None
    ) -> None:
        self._do(self._finish())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    async def _finish(self) -> None:
        assert self._listener is not None
        self._listener.close()
        await self._cut()
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=5)


def kind_of(message: Message) -> str:
    """Of the two bytes that are a ping, `{}`."""
    if "messageType" in message:
        return message["messageType"]
    return next(iter(message), "{}")


async def read_frame(reader: asyncio.StreamReader) -> tuple[int, bytes, bytes]:
    """Opcode, payload in the clear, and the bytes as they came."""
    raw = await reader.readexactly(2)
    length = raw[1] & 0x7F
    if length == 126:
        more = await reader.readexactly(2)
        length = struct.unpack("!H", more)[0]
        raw += more
    elif length == 127:
        more = await reader.readexactly(8)
        length = struct.unpack("!Q", more)[0]
        raw += more
    if raw[1] & 0x80:
        mask = await reader.readexactly(4)
        payload = await reader.readexactly(length)
        clear = bytes(byte ^ mask[index % 4] for index, byte in enumerate(payload))
        return raw[0] & 0x0F, clear, raw + mask + payload
    payload = await reader.readexactly(length)
    return raw[0] & 0x0F, payload, raw + payload


def frame(opcode: int, payload: bytes, *, masked: bool = False) -> bytes:
    """Complete; a mask of zeros is a mask."""
    bit = 0x80 if masked else 0
    if len(payload) < 126:
        head = bytes([0x80 | opcode, bit | len(payload)])
    elif len(payload) < 65_536:
        head = bytes([0x80 | opcode, bit | 126]) + struct.pack("!H", len(payload))
    else:
        head = bytes([0x80 | opcode, bit | 127]) + struct.pack("!Q", len(payload))
    return head + (bytes(4) if masked else b"") + payload
