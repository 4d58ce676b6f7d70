"""The control port: lines of text over TCP, on loopback only."""

import asyncio
import socket
from collections.abc import Callable
from typing import Final

from waystation.base.tasks import Tasks
from waystation.net.connection import Connection
from waystation.net.loop import NetLoop, Port
from waystation.queue.control import GREETING, ControlConversation, Role

LINE_BYTES_MAX: Final = 4096
CONNECTIONS_MAX: Final = 16
IDLE_S: Final = 600.0
LOGIN_S: Final = 60.0  # time to authenticate; then the connection is closed
LOOPBACK: Final = "127.0.0.1"


class ControlPort:
    def __init__(
        self, net: NetLoop, converse: Callable[[], ControlConversation], tasks: Tasks
    ) -> None:
        self.tasks = tasks
        self._converse = converse
        self._port = Port(net)

    def listen(self, sock: socket.socket) -> None:
        """Takes over a bound socket."""
        self._port.listen(sock, self._admit)

    async def close(self) -> None:
        self._port.stop_accepting()
        for connection in self._port.open_connections():
            connection.abort()

    def _admit(self, address: str) -> Connection | None:
        if self._port.connections >= CONNECTIONS_MAX:
            return None
        return _Operator(self._port, self._converse(), self.tasks)


class _Operator(Connection):
    """One line is answered at a time; further lines wait."""

    def __init__(self, port: Port, conversation: ControlConversation, tasks: Tasks) -> None:
        super().__init__(port)
        self._conversation = conversation
        self._tasks = tasks
        self._loop = asyncio.get_running_loop()
        self._unread = bytearray()
        self._timer: asyncio.TimerHandle | None = None

    def opened(self) -> None:
        self.send(f"{GREETING}\n".encode())
        self._wait()

    def received(self, data: bytes) -> None:
        self._unread += data
        line, end, rest = self._unread.partition(b"\n")
        if len(line) > LINE_BYTES_MAX:
            self.end()
        elif end:
            self._unread = rest
            self.pause()
            self._tasks.spawn("control", self._answer(line.decode(errors="replace")))

    def half_closed(self) -> None:
        self.end()

    def closed(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    async def _answer(self, line: str) -> None:
        try:
            answer = await self._conversation.line(line)
        except BaseException:
            self.abort()
            raise
        self.send("".join(f"{one}\n" for one in answer).encode())
        if self._conversation.over:
            self.end()
        elif self.is_open:
            self._wait()
            self.resume()

    def _wait(self) -> None:
        """Closes the connection if no line arrives in time."""
        if self._timer is not None:
            self._timer.cancel()
        patience_s = LOGIN_S if self._conversation.role is Role.NONE else IDLE_S
        self._timer = self._loop.call_later(patience_s, self.end)
