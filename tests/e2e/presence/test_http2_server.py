"""The HTTP/2 server on real sockets: grpc.aio as its client, TLS, limits and endings."""

import asyncio
import contextlib
import gc
import socket
import ssl
from collections.abc import AsyncIterator
from pathlib import Path

import grpc
import pytest

from tests.certificates import Certificates
from tests.e2e.presence.uv import on_uvloop
from tests.unit.waiting import until
from waystation.base.clock import SystemClock
from waystation.net.http2 import frames
from waystation.net.http2.hpack import literal
from waystation.net.http2.limits import Limits
from waystation.net.http2.port import Gone, GrpcStatus, Stream
from waystation.net.http2.server import Http2Server
from waystation.net.loop import NetLoop
from waystation.presence.transport.rpc import RPC_PATH, paths

pytestmark = pytest.mark.e2e
PATIENCE_S = 20.0


class Echo:
    """Says everything back; the words `leave`, `flood` and `raise` do what they say."""

    def __init__(self) -> None:
        self.streams: list[Stream] = []
        self.ends: list[Gone] = []
        self.congested = asyncio.Event()
        self.unblocked_at = asyncio.Event()

    def opened(self, stream: Stream) -> None:
        self.streams.append(stream)
        if stream.authorization == "Bearer bad":
            stream.finish(GrpcStatus.UNAUTHENTICATED, "UNAUTHENTICATED")

    def message(self, stream: Stream, data: bytes) -> None:
        if data == b"raise":
            raise LookupError("on purpose")
        if data == b"leave":
            stream.send(b"left")
            stream.finish(GrpcStatus.ABORTED, "as you wish")
        elif data == b"flood":
            while stream.writable:
                stream.send(bytes(8_000))
            self.congested.set()
        else:
            stream.send(data)

    def half_closed(self, stream: Stream) -> None:
        stream.finish(GrpcStatus.OK)

    def closed(self, stream: Stream, why: Gone) -> None:
        self.ends.append(why)

    def unblocked(self, stream: Stream) -> None:
        self.unblocked_at.set()


class House:
    def __init__(self, broker: Echo, transport: Http2Server, failures: list[Exception]) -> None:
        self.broker = broker
        self.transport = transport
        self.failures = failures

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.transport.number}"


@contextlib.asynccontextmanager
async def served(
    *,
    limits: Limits | None = None,
    connections_max: int = 100,
    tls: ssl.SSLContext | None = None,
) -> AsyncIterator[House]:
    listener = socket.socket()
    listener.bind(("127.0.0.1", 0))
    failures: list[Exception] = []
    broker = Echo()
    clock = SystemClock()
    net = NetLoop(clock=clock)
    transport = Http2Server(
        dict.fromkeys(paths(("demo.ClientMessagingEndpoint",)), broker),
        listener,
        net=net,
        clock=clock,
        limits=limits,
        connections_max=connections_max,
        tls=tls,
        on_failure=failures.append,
    )
    transport.start()
    try:
        yield House(broker, transport, failures)
    finally:
        await transport.close()
        net.close()


def calls(channel: grpc.aio.Channel, path: str = RPC_PATH) -> grpc.aio.StreamStreamCall:
    return channel.stream_stream(path)(timeout=PATIENCE_S)


@on_uvloop
async def test_grpc_speaks_with_it() -> None:
    async with served() as house, grpc.aio.insecure_channel(house.address) as channel:
        call = calls(channel)
        for size in (0, 1, 70, 16_384):
            await call.write(bytes(size))
            assert await call.read() == bytes(size)
        await call.done_writing()

        assert await call.code() == grpc.StatusCode.OK
        other = calls(channel, "/demo.ClientMessagingEndpoint/beginStream")
        await other.write(b"alias")
        assert await other.read() == b"alias"
        assert house.failures == []


@on_uvloop
async def test_grpc_hears_every_way_to_end() -> None:
    async with served() as house, grpc.aio.insecure_channel(house.address) as channel:
        call = calls(channel)
        await call.write(b"leave")
        assert await call.read() == b"left"
        assert (await call.code(), await call.details()) == (
            grpc.StatusCode.ABORTED,
            "as you wish",
        )
        large = calls(channel)
        await large.write(bytes(16_385))
        assert await large.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
        wrong = calls(channel, "/demo.Other/beginStream")
        assert await wrong.code() == grpc.StatusCode.UNIMPLEMENTED
        broken = calls(channel)
        await broken.write(b"raise")
        assert await broken.code() == grpc.StatusCode.INTERNAL
        refused = channel.stream_stream(RPC_PATH)(metadata=(("authorization", "Bearer bad"),))
        assert await refused.code() == grpc.StatusCode.UNAUTHENTICATED
        cancelled = calls(channel)
        await cancelled.write(b"x")
        await cancelled.read()
        cancelled.cancel()

        await until(lambda: len(house.broker.ends) == 3)
        assert house.broker.ends == [Gone.TOO_LARGE, Gone.RESET, Gone.RESET]
        assert [type(exc) for exc in house.failures] == [LookupError]


@on_uvloop
async def test_compressed_messages_are_refused() -> None:
    """P-030."""
    async with served() as house, grpc.aio.insecure_channel(house.address) as channel:
        stub = channel.stream_stream(RPC_PATH)
        call = stub(compression=grpc.Compression.Gzip, timeout=PATIENCE_S)
        await call.write(bytes(5_000))

        assert await call.code() == grpc.StatusCode.UNIMPLEMENTED


@on_uvloop
async def test_two_hundred_streams_share_a_connection() -> None:
    """P-091."""
    async with served() as house, grpc.aio.insecure_channel(house.address) as channel:

        async def talk(number: int) -> None:
            call = calls(channel)
            for turn in range(3):
                await call.write(b"%d %d" % (number, turn))
                assert await call.read() == b"%d %d" % (number, turn)
            await call.done_writing()
            assert await call.code() == grpc.StatusCode.OK

        await asyncio.gather(*(talk(number) for number in range(200)))
        assert house.transport.connections == 1
        assert len(house.broker.streams) == 200


@on_uvloop
async def test_a_peer_that_does_not_read_costs_little_and_may_come_back() -> None:
    async with served() as house, grpc.aio.insecure_channel(house.address) as channel:
        call = calls(channel)
        await call.write(b"flood")
        async with asyncio.timeout(PATIENCE_S):
            await house.broker.congested.wait()
        other = calls(channel)
        await other.write(b"small")
        assert await other.read() == b"small"

        while not house.broker.unblocked_at.is_set():
            assert await asyncio.wait_for(call.read(), PATIENCE_S) == bytes(8_000)


@on_uvloop
async def test_a_peer_that_asks_and_never_reads_is_cut_off() -> None:
    """Its answers gather in the kernel, then up to `blocked_bytes_max` here, and no further."""
    async with served(limits=Limits(blocked_bytes_max=64 * 1024)) as house:
        peer = socket.socket()
        peer.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        peer.setblocking(False)
        loop = asyncio.get_running_loop()
        await loop.sock_connect(peer, ("127.0.0.1", house.transport.number))
        await loop.sock_sendall(peer, frames.PREFACE + frames.settings({}) + frames.SETTINGS_ACK)
        # POST, http, /: trailers alone are the answer, which no window holds back.
        request = bytes((0x83, 0x86, 0x84)) + literal(b"content-type", b"application/grpc")
        flags = frames.END_HEADERS | frames.END_STREAM
        with contextlib.suppress(ConnectionError), peer:
            for first in range(1, 2_000_001, 2_000):
                numbers = range(first, first + 2_000, 2)
                asked = (frames.frame(frames.HEADERS, flags, n, request) for n in numbers)
                await asyncio.wait_for(loop.sock_sendall(peer, b"".join(asked)), PATIENCE_S)
            pytest.fail("two million requests were taken from a peer that reads nothing")

        await until(lambda: house.transport.connections == 0)
        assert house.transport.port.overflowed == 1


@on_uvloop
async def test_one_connection_too_many_is_closed() -> None:
    async with served(connections_max=1) as house:
        first = await asyncio.open_connection("127.0.0.1", house.transport.number)
        await until(lambda: house.transport.connections == 1)
        reader, writer = await asyncio.open_connection("127.0.0.1", house.transport.number)

        with contextlib.suppress(ConnectionError):
            assert await asyncio.wait_for(reader.read(), PATIENCE_S) == b""
        assert house.transport.refused == 1
        for each in (first[1], writer):
            each.close()
            with contextlib.suppress(ConnectionError):
                await each.wait_closed()
        await until(lambda: house.transport.connections == 0)


@on_uvloop
async def test_a_silent_connection_is_pinged_and_closed() -> None:
    limits = Limits(handshake_timeout_s=1.0, keepalive_s=0.3, keepalive_timeout_s=0.3)
    async with served(limits=limits) as house:
        reader, writer = await asyncio.open_connection("127.0.0.1", house.transport.number)
        writer.write(frames.PREFACE + frames.settings({}) + frames.SETTINGS_ACK)
        heard = await asyncio.wait_for(reader.read(), PATIENCE_S)

        assert b"are-you?" in heard
        assert b"no answer to a ping" in heard
        writer.close()
        await writer.wait_closed()


@on_uvloop
async def test_a_stop_says_goodbye_and_waits_for_streams() -> None:
    async with served() as house, grpc.aio.insecure_channel(house.address) as channel:
        call = calls(channel)
        await call.write(b"x")
        await call.read()
        closing = asyncio.create_task(house.transport.close(PATIENCE_S))
        await call.write(b"still here")
        assert await call.read() == b"still here"
        await call.done_writing()

        assert await call.code() == grpc.StatusCode.OK
        await asyncio.wait_for(closing, PATIENCE_S)
        assert house.transport.connections == 0


@on_uvloop
async def test_a_stop_without_grace_ends_streams() -> None:
    async with served() as house, grpc.aio.insecure_channel(house.address) as channel:
        call = calls(channel)
        await call.write(b"x")
        await call.read()
        await house.transport.close()

        assert await call.code() == grpc.StatusCode.UNAVAILABLE
        assert house.broker.ends == [Gone.TRANSPORT]


# --- TLS -----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[Certificates, Path]:
    folder = tmp_path_factory.mktemp("certificates")
    return Certificates(folder), folder / "cert.pem"


@on_uvloop
async def test_grpc_speaks_with_it_over_tls(certificate: tuple[Certificates, Path]) -> None:
    async with served(tls=certificate[0].server) as house:
        trusted = grpc.ssl_channel_credentials(certificate[1].read_bytes())
        async with grpc.aio.secure_channel(house.address, trusted) as channel:
            call = calls(channel)
            await call.write(b"secret")
            assert await call.read() == b"secret"
            await call.done_writing()
            assert await call.code() == grpc.StatusCode.OK


@pytest.mark.filterwarnings("ignore:unclosed transport:ResourceWarning")
@on_uvloop
async def test_who_does_not_choose_h2_is_closed(certificate: tuple[Certificates, Path]) -> None:
    """P-128: and plaintext to a TLS port fails cleanly."""
    async with served(tls=certificate[0].server) as house:
        context = ssl.create_default_context(cafile=certificate[1])
        context.check_hostname = False
        with contextlib.suppress(ConnectionError, ssl.SSLError):
            reader, writer = await asyncio.open_connection(
                "127.0.0.1", house.transport.number, ssl=context
            )
            writer.write(frames.PREFACE)
            assert await asyncio.wait_for(reader.read(), PATIENCE_S) == b""
        plain_reader, plain_writer = await asyncio.open_connection(
            "127.0.0.1", house.transport.number
        )
        plain_writer.write(frames.PREFACE + frames.settings({}))
        with contextlib.suppress(ConnectionError):
            answer = await asyncio.wait_for(plain_reader.read(), PATIENCE_S)
            assert frames.settings({})[:9] not in answer

        assert house.broker.streams == []
        assert house.transport.connections == 0
        plain_writer.close()
        with contextlib.suppress(ConnectionError):
            await plain_writer.wait_closed()
    gc.collect()
