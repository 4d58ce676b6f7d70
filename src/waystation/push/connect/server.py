"""The shell that holds the user agents' connections: sockets, and nothing about push.

One `select.epoll` per worker watches every client; its own descriptor is a reader of the event
loop, so the loop sees one descriptor however many clients there are, and no transport exists.

Rule 1: frames for one client are joined into one write per loop turn. The kernel is asked to
        report room to write only after a write was partial.
Rule 2: nobody waits for a slow client. Unsent bytes above `send_high_bytes` make it congested,
        which is the driver's to know; above `send_bytes_max` it is cut.
Rule 3: nobody starves. A turn takes at most `events_max` events, one read per client and
        `writes_max` writes; epoll is level-triggered and rotates, so what is left comes with the
        next turn, after the timers and sockets of everyone else on the loop.
Rule 4: a descriptor is closed only by its own event or when the events of a turn are done, so an
        event never meets a descriptor that was given to somebody else within the turn.
Rule 5: a handler is never called from within a call that it makes; `closed` comes exactly once.
Rule 6: after Close we shut down our side and linger: the descriptor is closed when the peer has
        closed or `linger_s` later. `close()` at once, with input still unread, would make the
        kernel send a reset, and a reset lets the peer throw away the frame that it has not read
        yet. Nobody waits for a Close in return (Firefox never sends one).

Accepting, TLS handshakes and the opening request are the reception's; the frames are
`wire/websocket.py`'s, and what comes in them goes by `hearing`; what is said is the handler's.
"""

import asyncio
import os
import select
import socket
import ssl
from collections import deque
from collections.abc import Callable
from contextlib import suppress

from waystation.base.clock import Clock
from waystation.push.connect.carriers import PlainCarrier
from waystation.push.connect.connection import (
    BLOCKED,
    DEAD,
    DOOMED,
    ENDING,
    LINGERING,
    OPEN,
    PAUSED,
    READ_OFF,
    SHAKING,
    UPGRADING,
    Connection,
    Ending,
    Handler,
)
from waystation.push.connect.deadlines import Deadlines
from waystation.push.connect.hearing import Hearing
from waystation.push.connect.limits import ShellLimits
from waystation.push.connect.listeners import Listeners
from waystation.push.connect.reception import EXPIRIES_MAX, TICK_S, Http, Reception
from waystation.push.wire.upgrade import Upgrade, accept_answer
from waystation.push.wire.websocket import CLOSE_INTERNAL, Partial, close_frame

_EPOLLIN, _EPOLLOUT = select.EPOLLIN, select.EPOLLOUT


class WebSocketServer:
    """Made within a running loop. `make_handler` gives an accepted connection its handler;
    `http` answers plain requests with a complete response that ends the connection, or None."""

    def __init__(
        self,
        *,
        make_handler: Callable[[Connection, Upgrade], Handler],
        http: Http,
        clock: Clock,
        limits: ShellLimits | None = None,
    ) -> None:
        self._make_handler = make_handler
        self._mono = clock.mono
        self._limits = limits = ShellLimits() if limits is None else limits
        assert 0 < limits.linger_s <= 1.0
        assert limits.send_high_bytes <= limits.send_bytes_max
        self.send_high_bytes = limits.send_high_bytes
        self._read_bytes_max = limits.read_bytes_max
        self._loop = asyncio.get_running_loop()
        hearing = Hearing(message_bytes_max=limits.message_bytes_max, failed=self._failed)
        self._deliver, self._one_text = hearing.deliver, hearing.one_text
        self._plain = PlainCarrier(limits.read_bytes_max)
        self.reception = Reception(self, self._plain, limits, http)
        self._by_fd: list[Connection | None] = []  # a list: 8 bytes a client, a dictionary 100
        self._touched: deque[Connection] = deque()
        self._resumed: list[Connection] = []
        self._turning = False  # whoever is touched now is looked at before the turn ends
        self._settling = False  # a call of `_settle_all` is on its way
        self._lingering: Deadlines[Connection] = Deadlines(limits.linger_s, TICK_S)
        self._timer: asyncio.TimerHandle | None = None
        self._open = 0
        self._ending = 0
        self._emptied = asyncio.Event()
        self.accepted = 0  # ever
        self.overflowed = 0  # ever, by not reading
        self._epoll = select.epoll()
        self._listeners = Listeners(
            self._epoll, self._loop, self._admit, accepts_max=limits.accepts_max
        )
        self._loop.add_reader(self._epoll.fileno(), self._turn)

    # --- for whoever composes ---

    @property
    def connections(self) -> int:
        """Upgraded connections whose conversation goes on."""
        return self._open

    @property
    def descriptors(self) -> int:
        """All sockets of clients: open, before their upgrade, and ending."""
        return self._open + self.reception.present + self._ending

    def listen(self, sock: socket.socket, tls: ssl.SSLContext | None = None) -> None:
        """Takes over a bound socket; give each worker its own with SO_REUSEPORT."""
        self._make_room(sock.fileno())
        self._listeners.add(sock, tls)

    def use_certificate(self, tls: ssl.SSLContext) -> None:
        """New connections of TLS listeners use this context; established ones keep theirs."""
        self._listeners.use_certificate(tls)

    def stop_accepting(self) -> None:
        """Who has connected is still served; the port is free afterwards."""
        self._listeners.stop()

    async def close_all(self, code: int, reason: str = "") -> None:
        """Close every connection, and wait until they are gone; to spread that is the driver's."""
        for connection in self._by_fd:
            if connection is None:
                continue
            if connection.flags & OPEN:
                connection.close(code, reason)
            elif connection.flags & UPGRADING:
                connection.doom(Ending.ABORTED)
        self._emptied.clear()
        if self.descriptors:
            with suppress(TimeoutError):
                async with asyncio.timeout(self._limits.linger_s + 5 * TICK_S):
                    await self._emptied.wait()

    def close(self) -> None:
        """Drop everything at once: sockets, listeners, epoll."""
        self._listeners.close()
        for connection in list(self._by_fd):
            if connection is not None:
                connection.doom(Ending.ABORTED)
        while self._touched:
            self._settle_all()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if not self._epoll.closed:
            self._loop.remove_reader(self._epoll.fileno())
            self._epoll.close()

    # --- for connections (the `Shell` of connection.py) ---

    def touched(self, connection: Connection) -> None:
        self._touched.append(connection)
        if not self._turning and not self._settling:
            self._settling = True
            self._loop.call_soon(self._settle_all)

    def pressed(self, connection: Connection) -> None:
        if not connection.flags & BLOCKED:
            self._write(connection)  # much in one turn is no sin: see what the kernel takes
        if connection.out_bytes >= self._limits.send_bytes_max:
            self.overflowed += 1
            connection.doom(Ending.OVERFLOWED)

    def ending(self, connection: Connection) -> None:
        self._lingering.add(self._mono(), connection)
        self._arm()
        self.touched(connection)

    def resumed(self, connection: Connection) -> None:
        if connection.flags & READ_OFF:
            connection.flags &= ~READ_OFF
            self.watch(connection)
        partial = connection.partial
        if isinstance(partial, Partial) and partial.unread:
            self._resumed.append(connection)
            self.touched(connection)

    # --- a turn ---

    def _turn(self) -> None:
        self._turning = True
        self.reception.turn()
        by_fd = self._by_fd
        try:
            for fd, mask in self._epoll.poll(0, self._limits.events_max):
                connection = by_fd[fd]
                if connection is None:
                    self._listeners.accept(fd)
                elif mask == _EPOLLIN and connection.flags == OPEN:
                    self._hear(connection)
                else:
                    self._event(connection, mask)
        finally:
            self._turning = False
        if self._touched:
            self._settle_all()

    def _event(self, connection: Connection, mask: int) -> None:
        """What is not plain input of an idle connection."""
        flags = connection.flags
        if flags & SHAKING:
            self.reception.shake(connection)
            return
        if mask & _EPOLLOUT and connection.out is not None:
            self._write(connection)
            flags = connection.flags
            if flags & ENDING:
                self.touched(connection)
        if not mask & ~_EPOLLOUT:
            return
        if flags & ENDING:
            self._drain(connection)
        elif flags & PAUSED:
            if mask & (select.EPOLLHUP | select.EPOLLERR):
                self._lost(connection)
            elif not flags & READ_OFF:
                # Only now that it costs something: most pauses end before more input comes.
                connection.flags |= READ_OFF
                self.watch(connection)
        else:
            self._receive(connection)

    def _hear(self, connection: Connection) -> None:
        """As `_receive`, for what nearly every event is: one message of a connection that is open
        and neither paused nor ending."""
        carrier = connection.carrier
        try:
            if carrier is self._plain:  # as its `read`
                data = os.read(connection.fd, self._read_bytes_max)
            else:
                data = carrier.read(connection.fd)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        handler, one_text = connection.handler, self._one_text
        if not data or handler is None or connection.partial is not None:
            self._heard(connection, data)
        elif (text := one_text(data)) is None:
            self._deliver(connection, data)
        else:
            try:
                handler.text(connection, text)
            except Exception as exc:  # a driver's mistake costs one connection, not all
                self._failed(connection, exc)

    def _receive(self, connection: Connection) -> None:
        try:
            data = connection.carrier.read(connection.fd)
        except OSError:
            data = b""
        self._heard(connection, data)

    def _heard(self, connection: Connection, data: bytes | None) -> None:
        if data is None:
            return
        if not data:
            self._lost(connection)
        elif connection.flags & UPGRADING:
            self.reception.receive(connection, data)
        else:
            self._deliver(connection, data)

    def _settle_all(self) -> None:
        """Write what was queued, end what is to end."""
        resumed, self._resumed = self._resumed, []
        self._settling = True  # what handlers cause from here on is looked at in the next turn
        try:
            for connection in resumed:
                if not connection.flags & (ENDING | PAUSED):
                    self._deliver(connection, b"")
            touched = self._touched
            for _ in range(min(len(touched), self._limits.writes_max)):
                connection = touched.popleft()
                if connection.flags == OPEN and connection.out is not None:
                    self._write(connection)  # as `_settle`, which knows what else there may be
                    if connection.flags == OPEN:
                        continue
                self._settle(connection)
        finally:
            self._settling = bool(self._touched)
            if self._settling:
                self._loop.call_soon(self._settle_all)

    def _settle(self, connection: Connection) -> None:
        flags = connection.flags
        if flags & DEAD or flags & (LINGERING | DOOMED) == LINGERING:
            return
        if connection.out is not None and not flags & BLOCKED:
            self._write(connection)
        if not connection.flags & ENDING:
            return
        self._retire(connection)
        if connection.flags & DOOMED:
            self._drop(connection)
        elif connection.out is None:
            connection.carrier.finish(connection.fd)
            if self._ending > self._limits.lingering_max:
                self._drop(connection)
                return
            connection.flags |= LINGERING
            if connection.flags & READ_OFF:
                connection.flags &= ~READ_OFF
                self.watch(connection)

    def _write(self, connection: Connection) -> None:
        out = connection.out
        assert out is not None
        data = out[0] if len(out) == 1 else b"".join(out)
        carrier = connection.carrier
        try:
            if carrier is self._plain:  # as its `write`: every message is written
                sent = os.write(connection.fd, data)
            else:
                sent = carrier.write(connection.fd, data)
        except BlockingIOError:
            sent = 0
        except OSError:
            connection.doom(Ending.VANISHED)
            return
        if sent == len(data):
            connection.out = None
            connection.out_bytes = 0
            if connection.flags & BLOCKED:
                connection.flags &= ~BLOCKED
                self.watch(connection)
            return
        connection.out = [data[sent:] if sent else data]
        connection.out_bytes = len(data) - sent
        if not connection.flags & BLOCKED:
            connection.flags |= BLOCKED
            self.watch(connection)

    # --- for the reception (the `House` of reception.py) ---

    def _admit(self, sock: socket.socket, tls: ssl.SSLContext | None) -> None:
        self.accepted += 1
        self.reception.admit(sock, tls, self._mono())

    def hold(self, connection: Connection) -> None:
        fd = connection.fd
        self._make_room(fd)
        self._by_fd[fd] = connection
        self._epoll.register(fd, _EPOLLIN)
        self._arm()

    def _make_room(self, fd: int) -> None:
        """Whatever epoll watches has a place, so that a turn need not ask."""
        by_fd = self._by_fd
        if fd >= len(by_fd):
            by_fd.extend([None] * (fd + 1024 - len(by_fd)))

    def watch(self, connection: Connection) -> None:
        flags = connection.flags
        mask = (0 if flags & READ_OFF else _EPOLLIN) | (_EPOLLOUT if flags & BLOCKED else 0)
        self._epoll.modify(connection.fd, mask)

    def is_full(self) -> bool:
        return self._open >= self._limits.connections_max > 0

    def upgraded(self, connection: Connection, upgrade: Upgrade, rest: bytes) -> None:
        connection.send(accept_answer(upgrade))
        connection.flags |= OPEN
        self._open += 1
        try:
            connection.handler = self._make_handler(connection, upgrade)
        except Exception as exc:  # a driver's mistake costs one connection, not all
            self._failed(connection, exc)
        if rest:
            self._deliver(connection, rest)

    def report(self, what: str, exc: Exception) -> None:
        self._loop.call_exception_handler({"message": f"error while {what}", "exception": exc})

    # --- the end ---

    def _lost(self, connection: Connection) -> None:
        """Its own event says that the peer is gone."""
        connection.doom(Ending.VANISHED)

    def _drain(self, connection: Connection) -> None:
        """Input of a connection that is ending is read, so that closing sends no reset."""
        try:
            data = self._plain.read(connection.fd)  # below TLS: nobody wants to know what it says
        except OSError:
            data = b""
        if data == b"":
            connection.doom(Ending.VANISHED)

    def _retire(self, connection: Connection) -> None:
        """From a conversation to a socket that ends."""
        flags = connection.flags
        connection.partial = None
        if flags & OPEN:
            self._open -= 1
        elif flags & UPGRADING:
            self.reception.present -= 1
        else:
            return
        connection.flags = flags & ~(OPEN | UPGRADING)
        self._ending += 1
        handler = connection.handler
        connection.handler = None
        if handler is not None:
            try:
                handler.closed(connection)
            except Exception as exc:  # a driver's mistake costs one connection
                self.report("ending a connection", exc)
        connection.handler_state = None

    def _drop(self, connection: Connection) -> None:
        connection.flags |= DEAD
        self._ending -= 1
        self._by_fd[connection.fd] = None
        connection.carrier.close(connection.fd)  # which takes it out of epoll as well
        if not self.descriptors:
            self._emptied.set()

    def _arm(self) -> None:
        if self._timer is None:
            self._timer = self._loop.call_later(TICK_S, self._expire)

    def _expire(self) -> None:
        self._timer = None
        now = self._mono()
        self.reception.expire(now)
        for connection in self._lingering.expired(now, EXPIRIES_MAX):
            if not connection.flags & DEAD:
                connection.doom(Ending.VANISHED)
        if self.reception.waiting or self._lingering:
            self._arm()

    def _failed(self, connection: Connection, exc: Exception) -> None:
        self.report("handling a client's message", exc)
        connection.end(Ending.FAILED, CLOSE_INTERNAL, close_frame(CLOSE_INTERNAL, "error"))
