"""The listening port of the lean transport: uvloop carries bytes, `Connection` decides.

Rule 1: what the connections of this port have to say is written once a turn of the loop, each
        connection's part in one write.
Rule 2: one wheel holds one deadline for each connection; a connection that was busy meanwhile says
        so when it is woken, and nothing is re-armed for frames.
Rule 3: `connections_max` connections at once; one more is closed as soon as it is accepted.
Rule 4: with TLS, a peer that does not choose `h2` by ALPN is closed.
"""

import asyncio
import socket
import ssl
from collections import deque
from collections.abc import Callable, Collection
from typing import cast

from waystation.base.limits import CountLimit
from waystation.base.wheel import Wheel
from waystation.presence.transport.port import StreamHandler

from .call import Call
from .connection import Connection
from .limits import Limits
from .link import Link

_WRITE_HIGH_BYTES = 64 * 1024  # in the socket's own queue; the rest stays with its stream
_END_DELAY_S = 0.2  # before a call ends whose peer may still be speaking
_CLOSE_PATIENCE_S = 5.0  # for a peer that does not read our last words
_TICK_S = 0.25
_SLOTS = 512


class _Shell(asyncio.Protocol):
    """One socket."""

    __slots__ = ("_connection", "_server", "_transport")

    def __init__(self, server: "NativeTransport") -> None:
        self._server = server
        self._transport: asyncio.Transport | None = None
        self._connection: Connection | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        chosen = transport.get_extra_info("ssl_object")
        if chosen is not None and chosen.selected_alpn_protocol() != "h2":
            self._transport.abort()
            return
        self._connection = self._server.welcome(self, self._transport)
        if self._connection is None:
            self._transport.abort()
            return
        self._transport.set_write_buffer_limits(high=_WRITE_HIGH_BYTES)

    def data_received(self, data: bytes) -> None:
        if self._connection is not None:
            self._connection.feed(data, self._server.mono())

    def eof_received(self) -> bool:
        return False  # a peer that writes nothing more cannot keep HTTP/2 going: close

    def pause_writing(self) -> None:
        if self._connection is not None:
            self._connection.block()

    def resume_writing(self) -> None:
        if self._connection is not None:
            self._connection.unblock()

    def connection_lost(self, exc: Exception | None) -> None:
        if self._connection is not None:
            self._server.farewell(self._connection)
            self._connection = None

    def write(self, data: bytes, *, close: bool) -> None:
        assert self._transport is not None
        if data:
            self._transport.write(data)
        if close:
            self._transport.close()

    def abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()


class NativeTransport:
    """The port's `Transport` on one listening socket that is already bound."""

    def __init__(
        self,
        handler: StreamHandler,
        paths: Collection[str],
        listener: socket.socket,
        *,
        limits: Limits | None = None,
        connections_max: int = 20_000,
        tls: ssl.SSLContext | None = None,
        load_certificate: Callable[[ssl.SSLContext], None] | None = None,
        on_failure: Callable[[Exception], None] = lambda exc: None,
    ) -> None:
        self._handler = handler
        self._paths = frozenset(path.encode() for path in paths)
        self._listener = listener
        self._limits = limits or Limits()
        self._room = CountLimit("connections_max", connections_max)
        self._tls = tls
        if tls is not None:
            tls.set_alpn_protocols(["h2"])
        self._load_certificate = load_certificate
        self._on_failure = on_failure
        self._loop: asyncio.AbstractEventLoop | None = None
        self._server: asyncio.Server | None = None
        self._connections: dict[Connection, int] = {}  # -> its entry on the wheel
        self._ready: list[Link] = []  # with something to write
        self._wheel: Wheel[Connection] | None = None
        self._alarm: asyncio.TimerHandle | None = None
        self._alarm_at = 0.0
        self._empty: asyncio.Event | None = None
        self._held: deque[tuple[float, Call]] = deque()  # calls that end in a moment
        self._release_timer: asyncio.TimerHandle | None = None

    @property
    def port(self) -> int:
        return self._listener.getsockname()[1]

    @property
    def connections(self) -> int:
        return len(self._connections)

    @property
    def refused(self) -> int:
        """How often `connections_max` was reached."""
        return self._room.refused

    async def start(self) -> None:
        loop = self._loop = asyncio.get_running_loop()
        self._wheel = Wheel(_TICK_S, _SLOTS, loop.time())
        # uvloop closes a listener that nobody refers to: the server is kept.
        self._server = await loop.create_server(
            lambda: _Shell(self),
            sock=self._listener,
            ssl=self._tls,
            backlog=4096,
            ssl_handshake_timeout=self._limits.handshake_timeout_s if self._tls else None,
        )

    def stop_accepting(self) -> None:
        if self._server is not None:
            self._server.close()

    async def close(self, grace_s: float = 0.0) -> None:
        self.stop_accepting()
        for connection in list(self._connections):
            connection.go_away(close=grace_s <= 0)
        self._flush()
        if self._connections:
            self._empty = asyncio.Event()
            try:
                await asyncio.wait_for(self._empty.wait(), grace_s if grace_s > 0 else 1.0)
            except TimeoutError:
                self._end_all()
                await self._empty.wait()
        for timer in (self._alarm, self._release_timer):
            if timer is not None:
                timer.cancel()
        self._alarm = self._release_timer = None
        self._held.clear()

    def _end_all(self) -> None:
        for connection in list(self._connections):
            connection.go_away(close=True)
            shell = cast(_Shell, connection.shell)
            shell.write(b"".join(connection.out), close=False)
            connection.out.clear()
            shell.abort()

    def reload_tls(self) -> None:
        if self._tls is not None and self._load_certificate is not None:
            self._load_certificate(self._tls)

    # --- for shells ------------------------------------------------------------------------------

    def mono(self) -> float:
        assert self._loop is not None
        return self._loop.time()

    def welcome(self, shell: _Shell, transport: asyncio.Transport) -> Connection | None:
        if not self._room.enter():
            return None
        mono = self.mono()
        name = transport.get_extra_info("peername")
        connection = Connection(
            self._handler,
            self._paths,
            self._limits,
            f"{name[0]}:{name[1]}" if isinstance(name, tuple) else "",
            mono,
            on_output=self._has_output,
            on_failure=self._on_failure,
            on_hold=self._hold,
        )
        connection.shell = shell
        self._connections[connection] = 0
        self._call_later(connection, mono)
        return connection

    def farewell(self, connection: Connection) -> None:
        assert self._wheel is not None
        handle = self._connections.pop(connection, None)
        if handle is None:
            return
        self._wheel.cancel(handle)
        self._room.leave()
        connection.lost()
        connection.out.clear()
        connection.shell = None
        if self._empty is not None and not self._connections:
            self._empty.set()

    # --- output ----------------------------------------------------------------------------------

    def _has_output(self, connection: Link) -> None:
        assert self._loop is not None
        if not self._ready:
            self._loop.call_soon(self._flush)
        self._ready.append(connection)

    def _flush(self) -> None:
        """Rule 1."""
        assert self._loop is not None
        ready, self._ready = self._ready, []
        for connection in ready:
            out = connection.out
            shell = connection.shell
            if shell is None:
                continue
            data = out[0] if len(out) == 1 else b"".join(out)
            out.clear()
            cast(_Shell, shell).write(data, close=connection.closing)
            if connection.closing:
                self._loop.call_later(_CLOSE_PATIENCE_S, cast(_Shell, shell).abort)

    # --- ends of calls ---------------------------------------------------------------------------

    def _hold(self, call: Call) -> None:
        """They all wait equally long, so the oldest is always the first."""
        assert self._loop is not None
        self._held.append((self._loop.time() + _END_DELAY_S, call))
        if self._release_timer is None:
            self._release_timer = self._loop.call_later(_END_DELAY_S, self._release)

    def _release(self) -> None:
        assert self._loop is not None
        mono = self._loop.time()
        held = self._held
        while held and held[0][0] <= mono:
            held.popleft()[1].release()
        self._release_timer = self._loop.call_at(held[0][0], self._release) if held else None

    # --- time ------------------------------------------------------------------------------------

    def _call_later(self, connection: Connection, mono: float) -> None:
        """Puts the connection on the wheel, unless it is over: then its output closes it."""
        assert self._wheel is not None
        due = connection.wake(mono)
        if due is not None:
            self._connections[connection] = self._wheel.add(due, connection)
            self._arm()

    def _arm(self) -> None:
        assert self._wheel is not None
        assert self._loop is not None
        due = self._wheel.next_at()
        if due is not None and (self._alarm is None or due < self._alarm_at):
            if self._alarm is not None:
                self._alarm.cancel()
            self._alarm_at = due
            self._alarm = self._loop.call_at(due, self._tick)

    def _tick(self) -> None:
        assert self._wheel is not None
        self._alarm = None
        mono = self.mono()
        for connection in self._wheel.advance(mono):
            if connection in self._connections:
                self._call_later(connection, mono)
        self._arm()
