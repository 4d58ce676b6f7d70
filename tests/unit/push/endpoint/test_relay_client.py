"""Which way a request takes to a connection node, and what a broken one answers."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest
import uvloop

from tests.unit.waiting import until
from waystation.base.clock import ManualClock, SystemClock
from waystation.net.http1.server import HttpServer, Request, Response
from waystation.net.loop import NetLoop
from waystation.push.endpoint.relay_client import RelayClient
from waystation.push.link_handshake import TOKEN, accept_link, link_port, serve_link_socket
from waystation.push.model import (
    ChannelId,
    MessageId,
    Notification,
    SortKey,
    Uaid,
    Update,
)
from waystation.push.settings import Endpoint
from waystation.push.wire.relay import Answer, decode_push

UAID = Uaid(bytes.fromhex("0f1e2d3c4b5a469788796a5b4c3d2e1f"))
DASHED = b"0f1e2d3c-4b5a-4697-8879-6a5b4c3d2e1f"
CHID = ChannelId(bytes(16))
RELAY_URL = "http://10.0.0.7:8081"
MESSAGE = Notification(CHID, MessageId("m"), SortKey("02:5"), 5_123, 60, data="x")
SETTINGS = Endpoint(connection_timeout_s=0.5, request_timeout_s=0.5)
SECRET = b"a secret that both know"


def run(test: Coroutine[Any, Any, None]) -> None:
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(asyncio.wait_for(test, 20))


class CountingNode:
    def __init__(self, answer: Answer = Answer.TAKEN) -> None:
        self.answer = answer
        self.calls = 0

    async def push(self, uaid: Uaid, notification: Notification | Update) -> Answer:
        self.calls += 1
        return self.answer

    async def check_stored(self, uaid: Uaid) -> Answer:
        self.calls += 1
        return self.answer

    async def displace(self, uaid: Uaid, connected_at_ms: int) -> Answer:
        self.calls += 1
        return self.answer

    def push_abandoned(self, uaid: Uaid, taken: Notification | Update | None) -> None: ...


class BrokenNode(CountingNode):
    async def push(self, uaid: Uaid, notification: Notification | Update) -> Answer:
        raise RuntimeError("a bug")


def client_of(
    tmp_path: Path | None = None, clock: ManualClock | None = None, secret: bytes = SECRET
) -> RelayClient:
    return RelayClient(
        SETTINGS,
        own_node_id=f"{RELAY_URL}/w/0",
        relay_url=RELAY_URL,
        sibling_socket=lambda index: str((tmp_path or Path("/nowhere")) / f"{index}.sock"),
        secret=secret,
        clock=clock or ManualClock(),
        net=NetLoop(clock=SystemClock()),
    )


def test_this_worker_is_a_function_call() -> None:
    async def test() -> None:
        relay = client_of()
        relay.node = node = CountingNode()

        assert await relay.push(f"{RELAY_URL}/w/0", UAID, MESSAGE) is Answer.TAKEN
        assert await relay.check_stored(f"{RELAY_URL}/w/0", UAID) is Answer.TAKEN
        assert await relay.displace(f"{RELAY_URL}/w/0", UAID, 5) is Answer.TAKEN
        assert node.calls == 3
        assert relay.sibling(0) is node

    run(test())


def test_a_node_that_raises_is_odd() -> None:
    async def test() -> None:
        relay = client_of()
        relay.node = BrokenNode()

        assert await relay.push(f"{RELAY_URL}/w/0", UAID, MESSAGE) is Answer.UNEXPECTED
        assert relay.unexpected_answers == 1

    run(test())


def test_another_worker_of_this_node_is_a_unix_socket(tmp_path: Path) -> None:
    async def test() -> None:
        node = CountingNode(Answer.BUSY)
        net = NetLoop(clock=SystemClock())
        serve_link_socket(link_port(net), str(tmp_path / "3.sock"), node, SystemClock())
        relay = client_of(tmp_path)

        assert await relay.push(f"{RELAY_URL}/w/3", UAID, MESSAGE) is Answer.BUSY
        assert await relay.sibling(3).check_stored(UAID) is Answer.BUSY
        assert await relay.push(f"{RELAY_URL}/w/4", UAID, MESSAGE) is Answer.UNREACHABLE
        await relay.close()
        net.close()

    run(test())


def listening(
    handle: Callable[[Request], Any], upgrades: frozenset[bytes] = frozenset()
) -> tuple[HttpServer, str]:
    server = HttpServer(
        handle,
        net=NetLoop(clock=SystemClock()),
        clock=SystemClock(),
        body_limit=lambda request: 100_000,
        on_failure=lambda request, error: Response.of(500),
        upgrades=upgrades,
    )
    return server, f"http://127.0.0.1:{server.listen('127.0.0.1', 0)}"


def test_another_node_of_ours_is_a_link() -> None:
    async def test() -> None:
        node = CountingNode()
        links = link_port(NetLoop(clock=SystemClock()))
        asked: list[bytes] = []

        def handle(request: Request) -> Response:
            asked.append(request.path)
            return accept_link(request, links, node, SECRET, SystemClock(), name="far.push.1")

        server, url = listening(handle, frozenset({TOKEN}))
        relay = client_of()
        assert relay.name_of(f"{url}/w/1") is None
        for _ in range(3):
            assert await relay.push(f"{url}/w/1", UAID, MESSAGE) is Answer.TAKEN

        assert (asked, node.calls) == ([b"/w/1/link"], 3)
        assert relay.name_of(f"{url}/w/1") == "far.push.1", "it has told us"
        await relay.close()
        await server.close()

    run(test())


class MozillaNode:
    """Answers `PUT /push` and `PUT /notif` and knows nothing of links."""

    def __init__(self) -> None:
        self.asked: list[tuple[bytes, bytes, bytes]] = []
        self.status = 200
        self.close = False

    def __call__(self, request: Request) -> Response:
        self.asked.append((request.method, request.path, request.body))
        if request.method == b"GET":
            return Response.of(404)
        return Response.of(self.status, b"some words", close=self.close)


def test_a_node_that_does_not_speak_the_link_gets_http() -> None:
    async def test() -> None:
        node = MozillaNode()
        server, url = listening(node)
        clock = ManualClock()
        relay = client_of(clock=clock)

        assert await relay.push(url, UAID, MESSAGE) is Answer.TAKEN
        assert await relay.check_stored(url, UAID) is Answer.TAKEN
        assert await relay.displace(url, UAID, 77) is Answer.TAKEN
        assert [(method, path) for method, path, _ in node.asked] == [
            (b"GET", b"/link"),
            (b"PUT", b"/push/" + DASHED),
            (b"PUT", b"/notif/" + DASHED),
            (b"DELETE", b"/notif/" + DASHED + b"/77"),
        ]
        assert decode_push(node.asked[1][2], lambda version: SortKey("02:5")) == [MESSAGE]
        assert len(server.connections) == 1  # the one that is kept

        clock.advance(61)
        await relay.check_stored(url, UAID)
        assert node.asked[-2][1] == b"/link"  # it may be one of ours by now
        await relay.close()
        await server.close()

    run(test())


@pytest.mark.parametrize(
    "status, answer",
    [
        (200, Answer.TAKEN),
        (202, Answer.FLAGGED),
        (404, Answer.ABSENT),
        (503, Answer.BUSY),
        (500, Answer.UNEXPECTED),
        (301, Answer.UNEXPECTED),
    ],
)
def test_statuses_become_answers(status: int, answer: Answer) -> None:
    async def test() -> None:
        node = MozillaNode()
        node.status = status
        server, url = listening(node)
        relay = client_of(secret=b"")

        assert await relay.push(url, UAID, MESSAGE) is answer
        assert node.asked[0][0] == b"PUT"  # without a secret there is no link to try
        await relay.close()
        await server.close()

    run(test())


def test_an_answer_that_waits_in_the_socket_is_read_before_the_asker_stops_waiting() -> None:
    """The asker itself stood still: the node has answered long ago."""
    asked: list[bytes] = []

    async def slowly(request: Request) -> Response:
        await asyncio.sleep(0.1)
        return Response.of(200)

    def handle(request: Request) -> Response | Coroutine[Any, Any, Response]:
        asked.append(request.path)
        return Response.of(404) if request.method == b"GET" else slowly(request)

    async def test() -> None:
        server, url = listening(handle)
        relay = client_of()
        pushed = asyncio.create_task(relay.push(url, UAID, MESSAGE))
        await until(lambda: len(asked) == 2)
        asyncio.get_running_loop().call_later(0.09, time.sleep, 1.0)

        assert await pushed is Answer.TAKEN
        await relay.close()
        await server.close()

    run(test())


def test_connections_are_kept_and_limited() -> None:
    async def test() -> None:
        node = MozillaNode()
        server, url = listening(node)
        relay = client_of(secret=b"")
        answers = await asyncio.gather(*(relay.push(url, UAID, MESSAGE) for _ in range(300)))

        assert set(answers) == {Answer.TAKEN}
        await until(lambda: len(server.connections) <= SETTINGS.pool_max_idle_per_host)
        assert server.connections
        await relay.close()
        await server.close()

    run(test())


def test_a_connection_that_the_node_closed_is_replaced() -> None:
    async def test() -> None:
        node = MozillaNode()
        server, url = listening(node)
        relay = client_of(secret=b"")
        assert await relay.push(url, UAID, MESSAGE) is Answer.TAKEN
        for connection in list(server.connections):
            connection.abort()

        assert await relay.push(url, UAID, MESSAGE) is Answer.TAKEN
        node.close = True
        for _ in range(3):
            assert await relay.push(url, UAID, MESSAGE) is Answer.TAKEN
        await relay.close()
        await server.close()

    run(test())


Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


def test_what_is_no_http_and_what_does_not_answer_is_unreachable() -> None:
    async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        writer.close()

    async def garbage(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"SSH-2.0-OpenSSH\r\n")
        writer.close()

    async def cut(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 50\r\n\r\nshort")
        writer.close()

    async def endless(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 999999\r\n\r\n" + b"x" * 200_000)
        await reader.read()
        writer.close()

    async def test() -> None:
        servers: list[Serve] = [silent, garbage, cut, endless]
        for serve in servers:
            server = await asyncio.start_server(serve, "127.0.0.1", 0)
            port = server.sockets[0].getsockname()[1]
            relay = client_of(secret=b"")

            answer = await relay.push(f"http://127.0.0.1:{port}", UAID, MESSAGE)
            assert answer is Answer.UNREACHABLE, serve.__name__
            await relay.close()
            server.close()

    run(test())


@pytest.mark.parametrize(
    "node_id",
    ["", "nonsense", "ftp://host", "http://", "http://127.0.0.1:99999", "http://[", "http://é"],
)
def test_a_node_id_that_names_no_place_is_unreachable(node_id: str) -> None:
    async def test() -> None:
        relay = client_of()

        assert await relay.push(node_id, UAID, MESSAGE) is Answer.UNREACHABLE
        await relay.close()

    run(test())


def test_nobody_at_that_port_is_unreachable() -> None:
    async def test() -> None:
        server, url = listening(MozillaNode())
        await server.close()
        for secret in (SECRET, b""):
            relay = client_of(secret=secret)
            assert await relay.push(url, UAID, MESSAGE) is Answer.UNREACHABLE
            assert await relay.check_stored(url, UAID) is Answer.UNREACHABLE
            await relay.close()

    run(test())
