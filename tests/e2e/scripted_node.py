"""A connection node's relay port as a test wants it: scripted answers, or those of a real node.

It speaks the HTTP form alone, as a node of another make does; an invitation to anything else is
answered 404. What a script leaves open is passed on to the real node behind.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from typing import NamedTuple
from urllib.parse import urlsplit

from tests.e2e.wire_clients import http


class Request(NamedTuple):
    method: str
    path: str
    body: bytes

    @property
    def kind(self) -> str:
        """`push`, `notif` or `link`."""
        parts = self.path.split("/")
        return parts[1] if len(parts) > 2 else parts[-1]


# A status; None passes the request on; 0 hangs up, -1 answers with garbage.
Script = Callable[[Request], Awaitable[int | None]]
HANG_UP, GARBAGE = 0, -1


async def pass_on(_request: Request) -> int | None:
    return None


def always(status: int, *, kind: str = "push") -> Script:
    """One answer for that kind of request; the others are passed on."""

    async def answer(request: Request) -> int | None:
        return status if request.kind == kind else None

    return answer


class ScriptedNode:
    def __init__(self, behind: str) -> None:
        self.behind = behind  # the relay URL of the real node
        self.script: Script = pass_on
        self.heard: list[str] = []  # kinds, in the order of arrival

    async def answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(asyncio.IncompleteReadError, ConnectionError, asyncio.CancelledError):
            while request := await self._read(reader):
                if request.kind != "link":
                    self.heard.append(request.kind)
                status = 404 if request.kind == "link" else await self.script(request)
                if status is None:
                    passed = await http(
                        request.method, self.behind + request.path, {}, request.body
                    )
                    status = passed.status
                if status == HANG_UP:
                    break
                if status == GARBAGE:
                    writer.write(b"\x00\x01 this is not HTTP\r\n\r\n")
                    await writer.drain()
                    break
                writer.write(b"HTTP/1.1 %d x\r\nContent-Length: 0\r\n\r\n" % status)
                await writer.drain()
        writer.transport.abort()  # a kept connection must not look alive to the endpoint

    async def _read(self, reader: asyncio.StreamReader) -> Request | None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
        first, *lines = head.split("\r\n")
        method, path, _ = first.split(" ")
        length = 0
        for line in lines:
            name, _, value = line.partition(":")
            if name.lower() == "content-length":
                length = int(value)
        return Request(method, path, await reader.readexactly(length))


@asynccontextmanager
async def scripted_node(port: int, behind: str) -> AsyncIterator[ScriptedNode]:
    node = ScriptedNode(behind)
    tasks: set[asyncio.Task[None]] = set()

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        tasks.add(task)
        task.add_done_callback(tasks.discard)
        await node.answer(reader, writer)

    server = await asyncio.start_server(connected, "127.0.0.1", port)
    try:
        yield node
    finally:
        server.close()
        for task in list(tasks):
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await server.wait_closed()


@asynccontextmanager
async def listening_in(port: int, behind: str) -> AsyncIterator[bytearray]:
    """Passes bytes on to the real node, and keeps those that come from endpoint nodes."""
    heard = bytearray()
    target = urlsplit(behind)
    tasks: set[asyncio.Task[None]] = set()

    async def pump(
        reader: asyncio.StreamReader, writer: asyncio.StreamWriter, kept: bytearray | None
    ) -> None:
        with suppress(ConnectionError, asyncio.CancelledError):
            while data := await reader.read(65_536):
                if kept is not None:
                    kept += data
                writer.write(data)
                await writer.drain()
        writer.transport.abort()

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there, back = await asyncio.open_connection(target.hostname, target.port)
        for task in (pump(reader, back, heard), pump(there, writer, None)):
            tasks.add(asyncio.create_task(task))

    server = await asyncio.start_server(connected, "127.0.0.1", port)
    try:
        yield heard
    finally:
        server.close()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks)
        await server.wait_closed()
