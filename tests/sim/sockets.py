"""A network of simulated sockets below `net.loop`: real bytes of every protocol, with bad luck.

A world has one `SimNetwork` and one `SimHost` for each process. A host is the `Poller` of its
`SimNetLoop`, so the production shells run on it unchanged. A peer that has no loop (a user agent
written by hand) uses the sockets of its host directly: `dial`, then `read`, `write` and `on_ready`.

    network = SimNetwork(luck)
    host = network.host("c0")
    net = SimNetLoop(host, clock=clock)
    server.listen(host.listening(8080))
    sock = await network.host("ua1").dial(("c0", 8080))

Rule 1: the bytes of one direction arrive in order; each write takes its own time.
Rule 2: a write may be taken in part, and a read may return a part of what is there. At most
        `window_bytes` are on their way or unread in one direction; a writer waits for a reader.
Rule 3: a connection ends as TCP connections do: by the end of one direction after the other, by a
        reset, by a cut that both sides notice, or by a host that vanishes, which nobody notices.
        A socket that is closed with unread input, or that gets more after it was closed, resets.
Rule 4: what two parted hosts send to each other arrives when they are joined. Connecting fails, or
        waits for that.
Rule 5: epoll is level-triggered: a turn follows as long as a watched event is there.
Rule 6: a killed host closes its sockets as a kernel does, and its loop does nothing any more.
"""

import asyncio
import errno
import random
import select
import socket
import ssl
from collections import deque
from collections.abc import Callable
from typing import Final, cast

import msgspec

from waystation.base.clock import Clock
from waystation.net.connection import Connection
from waystation.net.loop import NetLimits, NetLoop
from waystation.net.tls import Bytes, Carrier, PlainCarrier

_APART_S: Final = 1e-6  # two arrivals in one direction: equal times would have no order
_IN, _OUT = select.EPOLLIN, select.EPOLLOUT
_ALWAYS: Final = select.EPOLLHUP | select.EPOLLERR

Address = tuple[str, int] | str  # host and port, or the path of a unix socket


class Luck(msgspec.Struct):
    """How often what goes wrong; all of it drawn from one source."""

    rng: random.Random
    slow_share: float = 0.1  # of what travels takes up to `slow_s`
    slow_s: float = 1.0
    piece_share: float = 0.1  # of the reads and writes that return early
    cut_share: float = 0.0  # of the arrivals that find the connection cut
    window_bytes: int = 65_536
    calm: bool = False

    def delay_s(self) -> float:
        draw = self.rng.random
        if self.calm or draw() >= self.slow_share:
            return 0.0005 + 0.02 * draw()
        return self.slow_s * draw()

    def hits(self, share: float) -> bool:
        return not self.calm and share > 0 and self.rng.random() < share

    def piece(self, size: int) -> int:
        return self.rng.randint(1, size) if size > 1 and self.hits(self.piece_share) else size


class SimNetwork:
    """All hosts of a world."""

    def __init__(self, luck: Luck) -> None:
        self.luck = luck
        self.loop = asyncio.get_running_loop()
        self.listeners: dict[Address, list[SimListener]] = {}
        self._parted: dict[tuple[str, str], asyncio.Event] = {}
        self._held: list[tuple[tuple[str, str], Callable[[], None]]] = []
        self.connections = 0  # ever
        self.witnesses: list[
            Callable[[str, str], None]
        ] = []  # of cuts and kills: between which two

    def host(self, name: str) -> "SimHost":
        """A process on the machine `name`; a machine may have several, and new ones after them."""
        return SimHost(self, name)

    def part(self, one: str, other: str) -> None:
        self._parted.setdefault(_pair(one, other), asyncio.Event())

    def join(self, one: str, other: str) -> None:
        joined = self._parted.pop(_pair(one, other), None)
        if joined is not None:
            joined.set()
            held, self._held = self._held, []
            for pair, arrive in held:
                if pair in self._parted:
                    self._held.append((pair, arrive))
                else:
                    arrive()

    def join_all(self) -> None:
        for one, other in list(self._parted):
            self.join(one, other)

    def joined(self, one: str, other: str) -> "asyncio.Event | None":
        """None if they are; else what is set when they will be."""
        return self._parted.get(_pair(one, other))

    def broke(self, one: str, other: str) -> None:
        for witness in list(self.witnesses):
            witness(one, other)

    def hold(self, one: str, other: str, arrive: Callable[[], None]) -> None:
        self._held.append((_pair(one, other), arrive))


def _pair(one: str, other: str) -> tuple[str, str]:
    return (one, other) if one < other else (other, one)


class SimSocket:
    """One end of a connection."""

    def __init__(self, host: "SimHost") -> None:
        self.host = host
        self.fd = host.opened(self)
        self.family = socket.AF_UNSPEC
        self.on_ready: Callable[[], None] | None = None  # for a peer without a loop
        self.on_way = 0  # bytes of ours that the peer has not read
        self.finished = False  # nothing more is written
        self.closed = False
        self.cut_off = False  # nothing travels any more
        self.peer: SimSocket = self
        self.number = 0  # of the connection
        self._incoming = bytearray()
        self._ended = False  # the peer writes nothing more
        self._failed = False
        self._blocked = False  # a write was not taken whole
        self._arrives_at = 0.0

    # --- what a process does -------------------------------------------------------------------

    def read(self, size: int = 65_536) -> bytes | None:
        """`b""` at the end of the stream, None if nothing is there yet."""
        incoming = self._incoming
        if incoming:
            data = bytes(incoming[: self.host.luck.piece(min(size, len(incoming)))])
            del incoming[: len(data)]
            self.peer.was_read(len(data))
            return data
        if self._failed:
            raise ConnectionResetError(errno.ECONNRESET, "reset by the simulated peer")
        return b"" if self._ended else None

    def write(self, data: Bytes) -> int:
        if self._failed or self.finished or self.closed:
            raise BrokenPipeError(errno.EPIPE, "the simulated connection is over")
        luck = self.host.luck
        room = min(len(data), luck.window_bytes - self.on_way)
        taken = luck.piece(room) if room > 0 else 0
        self._blocked = taken < len(data)
        if taken:
            self.on_way += taken
            self._send(bytes(data[:taken]))
        return taken

    def finish(self) -> None:
        """The end of our direction."""
        if not self.finished and not self._failed:
            self.finished = True
            self._send(b"")
            self.host.changed(self)

    def close(self) -> None:
        if self.closed:
            return
        self.closed = True
        self.host.gone(self)
        if self._incoming:
            self._send(None)
        else:
            self.finish()

    def detach(self) -> int:
        return self.fd

    def fileno(self) -> int:
        return -1 if self.closed else self.fd

    def setblocking(self, blocking: bool) -> None:
        assert not blocking

    def getpeername(self) -> tuple[str, int]:
        return self.peer.host.name, self.peer.fd

    def has_left(self) -> bool:
        return self._ended or self._failed

    # --- what happens to a connection ----------------------------------------------------------

    def cut(self) -> None:
        """The network loses the connection: what is on its way is lost, and both sides notice."""
        self.cut_off = self.peer.cut_off = True
        self.host.network.broke(self.host.name, self.peer.host.name)
        for side in (self, self.peer):
            side.host.network.loop.call_later(side.host.luck.delay_s(), side.fail)

    def vanish(self) -> None:
        """This side is gone, and the other side is not told."""
        self.cut_off = self.peer.cut_off = True
        self.closed = True
        self.host.gone(self)

    def reset(self) -> None:
        """Closed without sending what is unread; the other side notices."""
        if not self.closed:
            self.closed = True
            self.host.gone(self)
            self._send(None)

    @property
    def events(self) -> int:
        if self._failed:
            return _IN | _OUT | _ALWAYS
        mask = _IN if self._incoming or self._ended else 0
        if self.finished:
            return mask | select.EPOLLHUP if self._ended else mask
        return mask | _OUT if self.on_way < self.host.luck.window_bytes else mask

    def _send(self, data: bytes | None) -> None:
        """`b""` is the end of our direction, None a reset."""
        network = self.host.network
        at = network.loop.time() + network.luck.delay_s()
        self._arrives_at = at = max(self._arrives_at + _APART_S, at)
        network.loop.call_at(at, self._arrive, data)

    def _arrive(self, data: bytes | None) -> None:
        peer, network = self.peer, self.host.network
        if self.cut_off:
            return
        if network.joined(self.host.name, peer.host.name) is not None:
            network.hold(self.host.name, peer.host.name, lambda: self._arrive(data))
            return
        if data and network.luck.hits(network.luck.cut_share):
            self.cut()
        else:
            peer.arrived(data)

    def arrived(self, data: bytes | None) -> None:
        """What `_send` of the peer has sent."""
        if data is None:
            self.fail()
        elif self.closed:
            if data:
                self._send(None)
        else:
            self._incoming += data
            self._ended = self._ended or not data
            self.host.changed(self)

    def was_read(self, count: int) -> None:
        self.on_way -= count
        if self._blocked:
            self._blocked = False
            loop = self.host.network.loop
            loop.call_later(self.host.luck.delay_s(), self.host.changed, self)

    def fail(self) -> None:
        if not self.closed and not self._failed:
            self._failed = True
            if self.host.luck.hits(0.5):
                self._incoming.clear()  # a reset may overtake what was not read
            self.host.changed(self)


class SimListener:
    """A listening socket, as far as `net.loop` uses one."""

    family = socket.AF_UNSPEC

    def __init__(self, host: "SimHost", address: Address) -> None:
        self.host = host
        self.address = address
        self.fd = host.opened(self)
        self.pending: deque[SimSocket] = deque()
        self._closed = False

    def setblocking(self, blocking: bool) -> None:
        assert not blocking

    def listen(self, _backlog: int) -> None:
        self.host.network.listeners.setdefault(self.address, []).append(self)

    def accept(self) -> tuple[SimSocket, tuple[str, int]]:
        if not self.pending:
            raise BlockingIOError(errno.EAGAIN, "nobody waits")
        sock = self.pending.popleft()
        return sock, sock.getpeername()

    def fileno(self) -> int:
        return -1 if self._closed else self.fd

    def getsockname(self) -> Address:
        return self.address

    def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        listeners = self.host.network.listeners.get(self.address, [])
        if self in listeners:
            listeners.remove(self)
        self.host.gone(self)
        for sock in self.pending:
            sock.reset()

    @property
    def events(self) -> int:
        return _IN if self.pending else 0


class SimHost:
    """A process and its kernel: descriptors, and what epoll says of them."""

    def __init__(self, network: SimNetwork, name: str) -> None:
        self.network = network
        self.luck = network.luck
        self.name = name
        self.alive = True
        self._by_fd: dict[int, SimSocket | SimListener] = {}
        self._free: list[int] = []
        self._watched: dict[int, int] = {}
        self._changed: dict[int, None] = {}  # in order; epoll looks at these
        self._turn: Callable[[], None] | None = None
        self._turn_due = False

    def listening(self, port: int | str) -> socket.socket:
        """On a port of this machine, or on the path of a unix socket."""
        address = port if isinstance(port, str) else (self.name, port)
        return cast("socket.socket", SimListener(self, address))

    async def dial(self, address: Address) -> SimSocket:
        network, luck = self.network, self.network.luck
        await asyncio.sleep(luck.delay_s())
        if not isinstance(address, str):
            while (joined := network.joined(self.name, address[0])) is not None:
                if luck.rng.random() < 0.5:
                    raise OSError(errno.EHOSTUNREACH, "parted")
                await joined.wait()
        listeners = network.listeners.get(address)
        if not listeners:
            raise ConnectionRefusedError(errno.ECONNREFUSED, f"{address} does not listen")
        listener = listeners[0] if len(listeners) == 1 else luck.rng.choice(listeners)
        ours, theirs = SimSocket(self), SimSocket(listener.host)
        ours.peer, theirs.peer = theirs, ours
        network.connections += 1
        ours.number = theirs.number = network.connections
        listener.pending.append(theirs)
        listener.host.changed(listener)
        try:
            await asyncio.sleep(luck.delay_s())
        except BaseException:
            ours.reset()
            raise
        if not self.alive:
            await self.network.loop.create_future()  # a dead process never goes on
        return ours

    def kill(self) -> None:
        """The process dies; the kernel closes what it had."""
        self.alive = False
        for held in list(self._by_fd.values()):
            if isinstance(held, SimSocket):
                self.network.broke(self.name, held.peer.host.name)
            held.close()

    def vanish(self, noticed_s: float) -> None:
        """The machine is gone; the kernels of its peers notice the silence after so long."""
        self.alive = False
        for held in list(self._by_fd.values()):
            if isinstance(held, SimSocket):
                self.network.broke(self.name, held.peer.host.name)
                held.vanish()
                self.network.loop.call_later(noticed_s, held.peer.fail)
            else:
                held.close()

    def sockets(self) -> list[SimSocket]:
        """The open connections."""
        return [held for held in self._by_fd.values() if isinstance(held, SimSocket)]

    # --- what sockets tell ---------------------------------------------------------------------

    def opened(self, held: "SimSocket | SimListener") -> int:
        """A number that was free, as a kernel gives the lowest one."""
        if self._free:
            fd = min(self._free)
            self._free.remove(fd)
        else:
            fd = len(self._by_fd)
        self._by_fd[fd] = held
        return fd

    def gone(self, held: "SimSocket | SimListener") -> None:
        del self._by_fd[held.fd]
        self._free.append(held.fd)
        self._watched.pop(held.fd, None)
        self._changed.pop(held.fd, None)

    def changed(self, held: "SimSocket | SimListener") -> None:
        if not self.alive or self._by_fd.get(held.fd) is not held:
            return
        if isinstance(held, SimSocket) and held.on_ready is not None:
            held.on_ready()
        elif held.fd in self._watched:
            self._look_at(held.fd)

    # --- the poller of a loop ------------------------------------------------------------------

    def start(self, turn: Callable[[], None]) -> None:
        self._turn = turn

    def register(self, fd: int, mask: int, /) -> None:
        assert fd not in self._watched, "registered twice"
        assert fd in self._by_fd, "a descriptor that is not open"
        self._watched[fd] = mask
        self._look_at(fd)

    def modify(self, fd: int, mask: int, /) -> None:
        assert fd in self._watched, "a descriptor that is not watched"
        self._watched[fd] = mask
        self._look_at(fd)

    def poll(self, timeout: float, events_max: int, /) -> list[tuple[int, int]]:
        assert timeout == 0
        events: list[tuple[int, int]] = []
        for fd in list(self._changed):
            if len(events) == events_max:
                break
            del self._changed[fd]
            mask = self._by_fd[fd].events & (self._watched[fd] | _ALWAYS)
            if mask:
                events.append((fd, mask))
                self._changed[fd] = None  # behind the others, until it is no longer so
        return events

    def plain(self, read_bytes_max: int) -> Carrier:
        return SimCarrier(self, read_bytes_max)

    async def reach(self, address: Address) -> socket.socket:
        return cast("socket.socket", await self.dial(address))

    def close(self) -> None:
        self._turn = None

    def sock(self, fd: int) -> SimSocket:
        held = self._by_fd.get(fd)
        if not isinstance(held, SimSocket):
            raise OSError(errno.EBADF, "not the descriptor of a connection")
        return held

    def _look_at(self, fd: int) -> None:
        self._changed[fd] = None
        self._turn_soon()

    def _turn_soon(self) -> None:
        if not self._turn_due:
            self._turn_due = True
            self.network.loop.call_soon(self._take_turn)

    def _take_turn(self) -> None:
        self._turn_due = False
        if self.alive and self._turn is not None:
            self._turn()
            if self._changed:
                self._turn_soon()


class SimCarrier(PlainCarrier):
    """On simulated descriptors."""

    def __init__(self, host: SimHost, read_bytes_max: int) -> None:
        super().__init__(read_bytes_max)
        self._host = host

    def read(self, fd: int) -> bytes | None:
        return self._host.sock(fd).read(self._read_bytes_max)

    def write(self, fd: int, data: Bytes) -> int:
        return self._host.sock(fd).write(data)

    def finish(self, fd: int) -> None:
        self._host.sock(fd).finish()

    def close(self, fd: int) -> None:
        self._host.sock(fd).close()

    def peer_address(self, fd: int) -> str:
        return self._host.sock(fd).getpeername()[0]

    def has_left(self, fd: int) -> bool:
        return self._host.sock(fd).has_left()


class SimTls:
    """A `Secure` for both sides: what TLS shows, without its ciphers. In the handshake each side
    sends its certificates, so it takes its time, and a peer without TLS fails it."""

    def __init__(self, *, protocol: str | None = None, chain: tuple[bytes, ...] = ()) -> None:
        self.protocol = protocol
        self.chain = chain

    def __call__(self, sock: socket.socket) -> "SimSecureCarrier":
        return SimSecureCarrier(cast("SimSocket", sock), self)


class SimSecureCarrier(SimCarrier):
    def __init__(self, sock: SimSocket, tls: SimTls) -> None:
        super().__init__(sock.host, 16_384)
        self._sock = sock
        self.fd = sock.fd
        self.protocol = tls.protocol
        self.binding = b"%032d" % sock.number
        hello = msgspec.msgpack.encode(tls.chain)
        self._hello = len(hello).to_bytes(4, "big") + hello
        self._heard = b""
        self.peer_chain: tuple[bytes, ...] = ()

    def shake(self) -> bool | None:
        if self._hello:
            self._hello = self._hello[self._sock.write(self._hello) :]
        while (missing := self._missing()) > 0:
            data = self._sock.read(missing)
            if data is None:
                return False if self._hello else None
            if not data:
                raise ConnectionResetError("closed during the handshake")
            self._heard += data
        if self._hello:
            return False
        try:
            self.peer_chain = msgspec.msgpack.decode(self._heard[4:], type=tuple[bytes, ...])
        except msgspec.DecodeError:
            raise ssl.SSLError("the peer does not speak TLS") from None
        return True

    def _missing(self) -> int:
        if len(self._heard) < 4:
            return 4 - len(self._heard)
        size = int.from_bytes(self._heard[:4], "big")
        if size > 65_536:
            raise ssl.SSLError("the peer does not speak TLS")
        return 4 + size - len(self._heard)


class SimNetLoop(NetLoop):
    """The production loop of a process that can be killed."""

    def __init__(self, host: SimHost, *, clock: Clock, limits: NetLimits | None = None) -> None:
        super().__init__(clock=clock, limits=limits, poller=host)
        self.host = host

    def kill(self) -> None:
        """Nothing of the process runs afterwards: no connection is told of its end."""
        self._closed = True
        self._touched.clear()
        self._resumed.clear()
        self._by_fd.clear()
        if self._timer is not None:
            self._timer.cancel()
        self.host.kill()

    def touched(self, connection: Connection) -> None:
        if not self._closed:
            super().touched(connection)

    def resumed(self, connection: Connection) -> None:
        if not self._closed:
            super().resumed(connection)

    def ending(self, connection: Connection) -> None:
        if not self._closed:
            super().ending(connection)

    def write(self, connection: Connection) -> None:
        if not self._closed:
            super().write(connection)
