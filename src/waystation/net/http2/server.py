"""A port of gRPC calls on the loop of all sockets: `Connection` decides, the loop carries bytes.

Rule 1: one wheel holds one deadline for each connection; a connection that was busy meanwhile says
        so when it is woken, and nothing is re-armed for frames.
Rule 2: `connections_max` connections at once; one more is closed as soon as it is accepted.
Rule 3: with TLS, a peer that does not choose `h2` by ALPN is closed.
"""

import asyncio
import socket
import ssl
from collections.abc import Callable, Mapping
from typing import cast

from waystation.base.clock import Clock
from waystation.base.tasks import each
from waystation.base.timer_wheel import TimerWheel
from waystation.net.http2.port import StreamHandler
from waystation.net.loop import NetLoop, Port

from .call import Call
from .connection import Connection
from .limits import SEND_HIGH_BYTES_OF_CONNECTION, Limits

_END_DELAY_S = 0.2  # before a call ends whose peer may still be speaking
_CLOSE_S = 1.0  # for the last bytes of all connections
_TICK_S = 0.25
_SLOTS = 512


class Http2Server:
    """Serves the calls of `routes`, each a path with its handler, on one bound socket."""

    def __init__(
        self,
        routes: Mapping[str, StreamHandler],
        listener: socket.socket,
        *,
        net: NetLoop,
        clock: Clock,
        limits: Limits | None = None,
        connections_max: int = 20_000,
        tls: ssl.SSLContext | None = None,
        on_failure: Callable[[Exception], None] = lambda exc: None,
    ) -> None:
        self.routes: Mapping[bytes, StreamHandler] = {
            path.encode(): handler for path, handler in routes.items()
        }
        self.limits = limits = limits or Limits()
        self.port = Port(
            net,
            send_high_bytes=SEND_HIGH_BYTES_OF_CONNECTION,
            send_bytes_max=SEND_HIGH_BYTES_OF_CONNECTION + limits.blocked_bytes_max,
        )
        self.mono = clock.mono
        self.failed = on_failure
        self.number: int = listener.getsockname()[1]  # of the port
        self._listener = listener
        self._tls = tls
        self._connections_max = connections_max
        self._loop = asyncio.get_running_loop()
        self._wheel: TimerWheel[Connection] = TimerWheel(_TICK_S, _SLOTS, self.mono())
        self._alarm: asyncio.TimerHandle | None = None
        self._alarm_at = 0.0

    @property
    def connections(self) -> int:
        return self.port.connections

    @property
    def refused(self) -> int:
        """How often `connections_max` was reached."""
        return self.port.refused

    def start(self) -> None:
        """From now on connections are accepted."""
        if self._tls is not None:
            self._tls.set_alpn_protocols(["h2"])
        self.port.listen(self._listener, self._make, self._tls)

    def use_certificate(self, tls: ssl.SSLContext) -> None:
        """For new connections; established ones keep theirs."""
        tls.set_alpn_protocols(["h2"])
        self.port.use_certificate(tls)

    def stop_accepting(self) -> None:
        """No new connections; those that are there go on, with new streams as well."""
        self.port.stop_accepting()

    async def close(self, grace_s: float = 0.0) -> None:
        """Ends what is left: GOAWAY, `grace_s` for streams to end, then the connections."""
        self.stop_accepting()
        if grace_s > 0:
            for connection in self._open():
                connection.go_away()
            await self.port.until_empty(grace_s)
        for connection in self._open():
            connection.go_away(close=True)
        await self.port.until_empty(_CLOSE_S)
        if self._alarm is not None:
            self._alarm.cancel()
            self._alarm = None

    def _open(self) -> list[Connection]:
        return cast("list[Connection]", self.port.open_connections())

    # --- for connections -------------------------------------------------------------------------

    def end_soon(self, call: Call) -> None:
        self._loop.call_later(_END_DELAY_S, call.release)

    def left(self, connection: Connection) -> None:
        self._wheel.cancel(connection.alarm)

    # --- time ------------------------------------------------------------------------------------

    def _make(self, _address: str) -> Connection | None:
        if self.port.connections >= self._connections_max:
            return None
        connection = Connection(self)
        self._wake(connection, self.mono())
        return connection

    def _wake(self, connection: Connection, mono: float) -> None:
        """Puts the connection on the wheel, unless it is over."""
        due = connection.wake(mono)
        if due is not None:
            connection.alarm = self._wheel.add(due, connection)
            self._arm()

    def _arm(self) -> None:
        due = self._wheel.next_at()
        if due is not None and (self._alarm is None or due < self._alarm_at):
            if self._alarm is not None:
                self._alarm.cancel()
            self._alarm_at = due
            self._alarm = self._loop.call_later(max(due - self.mono(), 0.0), self._tick)

    def _tick(self) -> None:
        self._alarm = None
        mono = self.mono()
        each(self._wheel.advance(mono), lambda one: self._wake(one, mono), self.failed)
        self._arm()
