"""The port for clients: TLS, hellos and blocks; knows nothing about queues.

Rule 1: answers of one turn of the loop are sent at its end, in as few blocks as possible
        (`net.blocks`).
Rule 2: a client that has not finished both hellos in time is disconnected. So is a client without
        subscriptions that sends nothing for `inactive_timeout_s`.
Rule 3: connections are limited in total, per origin, and before the end of their hellos.
"""

import asyncio
import socket
from collections.abc import Collection
from typing import Final, Protocol

from waystation.base.address_limit import AddressLimit, origin_of
from waystation.base.clock import Clock
from waystation.net.blocks import PulledBlocks, pulled_blocks
from waystation.net.connection import OWN_FLAGS, Connection
from waystation.net.loop import NetLoop
from waystation.net.tls import Tls
from waystation.queue.model import SessionId, VersionRange
from waystation.queue.server.client import Client, Line
from waystation.queue.server.observer import Observer
from waystation.queue.settings import Queue as QueueSettings

NEWCOMERS_MAX: Final = 4096  # connections before the end of both hellos
ANSWER_S: Final = 5.0  # how long a stop waits for running commands
CLOSED_S: Final = 2.0  # and for the last bytes of all connections
TICK_S: Final = 0.5
AGREED: Final = OWN_FLAGS  # both hellos are done


class BlockHandler(Protocol):
    """Processes the blocks of clients: `driver.Driver`, or that of an edge."""

    @property
    def clients(self) -> Collection[Client]: ...

    def opened(self, line: Line, session_id: SessionId, versions: VersionRange) -> Client: ...

    def received(self, client: Client, block: bytes) -> bool: ...

    def has_room(self, client: Client) -> None: ...

    def closed(self, client: Client) -> None: ...


class ClientConnection(PulledBlocks):
    """One client's connection; the `Line` of other modules."""

    __slots__ = ("client", "origin", "server")

    def __init__(self, server: "BlockServer", origin: str) -> None:
        super().__init__(server.port)
        self.server = server
        self.origin = origin
        self.client: Client | None = None

    def opened(self) -> None:
        server, secure = self.server, self.secure
        assert secure is not None, "the protocol needs the session id of TLS"
        versions = server.without_alpn if secure.protocol is None else server.versions
        if versions is None:
            self.abort()
            return
        self.client = client = server.works.opened(self, SessionId(secure.binding), versions)
        if chain := secure.peer_chain:
            client.session.shown(chain)
        self.send(client.session.hello())

    def block_received(self, block: bytes) -> None:
        client, server = self.client, self.server
        assert client is not None
        server.blocks += 1
        if not server.works.received(client, block):
            self.abort()
        elif not self.flags & AGREED:
            self.flags |= AGREED
            server.agreed(self)

    def next_block(self) -> bytes | None:
        client = self.client
        return None if client is None else client.session.next_block()

    def filled(self) -> None:
        if self.client is not None:
            self.server.works.has_room(self.client)

    def closed(self) -> None:
        client, self.client = self.client, None
        self.server.left(self)
        if client is not None:
            self.server.works.closed(client)


class BlockServer:
    """Made within a running loop."""

    def __init__(
        self,
        net: NetLoop,
        works: BlockHandler,
        *,
        tls: Tls,
        versions: VersionRange,
        without_alpn: VersionRange | None,
        settings: QueueSettings,
        observer: Observer,
        clock: Clock,
    ) -> None:
        self.works = works
        self.versions = versions
        self.without_alpn = without_alpn  # None: such clients are refused
        self.blocks = 0  # received since the start
        self.port = pulled_blocks(net)
        self._tls = tls
        self._settings = settings
        self._observer = observer
        self._clock = clock
        self._loop = asyncio.get_running_loop()
        self._origins = AddressLimit(settings.connections_per_address)
        # The deadline of each hello, in order of arrival.
        self._newcomers: dict[ClientConnection, float] = {}
        self._idle_checked_at = clock.mono()
        self._timer = self._loop.call_later(TICK_S, self._tick)

    # --- wiring

    def listen(self, sock: socket.socket) -> None:
        """Takes over a bound socket."""
        self.port.listen(sock, self._admit, self._tls)

    def use_certificate(self, tls: Tls) -> None:
        """For new connections; established ones keep theirs."""
        self._tls = tls
        self.port.use_certificate(tls)

    async def drain(self, over_s: float) -> None:
        """Closes all connections, spread over a while; running commands are still answered."""
        self.port.stop_accepting()
        clients = list(self.works.clients)
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
        await self.port.until_empty(CLOSED_S)

    def close(self) -> None:
        """Accepts no more connections; existing ones end with the loop."""
        self.port.stop_accepting()
        self._timer.cancel()

    # Called by connections

    def agreed(self, connection: ClientConnection) -> None:
        del self._newcomers[connection]
        self._observer.opened()

    def left(self, connection: ClientConnection) -> None:
        self._origins.leave(connection.origin)
        if connection.flags & AGREED:
            self._observer.closed()
        else:
            self._newcomers.pop(connection, None)

    # Inside

    def _admit(self, address: str) -> Connection | None:
        limit = self._settings.connections_max
        full = len(self._newcomers) >= NEWCOMERS_MAX or 0 < limit <= self.port.descriptors
        origin = origin_of((address,))
        if full or not self._origins.has_room(origin):
            return None
        connection = ClientConnection(self, origin)
        self._origins.enter(origin)
        self._newcomers[connection] = self._clock.mono() + self._settings.handshake_timeout_s
        return connection

    def _tick(self) -> None:
        self._timer = self._loop.call_later(TICK_S, self._tick)
        now = self._clock.mono()
        late: list[ClientConnection] = []
        for connection, until in self._newcomers.items():
            if until > now:
                break
            late.append(connection)
        for connection in late:
            connection.abort()
        idle_s = self._settings.inactive_timeout_s
        if idle_s and now - self._idle_checked_at >= self._settings.inactive_check_s:
            self._idle_checked_at = now
            for client in list(self.works.clients):
                if client.is_idle and now - client.active_at >= idle_s:
                    client.line.finish()
