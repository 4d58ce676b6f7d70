"""HTTP/1.1 client connection: one request at a time, parsed by httptools."""

import asyncio
from typing import Final

import httptools
import msgspec

from waystation.net.connection import Connection
from waystation.net.loop import Port

ANSWER_BYTES_MAX: Final = 65_536


class StaleError(Exception):
    """A kept connection was closed before the first byte of the answer: the request may be sent
    again."""


class MalformedAnswerError(Exception):
    """The answer is not HTTP, or longer than `ANSWER_BYTES_MAX`."""


class Answer(msgspec.Struct, frozen=True):
    status: int
    headers: dict[bytes, bytes]  # names in lower case


class HttpClientConnection(Connection):
    """Sends encoded requests and parses the answers."""

    def __init__(self, port: Port) -> None:
        super().__init__(port)
        self._parser = httptools.HttpResponseParser(self)
        self._headers: dict[bytes, bytes] = {}
        self._answer: asyncio.Future[Answer] | None = None
        self._received = 0
        self._asked = 0
        self._kept = True  # the server keeps the connection open after its answer
        self._switched = False
        self.rest = b""  # bytes after a 101

    @property
    def is_usable(self) -> bool:
        return self._kept and self.is_open

    async def ask(self, request: bytes) -> Answer:
        """Raises OSError, StaleError or MalformedAnswerError; the caller bounds the time."""
        if not self.is_open:
            raise ConnectionResetError("closed before the request")
        self._asked += 1
        self._received = 0
        self._answer = asyncio.get_running_loop().create_future()
        self.send(request)
        try:
            return await self._answer
        finally:
            self._answer = None

    def received(self, data: bytes) -> None:
        if self._switched:
            self.rest += data
            return
        self._received += len(data)
        if self._answer is None or self._received > ANSWER_BYTES_MAX:
            self._fail(MalformedAnswerError("an answer without a request, or one that is too long"))
            return
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade as upgrade:
            self.rest = data[upgrade.args[0] :]
        except httptools.HttpParserError:
            self._fail(MalformedAnswerError("not an HTTP answer"))

    def closed(self) -> None:
        stale = self._asked > 1 and not self._received
        self._fail(StaleError() if stale else ConnectionResetError("closed before the answer"))

    def _fail(self, exc: Exception) -> None:
        if self._answer is not None and not self._answer.done():
            self._answer.set_exception(exc)
        self.abort()

    # httptools calls these

    def on_message_begin(self) -> None:
        self._headers = {}

    def on_header(self, name: bytes, value: bytes) -> None:
        self._headers[name.lower()] = value

    def on_message_complete(self) -> None:
        status = self._parser.get_status_code()
        if status == 101:
            self._switched = True
        elif status < 200:
            return
        self._kept = self._parser.should_keep_alive()
        if self._answer is not None and not self._answer.done():
            self._answer.set_result(Answer(status, self._headers))
