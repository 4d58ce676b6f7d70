"""The event loop of all sockets: one epoll per process, for all protocols.

The epoll's own descriptor is one reader of the asyncio loop, so asyncio sees a single descriptor
however many connections there are. Protocols subclass `Connection`; a `Port` is what the
connections of one protocol share: their listeners, their limits, their counts.

Rule 1: everything sent on a connection during a turn leaves in one write at its end. Epoll watches
        for room to write only after a partial write.
Rule 2: a slow peer does not delay others. Above `send_high_bytes` unsent bytes a connection is
        `congested`; above `send_bytes_max` it is closed.
Rule 3: no connection starves. A turn takes at most `events_max` events, one read per connection,
        `writes_max` writes, `accepts_max` new connections per listener, and `handshakes_max`
        steps of TLS handshakes. Epoll is level-triggered and rotates: the rest follows in the next
        turn, after other timers and callbacks.
Rule 4: descriptors are closed after the events of a turn, so that no event reaches a descriptor
        that was reused for another connection within the turn.
Rule 5: after the last byte the sending side is shut down, and the connection lingers: its
        descriptor is closed when the peer has closed, or after `linger_s`. Closing with unread
        input makes the kernel send a reset, which lets the peer drop data that it has not read. A
        peer that does not read the last bytes is closed after `flush_s`.
Rule 6: when descriptors or memory run out, a listener pauses for `ACCEPT_PAUSE_S`.
"""

import asyncio
import errno
import os
import select
import socket
import ssl
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Final, Protocol, cast

import msgspec

from waystation.base.clock import Clock
from waystation.net.connection import (
    BLOCKED,
    DEAD,
    DOOMED,
    ENDING,
    HALF_CLOSED,
    LINGERING,
    NOT_PLAIN_INPUT,
    OPEN,
    OVERFLOWED,
    PAUSED,
    READ_OFF,
    SHAKING,
    TLS,
    TOUCHED,
    Connection,
)
from waystation.net.deadlines import Deadlines
from waystation.net.tls import (
    Carrier,
    PlainCarrier,
    Secure,
    SecureCarrier,
    Tls,
    TlsCarrier,
    secure_with,
)

ACCEPT_PAUSE_S: Final = 0.2
TICK_S: Final = 0.1  # precision of linger and flush deadlines
EXPIRIES_MAX: Final = 1024  # deadlines processed in one tick
JOINED_BYTES_MAX: Final = 262_144  # of one write; a longer queue leaves in several
LAST_ROUNDS_MAX: Final = 64  # rounds of accepting waiting connections while a listener closes
_OUT_OF_RESOURCES: Final = frozenset((errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM))
_IN, _OUT = select.EPOLLIN, select.EPOLLOUT
_GONE: Final = select.EPOLLHUP | select.EPOLLERR


class NetLimits(msgspec.Struct, frozen=True, kw_only=True):
    events_max: int = 128
    writes_max: int = 1024
    accepts_max: int = 64
    handshakes_max: int = 8  # each may cost a millisecond
    read_bytes_max: int = 16_384  # read from a connection in a turn; the rest stays in the kernel
    lingering_max: int = 4096  # lingering connections; further ones are closed at once
    linger_s: float = 1.0
    flush_s: float = 30.0


class Poller(Protocol):
    """Epoll and sockets, or their simulation."""

    def start(self, turn: Callable[[], None]) -> None:
        """Call `turn` whenever there are events."""
        ...

    def register(self, fd: int, mask: int, /) -> None: ...

    def modify(self, fd: int, mask: int, /) -> None: ...

    def poll(self, timeout: float, events_max: int, /) -> list[tuple[int, int]]: ...

    def plain(self, read_bytes_max: int) -> Carrier:
        """The carrier that all connections without TLS share."""
        ...

    async def reach(self, address: tuple[str, int] | str) -> socket.socket:
        """A connected non-blocking socket; raises OSError."""
        ...

    def close(self) -> None: ...


class Epoll:
    """The kernel's epoll, as one reader of the asyncio loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._epoll = select.epoll()
        self.register = self._epoll.register
        self.modify = self._epoll.modify
        self.poll = self._epoll.poll

    def start(self, turn: Callable[[], None]) -> None:
        self._loop.add_reader(self._epoll.fileno(), turn)

    def plain(self, read_bytes_max: int) -> Carrier:
        return PlainCarrier(read_bytes_max)

    async def reach(self, address: tuple[str, int] | str) -> socket.socket:
        if isinstance(address, str):
            return await self._connected(socket.AF_UNIX, address)
        found = await self._loop.getaddrinfo(*address, type=socket.SOCK_STREAM)
        failure = OSError("the host name has no address")
        for family, _, _, _, where in found:
            try:
                return await self._connected(family, where)
            except OSError as exc:
                failure = exc
        raise failure

    async def _connected(self, family: int, where: object) -> socket.socket:
        sock = socket.socket(family, socket.SOCK_STREAM)
        try:
            sock.setblocking(False)
            if family != socket.AF_UNIX:
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            await self._loop.sock_connect(sock, cast("str", where))
        except BaseException:
            sock.close()
            raise
        return sock

    def close(self) -> None:
        if not self._epoll.closed:
            self._loop.remove_reader(self._epoll.fileno())
            self._epoll.close()


Make = Callable[[str], Connection | None]
"""Creates the connection for a peer address; None refuses it."""


class Listener:
    """One listening socket. Closing it does not end its connections."""

    __slots__ = ("make", "net", "port", "secure", "sock")

    def __init__(
        self, net: "NetLoop", port: "Port", sock: socket.socket, make: Make, secure: Secure | None
    ) -> None:
        self.net = net
        self.port = port
        self.sock = sock
        self.make = make
        self.secure = secure


class Port:
    """Listeners, limits and counts that the connections of one protocol share."""

    def __init__(
        self,
        net: "NetLoop",
        *,
        send_high_bytes: int = 65_536,
        send_bytes_max: int = 1_048_576,
        vanished_s: int = 0,
    ) -> None:
        """`send_bytes_max` 0: the protocol itself bounds its unsent bytes. `vanished_s`: after this
        time without an answer of the peer's machine the kernel ends a connection; 0 is the
        system's default."""
        assert not send_bytes_max or send_high_bytes <= send_bytes_max
        self.net = net
        self.vanished_s = vanished_s
        self.send_high_bytes = send_high_bytes
        self.send_bytes_max = send_bytes_max
        self.connections = 0  # open, or not open yet
        self.ending = 0  # ended, but the socket is not closed yet
        self.accepted = 0  # total
        self.refused = 0  # total, by a limit
        self.overflowed = 0  # total, closed because the peer did not read
        self._listeners: list[Listener] = []
        self._emptied: asyncio.Event | None = None

    @property
    def descriptors(self) -> int:
        return self.connections + self.ending

    @property
    def address(self) -> tuple[str, int]:
        """Address of the first listener."""
        return self._listeners[0].sock.getsockname()[:2]

    def listen(self, sock: socket.socket, make: Make, tls: Tls | None = None) -> None:
        """Take over a bound socket; each worker needs its own, with SO_REUSEPORT."""
        listener = Listener(self.net, self, sock, make, _secure(tls))
        self._listeners.append(listener)
        self.net.listen(listener)

    def use_certificate(self, tls: Tls) -> None:
        """Use another certificate for new connections; established ones keep theirs."""
        for listener in self._listeners:
            if listener.secure is not None:
                listener.secure = _secure(tls)

    def stop_accepting(self) -> None:
        """Close the listeners. Waiting connections are accepted first, because the kernel would
        reset them."""
        listeners, self._listeners = self._listeners, []
        for listener in listeners:
            self.net.stop_listening(listener)

    async def connect(
        self,
        connection: Connection,
        address: tuple[str, int] | str,
        *,
        tls: Tls | None = None,
        server_name: str = "",
    ) -> None:
        """Connect as a client, to host and port or to the path of a unix socket. Returns after
        `opened` was called, else raises OSError. The caller bounds the time."""
        sock = await self.net.reach(address)
        if self.vanished_s:
            notice_silence(sock, self.vanished_s)
        await self.net.take_client(connection, sock, tls, server_name)

    def pressed(self, connection: Connection) -> None:
        """Unsent bytes have reached `send_high_bytes`."""
        if not connection.flags & (BLOCKED | SHAKING):
            self.net.write(connection)  # the kernel may still accept what was queued in this turn
        if connection.out_bytes >= self.send_bytes_max > 0:
            self.overflowed += 1
            connection.flags |= OVERFLOWED
            connection.lost()

    def open_connections(self) -> list[Connection]:
        """All connections that are not ending."""
        return [one for one in self.net.held() if one.port is self and one.is_open]

    async def until_empty(self, timeout_s: float) -> bool:
        """Wait until all sockets are closed. Whether that happened in time."""
        if self.descriptors:
            self._emptied = asyncio.Event()
            with suppress(TimeoutError):
                async with asyncio.timeout(timeout_s):
                    await self._emptied.wait()
        return not self.descriptors

    def dropped(self) -> None:
        """A socket was closed."""
        if self._emptied is not None and not self.descriptors:
            self._emptied.set()


class NetLoop:
    """Created within a running asyncio loop, once per process."""

    def __init__(
        self, *, clock: Clock, limits: NetLimits | None = None, poller: Poller | None = None
    ) -> None:
        self._limits = limits = NetLimits() if limits is None else limits
        self._mono = clock.mono
        self._loop = asyncio.get_running_loop()
        self._by_fd: list[Connection | Listener | None] = []  # a list: 8 bytes each; a dict 100
        self._touched: deque[Connection] = deque()
        self._resumed: list[Connection] = []
        self._turning = False  # connections touched now are processed before the turn ends
        self._settling = False  # a call of `_settle_all` is scheduled
        self._handshakes = 0  # steps in this turn
        self._lingering: Deadlines[Connection] = Deadlines(limits.linger_s, TICK_S)
        self._flushing: Deadlines[Connection] = Deadlines(limits.flush_s, TICK_S)
        self._ending = 0  # sockets that wait to be closed
        self._timer: asyncio.TimerHandle | None = None
        self._opening: dict[Connection, asyncio.Future[None]] = {}  # as a client
        self._closed = False
        self._poller: Poller = Epoll(self._loop) if poller is None else poller
        self._poll = self._poller.poll
        self.reach = self._poller.reach
        self._plain = self._poller.plain(limits.read_bytes_max)
        self._poller.start(self._turn)

    def close(self) -> None:
        """Close all sockets at once."""
        if self._closed:
            return
        self._closed = True
        for held in list(self._by_fd):
            if isinstance(held, Listener):
                held.sock.close()
            elif held is not None:
                held.lost()
        while self._touched:
            self._settle_all()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._by_fd.clear()
        self._poller.close()

    def held(self) -> Iterator[Connection]:
        """All connections of all ports."""
        for one in list(self._by_fd):
            if isinstance(one, Connection):
                yield one

    # --- for ports -----------------------------------------------------------------------------

    def listen(self, listener: Listener) -> None:
        sock = listener.sock
        sock.setblocking(False)
        if sock.family in (socket.AF_INET, socket.AF_INET6):
            # Accepted sockets inherit these on Linux, which saves system calls for each.
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            if listener.port.vanished_s:
                notice_silence(sock, listener.port.vanished_s)
        sock.listen(socket.SOMAXCONN)
        self._hold(sock.fileno(), listener)

    def stop_listening(self, listener: Listener) -> None:
        fd = listener.sock.fileno()
        for _ in range(LAST_ROUNDS_MAX):
            if not self._accept(listener):
                break
        self._by_fd[fd] = None
        listener.sock.close()  # also removes it from epoll

    async def take_client(
        self,
        connection: Connection,
        sock: socket.socket,
        tls: Tls | None,
        server_name: str,
    ) -> None:
        opened: asyncio.Future[None] = self._loop.create_future()
        self._opening[connection] = opened
        secure: SecureCarrier | None = None
        try:
            if isinstance(tls, ssl.SSLContext):
                secure = TlsCarrier(sock, tls, server_name=server_name)
            elif tls is not None:
                secure = tls(sock)
            if secure is None:
                self.take(connection, sock.detach())
            else:
                self.take(connection, secure.fd, secure, shakes=True)
                self._handshakes = 0
                self._shake(connection)  # a client sends first
            await opened
        except BaseException:
            if connection.carrier is None:
                sock.close()
            else:
                connection.lost()
            raise
        finally:
            self._opening.pop(connection, None)

    def take(
        self,
        connection: Connection,
        fd: int,
        carrier: Carrier | None = None,
        *,
        shakes: bool = False,
    ) -> None:
        """Watch a connected descriptor. With `shakes`, `carrier` is a `SecureCarrier`; without a
        carrier the connection is plain."""
        connection.fd = fd
        connection.carrier = self._plain if carrier is None else carrier
        connection.port.connections += 1
        connection.flags |= SHAKING | TLS if shakes else OPEN
        self._hold(fd, connection)
        if not shakes:
            self._opened(connection)

    # --- for connections -----------------------------------------------------------------------

    def touched(self, connection: Connection) -> None:
        self._touched.append(connection)
        if not self._turning and not self._settling:
            self._settle_soon()

    def resumed(self, connection: Connection) -> None:
        if connection.flags & READ_OFF and not connection.flags & HALF_CLOSED:
            connection.flags &= ~READ_OFF
            self._watch(connection)
        self._resumed.append(connection)
        self._settle_soon()

    def ending(self, connection: Connection) -> None:
        """Start the deadline of an ending connection."""
        self._flushing.add(self._mono(), connection)
        self._arm()
        connection.touch()

    def replace(self, connection: Connection, other: Connection, rest: bytes) -> None:
        assert connection.is_open, "only an open connection is handed over"
        flags = connection.flags
        other.fd = connection.fd
        other.carrier = connection.carrier
        other.out, connection.out = connection.out, None
        other.out_bytes, connection.out_bytes = connection.out_bytes, 0
        other.flags |= flags & (OPEN | TLS | BLOCKED | READ_OFF | HALF_CLOSED)
        connection.flags = DEAD | ENDING
        connection.carrier = None
        other.port.connections += 1
        connection.port.connections -= 1
        connection.port.dropped()
        self._by_fd[other.fd] = other
        if other.flags & READ_OFF and not other.flags & HALF_CLOSED:
            other.flags &= ~READ_OFF
            self._watch(other)
        other.touch()
        self._opened(other)
        if rest and not other.flags & ENDING:
            try:
                other.received(rest)
            except Exception as exc:
                self._failed(other, exc)

    def write(self, connection: Connection) -> None:
        out = connection.out
        carrier = connection.carrier
        if out is None or carrier is None:
            return
        count = 1
        if len(out) == 1:
            data = out[0]
        elif connection.out_bytes <= JOINED_BYTES_MAX:
            data = b"".join(out)
            count = len(out)
        else:
            size = len(out[0])
            while count < len(out) and (size := size + len(out[count])) <= JOINED_BYTES_MAX:
                count += 1
            data = out[0] if count == 1 else b"".join(out[:count])
        try:
            sent = carrier.write(connection.fd, data)
        except OSError:
            connection.lost()
            return
        connection.out_bytes -= sent
        if sent == len(data):
            if count == len(out):
                connection.out = None
                if connection.flags & BLOCKED:
                    connection.flags &= ~BLOCKED
                    self._watch(connection)
                    self._call(connection, connection.drained)
                return
            del out[:count]
        else:
            out[:count] = [memoryview(data)[sent:] if sent else data]
        if not connection.flags & BLOCKED:
            connection.flags |= BLOCKED
            self._watch(connection)

    # --- a turn --------------------------------------------------------------------------------

    def _turn(self) -> None:
        self._turning = True
        self._handshakes = 0
        by_fd = self._by_fd
        try:
            if self._resumed:
                self._go_on_all()
            for fd, mask in self._poll(0, self._limits.events_max):
                held = by_fd[fd]
                if isinstance(held, Connection):
                    if mask == _IN and not held.flags & NOT_PLAIN_INPUT:
                        self._read(held)
                    else:
                        self._event(held, mask)
                elif held is not None:
                    self._accept(held)
        finally:
            self._turning = False
        if self._touched or self._resumed:
            self._settle_all()

    def _event(self, connection: Connection, mask: int) -> None:
        """Handle any event other than plain input of an open connection."""
        if connection.flags & SHAKING:
            self._shake(connection)
            return
        if mask & _OUT and not connection.flags & DOOMED:
            self.write(connection)
            if connection.flags & ENDING or connection.pulls:
                connection.touch()
        if not mask & ~_OUT:
            return
        flags = connection.flags
        if flags & ENDING:
            self._discard(connection, gone=bool(mask & _GONE))
        elif flags & (PAUSED | HALF_CLOSED):
            if mask & _GONE:
                connection.lost()
            elif not flags & READ_OFF:
                # Unregistered only when input comes: most pauses end before that.
                connection.flags |= READ_OFF
                self._watch(connection)
        else:
            self._read(connection)

    def _read(self, connection: Connection) -> None:
        carrier = connection.carrier
        assert carrier is not None
        try:
            data = carrier.read(connection.fd)
        except OSError:
            connection.lost()
            return
        if data:
            try:
                connection.received(data)
            except Exception as exc:
                self._failed(connection, exc)
        elif data is None:
            return
        else:
            connection.flags |= HALF_CLOSED | READ_OFF
            self._watch(connection)
            self._call(connection, connection.half_closed)

    def _settle_soon(self) -> None:
        if not self._turning and not self._settling:
            self._settling = True
            self._loop.call_soon(self._settle_all)

    def _settle_all(self) -> None:
        """Write queued data and end connections that must end."""
        self._settling = True  # changes that protocols make from here on wait for the next turn
        try:
            self._go_on_all()
            touched = self._touched
            for _ in range(min(len(touched), self._limits.writes_max)):
                self._settle(touched.popleft())
        finally:
            self._settling = bool(self._touched or self._resumed) and not self._closed
            if self._settling:
                self._loop.call_soon(self._settle_all)

    def _go_on_all(self) -> None:
        resumed, self._resumed = self._resumed, []
        for connection in resumed:
            self._go_on(connection)

    def _go_on(self, connection: Connection) -> None:
        """Continue after a pause."""
        if connection.flags & (ENDING | PAUSED):
            return
        try:
            connection.received(b"")
        except Exception as exc:
            self._failed(connection, exc)

    def _settle(self, connection: Connection) -> None:
        more = False
        if connection.pulls and not connection.flags & (ENDING | BLOCKED | SHAKING | DEAD):
            try:
                more = connection.fill()
            except Exception as exc:
                self._failed(connection, exc)
        flags = connection.flags = connection.flags & ~TOUCHED
        if more:
            connection.touch()
        if connection.out is not None and not flags & (BLOCKED | SHAKING):
            self.write(connection)
        if connection.flags & ENDING:
            self._end(connection)

    def _end(self, connection: Connection) -> None:
        flags = connection.flags
        if flags & DEAD or flags & (LINGERING | DOOMED) == LINGERING:
            return
        self._retire(connection)
        carrier = connection.carrier
        if flags & DOOMED or carrier is None or flags & SHAKING:
            self._drop(connection)
        elif connection.out is not None:
            if self._ending > self._limits.lingering_max:
                self._drop(connection)
        else:
            carrier.finish(connection.fd)
            if flags & HALF_CLOSED or self._ending > self._limits.lingering_max:
                self._drop(connection)
                return
            connection.flags |= LINGERING
            self._lingering.add(self._mono(), connection)
            self._arm()
            if connection.flags & READ_OFF:
                connection.flags &= ~READ_OFF
                self._watch(connection)

    # --- the beginning -------------------------------------------------------------------------

    def _accept(self, listener: Listener) -> bool:
        """Accept at most `accepts_max` connections. Whether there may be more."""
        for _ in range(self._limits.accepts_max):
            try:
                sock, address = listener.sock.accept()
            except BlockingIOError:
                return False
            except OSError as exc:
                if exc.errno in _OUT_OF_RESOURCES:
                    # The listener stays readable: without a pause the loop would spin.
                    self._poller.modify(listener.sock.fileno(), 0)
                    self._loop.call_later(ACCEPT_PAUSE_S, self._accept_again, listener)
                    return False
                continue  # the peer closed before `accept`
            listener.port.accepted += 1
            try:
                self._admit(listener, sock, _host(address))
            except Exception as exc:
                sock.close()
                self.report("accepting a connection", exc)
        return True

    def _admit(self, listener: Listener, sock: socket.socket, address: str) -> None:
        sock.setblocking(False)
        secure: SecureCarrier | None = None
        connection = listener.make(address)
        if connection is None:
            listener.port.refused += 1
            sock.close()
            return
        try:
            if listener.secure is not None:
                secure = listener.secure(sock)
        except OSError:
            sock.close()
            connection.flags = ENDING | DEAD
            self._call(connection, connection.closed)
            return
        if secure is None:
            self.take(connection, sock.detach())
        else:
            self.take(connection, secure.fd, secure, shakes=True)

    def _accept_again(self, listener: Listener) -> None:
        fd = listener.sock.fileno()
        if fd >= 0 and self._by_fd[fd] is listener:
            self._poller.modify(fd, _IN)

    def _hold(self, fd: int, held: Connection | Listener) -> None:
        """Set the entry of a watched descriptor."""
        by_fd = self._by_fd
        if fd >= len(by_fd):
            by_fd.extend([None] * (fd + 1024 - len(by_fd)))
        by_fd[fd] = held
        self._poller.register(fd, _IN)

    def _shake(self, connection: Connection) -> None:
        """Make the next step of a TLS handshake; at `handshakes_max`, its event comes again."""
        if self._handshakes >= self._limits.handshakes_max or connection.flags & ENDING:
            return
        self._handshakes += 1
        secure = connection.secure
        assert secure is not None
        try:
            done = secure.shake()
        except OSError as exc:
            self._lost(connection, exc)
            return
        blocked = done is False
        if blocked != bool(connection.flags & BLOCKED):
            connection.flags ^= BLOCKED
            self._watch(connection)
        if done:
            connection.flags = connection.flags & ~SHAKING | OPEN
            self._opened(connection)
            if connection.out is not None:
                connection.touch()

    def _opened(self, connection: Connection) -> None:
        self._call(connection, connection.opened)
        opened = self._opening.get(connection)
        if opened is not None and not opened.done() and not connection.flags & ENDING:
            opened.set_result(None)

    def _watch(self, connection: Connection) -> None:
        flags = connection.flags
        mask = (0 if flags & READ_OFF else _IN) | (_OUT if flags & BLOCKED else 0)
        self._poller.modify(connection.fd, mask)

    # --- the end -------------------------------------------------------------------------------

    def _lost(self, connection: Connection, exc: OSError) -> None:
        opening = self._opening.get(connection)
        if opening is not None and not opening.done():
            opening.set_exception(exc)
        connection.lost()

    def _discard(self, connection: Connection, *, gone: bool) -> None:
        """Read and drop input of an ending connection, so that closing sends no reset."""
        carrier = connection.carrier
        assert carrier is not None
        if not connection.flags & HALF_CLOSED and not carrier.discard(connection.fd):
            return
        if gone or connection.out is None:
            connection.lost()
        elif not connection.flags & HALF_CLOSED:  # the peer may still read unsent data
            connection.flags |= HALF_CLOSED | READ_OFF
            self._watch(connection)

    def _retire(self, connection: Connection) -> None:
        """Mark a connection as ended; its socket is closed later."""
        if not connection.flags & (OPEN | SHAKING):
            return
        was_shaking = connection.flags & SHAKING
        connection.flags &= ~OPEN
        port = connection.port
        port.connections -= 1
        port.ending += 1
        self._ending += 1
        opening = self._opening.get(connection)
        if opening is not None and not opening.done():
            opening.set_exception(ConnectionResetError("closed before it was open"))
        self._call(connection, connection.closed)
        if was_shaking:
            connection.flags |= DOOMED

    def _drop(self, connection: Connection) -> None:
        connection.flags = connection.flags & ~SHAKING | DEAD
        connection.out = None
        connection.port.ending -= 1
        self._ending -= 1
        self._by_fd[connection.fd] = None
        carrier, connection.carrier = connection.carrier, None
        if carrier is not None:
            with suppress(OSError):
                carrier.close(connection.fd)  # also removes it from epoll
        connection.port.dropped()

    def _arm(self) -> None:
        if self._timer is None and not self._closed:
            self._timer = self._loop.call_later(TICK_S, self._expire)

    def _expire(self) -> None:
        self._timer = None
        if self._lingering or self._flushing:
            self._arm()  # first, so that an exception below does not end the timer
        now = self._mono()
        for connection in self._lingering.expired(now, EXPIRIES_MAX):
            if not connection.flags & DEAD:
                connection.lost()
        for connection in self._flushing.expired(now, EXPIRIES_MAX):
            if not connection.flags & (DEAD | LINGERING):
                connection.lost()

    # --- faults --------------------------------------------------------------------------------

    def _call(self, connection: Connection, method: Callable[[], None]) -> None:
        try:
            method()
        except Exception as exc:
            self._failed(connection, exc)

    def _failed(self, connection: Connection, exc: Exception) -> None:
        self.report("serving a connection", exc)
        try:
            connection.failed(exc)
        except Exception as again:
            self.report("ending a connection", again)
            connection.lost()

    def report(self, what: str, exc: BaseException) -> None:
        self._loop.call_exception_handler({"message": f"error while {what}", "exception": exc})


def bound_socket(host: str, port: int, *, reuse_port: bool = True) -> socket.socket:
    """A listening address; with `reuse_port`, one socket per worker. `::` includes IPv4."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    sock = socket.socket(family, socket.SOCK_STREAM)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if reuse_port:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        if host == "::":
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        sock.bind((host, port))
    except BaseException:
        sock.close()
        raise
    return sock


def notice_silence(sock: socket.socket, vanished_s: int) -> None:
    """Let the kernel end the connection after `vanished_s` without an answer of the peer's machine,
    whether or not data is sent."""
    if sock.family not in (socket.AF_INET, socket.AF_INET6):
        return
    probe_s = max(vanished_s // 3, 1)
    for option, value in (
        ("TCP_KEEPIDLE", probe_s),
        ("TCP_KEEPINTVL", probe_s),
        ("TCP_KEEPCNT", 2),
        ("TCP_USER_TIMEOUT", vanished_s * 1000),
    ):
        number = getattr(socket, option, None)  # not every system has all options
        if number is not None:
            sock.setsockopt(socket.IPPROTO_TCP, number, value)


def unix_socket(path: str) -> socket.socket:
    """A socket file with mode 0600. A file left by a dead process is replaced."""
    with suppress(FileNotFoundError):
        os.unlink(path)
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    mask = os.umask(0o177)
    try:
        sock.bind(path)
    except BaseException:
        sock.close()
        raise
    finally:
        os.umask(mask)
    return sock


def _secure(tls: Tls | None) -> Secure | None:
    return secure_with(tls) if isinstance(tls, ssl.SSLContext) else tls


def _host(address: object) -> str:
    """The host of an address; empty for a unix socket."""
    return cast("tuple[str, int]", address)[0] if isinstance(address, tuple) else ""
