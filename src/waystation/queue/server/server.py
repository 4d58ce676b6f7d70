"""The shell that holds the clients' connections: sockets, TLS, blocks, and nothing about queues.

One `select.epoll` watches every client; its own descriptor is a reader of the event loop, so the
loop sees one descriptor however many clients there are, and no transport exists.

Rule 1: what was said to a client in a turn leaves at its end, in as few blocks as hold it. The
        kernel is asked to report room only after a write did not fit.
Rule 2: nobody starves: a turn takes at most `EVENTS_MAX` events, one block from each client,
        `BLOCKS_MAX` blocks to each, and `SHAKES_MAX` steps of handshakes, which are dear.
Rule 3: a descriptor is closed only when the events of a turn are done, so an event never meets a
        descriptor that was given to somebody else within the turn.
Rule 4: whoever has not finished both hellos in time is let go; so is, after a long while, whoever
        waits for nothing and says nothing.
"""

import asyncio
import errno
import select
import socket
import ssl
from collections import deque
from collections.abc import Collection
from typing import Final, Protocol

from waystation.base.clock import Clock
from waystation.base.origins import OriginLimit, origin_of
from waystation.queue.model import SessionId, VersionRange
from waystation.queue.server.carrier import Carry, Step, carry_with
from waystation.queue.server.client import Client, Line
from waystation.queue.server.connection import (
    BLOCKED,
    DEAD,
    DOOMED,
    FINISHING,
    HELLO,
    LINGERING,
    OPEN,
    PAUSED,
    SHAKING,
    TOUCHED,
    Connection,
)
from waystation.queue.server.observer import Observer
from waystation.queue.settings import Queue as QueueSettings

EVENTS_MAX: Final = 256
BLOCKS_MAX: Final = 8
SHAKES_MAX: Final = 8
ACCEPTS_MAX: Final = 64
NEWCOMERS_MAX: Final = 4096  # connections before the end of both hellos
LINGER_S: Final = 1.0
ANSWER_S: Final = 5.0  # how long a stop waits for what is under way
TICK_S: Final = 0.5
PAUSE_S: Final = 0.2  # when descriptors or memory ran out
_OUT_OF_RESOURCES: Final = frozenset((errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM))

_IN, _OUT = select.EPOLLIN, select.EPOLLOUT


class Works(Protocol):
    """Whoever works on what clients send: `driver.Driver`, or an edge's."""

    @property
    def clients(self) -> Collection[Client]: ...

    def opened(self, line: Line, session_id: SessionId, versions: VersionRange) -> Client: ...

    def received(self, client: Client, block: bytes) -> bool: ...

    def has_room(self, client: Client) -> None: ...

    def closed(self, client: Client) -> None: ...


class BlockServer:
    """Made within a running loop."""

    def __init__(
        self,
        driver: Works,
        *,
        tls: ssl.SSLContext | Carry,
        versions: VersionRange,
        without_alpn: VersionRange | None,
        settings: QueueSettings,
        observer: Observer,
        clock: Clock,
    ) -> None:
        self._driver = driver
        self.use_certificate(tls)
        self._versions = versions
        self._without_alpn = without_alpn  # None: such clients are refused
        self._settings = settings
        self._observer = observer
        self._clock = clock
        self._loop = asyncio.get_running_loop()
        self._epoll = select.epoll()
        self._listeners: dict[int, socket.socket] = {}
        self._by_fd: dict[int, Connection] = {}
        self._origins = OriginLimit(settings.connections_per_address)
        self._touched: deque[Connection] = deque()
        self._again: list[Connection] = []
        self._settling = False
        self._turning = False
        self._newcomers: dict[Connection, float] = {}  # until when, in the order of arrival
        self._lingering: dict[Connection, float] = {}
        self._idle_checked_at = clock.mono()
        self._shakes = 0
        self._emptied: asyncio.Future[None] | None = None
        self.accepted = 0  # ever
        self.refused = 0  # ever, by a limit
        self.blocks = 0  # ever, both ways
        self._loop.add_reader(self._epoll.fileno(), self._turn)
        self._timer = self._loop.call_later(TICK_S, self._tick)

    # For whoever composes

    @property
    def connections(self) -> int:
        return len(self._by_fd)

    def listen(self, sock: socket.socket) -> None:
        """Takes over a bound socket."""
        sock.setblocking(False)
        if sock.family in (socket.AF_INET, socket.AF_INET6):
            # Accepted sockets inherit these on Linux.
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        sock.listen(socket.SOMAXCONN)
        self._listeners[sock.fileno()] = sock
        self._epoll.register(sock.fileno(), _IN)

    def use_certificate(self, tls: ssl.SSLContext | Carry) -> None:
        """For new connections; established ones keep theirs."""
        self._carry: Carry = carry_with(tls) if isinstance(tls, ssl.SSLContext) else tls

    def stop_accepting(self) -> None:
        for sock in self._listeners.values():
            sock.close()
        self._listeners.clear()

    async def drain(self, over_s: float) -> None:
        """Close every connection, spread over a while; what is under way is still answered."""
        self.stop_accepting()
        clients = list(self._driver.clients)
        for connection in list(self._newcomers):
            connection.abort()
        pause_s = over_s / len(clients) if clients else 0.0
        owed_s = 0.0
        for client in clients:
            client.line.pause()
            if client.work is None:
                client.line.finish()
            owed_s += pause_s
            if owed_s >= 0.01:
                await asyncio.sleep(owed_s)
                owed_s = 0.0
        deadline = self._clock.mono() + ANSWER_S
        for client in clients:
            while client.work is not None and not client.gone:
                if self._clock.mono() >= deadline:
                    break
                await asyncio.sleep(0.01)
            client.line.finish()
        if self._by_fd:
            self._emptied = self._loop.create_future()
            await asyncio.wait([self._emptied], timeout=LINGER_S + 2 * TICK_S)

    def close(self) -> None:
        """Drop everything at once."""
        self.stop_accepting()
        for connection in list(self._by_fd.values()):
            self._drop(connection)
        self._timer.cancel()
        if not self._epoll.closed:
            self._loop.remove_reader(self._epoll.fileno())
            self._epoll.close()

    # For connections

    def touched(self, connection: Connection) -> None:
        self._touched.append(connection)
        self._ask_to_settle()

    def look_again(self, connection: Connection) -> None:
        self._again.append(connection)
        self._ask_to_settle()

    def watch(self, connection: Connection) -> None:
        flags = connection.flags
        if not flags & DEAD:
            mask = (0 if flags & PAUSED else _IN) | (_OUT if flags & BLOCKED else 0)
            self._epoll.modify(connection.fd, mask)

    # A turn

    def _ask_to_settle(self) -> None:
        if not self._turning and not self._settling:
            self._settling = True
            self._loop.call_soon(self._settle_all)

    def _turn(self) -> None:
        self._turning = True
        self._shakes = 0
        try:
            for fd, mask in self._epoll.poll(0, EVENTS_MAX):
                connection = self._by_fd.get(fd)
                if connection is None:
                    self._accept(fd)
                elif connection.flags & SHAKING:
                    self._shake(connection)
                else:
                    if mask & _OUT:
                        connection.touch()
                    if mask & ~_OUT:
                        self._read(connection)
        finally:
            self._turning = False
        if self._touched or self._again:
            self._settle_all()

    def _read(self, connection: Connection) -> None:
        flags = connection.flags
        if flags & LINGERING:
            if connection.carrier.skip():
                connection.abort()
            return
        if flags & (DEAD | DOOMED):
            return
        if flags & PAUSED:
            connection.abort()  # not asked for input: this can only be the end
            return
        try:
            block = connection.carrier.read()
        except OSError:
            block = b""
        if block is None:
            if connection.carrier.holds_more:
                self.look_again(connection)
            return
        client = connection.client
        if not block or client is None or not self._received(connection, client, block):
            connection.abort()
        elif not connection.flags & PAUSED and connection.carrier.holds_more:
            self.look_again(connection)

    def _received(self, connection: Connection, client: Client, block: bytes) -> bool:
        if connection.flags & FINISHING:
            return True
        self.blocks += 1
        try:
            kept = self._driver.received(client, block)
        except Exception as exc:  # a mistake costs one connection, not all
            self._report("taking a block", exc)
            return False
        if kept and connection.flags & HELLO:
            connection.flags = connection.flags & ~HELLO | OPEN
            self._newcomers.pop(connection, None)
            self._observer.opened()
        return kept

    def _settle_all(self) -> None:
        self._settling = True
        again, self._again = self._again, []
        for connection in again:
            if not connection.flags & (DEAD | PAUSED | DOOMED):
                self._read(connection)
        for _ in range(len(self._touched)):
            self._settle(self._touched.popleft())
        self._settling = bool(self._touched or self._again)
        if self._settling:
            self._loop.call_soon(self._settle_all)

    def _settle(self, connection: Connection) -> None:
        connection.flags &= ~TOUCHED
        if connection.flags & DEAD:
            return
        if not connection.flags & (DOOMED | SHAKING | LINGERING):
            self._write(connection)
        flags = connection.flags
        if flags & DOOMED or (flags & FINISHING and flags & SHAKING):
            self._drop(connection)
        elif flags & FINISHING and connection.block is None and not flags & LINGERING:
            self._linger(connection)

    def _write(self, connection: Connection) -> None:
        client = connection.client
        if client is None:
            return
        block = connection.block
        try:
            for _ in range(BLOCKS_MAX):
                if block is None and (block := self._next_block(client)) is None:
                    break
                sent = connection.carrier.write(block)
                if sent < len(block):
                    block = block[sent:] if sent else block
                    break
                block = None
                self.blocks += 1
            else:
                connection.touch()  # others first, then on
        except Exception as exc:
            if not isinstance(exc, OSError):
                self._report("sending a block", exc)
            connection.abort()
            return
        connection.block = block
        blocked = block is not None and not connection.flags & TOUCHED
        if blocked != bool(connection.flags & BLOCKED):
            connection.flags ^= BLOCKED
            self.watch(connection)
        if connection.flags & OPEN:
            self._driver.has_room(client)

    def _next_block(self, client: Client) -> bytes | None:
        return client.session.next_block()

    # The beginning

    def _accept(self, fd: int) -> None:
        listener = self._listeners.get(fd)
        if listener is None:
            return  # an event of a descriptor that is gone
        for _ in range(ACCEPTS_MAX):
            try:
                sock, address = listener.accept()
            except BlockingIOError:
                return
            except OSError as exc:
                if exc.errno in _OUT_OF_RESOURCES:
                    # The listener stays readable: without a pause the loop would spin.
                    self._epoll.modify(fd, 0)
                    self._loop.call_later(PAUSE_S, self._accept_again, fd)
                    return
                continue  # this one was gone before we looked
            self.accepted += 1
            self._admit(sock, origin_of(address))

    def _accept_again(self, fd: int) -> None:
        if fd in self._listeners:
            self._epoll.modify(fd, _IN)

    def _admit(self, sock: socket.socket, origin: str) -> None:
        limit = self._settings.connections_max
        full = len(self._newcomers) >= NEWCOMERS_MAX or 0 < limit <= len(self._by_fd)
        if full or not self._origins.has_room(origin):
            self.refused += 1
            sock.close()
            return
        sock.setblocking(False)
        try:
            connection = Connection(self, self._carry(sock), origin)
        except OSError:
            sock.close()
            return
        self._by_fd[connection.fd] = connection
        self._origins.enter(origin)
        self._newcomers[connection] = self._clock.mono() + self._settings.handshake_timeout_s
        self._epoll.register(connection.fd, _IN)

    def _shake(self, connection: Connection) -> None:
        if self._shakes >= SHAKES_MAX or connection.flags & DOOMED:
            return  # its event comes again
        self._shakes += 1
        try:
            step = connection.carrier.shake()
        except OSError:
            connection.abort()
            return
        blocked = step is Step.WRITE
        if blocked != bool(connection.flags & BLOCKED):
            connection.flags ^= BLOCKED
            self.watch(connection)
        if step is not Step.DONE:
            return
        carrier = connection.carrier
        versions = self._versions if carrier.has_alpn else self._without_alpn
        if versions is None:
            connection.abort()
            return
        client = self._driver.opened(connection, carrier.session_id, versions)
        connection.client = client
        if chain := carrier.peer_chain:
            client.session.shown(chain)
        connection.block = client.session.hello()
        connection.flags = connection.flags & ~SHAKING | HELLO
        connection.touch()
        if carrier.holds_more:
            self.look_again(connection)

    # The end

    def _linger(self, connection: Connection) -> None:
        """All is sent: wait a moment for the peer to close, so that nothing sent is lost."""
        self._leave(connection)
        connection.carrier.finish()
        connection.flags = connection.flags & ~PAUSED | LINGERING
        self.watch(connection)
        self._lingering[connection] = self._clock.mono() + LINGER_S

    def _leave(self, connection: Connection) -> None:
        client, connection.client = connection.client, None
        self._newcomers.pop(connection, None)
        if client is not None:
            self._driver.closed(client)
            if connection.flags & OPEN:
                self._observer.closed()

    def _drop(self, connection: Connection) -> None:
        if connection.flags & DEAD:
            return
        connection.flags |= DEAD
        self._leave(connection)
        self._lingering.pop(connection, None)
        del self._by_fd[connection.fd]
        self._origins.leave(connection.origin)
        connection.block = None
        connection.carrier.close()  # which takes it out of epoll as well
        if not self._by_fd and self._emptied is not None and not self._emptied.done():
            self._emptied.set_result(None)

    # Time

    def _tick(self) -> None:
        self._timer = self._loop.call_later(TICK_S, self._tick)
        now = self._clock.mono()
        for waiting in (self._newcomers, self._lingering):
            late: list[Connection] = []
            for connection, until in waiting.items():
                if until > now:
                    break  # they stand in the order of their deadlines
                late.append(connection)
            for connection in late:
                connection.abort()
        idle_s = self._settings.inactive_timeout_s
        if idle_s and now - self._idle_checked_at >= self._settings.inactive_check_s:
            self._idle_checked_at = now
            for client in list(self._driver.clients):
                if client.is_idle and now - client.active_at >= idle_s:
                    client.line.finish()

    def _report(self, what: str, exc: Exception) -> None:
        self._loop.call_exception_handler({"message": f"error while {what}", "exception": exc})
