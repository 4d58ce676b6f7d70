"""Connections between user agents and nodes, with bad luck instead of sockets.

Rule 1: on one connection nothing overtakes anything, in either direction.
Rule 2: a connection ends by a Close, by a cut that both sides notice, or by the user agent
        vanishing, which nobody tells the node.
Rule 3: a user agent that does not read makes the node keep what it wants to send, up to the
        node's own limits.

A node's side is the production `Connection` with a shell of ours, so drivers meet the same object
as behind a socket.
"""

import asyncio
from collections import deque
from collections.abc import Iterator
from typing import Protocol

from waystation.push.connect.connection import (
    DEAD,
    DOOMED,
    ENDING,
    OPEN,
    PAUSED,
    Connection,
    Ending,
    Handler,
)
from waystation.push.wire.upgrade import Upgrade
from waystation.push.wire.websocket import OPCODE_CLOSE, OPCODE_PING
from waystation.testing.network import Luck

_APART_S = 1e-6  # two arrivals on one connection: equal times would have no order


class Peer(Protocol):
    """A user agent, as a wire sees it."""

    def heard(self, wire: "Wire", opcode: int, payload: bytes) -> None: ...

    def lost(self, wire: "Wire", code: int) -> None:
        """The connection is over, and the user agent knows; `code` of a Close, else 0."""
        ...


class Driver(Protocol):
    def open(self, connection: Connection, upgrade: Upgrade) -> Handler: ...


_UPGRADE = Upgrade(path="/", query="", key=b"", subprotocol=True, user_agent="sim", origin="")


class SimShell:
    """A connection node's sockets: what `server.py` is for real ones."""

    def __init__(
        self, luck: Luck, driver: Driver, *, send_high_bytes: int, send_bytes_max: int
    ) -> None:
        self.luck = luck
        self.send_high_bytes = send_high_bytes
        self._send_bytes_max = send_bytes_max
        self._driver = driver
        self.loop = asyncio.get_running_loop()
        self._touched: list[Wire] = []
        self._settling = False
        self.wires: dict[Connection, Wire] = {}
        self.alive = True
        self.accepting = True

    def connect(self, peer: Peer) -> "Wire | None":
        """None: nobody listens."""
        if not self.alive or not self.accepting:
            return None
        connection = Connection(self, _NOTHING, -1, OPEN)
        wire = Wire(self, connection, peer)
        self.wires[connection] = wire
        connection.handler = self._driver.open(connection, _UPGRADE)
        return wire

    def kill(self) -> None:
        """The process is gone: its kernel resets every connection, and nothing here runs again."""
        self.alive = False
        for wire in list(self.wires.values()):
            wire.reset_by_kill()
        self.wires.clear()
        self._touched.clear()

    # What a connection asks of its shell

    def touched(self, connection: Connection) -> None:
        wire = self.wires.get(connection)
        if wire is None:
            return
        self._touched.append(wire)
        if not self._settling:
            self._settling = True
            self.loop.call_soon(self._settle)

    def pressed(self, connection: Connection) -> None:
        wire = self.wires.get(connection)
        if wire is not None:
            wire.flush()
        if connection.out_bytes >= self._send_bytes_max:
            connection.doom(Ending.OVERFLOWED)

    def ending(self, connection: Connection) -> None:
        self.touched(connection)

    def resumed(self, connection: Connection) -> None:
        wire = self.wires.get(connection)
        if wire is not None:
            self.loop.call_soon(wire.read)

    def _settle(self) -> None:
        self._settling = False
        touched, self._touched = self._touched, []
        for wire in touched:
            wire.settle()


class Wire:
    """One connection between a user agent and a node."""

    __slots__ = (
        "_down_at",
        "_over",
        "_told",
        "_unread",
        "_up_at",
        "connection",
        "peer",
        "shell",
        "stalled",
        "vanished",
    )

    def __init__(self, shell: SimShell, connection: Connection, peer: Peer) -> None:
        self.shell = shell
        self.connection = connection
        self.peer = peer
        self.stalled = False  # the user agent does not read
        self.vanished = False  # the user agent is gone, and the node does not know
        self._over = False  # nothing travels any more
        self._told = False  # the handler has heard `closed`
        self._unread: deque[bytes | int] = deque()
        self._up_at = self._down_at = 0.0

    # The user agent's side

    def say(self, text: bytes) -> None:
        self._send_up(text)

    def pong(self) -> None:
        self._send_up(OPCODE_PING)

    def hang_up(self) -> None:
        """A Close, after everything that was said before."""
        self._send_up(OPCODE_CLOSE)
        self.vanished = True  # it does not listen any more

    def vanish(self) -> None:
        """Without a word: the node finds out by its pings."""
        self.vanished = True
        self._over = True

    def cut(self) -> None:
        """The network loses the connection: what is on the way is lost, and both sides notice."""
        self._over = True
        loop, luck = self.shell.loop, self.shell.luck
        loop.call_later(luck.delay_s(), self._broken_off)
        loop.call_later(luck.delay_s(), self._lost_to_peer, 0)

    def read_again(self) -> None:
        self.stalled = False
        if self.shell.alive:
            self.settle()

    def _send_up(self, what: bytes | int) -> None:
        if self._over:
            return
        at = max(self._up_at + _APART_S, self.shell.loop.time() + self.shell.luck.delay_s())
        self._up_at = at
        self.shell.loop.call_at(at, self._arrive_up, what)

    # The node's side

    def _arrive_up(self, what: bytes | int) -> None:
        if not self._over:
            self._unread.append(what)
            self.read()

    def read(self) -> None:
        connection = self.connection
        while self._unread and self.shell.alive and not connection.flags & (ENDING | PAUSED):
            what = self._unread.popleft()
            handler = connection.handler
            assert handler is not None
            if isinstance(what, bytes):
                handler.text(connection, what)
            elif what == OPCODE_CLOSE:
                connection.end(Ending.CLIENT_CLOSED, 1000, b"\x88\x00")
            else:
                handler.ponged(connection)

    def settle(self) -> None:
        """The end of a turn: send what there is, and say so once when it is over."""
        if not self.shell.alive:
            return
        connection = self.connection
        self.flush()
        if not connection.flags & ENDING:
            return
        if not self._told:
            self._told = True
            assert connection.handler is not None
            connection.handler.closed(connection)
        if connection.flags & DOOMED:
            self._drop()
            self.shell.loop.call_later(self.shell.luck.delay_s(), self._lost_to_peer, 0)
            self._over = True
        elif connection.out is None:
            self._drop()

    def _drop(self) -> None:
        self.connection.flags |= DEAD
        self.shell.wires.pop(self.connection, None)

    def flush(self) -> None:
        connection = self.connection
        out = connection.out
        if out is None or (self.stalled and not self.shell.luck.calm):
            return
        connection.out = None
        connection.out_bytes = 0
        if self._over:
            return
        loop = self.shell.loop
        at = max(self._down_at + _APART_S, loop.time() + self.shell.luck.delay_s())
        self._down_at = at
        loop.call_at(at, self._arrive_down, out)

    def _arrive_down(self, frames: list[bytes]) -> None:
        for data in frames:
            for opcode, payload in server_frames(data):
                if self._over or self.vanished:
                    return
                if opcode == OPCODE_CLOSE:
                    self._lost_to_peer(int.from_bytes(payload[:2], "big"))
                else:
                    self.peer.heard(self, opcode, payload)

    def _broken_off(self) -> None:
        if self.shell.alive:
            self.connection.doom(Ending.VANISHED)
            self.settle()

    def _lost_to_peer(self, code: int) -> None:
        if not self.vanished:
            self.vanished = True
            self._over = True
            self.peer.lost(self, code)

    def reset_by_kill(self) -> None:
        """What the kernel has taken may still arrive; then the user agent hears of the end."""
        self.connection.flags |= ENDING | DEAD
        loop = self.shell.loop
        at = max(self._down_at + _APART_S, loop.time() + self.shell.luck.delay_s())
        loop.call_at(at, self._lost_to_peer, 0)


def server_frames(data: bytes) -> Iterator[tuple[int, bytes]]:
    """Whole frames as a server sends them: unmasked, one frame a message (RFC 6455 section 5.2)."""
    at = 0
    while at < len(data):
        opcode, length = data[at] & 0x0F, data[at + 1]
        assert data[at] & 0x80
        assert length < 0x80
        at += 2
        if length >= 126:
            size = 2 if length == 126 else 8
            length = int.from_bytes(data[at : at + size], "big")
            at += size
        yield opcode, data[at : at + length]
        at += length


class _NoCarrier:
    """A simulated connection has no descriptor, so nobody reads or writes one."""

    def read(self, fd: int) -> bytes | None:
        raise AssertionError("there is no descriptor")

    def write(self, fd: int, data: bytes) -> int:
        raise AssertionError("there is no descriptor")

    def finish(self, fd: int) -> None: ...

    def close(self, fd: int) -> None: ...


_NOTHING = _NoCarrier()
