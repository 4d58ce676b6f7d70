"""A network with bad luck, between app servers' nodes, connection nodes and user agents.

Rule 1: what travels takes its time. Requests between nodes may overtake each other; on one
        connection of a user agent nothing overtakes anything.
Rule 2: a request may be lost, or its answer: the asker hears `UNREACHABLE` in both cases, and
        only the network knows the difference. It tells its witness.
Rule 3: a connection ends by a Close, by a cut that both sides notice, or by the user agent
        vanishing, which nobody tells the node.
Rule 4: when the luck is calm nothing is lost or cut, and everything arrives soon.

A node's side of a connection is the production `Connection` with a shell of ours, so drivers meet
the same object as behind a socket.
"""

import asyncio
import random
from collections import deque
from collections.abc import Callable, Coroutine, Iterator, Mapping
from typing import Any, Protocol

import msgspec

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
from waystation.push.model import MessageId, Notification, Uaid, Update
from waystation.push.wire.relay import Answer, Node
from waystation.push.wire.upgrade import Upgrade
from waystation.push.wire.websocket import OPCODE_CLOSE, OPCODE_PING, OPCODE_TEXT

ANSWER_TIMEOUT_S = 3.0  # the endpoint's request_timeout_s
_APART_S = 1e-6  # two arrivals on one connection: equal times would have no order

# --- luck ----------------------------------------------------------------------------------------


class Luck(msgspec.Struct):
    """How often what goes wrong; all of it drawn from one source."""

    rng: random.Random
    slow_share: float = 0.1  # of what travels takes up to `slow_s`
    slow_s: float = 1.0
    request_lost: float = 0.0
    answer_lost: float = 0.0
    calm: bool = False

    def delay_s(self) -> float:
        draw = self.rng.random
        if self.calm or draw() >= self.slow_share:
            return 0.0005 + 0.02 * draw()
        return self.slow_s * draw()

    def hits(self, share: float) -> bool:
        return not self.calm and share > 0 and self.rng.random() < share


class Witness(Protocol):
    """Who must know what the network did, because the checkers will ask."""

    def misheard(self, uaid: Uaid, message_id: MessageId | None) -> None:
        """A node may have acted, but whoever asked it took it for unreachable."""
        ...


# --- between nodes -------------------------------------------------------------------------------


class Place(Protocol):
    """Where a connection node runs: its tasks end when it is killed."""

    @property
    def node(self) -> Node | None:
        """None while it is down."""
        ...

    def run(self, coro: Coroutine[Any, Any, None]) -> object: ...


class Network:
    """Which nodes there are, and which pairs of them cannot speak at present."""

    def __init__(self, luck: Luck, places: Mapping[str, Place], witness: Witness) -> None:
        self.luck = luck
        self.places = places
        self.witness = witness
        self._parted: set[tuple[str, str]] = set()

    def part(self, source: str, node_id: str) -> None:
        self._parted.add((source, node_id))

    def join(self, source: str, node_id: str) -> None:
        self._parted.discard((source, node_id))

    def join_all(self) -> None:
        self._parted.clear()

    def parted(self, source: str, node_id: str) -> bool:
        return (source, node_id) in self._parted


class SimRelay:
    """The relay as one node has it. Never raises for a node that is gone."""

    def __init__(self, network: Network, source: str) -> None:
        self._network = network
        self._source = source
        self._loop = asyncio.get_running_loop()

    async def push(self, node_id: str, uaid: Uaid, notification: Notification | Update) -> Answer:
        message_id = notification.message_id if isinstance(notification, Notification) else None
        return await self._ask(
            node_id, lambda node: node.push(uaid, notification), uaid, message_id
        )

    async def check_stored(self, node_id: str, uaid: Uaid) -> Answer:
        return await self._ask(node_id, lambda node: node.check_stored(uaid), uaid, None)

    async def displace(self, node_id: str, uaid: Uaid, connected_at_ms: int) -> Answer:
        # Nobody depends on this one arriving.
        return await self._ask(
            node_id, lambda node: node.displace(uaid, connected_at_ms), None, None
        )

    async def _ask(
        self,
        node_id: str,
        call: Callable[[Node], Coroutine[Any, Any, Answer]],
        uaid: Uaid | None,
        message_id: MessageId | None,
    ) -> Answer:
        network, luck, loop = self._network, self._network.luck, self._loop
        answered: asyncio.Future[Answer] = loop.create_future()
        parted = network.parted(self._source, node_id)
        request_lost = luck.hits(luck.request_lost) or parted
        answer_lost = luck.hits(luck.answer_lost)

        def hear(answer: Answer) -> None:
            if not answered.done():
                answered.set_result(answer)

        refused = False

        async def carry_out(node: Node) -> None:
            try:
                answer = await call(node)
            except asyncio.CancelledError:  # killed: its kernel resets the connection
                loop.call_later(luck.delay_s(), hear, Answer.UNREACHABLE)
                raise
            if not answer_lost:
                loop.call_later(luck.delay_s(), hear, answer)

        def arrive() -> None:
            nonlocal refused
            place = network.places.get(node_id)
            if place is None or place.node is None:
                refused = True
                loop.call_later(luck.delay_s(), hear, Answer.UNREACHABLE)  # connection refused
            else:
                place.run(carry_out(place.node))

        if not request_lost:
            loop.call_later(luck.delay_s(), arrive)
        # A parted network refuses at once as often as it says nothing.
        patience_s = 0.01 if parted and luck.rng.random() < 0.5 else ANSWER_TIMEOUT_S
        timer = loop.call_later(patience_s, hear, Answer.UNREACHABLE)
        try:
            answer = await answered
        except asyncio.CancelledError:
            if uaid is not None:
                network.witness.misheard(uaid, message_id)  # the asker was killed meanwhile
            raise
        finally:
            timer.cancel()
        if answer is Answer.UNREACHABLE and not refused and uaid is not None:
            network.witness.misheard(uaid, message_id)
        return answer


# --- between a user agent and a node -------------------------------------------------------------


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

__all__ = [
    "ANSWER_TIMEOUT_S",
    "OPCODE_PING",
    "OPCODE_TEXT",
    "Luck",
    "Network",
    "Peer",
    "Place",
    "SimRelay",
    "SimShell",
    "Wire",
    "Witness",
    "server_frames",
]
