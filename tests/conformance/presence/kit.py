"""A node in the test's own loop, and clients that speak to it over real gRPC."""

import asyncio
import contextlib
import logging
import socket
import ssl
import zlib
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple

import grpc
import structlog
from grpc import aio

from waystation.base.clock import Clock, SystemClock
from waystation.base.tasks import Tasks
from waystation.net.http2.limits import Limits
from waystation.net.http2.port import StreamHandler
from waystation.net.http2.server import Http2Server
from waystation.net.loop import NetLoop
from waystation.presence.cluster.peer_clients import PeerClients
from waystation.presence.grants import Authority
from waystation.presence.model import MessageType, PartyId, Status
from waystation.presence.reports import Reports
from waystation.presence.settings import Presence
from waystation.presence.store import Owner, PresenceStore
from waystation.presence.transport.rpc import RPC_PATH
from waystation.presence.transport.server import PresenceServer
from waystation.presence.wire.party_presence_pb2 import ClientMessage
from waystation.storage.embedded.presence import EmbeddedPresenceStore
from waystation.storage.memory.presence import MemoryPresenceStore
from waystation.storage.open import is_shared
from waystation.storage.redis.presence import RedisPresenceStore
from waystation.storage.redis.url import parse_redis_url
from waystation.storage.settings import Store
from waystation.telemetry.events import RecordedEvents
from waystation.telemetry.hashes import EventHashes
from waystation.telemetry.metrics import Metrics

PARTY = 0x7A97
PEER_TOKEN = "of the cluster"
PATIENCE_S = 20.0  # for what will come; tests wait for it and never that long
QUIET_S = 0.06  # for what must not come

QUIET: Any = structlog.wrap_logger(
    None, wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL)
)


async def open_store(
    kind: str, settings: Presence, tmp_path: Path, clock: Clock, url: str = ""
) -> PresenceStore:
    if kind in ("redis", "cluster"):
        return await RedisPresenceStore.open(
            parse_redis_url(url),
            settings=Store(operation_timeout_s=10.0),
            # A cluster has one database: every test has its own names in it.
            prefix=f"pp{zlib.crc32(str(tmp_path).encode()):x}" if kind == "cluster" else "pp",
            log_max=settings.party_log,
            linger_s=settings.party_linger_s,
        )
    if kind == "memory":
        return MemoryPresenceStore(
            clock, log_max=settings.party_log, linger_s=settings.party_linger_s
        )
    assert kind == "embedded"
    return await EmbeddedPresenceStore.open(
        tmp_path / "presence",
        settings=Store(map_bytes=256 << 20, disk_reserve_bytes=0),
        clock=clock,
        log_max=settings.party_log,
        linger_s=settings.party_linger_s,
        restart_ttl_min_s=settings.restart_ttl_min_s,
    )


class TlsFiles(NamedTuple):
    """Files of one port's TLS; with `client_ca`, clients must have a certificate of it."""

    cert: str
    key: str
    client_ca: str = ""

    def context(self) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(self.cert, self.key)
        if self.client_ca:
            context.load_verify_locations(self.client_ca)
            context.verify_mode = ssl.CERT_REQUIRED
        return context


class Node:
    def __init__(
        self,
        settings: Presence,
        store: PresenceStore,
        *,
        node_id: str = "node.1",
        authority: Authority | None = None,
        tls: ssl.SSLContext | None = None,
        port: int = 0,
        clock: Clock | None = None,
        peer_port: int = 0,
    ) -> None:
        self.settings = settings
        self.store = store
        self.events = RecordedEvents()
        self.metrics = Metrics()
        self.failures: list[str] = []
        self._tasks = Tasks(lambda name, error: self.failures.append(f"{name}: {error!r}"))
        self._tls = tls
        self._port = port
        self._clock = clock = clock or SystemClock()
        self._net = NetLoop(clock=clock)
        self.server = PresenceServer(
            settings,
            store,
            owner=Owner(node_id, clock.now_us()),
            clock=clock,
            reports=Reports(
                sink=self.events,
                hashes=EventHashes(bytes(32)),
                metrics=self.metrics,
                clock=clock,
                log=QUIET,
                ack_sample=settings.ack_sample,
            ),
            tasks=self._tasks,
            make_port=self._transport,
            authority=authority,
            shared=store if is_shared(store) else None,
            peer_clients=PeerClients(PEER_TOKEN),
            peer_token=PEER_TOKEN,
            reflects=True,
        )
        self.peer_port = self.serve_peers(port=peer_port)
        self.server.at_peer_port(self.peer_target)

    def _transport(self, routes: Mapping[str, StreamHandler]) -> Http2Server:
        settings = self.settings
        return self._serve(
            routes,
            self._port,
            Limits(
                streams_max=settings.connection_streams_max,
                message_bytes_max=settings.max_message_bytes,
                keepalive_s=settings.keepalive_s,
                keepalive_timeout_s=settings.keepalive_timeout_s,
            ),
            self._tls,
        )

    def serve_peers(self, *, port: int = 0, tls: ssl.SSLContext | None = None) -> Http2Server:
        """The node's services for other nodes and operators."""
        limits = Limits(message_bytes_max=4 << 20, receive_window_bytes=16 << 20)
        return self._serve(self.server.peer_routes, port, limits, tls)

    def _serve(
        self,
        routes: Mapping[str, StreamHandler],
        port: int,
        limits: Limits,
        tls: ssl.SSLContext | None,
    ) -> Http2Server:
        return Http2Server(
            routes,
            socket.create_server(("127.0.0.1", port)),
            net=self._net,
            clock=self._clock,
            limits=limits,
            tls=tls,
            on_failure=lambda exc: self.failures.append(f"transport: {exc!r}"),
        )

    @property
    def target(self) -> str:
        return f"127.0.0.1:{self.server.port}"

    @property
    def peer_target(self) -> str:
        return f"127.0.0.1:{self.peer_port.number}"

    @property
    def broker(self) -> Any:
        return self.server.broker

    async def start(self) -> "Node":
        self.peer_port.start()
        await self.server.start()
        return self

    async def stop(self) -> None:
        await self.server.close()
        await self.peer_port.close()
        left = await self._tasks.close()
        self._net.close()
        assert not left
        assert not self.failures, self.failures

    async def kill(self) -> None:
        """As if the process had been killed: nothing is sent or saved."""
        open_streams = self.server.broker.registry.open_streams
        for client in open_streams:
            client.stream.holder = None  # a dead broker does not notice lost streams
        open_streams.clear()
        if self.server._ticking is not None:
            self.server._ticking.cancel()
        await self._tasks.close()
        self._net.close()
        assert self.server.handover is not None
        await self.server.handover.close()


class PresenceClient:
    """A scripted client. `auto` acknowledges all messages that need it."""

    def __init__(
        self, target: str, client: int, session: int | None = None, party: int = PARTY
    ) -> None:
        self.target = target
        self.client, self.party = client, party
        self.session = session if session is not None else client * 100 + 1
        self.ids = count(1)
        self.token = b""
        self.auto = False
        self.seen: list[ClientMessage] = []
        self.raw: list[bytes] = []
        self._inbox: asyncio.Queue[ClientMessage | None] = asyncio.Queue()
        self._channel: aio.Channel | None = None
        self._own_channel = True
        self.call: Any = None
        self._reader: asyncio.Task[None] | None = None
        self._writing = asyncio.Lock()

    async def open(
        self,
        *,
        channel: aio.Channel | None = None,
        path: str = RPC_PATH,
        metadata: Sequence[tuple[str, str]] = (),
    ) -> "PresenceClient":
        await self.disconnect()
        self._own_channel = channel is None
        self._channel = channel or aio.insecure_channel(
            self.target, options=[("grpc.use_local_subchannel_pool", 1)]
        )
        self._inbox = asyncio.Queue()
        self.call = self._channel.stream_stream(path)(metadata=metadata or None)
        self._reader = asyncio.create_task(self._read(self.call, self._inbox))
        return self

    async def _read(self, call: Any, inbox: "asyncio.Queue[ClientMessage | None]") -> None:
        try:
            while isinstance(data := await call.read(), bytes):
                message = ClientMessage.FromString(data)
                self.raw.append(data)
                self.seen.append(message)
                if message.resume_token:
                    self.token = message.resume_token
                inbox.put_nowait(message)
                if self.auto and needs_ack(message):
                    await self.ack(message.message_id)
        except (aio.AioRpcError, asyncio.InvalidStateError):
            pass
        finally:
            inbox.put_nowait(None)

    # what it does

    async def say(self, kind: int | None, **fields: Any) -> int:
        message = ClientMessage(**fields)
        if kind is not None:
            message.message_type = kind  # pyright: ignore[reportAttributeAccessIssue]
        if "message_id" not in fields and kind != MessageType.ACK:
            message.message_id = next(self.ids)
        await self.say_bytes(message.SerializeToString())
        return message.message_id

    async def say_bytes(self, data: bytes) -> None:
        call = self.call
        async with self._writing:  # grpcio takes one write at a time
            with contextlib.suppress(aio.AioRpcError, asyncio.InvalidStateError):
                await call.write(data)

    async def join(self, *, extended: bool = True, **fields: Any) -> "PresenceClient":
        opening = {
            name: fields.pop(name) for name in ("channel", "path", "metadata") if name in fields
        }
        await self.open(**opening)
        if extended:
            fields.setdefault("session_ttl_ms", 600_000)
        fields = {
            "session_id": self.session,
            "client_id": self.client,
            "party_id": self.party,
            **fields,
        }
        await self.say(MessageType.JOIN, **fields)
        return self

    async def resume(self, **fields: Any) -> "PresenceClient":
        fields.setdefault("resume_token", self.token)
        return await self.join(**fields)

    async def ping(self) -> int:
        return await self.say(MessageType.PING)

    async def leave(self) -> int:
        return await self.say(MessageType.LEAVE)

    async def ack(self, *ids: int, **fields: Any) -> None:
        await self.say(MessageType.ACK, ack_message_ids=ids, **fields)

    async def ack_all(self, messages: Iterable[ClientMessage]) -> None:
        ids = [one.message_id for one in messages if needs_ack(one)]
        if ids:
            await self.ack(*ids)

    async def stop_acks(self) -> None:
        """Stops acknowledging; when it returns, no write is in progress.

        A write that fails because the call has ended makes gRPC's client drop the status and
        report INTERNAL instead (grpc/grpc#36066).
        """
        self.auto = False
        async with self._writing:
            pass

    async def cut(self) -> None:
        """Cuts the transport without LEAVE."""
        await self.disconnect()

    async def disconnect(self) -> None:
        if self.call is not None:
            self.call.cancel()
        if self._reader is not None:
            self._reader.cancel()
            # Not `await self._reader`: suppressing its cancellation would suppress our own as well.
            await asyncio.wait((self._reader,))
        if self._channel is not None and self._own_channel:
            await self._channel.close()
        self._channel = self.call = self._reader = None

    # what it gets

    async def get(self) -> ClientMessage:
        message = await asyncio.wait_for(self._inbox.get(), PATIENCE_S)
        assert message is not None, f"the stream ended: {await self.status()}"
        return message

    async def get_many(self, number: int) -> list[ClientMessage]:
        return [await self.get() for _ in range(number)]

    async def expect_kind(self, kind: MessageType) -> ClientMessage:
        """The next message; it must be of that kind."""
        message = await self.get()
        assert message.message_type == kind, message
        return message

    async def welcomed(self) -> tuple[ClientMessage, ClientMessage]:
        ack = await self.expect_kind(MessageType.ACK)
        listed = await self.expect_kind(MessageType.LIST)
        if not self.auto:
            await self.ack(listed.message_id)
        return ack, listed

    async def expect_nothing(self) -> None:
        """Neither a message nor an end, for a moment."""
        with contextlib.suppress(asyncio.TimeoutError):
            message = await asyncio.wait_for(self._inbox.get(), QUIET_S)
            raise AssertionError(f"nothing was expected, but {message}")

    async def status(self) -> grpc.StatusCode:
        return await asyncio.wait_for(self.call.code(), PATIENCE_S)

    async def details(self) -> str:
        return await asyncio.wait_for(self.call.details(), PATIENCE_S)

    async def expect_end(self, status: Status, code: grpc.StatusCode) -> ClientMessage:
        """The ERROR, and then the end of the call."""
        message = await self.expect_kind(MessageType.ERROR)
        assert Status(message.status_code) is status, message
        assert await asyncio.wait_for(self._inbox.get(), PATIENCE_S) is None
        assert await self.status() is code
        assert await self.details() == status.name
        return message

    def pending(self) -> int:
        return self._inbox.qsize()


async def until(condition: Callable[[], Any], patience_s: float = PATIENCE_S) -> None:
    async with asyncio.timeout(patience_s):
        while not condition():  # noqa: ASYNC110 whatever it is, it has no event
            await asyncio.sleep(0.005)


async def answered(presence_client: PresenceClient, message_id: int) -> None:
    """Until a message of the guest was acknowledged, whatever else came."""
    await until(lambda: any(message_id in one.ack_message_ids for one in presence_client.seen))


async def left(presence_client: PresenceClient) -> None:
    """Says LEAVE and waits for its answer. gRPC's client gives out no message once it has the end
    of the call, so the end is as good."""
    said, call = await presence_client.leave(), presence_client.call
    await until(
        lambda: call.done() or any(said in one.ack_message_ids for one in presence_client.seen)
    )


async def forgotten(store: PresenceStore, party: int = PARTY) -> None:
    """Until an empty party is remembered no more."""
    async with asyncio.timeout(PATIENCE_S):
        while await store.snapshot(PartyId(party)) is not None:  # noqa: ASYNC110 as above
            await asyncio.sleep(0.01)


@contextlib.asynccontextmanager
async def presence_clients(*members: PresenceClient) -> AsyncIterator[tuple[PresenceClient, ...]]:
    try:
        yield members
    finally:
        for one in members:
            await one.disconnect()


def needs_ack(message: ClientMessage) -> bool:
    return message.message_type not in (MessageType.ACK, MessageType.ERROR)


def kinds(messages: Iterable[ClientMessage]) -> list[str]:
    return [MessageType(one.message_type).name for one in messages]


def listed(message: ClientMessage) -> list[tuple[int, list[int]]]:
    return [(one.client_id, list(one.session_id)) for one in message.participant_client_ids]
