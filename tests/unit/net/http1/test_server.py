"""The HTTP server over loopback sockets, on uvloop as in production."""

import asyncio
import gc
import socket
import ssl
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import uvloop

from tests.certificates import Certificates
from tests.unit.waiting import until
from waystation.base.clock import SystemClock
from waystation.net.connection import HALF_CLOSED, Connection
from waystation.net.http1.reader import RequestReader
from waystation.net.http1.server import HttpLimits, HttpServer, Request, Response, Upgrade
from waystation.net.loop import NetLoop, Port

BODY_MAX = 1000


def run(test: Coroutine[Any, Any, None]) -> None:
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(asyncio.wait_for(test, 20))


class Site:
    """A handler that remembers what it was asked, and can be made to wait."""

    def __init__(self) -> None:
        self.seen: list[Request] = []
        self.gate: asyncio.Event | None = None
        self.net: NetLoop | None = None

    def __call__(self, request: Request) -> Response | Coroutine[Any, Any, Response]:
        self.seen.append(request)
        if request.path == b"/crash":
            raise RuntimeError("a bug")
        if request.path == b"/large":
            return Response.of(200, b"x" * 20_000_000)
        if request.path == b"/empty":
            return Response.of(204)
        if request.upgrade == b"echo":
            assert self.net is not None
            return Upgrade.to(Echo(Port(self.net)), b"echo")
        if request.path.startswith(b"/wait"):
            return self._later(request)
        return Response.of(200, request.path + b" " + request.body, content_type=b"text/plain")

    async def _later(self, request: Request) -> Response:
        assert self.gate is not None
        await self.gate.wait()
        return Response.of(200, request.path)


class Echo(Connection):
    def received(self, data: bytes) -> None:
        self.send(data.upper())


Client = tuple[asyncio.StreamReader, asyncio.StreamWriter]


@asynccontextmanager
async def serving(
    site: Callable[[Request], Any], **limits: Any
) -> AsyncIterator[tuple[HttpServer, Callable[[], Coroutine[Any, Any, Client]]]]:
    net = NetLoop(clock=SystemClock())
    if isinstance(site, Site):
        site.net = net
    server = HttpServer(
        site,
        net=net,
        clock=SystemClock(),
        body_limit=lambda request: BODY_MAX,
        on_failure=lambda request, error: Response.of(500, type(error).__name__.encode()),
        limits=HttpLimits(**limits),
        upgrades=frozenset({b"echo"}),
    )
    port = server.listen("127.0.0.1", 0)
    writers: list[asyncio.StreamWriter] = []

    async def connect() -> Client:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writers.append(writer)
        return reader, writer

    try:
        yield server, connect
    finally:
        for writer in writers:
            writer.transport.abort()
        await server.close(1)
        net.close()


async def answer(reader: asyncio.StreamReader) -> tuple[int, dict[bytes, bytes], bytes]:
    head = await reader.readuntil(b"\r\n\r\n")
    status, *lines = head[:-4].split(b"\r\n")
    headers = {name.lower(): value for name, _, value in (line.partition(b": ") for line in lines)}
    body = await reader.readexactly(int(headers.get(b"content-length", b"0")))
    return int(status.split()[1]), headers, body


def post(path: bytes, body: bytes, *headers: bytes) -> bytes:
    lines = [
        b"POST " + path + b" HTTP/1.1",
        b"Host: x",
        b"Content-Length: %d" % len(body),
        *headers,
    ]
    return b"\r\n".join(lines) + b"\r\n\r\n" + body


async def grow_old(server: HttpServer, seconds: int) -> None:
    """The sweep as it would be after so many seconds."""
    server.tick += seconds
    for connection in list(server.connections):
        connection.check_age()
    await asyncio.sleep(0.05)


def test_a_request_is_read_and_answered_on_a_connection_that_stays() -> None:
    async def test() -> None:
        site = Site()
        async with serving(site) as (_, connect):
            reader, writer = await connect()
            for n in range(3):
                writer.write(post(b"/a?b=c", b"body%d" % n, b"X-One: 1 ", b"X-Empty:"))
                status, headers, body = await answer(reader)

                assert (status, body) == (200, b"/a body%d" % n)
                assert headers[b"content-type"] == b"text/plain"
                assert b"date" in headers
                assert b"connection" not in headers
        request = site.seen[0]

        assert (request.method, request.path, request.query) == (b"POST", b"/a", b"b=c")
        assert request.headers[b"x-one"] == b"1"
        assert request.headers[b"x-empty"] == b""

    run(test())


def test_an_upgraded_connection_leaves_nothing_for_the_garbage_collector() -> None:
    """Each opening request of a WebSocket left 3 KiB behind until the next full collection."""

    def readers() -> int:
        return sum(isinstance(one, RequestReader) for one in gc.get_objects())

    async def test() -> None:
        site = Site()
        async with serving(site) as (server, connect):
            gc.collect()
            gc.disable()
            before = readers()
            for _ in range(5):
                reader, writer = await connect()
                writer.write(post(b"/", b"", b"Connection: Upgrade", b"Upgrade: echo") + b"x")
                await reader.readuntil(b"\r\n\r\n")

                assert await reader.readexactly(1) == b"X"
            site.seen.clear()

            assert readers() == before

        assert not server.connections

    try:
        run(test())
    finally:
        gc.enable()


def test_pipelined_requests_are_answered_in_order_though_the_first_waits() -> None:
    async def test() -> None:
        site = Site()
        site.gate = asyncio.Event()
        async with serving(site) as (_, connect):
            reader, writer = await connect()
            writer.write(
                post(b"/wait1", b"") + post(b"/b", b"2") + post(b"/wait3", b"") + post(b"/d", b"")
            )
            await until(lambda: site.seen)

            assert [request.path for request in site.seen] == [b"/wait1"]
            site.gate.set()
            assert [(await answer(reader))[2] for _ in range(4)] == [
                b"/wait1",
                b"/b 2",
                b"/wait3",
                b"/d ",
            ]

    run(test())


def test_more_pipelined_requests_than_the_limit_stop_the_reading_but_lose_nothing() -> None:
    async def test() -> None:
        site = Site()
        site.gate = asyncio.Event()
        async with serving(site, pipelined_max=4, head_bytes_max=512) as (server, connect):
            reader, writer = await connect()
            writer.write(
                post(b"/wait", b"") + b"".join(post(b"/%d" % n, b"x" * 100) for n in range(900))
            )
            await until(lambda: site.seen)
            (connection,) = server.connections

            assert len(connection._queue) < 30
            site.gate.set()
            assert (await answer(reader))[2] == b"/wait"
            for n in range(900):
                assert (await answer(reader))[2].startswith(b"/%d x" % n)

    run(test())


def test_requests_that_arrive_byte_by_byte_or_in_chunks_are_the_same_requests() -> None:
    async def test() -> None:
        site = Site()
        async with serving(site) as (_, connect):
            reader, writer = await connect()
            chunked = (
                b"POST /c HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"
                b"3\r\nabc\r\n4\r\ndefg\r\n0\r\nTrailer: t\r\n\r\n"
            )
            for byte in chunked + post(b"/d", b"xyz"):
                writer.write(bytes([byte]))
                await writer.drain()
                await asyncio.sleep(0)

            assert (await answer(reader))[2] == b"/c abcdefg"
            assert (await answer(reader))[2] == b"/d xyz"
        assert b"trailer" not in site.seen[0].headers

    run(test())


def test_a_body_over_its_limit_is_not_kept_and_the_handler_is_told() -> None:
    async def test() -> None:
        site = Site()
        async with serving(site) as (_, connect):
            reader, writer = await connect()
            writer.write(post(b"/big", b"x" * (BODY_MAX + 1)) + post(b"/fit", b"x" * BODY_MAX))

            assert (await answer(reader))[2] == b"/big "
            assert len((await answer(reader))[2]) == 5 + BODY_MAX
        assert [(r.oversize, len(r.body)) for r in site.seen] == [(True, 0), (False, BODY_MAX)]

    run(test())


def test_a_body_much_too_long_is_answered_at_once_and_the_connection_closed() -> None:
    async def test() -> None:
        site = Site()
        async with serving(site, discarded_bytes_max=50_000) as (_, connect):
            reader, writer = await connect()
            writer.write(
                post(b"/huge", b"")[:-4].replace(b": 0", b": 9000000000")
                + b"\r\n\r\n"
                + b"x" * 10_000
            )
            status, headers, _ = await answer(reader)

            assert (status, headers[b"connection"]) == (200, b"close")
            assert await reader.read() == b""

            # The same without a length: only counting tells.
            reader, writer = await connect()
            writer.write(b"POST /chunks HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n")
            writer.write((b"2710\r\n" + b"x" * 10_000 + b"\r\n") * 8)
            assert (await answer(reader))[1][b"connection"] == b"close"
        assert all(request.oversize and not request.body for request in site.seen)
        assert len(site.seen) == 2

    run(test())


def test_expect_100_continue_is_answered_before_the_body_comes() -> None:
    async def test() -> None:
        async with serving(Site()) as (_, connect):
            reader, writer = await connect()
            writer.write(post(b"/e", b"abc", b"Expect: 100-continue")[:-3])

            assert await reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
            writer.write(b"abc")
            assert (await answer(reader))[2] == b"/e abc"

    run(test())


def test_expect_with_a_body_too_long_gets_the_final_answer_instead() -> None:
    async def test() -> None:
        async with serving(Site()) as (_, connect):
            reader, writer = await connect()
            writer.write(
                b"POST /e HTTP/1.1\r\nContent-Length: 5000\r\nExpect: 100-continue\r\n\r\n"
            )
            status, headers, _ = await answer(reader)

            assert (status, headers[b"connection"]) == (200, b"close")

    run(test())


def test_head_and_204_have_no_body() -> None:
    async def test() -> None:
        async with serving(Site()) as (_, connect):
            reader, writer = await connect()
            writer.write(
                b"HEAD /h HTTP/1.1\r\n\r\nGET /empty HTTP/1.1\r\n\r\nGET /z HTTP/1.1\r\n\r\n"
            )
            head = await reader.readuntil(b"\r\n\r\n")
            empty = await reader.readuntil(b"\r\n\r\n")

            assert b"Content-Length: 3" in head
            assert empty.startswith(b"HTTP/1.1 204 ")
            assert b"Content-Length" not in empty
            assert (await answer(reader))[2] == b"/z "

    run(test())


def test_a_request_that_ends_the_connection_is_the_last() -> None:
    async def test() -> None:
        for request in (
            b"GET /a HTTP/1.1\r\nConnection: close\r\n\r\nGET /b HTTP/1.1\r\n\r\n",
            b"GET /a HTTP/1.0\r\n\r\nGET /b HTTP/1.1\r\n\r\n",
            b"GET /a HTTP/1.0\r\nConnection: keep-alive\r\n\r\n",
        ):
            site = Site()
            async with serving(site) as (_, connect):
                reader, writer = await connect()
                writer.write(request)
                status, headers, _ = await answer(reader)

                assert (status, headers[b"connection"]) == (200, b"close")
                assert await reader.read() == b""
            assert len(site.seen) == 1

    run(test())


def test_what_is_not_http_is_refused() -> None:
    async def test() -> None:
        for noise in (
            b"\x16\x03\x01\x02\x00 a TLS hello\r\n\r\n",
            b"NONSENSE / HTTP/1.1\r\n\r\n",
            b"GET / HTTP/1.1\r\nBad Header: x\r\n\r\n",
            b"POST / HTTP/1.1\r\nContent-Length: 3\r\nContent-Length: 4\r\n\r\nabc",
            b"POST / HTTP/1.1\r\nContent-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n",
            b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        ):
            site = Site()
            async with serving(site) as (_, connect):
                reader, writer = await connect()
                writer.write(noise)
                status, headers, _ = await answer(reader)

                assert (status, headers[b"connection"]) == (400, b"close")
                assert await reader.read() == b""
            assert not site.seen

    run(test())


def test_a_head_too_long_or_with_too_many_headers_is_refused() -> None:
    async def test() -> None:
        for head in (
            b"GET /" + b"a" * 40_000 + b" HTTP/1.1\r\n\r\n",
            b"GET / HTTP/1.1\r\nX: " + b"a" * 40_000 + b"\r\n\r\n",
            b"GET / HTTP/1.1\r\n" + b"".join(b"X-%d: a\r\n" % n for n in range(101)) + b"\r\n",
            b"GET / HTTP/1.1\r\n" + b"Same: a\r\n" * 200 + b"\r\n",
        ):
            site = Site()
            async with serving(site) as (_, connect):
                reader, writer = await connect()
                writer.write(head)

                assert (await answer(reader))[0] == 431
            assert not site.seen

    run(test())


def test_headers_that_repeat_are_joined() -> None:
    async def test() -> None:
        site = Site()
        async with serving(site) as (_, connect):
            reader, writer = await connect()
            writer.write(b"GET / HTTP/1.1\r\nTTL: 5\r\nttl: 6\r\n\r\n")
            await answer(reader)
        assert site.seen[0].headers[b"ttl"] == b"5, 6"

    run(test())


def test_two_lines_of_authorization_or_host_are_refused() -> None:
    async def main() -> None:
        site = Site()
        async with serving(site) as (_, connect):
            for double in (b"Authorization: a", b"Host: y"):
                reader, writer = await connect()
                writer.write(post(b"/a", b"b", b"Authorization: b", double))
                status, _, _ = await answer(reader)

                assert status == 400, double
        assert site.seen == []

    run(main())


def test_an_absolute_target_means_its_path() -> None:
    async def test() -> None:
        site = Site()
        async with serving(site) as (_, connect):
            reader, writer = await connect()
            for target in (b"http://host:1/p/q?r=1", b"http://host", b"/p/q?r=1"):
                writer.write(b"GET " + target + b" HTTP/1.1\r\n\r\n")
                await answer(reader)
        assert [(r.path, r.query) for r in site.seen] == [
            (b"/p/q", b"r=1"),
            (b"/", b""),
            (b"/p/q", b"r=1"),
        ]

    run(test())


def test_a_handler_that_raises_is_answered_by_on_failure_and_the_connection_lives() -> None:
    async def test() -> None:
        async with serving(Site()) as (_, connect):
            reader, writer = await connect()
            writer.write(b"GET /crash HTTP/1.1\r\n\r\nGET /a HTTP/1.1\r\n\r\n")
            first, second = await answer(reader), await answer(reader)

            assert (first[0], first[2]) == (500, b"RuntimeError")
            assert second[0] == 200

    run(test())


def test_an_offer_of_h2c_is_ignored_and_the_body_still_read() -> None:
    """Java's client offers it with every request over plain HTTP."""

    async def test() -> None:
        site = Site()
        async with serving(site) as (_, connect):
            reader, writer = await connect()
            offer = (b"Connection: Upgrade, HTTP2-Settings", b"Upgrade: h2c", b"HTTP2-Settings: AA")
            chunked = (
                b"POST /k HTTP/1.1\r\n"
                + b"\r\n".join(offer)
                + b"\r\nTransfer-Encoding: chunked\r\n\r\n"
                b"2\r\nhi\r\n0\r\n\r\n"
            )
            writer.write(post(b"/j?q=1", b"abc", *offer) + chunked + post(b"/l", b""))

            assert (await answer(reader))[2] == b"/j abc"
            assert (await answer(reader))[2] == b"/k hi"
            assert (await answer(reader))[2] == b"/l "
        assert site.seen[0].query == b"q=1"
        assert site.seen[0].headers[b"upgrade"] == b"h2c"

    run(test())


def test_a_flood_of_upgrades_that_nobody_speaks_is_answered_one_by_one() -> None:
    async def test() -> None:
        site = Site()
        async with serving(site) as (_, connect):
            reader, writer = await connect()
            offer = (b"Connection: Upgrade", b"Upgrade: h2c")
            writer.write(b"".join(post(b"/%d" % n, b"x", *offer) for n in range(3000)))
            for n in range(3000):
                assert (await answer(reader))[2] == b"/%d x" % n

    run(test())


def test_a_client_that_does_not_wait_for_100_gets_none_later() -> None:
    async def test() -> None:
        site = Site()
        site.gate = asyncio.Event()
        async with serving(site) as (_, connect):
            reader, writer = await connect()
            writer.write(post(b"/wait", b"") + post(b"/e", b"abc", b"Expect: 100-continue"))
            await asyncio.sleep(0.05)
            site.gate.set()

            assert (await answer(reader))[2] == b"/wait"
            assert (await answer(reader))[2] == b"/e abc"
            writer.write(post(b"/f", b""))
            assert (await answer(reader))[2] == b"/f "

    run(test())


def test_a_client_that_waits_for_100_behind_another_request_gets_it_in_its_turn() -> None:
    async def test() -> None:
        site = Site()
        site.gate = asyncio.Event()
        async with serving(site) as (_, connect):
            reader, writer = await connect()
            writer.write(post(b"/wait", b"") + post(b"/e", b"abc", b"Expect: 100-continue")[:-3])
            await asyncio.sleep(0.05)
            site.gate.set()

            assert (await answer(reader))[2] == b"/wait"
            assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 100 ")
            writer.write(b"abc")
            assert (await answer(reader))[2] == b"/e abc"

    run(test())


def test_an_upgrade_hands_the_connection_over_with_what_came_after_it() -> None:
    async def test() -> None:
        async with serving(Site()) as (server, connect):
            reader, writer = await connect()
            writer.write(
                b"GET /link HTTP/1.1\r\nConnection: Upgrade\r\nUpgrade: Echo\r\n\r\nhello "
            )

            assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 101 ")
            assert await reader.readexactly(6) == b"HELLO "
            writer.write(b"again")
            assert await reader.readexactly(5) == b"AGAIN"
            assert not server.connections

    run(test())


def test_connections_beyond_the_limit_are_told_to_come_back() -> None:
    async def test() -> None:
        async with serving(Site(), connections_max=1) as (server, connect):
            reader, writer = await connect()
            writer.write(post(b"/a", b""))
            await answer(reader)
            other, _ = await connect()
            status, headers, _ = await answer(other)

            assert (status, headers[b"retry-after"]) == (503, b"10")
            assert server.refused_connections == 1

    run(test())


def test_idle_slow_and_stalled_clients_are_let_go_and_a_waiting_one_is_not() -> None:
    async def test() -> None:
        site = Site()
        site.gate = asyncio.Event()
        async with serving(site) as (server, connect):
            idle, _ = await connect()
            slow, slow_writer = await connect()
            slow_writer.write(b"POST /slow HTTP/1.1\r\nContent-Le")
            waiting, waiting_writer = await connect()
            waiting_writer.write(post(b"/wait", b""))
            stalled, stalled_writer = await connect()
            stalled_writer.write(b"GET /large HTTP/1.1\r\n\r\n" * 3)
            await until(lambda: len(site.seen) == 2)
            await until(lambda: any(c._reader.in_message for c in server.connections))
            await until(lambda: any(c.congested for c in server.connections))

            await grow_old(server, 21)
            assert (await answer(slow))[0] == 408
            assert not idle.at_eof()
            await grow_old(server, 10)
            await grow_old(server, 60)
            assert await idle.read() == b""
            site.gate.set()
            assert (await answer(waiting))[2] == b"/wait"
            assert len(server.connections) <= 2  # the stalled one was cut
            assert len(site.seen) == 2  # and its second request was never begun
            assert stalled is not None

    run(test())


def test_a_handler_finishes_though_its_client_has_left() -> None:
    async def test() -> None:
        site = Site()
        site.gate = asyncio.Event()
        async with serving(site) as (server, connect):
            _, writer = await connect()
            writer.write(post(b"/wait", b""))
            await until(lambda: server.tasks)
            writer.transport.abort()
            # A close looks like a half-close until we write to it.
            await until(lambda: all(c.flags & HALF_CLOSED for c in server.connections))
            (task,) = server.tasks
            site.gate.set()

            assert (await task).body == b"/wait"

    run(test())


def test_a_handler_can_ask_whether_its_client_has_left() -> None:
    """Before the event loop has noticed: both may wait in the socket together."""
    left: list[bool] = []

    def handle(request: Request) -> Response:
        left.append(request.abandoned)
        return Response.of(204)

    async def test() -> None:
        async with serving(handle) as (_, connect):
            reader, writer = await connect()
            writer.write(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
            await reader.readuntil(b"\r\n\r\n")
            with socket.create_connection(writer.get_extra_info("peername")) as hasty:
                hasty.sendall(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
            await until(lambda: len(left) == 2)

    run(test())

    assert left == [False, True]


def test_a_half_closed_client_gets_all_its_answers() -> None:
    async def test() -> None:
        site = Site()
        site.gate = asyncio.Event()
        async with serving(site) as (server, connect):
            reader, writer = await connect()
            writer.write(post(b"/wait", b"") + post(b"/b", b""))
            await until(lambda: site.seen)
            writer.write_eof()
            await until(lambda: any(c.flags & HALF_CLOSED for c in server.connections))
            site.gate.set()

            assert (await answer(reader))[2] == b"/wait"
            last = await answer(reader)
            assert (last[2], last[1][b"connection"]) == (b"/b ", b"close")
            assert await reader.read() == b""

    run(test())


def test_closing_the_server_finishes_what_is_under_way_and_closes_the_rest() -> None:
    async def test() -> None:
        site = Site()
        site.gate = asyncio.Event()
        async with serving(site) as (server, connect):
            idle, _ = await connect()
            busy, writer = await connect()
            writer.write(post(b"/wait", b""))
            await until(lambda: site.seen)
            closing = asyncio.create_task(server.close(5))

            assert await idle.read() == b""
            site.gate.set()
            _, headers, body = await answer(busy)
            assert (headers[b"connection"], body) == (b"close", b"/wait")
            await closing

    run(test())


def test_the_same_over_tls(tmp_path: Path) -> None:
    async def test() -> None:
        site = Site()
        site.gate = asyncio.Event()
        async with serving(site) as (server, _):
            port = server.listen("127.0.0.1", 0, tls=Certificates(tmp_path).server)
            trusting = ssl.create_default_context()
            trusting.check_hostname = False
            trusting.verify_mode = ssl.CERT_NONE
            reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=trusting)
            writer.write(post(b"/a", b"x" * BODY_MAX) + post(b"/wait", b""))

            assert len((await answer(reader))[2]) == 3 + BODY_MAX
            site.gate.set()
            assert (await answer(reader))[2] == b"/wait"
            writer.write(b"nonsense\r\n\r\n")
            assert (await answer(reader))[0] == 400
            assert await reader.read() == b""
            writer.close()

    run(test())


def test_the_any_address_of_ipv6_takes_ipv4_as_well() -> None:
    async def test() -> None:
        async with serving(Site()) as (server, _):
            port = server.listen("::", 0, reuse_port=True)
            shared = server.listen("::", port, reuse_port=True)
            for host in ("::1", "127.0.0.1"):
                reader, writer = await asyncio.open_connection(host, port)
                writer.write(post(b"/a", b"1"))

                assert (await answer(reader))[0] == 200
                writer.close()
            assert shared == port

    if socket.has_ipv6 and not no_ipv6():
        run(test())
    assert HttpLimits().connections_max > 0, "whoever says nothing has a limit"


def no_ipv6() -> bool:
    """A container may have it taken away."""
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:
        return True
    return False
