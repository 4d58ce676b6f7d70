"""The shell of the control port: lines over TCP, on loopback only."""

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import Final

from waystation.queue.control import GREETING, ControlConversation

LINE_BYTES_MAX: Final = 4096
CONNECTIONS_MAX: Final = 16
IDLE_S: Final = 600.0
LOOPBACK: Final = "127.0.0.1"


class ControlPort:
    def __init__(self, converse: Callable[[], ControlConversation]) -> None:
        self._converse = converse
        self._server: asyncio.Server | None = None
        self._open: set[asyncio.Task[None]] = set()

    async def start(self, port: int) -> None:
        # The supervisor holds every port for the process that serves it.
        self._server = await asyncio.start_server(
            self._accepted, LOOPBACK, port, limit=LINE_BYTES_MAX, reuse_port=True
        )

    async def close(self) -> None:
        if self._server is not None:
            self._server.close()
        for task in list(self._open):
            task.cancel()
        if self._open:
            await asyncio.wait(self._open, timeout=2.0)

    async def _accepted(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        try:
            if len(self._open) < CONNECTIONS_MAX:
                self._open.add(task)
                await self._serve(reader, writer)
        except (OSError, TimeoutError, ValueError):
            pass  # gone, idle, or a line without an end
        finally:
            self._open.discard(task)
            writer.close()
            with suppress(OSError):
                await writer.wait_closed()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        conversation = self._converse()
        writer.write(f"{GREETING}\n".encode())
        while not conversation.over:
            async with asyncio.timeout(IDLE_S):
                line = await reader.readline()
                if not line:
                    return
                answer = await conversation.line(line.decode(errors="replace"))
                writer.write("".join(f"{one}\n" for one in answer).encode())
                await writer.drain()
