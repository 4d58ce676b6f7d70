"""The WebSocket shell on loopback: real sockets, foreign clients, rude clients."""

import asyncio
import contextlib
import os
import random
import resource
import socket
import ssl
import struct
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import picows
import pytest
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import InvalidStatus
from websockets.frames import Frame, Opcode
from websockets.typing import Subprotocol

from tests.certificates import Certificates
from waystation.base.clock import SystemClock
from waystation.net.connection import READ_OFF
from waystation.net.http1.message import Request, Response
from waystation.net.loop import NetLimits, NetLoop, bound_socket
from waystation.net.websocket.connection import Ending, WebSocket
from waystation.net.websocket.frames import PING, text_frame
from waystation.net.websocket.limits import WebSocketLimits
from waystation.net.websocket.server import WebSocketServer
from waystation.net.websocket.upgrade import Upgrade

REQUEST = (
    b"GET / HTTP/1.1\r\nHost: a\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\r\n"
)
PATIENCE_S = 20.0


def masked(opcode: Opcode, data: bytes = b"", *, fin: bool = True) -> bytes:
    return Frame(opcode, data, fin=fin).serialize(mask=True)


def text(data: bytes) -> bytes:
    return masked(Opcode.TEXT, data)


class Echo:
    """One handler for all connections; remembers what it was told."""

    def __init__(self) -> None:
        self.upgrades: list[Upgrade] = []
        self.live: list[WebSocket] = []
        self.ended: list[tuple[Ending, int]] = []
        self.calls: list[tuple[str, object]] = []

    def make(self, connection: WebSocket, upgrade: Upgrade) -> "Echo":
        if upgrade.path == "/raise":
            raise RuntimeError("no handler today")
        self.upgrades.append(upgrade)
        self.live.append(connection)
        connection.handler_state = "mine"
        return self

    def text(self, connection: WebSocket, text: bytes) -> None:
        self.calls.append(("text", text))
        match text:
            case b"close":
                connection.close(4774, "enough")
                connection.send(text_frame(b"never sent"))
            case b"abort":
                connection.abort()
            case b"raise":
                raise RuntimeError("a driver's mistake")
            case b"pause":
                connection.pause()
                asyncio.get_running_loop().call_later(0.05, connection.resume)
            case b"flood":
                while not connection.congested and connection.ending is Ending.NONE:
                    connection.send(text_frame(b"x" * 4000))
            case b"drown":
                for _ in range(2000):
                    connection.send(text_frame(b"x" * 4000))
            case b"ping":
                connection.send(PING)
            case b"where":
                connection.send(text_frame(connection.peer_address().encode()))
            case _:
                connection.send(text_frame(text))

    def binary(self, connection: WebSocket) -> None:
        connection.close(1003, "UnsupportedMessage")

    def pinged(self, connection: WebSocket, payload: bytes) -> None:
        self.calls.append(("pinged", payload))

    def ponged(self, connection: WebSocket) -> None:
        self.calls.append(("ponged", None))

    def broken(self, connection: WebSocket, code: int, reason: str) -> None:
        self.calls.append(("broken", code))

    def closed(self, connection: WebSocket) -> None:
        assert connection.handler_state == "mine"
        self.live.remove(connection)  # raises if it comes twice
        self.ended.append((connection.ending, connection.close_code))


def health(request: Request) -> Response | None:
    if request.path == b"/__lbheartbeat__":
        return Response.of(200, b"{}", content_type=b"application/json")
    if request.path == b"/raise":
        raise RuntimeError("a health check's mistake")
    return None


class Shell:
    """A server with its echo, on a port of its own."""

    def __init__(
        self, limits: WebSocketLimits, net_limits: NetLimits, tls: ssl.SSLContext | None = None
    ) -> None:
        self.echo = Echo()
        self.net = NetLoop(clock=SystemClock(), limits=net_limits)
        self.server = WebSocketServer(
            self.net, make_handler=self.echo.make, http=health, clock=SystemClock(), limits=limits
        )
        sock = bound_socket("127.0.0.1", 0)
        self.port: int = sock.getsockname()[1]
        self.server.listen(sock, tls)
        self.url = f"{'wss' if tls else 'ws'}://127.0.0.1:{self.port}/"
        self.troubles: list[str] = []
        self.raws: list[Raw] = []
        asyncio.get_running_loop().set_exception_handler(
            lambda _, context: self.troubles.append(str(context.get("exception")))
        )

    async def raw(self) -> "Raw":
        sock = socket.socket()
        sock.setblocking(False)
        raw = Raw(sock)
        self.raws.append(raw)
        await asyncio.get_running_loop().sock_connect(sock, ("127.0.0.1", self.port))
        return raw

    async def upgraded(self) -> "Raw":
        raw = await self.raw()
        await raw.send(REQUEST)
        assert (await raw.until(b"\r\n\r\n")).startswith(b"HTTP/1.1 101 ")
        return raw


class Raw:
    """A client that is nothing but a socket."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self.loop = asyncio.get_running_loop()

    async def send(self, data: bytes) -> None:
        async with asyncio.timeout(PATIENCE_S):
            await self.loop.sock_sendall(self.sock, data)

    async def read(self) -> bytes:
        async with asyncio.timeout(PATIENCE_S):
            return await self.loop.sock_recv(self.sock, 65536)

    async def until(self, end: bytes) -> bytes:
        """Reads no further than `end`."""
        data = b""
        async with asyncio.timeout(PATIENCE_S):
            while not data.endswith(end):
                byte = await self.loop.sock_recv(self.sock, 1)
                assert byte, data
                data += byte
        return data

    async def rest(self) -> bytes:
        data = b""
        with contextlib.suppress(ConnectionResetError):
            while chunk := await self.read():
                data += chunk
        return data

    def close(self) -> None:
        self.sock.close()


MakeShell = Callable[..., Awaitable[Shell]]


@pytest.fixture
async def make_shell() -> AsyncIterator[MakeShell]:
    shells: list[Shell] = []

    async def make(tls: ssl.SSLContext | None = None, **limits: float) -> Shell:
        for_net = {name: limits.pop(name) for name in NetLimits.__struct_fields__ if name in limits}
        shells.append(
            Shell(WebSocketLimits(**limits), NetLimits(**for_net), tls)  # pyright: ignore[reportArgumentType]
        )
        return shells[-1]

    yield make
    for shell in shells:
        for raw in shell.raws:
            raw.close()
        shell.net.close()
        assert shell.server.descriptors == 0
        assert not shell.echo.live


@pytest.fixture
async def shell(make_shell: MakeShell) -> Shell:
    return await make_shell()


async def expect_eventually(condition: Callable[[], bool], patience_s: float = PATIENCE_S) -> None:
    deadline = asyncio.get_running_loop().time() + patience_s
    while not condition():
        assert asyncio.get_running_loop().time() < deadline, "it did not happen"
        await asyncio.sleep(0.01)


async def closing(client: ClientConnection) -> tuple[int, str]:
    async with asyncio.timeout(PATIENCE_S):
        await client.wait_closed()
    assert client.close_code is not None
    return client.close_code, client.close_reason or ""


class TestConversations:
    async def test_websockets_talks_to_us(self, shell: Shell) -> None:
        async with connect(
            shell.url + "path?query",
            subprotocols=[Subprotocol("push-notification")],
            user_agent_header="tester",
        ) as client:
            assert client.subprotocol == "push-notification"
            for message in ("{}", "ünï", "x" * 200, "y" * 65536):
                await client.send(message)
                assert await client.recv() == message
            await (await client.ping(b"hi"))

        upgrade = shell.echo.upgrades[0]
        assert (upgrade.path, upgrade.query) == ("/path", "query")
        assert upgrade.user_agent == "tester"
        await expect_eventually(lambda: shell.echo.ended == [(Ending.CLIENT_CLOSED, 1000)])
        assert ("pinged", b"hi") in shell.echo.calls

    async def test_picows_talks_to_us(self, shell: Shell) -> None:
        received: asyncio.Queue[bytes] = asyncio.Queue()

        class Listener(picows.WSListener):
            def on_ws_frame(self, transport: picows.WSTransport, frame: picows.WSFrame) -> None:
                if frame.msg_type == picows.WSMsgType.TEXT:
                    received.put_nowait(frame.get_payload_as_bytes())

        transport, _ = await picows.ws_connect(Listener, shell.url)
        for size in (0, 5, 126, 30_000):
            transport.send(picows.WSMsgType.TEXT, b"z" * size)
            assert await asyncio.wait_for(received.get(), PATIENCE_S) == b"z" * size
        transport.send_close(picows.WSCloseCode.OK)
        await asyncio.wait_for(transport.wait_disconnected(), PATIENCE_S)

        await expect_eventually(lambda: shell.echo.ended == [(Ending.CLIENT_CLOSED, 1000)])

    async def test_a_client_may_send_byte_by_byte(self, shell: Shell) -> None:
        raw = await shell.raw()
        for byte in REQUEST + masked(Opcode.TEXT, b"sl", fin=False) + masked(Opcode.CONT, b"ow"):
            await raw.send(bytes((byte,)))
            await asyncio.sleep(0)
        await raw.until(b"\r\n\r\n")

        assert await raw.until(b"slow") == text_frame(b"slow")
        raw.close()
        await expect_eventually(lambda: shell.echo.ended == [(Ending.VANISHED, 0)])

    async def test_frames_may_follow_the_request_at_once(self, shell: Shell) -> None:
        raw = await shell.raw()
        third = text(b"3")
        await raw.send(REQUEST + text(b"1") + text(b"2") + third[:4])
        await raw.until(b"\r\n\r\n")
        await raw.send(third[4:])
        replies = await raw.until(b"3")

        assert replies == text_frame(b"1") + text_frame(b"2") + text_frame(b"3")
        raw.close()

    async def test_a_pong_reaches_the_driver(self, shell: Shell) -> None:
        async with connect(shell.url) as client:
            await client.send("ping")
            await expect_eventually(lambda: ("ponged", None) in shell.echo.calls)

    async def test_the_peer_address_is_there_when_asked_for(self, shell: Shell) -> None:
        async with connect(shell.url) as client:
            await client.send("where")
            assert await client.recv() == "127.0.0.1"

    async def test_nothing_comes_while_a_driver_pauses(self, shell: Shell) -> None:
        raw = await shell.upgraded()
        await raw.send(text(b"pause") + text(b"after") + text(b"pause") + text(b"end"))
        await asyncio.sleep(0)
        await raw.send(text(b"more"))
        await expect_eventually(lambda: ("text", b"pause") in shell.echo.calls)

        assert shell.echo.calls == [("text", b"pause")]
        replies = await raw.until(b"more")
        assert replies == text_frame(b"after") + text_frame(b"end") + text_frame(b"more")
        raw.close()

    async def test_a_client_that_leaves_during_a_pause_is_noticed_afterwards(
        self, shell: Shell
    ) -> None:
        raw = await shell.upgraded()
        await raw.send(text(b"pause"))
        await expect_eventually(lambda: bool(shell.echo.calls))
        raw.close()

        await expect_eventually(lambda: shell.echo.ended == [(Ending.VANISHED, 0)])


class TestEndings:
    async def test_a_close_of_ours_arrives_with_code_and_reason(self, shell: Shell) -> None:
        async with connect(shell.url) as client:
            await client.send("close")
            assert await closing(client) == (4774, "enough")

        assert shell.echo.ended == [(Ending.CLOSED, 4774)]

    async def test_the_connection_ends_although_the_client_never_answers_close(
        self, make_shell: MakeShell
    ) -> None:
        """Firefox never does."""
        shell = await make_shell(linger_s=0.2)
        raw = await shell.upgraded()
        await raw.send(text(b"close"))

        assert await raw.rest() == b"\x88\x08\x12\xa6enough"
        await expect_eventually(lambda: shell.server.descriptors == 0)
        raw.close()

    async def test_the_stream_ends_in_order_although_nobody_wants_the_input(
        self, shell: Shell
    ) -> None:
        """A descriptor closed with unread input sends a reset, and many a client would throw
        away the frame that it has not read yet."""
        for _ in range(20):
            raw = await shell.upgraded()
            await raw.send(text(b"close") + text(b"x" * 60_000))
            await raw.send(text(b"y" * 60_000))
            answer = b""
            while chunk := await raw.read():  # which raises when there was a reset
                answer += chunk

            assert answer == b"\x88\x08\x12\xa6enough"
            raw.close()

    async def test_a_close_of_the_client_is_echoed(self, shell: Shell) -> None:
        for sent, echoed in (
            (b"\x03\xe8bye", b"\x88\x02\x03\xe8"),
            (b"\x12\xa6", b"\x88\x02\x12\xa6"),
            (b"", b"\x88\x00"),
        ):
            raw = await shell.upgraded()
            await raw.send(masked(Opcode.CLOSE, sent) + text(b"ignored"))

            assert await raw.rest() == echoed
            raw.close()

        assert [ending for ending, _ in shell.echo.ended] == [Ending.CLIENT_CLOSED] * 3
        assert not shell.echo.calls

    @pytest.mark.parametrize(
        "frames,code",
        [
            (b"\x81\x01a", 1002),
            (masked(Opcode.CONT, b"a"), 1002),
            (text(b"\xff"), 1007),
            (text(b"x" * 65537), 1002),
        ],
        ids=["unmasked", "continued nothing", "not UTF-8", "too long"],
    )
    async def test_a_violation_is_told_and_closed(
        self, shell: Shell, frames: bytes, code: int
    ) -> None:
        raw = await shell.upgraded()
        await raw.send(frames)
        answer = await raw.rest()

        assert answer[0] == 0x88
        assert struct.unpack("!H", answer[2:4]) == (code,)
        assert shell.echo.calls == [("broken", code)]
        assert shell.echo.ended == [(Ending.BROKEN, code)]
        raw.close()

    async def test_binary_is_the_drivers_to_judge(self, shell: Shell) -> None:
        """C-010."""
        async with connect(shell.url) as client:
            await client.send(b"\x00")
            assert await closing(client) == (1003, "UnsupportedMessage")

    async def test_an_abort_sends_nothing(self, shell: Shell) -> None:
        raw = await shell.upgraded()
        await raw.send(text(b"abort"))

        assert await raw.rest() == b""
        assert shell.echo.ended == [(Ending.ABORTED, 0)]
        raw.close()

    async def test_a_driver_that_raises_costs_one_connection(self, shell: Shell) -> None:
        async with connect(shell.url) as other, connect(shell.url) as client:
            await client.send("raise")
            assert (await closing(client))[0] == 1011
            await other.send("still here")
            assert await other.recv() == "still here"

        assert shell.troubles == ["a driver's mistake"]
        assert (Ending.FAILED, 1011) in shell.echo.ended

    async def test_a_handler_that_cannot_be_made_costs_one_connection(self, shell: Shell) -> None:
        async with connect(shell.url + "raise") as client:
            assert (await closing(client))[0] == 1011

        assert shell.troubles == ["no handler today"]
        await expect_eventually(lambda: shell.server.descriptors == 0)

    async def test_a_reset_is_noticed(self, shell: Shell) -> None:
        raw = await shell.upgraded()
        raw.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        raw.close()

        await expect_eventually(lambda: shell.echo.ended == [(Ending.VANISHED, 0)])

    async def test_closing_all_says_so_to_everyone_and_waits(self, shell: Shell) -> None:
        clients = [await shell.upgraded() for _ in range(20)]
        shell.server.stop_accepting()
        reading = [asyncio.create_task(client.rest()) for client in clients]
        closer = asyncio.create_task(shell.server.close_all(1012, "restart"))
        for client, end in zip(clients, reading, strict=True):
            end.add_done_callback(lambda _, client=client: client.close())
        frames = await asyncio.gather(*reading)
        await closer

        assert frames == [b"\x88\x09\x03\xf4restart"] * 20
        assert shell.server.descriptors == 0

    async def test_a_resume_that_comes_too_late_touches_nobody_else(self, shell: Shell) -> None:
        """The descriptor may belong to somebody else by then."""
        first = await shell.upgraded()
        gone = shell.echo.live[0]
        gone.pause()
        await first.send(text(b"unread"))
        await expect_eventually(lambda: bool(gone.flags & READ_OFF))
        gone.abort()
        await expect_eventually(lambda: shell.server.descriptors == 0)
        first.close()  # so that both ends get the numbers of those before
        second = await shell.upgraded()
        assert shell.echo.live[0].fd == gone.fd
        shell.echo.live[0].pause()
        await second.send(text(b"waits"))
        await expect_eventually(lambda: bool(shell.echo.live[0].flags & READ_OFF))

        gone.resume()
        gone.send(b"x")
        gone.close(1000)
        await asyncio.sleep(0.05)

        assert not shell.echo.calls
        shell.echo.live[0].resume()
        assert await second.until(b"waits") == text_frame(b"waits")

    async def test_lingering_is_bounded(self, make_shell: MakeShell) -> None:
        shell = await make_shell(lingering_max=3)
        raws = [await shell.upgraded() for _ in range(10)]
        for raw in raws:
            await raw.send(text(b"close"))
        await expect_eventually(lambda: len(shell.echo.ended) == 10)

        assert shell.server.descriptors <= 3
        for raw in raws:
            assert await raw.rest() == b"\x88\x08\x12\xa6enough"

    async def test_closing_all_does_not_wait_for_those_who_never_asked(self, shell: Shell) -> None:
        await shell.raw()
        raw = await shell.upgraded()
        await expect_eventually(lambda: shell.server.descriptors == 2)
        closer = asyncio.create_task(shell.server.close_all(1012))
        assert await raw.rest() == b"\x88\x02\x03\xf4"
        raw.close()
        await closer

        assert shell.server.descriptors == 0

    async def test_the_port_is_free_after_accepting_stops(self, shell: Shell) -> None:
        raw = await shell.upgraded()
        shell.server.stop_accepting()

        with pytest.raises(ConnectionRefusedError):
            await shell.raw()
        await raw.send(text(b"on"))
        assert await raw.until(b"on") == text_frame(b"on")
        raw.close()


class TestRequests:
    async def test_health_routes_are_answered(self, shell: Shell) -> None:
        raw = await shell.raw()
        await raw.send(b"GET /__lbheartbeat__ HTTP/1.1\r\nHost: a\r\n\r\n")

        assert (await raw.rest()).endswith(b"\r\n\r\n{}")
        raw.close()

    async def test_a_head_request_gets_no_body(self, shell: Shell) -> None:
        raw = await shell.raw()
        await raw.send(b"HEAD /__lbheartbeat__ HTTP/1.1\r\nHost: a\r\n\r\n")
        answer = await raw.rest()

        assert answer.startswith(b"HTTP/1.1 200 ")
        assert answer.endswith(b"\r\n\r\n")
        raw.close()

    @pytest.mark.parametrize(
        "request_bytes,status",
        [
            (b"GET / HTTP/1.1\r\nHost: a\r\n\r\n", 400),
            (b"GET /nothing HTTP/1.1\r\nHost: a\r\n\r\n", 404),
            (b"PUT /push/x HTTP/1.1\r\nHost: a\r\nContent-Length: 9000\r\n\r\n" + b"x" * 9000, 404),
            (b"GET /raise HTTP/1.1\r\nHost: a\r\n\r\n", 500),
            (REQUEST.replace(b"Version: 13", b"Version: 8"), 426),
            (b"GET / HTTP/1.1\r\nX: " + b"x" * 17000 + b"\r\n\r\n", 431),
            (b"GET / HTTP/1.1\r\nX: " + b"x" * 20000, 431),
            (b"\x16\x03\x01\x00\x00\r\n\r\n", 400),
        ],
    )
    async def test_what_is_no_upgrade_gets_an_answer(
        self, shell: Shell, request_bytes: bytes, status: int
    ) -> None:
        raw = await shell.raw()
        await raw.send(request_bytes)
        answer = await raw.rest()

        assert answer.startswith(b"HTTP/1.1 %d " % status)
        raw.close()
        await expect_eventually(lambda: shell.server.descriptors == 0)

    async def test_a_request_that_does_not_end_is_timed_out(self, make_shell: MakeShell) -> None:
        shell = await make_shell(upgrade_timeout_s=0.2)
        silent, slow = await shell.raw(), await shell.raw()
        await slow.send(REQUEST[:20])

        assert await silent.rest() == b""
        assert (await slow.rest()).startswith(b"HTTP/1.1 408 ")
        silent.close()
        slow.close()
        await expect_eventually(lambda: shell.server.descriptors == 0)

    async def test_an_upgraded_connection_outlives_the_deadline_of_its_upgrade(
        self, make_shell: MakeShell
    ) -> None:
        shell = await make_shell(upgrade_timeout_s=0.2)
        async with connect(shell.url) as client:
            await asyncio.sleep(0.6)
            await client.send("on")
            assert await client.recv() == "on"

    async def test_one_connection_too_many_is_refused_but_health_is_answered(
        self, make_shell: MakeShell
    ) -> None:
        """A load balancer must not take a node for dead because it is full."""
        shell = await make_shell(connections_max=2)
        first, second = await shell.upgraded(), await shell.upgraded()
        with pytest.raises(InvalidStatus) as caught:
            await connect(shell.url)
        probe = await shell.raw()
        await probe.send(b"GET /__lbheartbeat__ HTTP/1.1\r\nHost: a\r\n\r\n")

        assert caught.value.response.status_code == 503
        assert (await probe.rest()).startswith(b"HTTP/1.1 200 ")
        first.close()
        await expect_eventually(lambda: shell.server.connections == 1)
        third = await shell.upgraded()
        for raw in (second, third, probe):
            raw.close()

    async def test_a_flood_of_silent_connections_is_bounded(self, make_shell: MakeShell) -> None:
        shell = await make_shell(upgrading_max=10)
        raws = [await shell.raw() for _ in range(40)]
        await expect_eventually(lambda: shell.server.accepted == 40)

        assert len(shell.server.http.connections) == 10
        assert shell.server.descriptors <= 20
        assert shell.server.http.refused_connections == 30
        for raw in raws:
            raw.close()

    async def test_running_out_of_descriptors_is_survived(self, shell: Shell) -> None:
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        clients = [await shell.raw()]
        await expect_eventually(lambda: shell.server.accepted == 1)
        waiting = [socket.socket() for _ in range(5)]
        fds = [int(name) for name in os.listdir("/proc/self/fd")]
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(fds) + 1, hard))
        try:
            gaps = [os.dup(0) for _ in range(max(fds) + 1 - len(fds))]
        except OSError:
            gaps = []
        try:
            for sock in waiting:
                sock.setblocking(False)
                await asyncio.get_running_loop().sock_connect(sock, ("127.0.0.1", shell.port))
            await asyncio.sleep(0.1)
            accepted_meanwhile = shell.server.accepted
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
            for fd in gaps:
                os.close(fd)
        await expect_eventually(lambda: shell.server.accepted == 6)

        assert accepted_meanwhile < 6
        for sock in waiting:
            sock.close()
        for raw in clients:
            raw.close()


class TestSlowReaders:
    async def test_a_client_that_does_not_read_becomes_congested_and_recovers(
        self, shell: Shell
    ) -> None:
        raw = await shell.upgraded()
        await raw.send(text(b"flood"))
        await expect_eventually(lambda: bool(shell.echo.live) and shell.echo.live[0].congested)
        connection = shell.echo.live[0]
        async with connect(shell.url) as other:
            await other.send("others are served")
            assert await other.recv() == "others are served"
        assert connection.congested

        async def swallow() -> None:
            while await raw.read():
                pass

        reading = asyncio.create_task(swallow())
        await expect_eventually(lambda: not connection.congested)
        assert connection.ending is Ending.NONE
        reading.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await reading
        raw.close()

    async def test_what_a_slow_client_reads_in_the_end_is_complete_and_in_order(
        self, make_shell: MakeShell
    ) -> None:
        shell = await make_shell(send_bytes_max=64 * 2**20)
        raw = await shell.upgraded()
        await raw.send(text(b"drown") + text(b"the end"))
        await asyncio.sleep(0.2)
        data = b""
        while not data.endswith(text_frame(b"the end")):
            chunk = await raw.read()
            assert chunk
            data += chunk

        assert data == text_frame(b"x" * 4000) * 2000 + text_frame(b"the end")
        raw.close()

    async def test_a_client_that_never_reads_is_cut_at_the_hard_limit(
        self, make_shell: MakeShell
    ) -> None:
        shell = await make_shell(send_bytes_max=100_000)
        raw = await shell.upgraded()
        await raw.send(text(b"drown"))

        await expect_eventually(lambda: shell.echo.ended == [(Ending.OVERFLOWED, 0)])
        assert shell.server.port.overflowed == 1
        assert shell.server.descriptors == 0
        raw.close()

    async def test_a_flood_of_pings_from_a_client_that_never_reads_is_cut(
        self, make_shell: MakeShell
    ) -> None:
        shell = await make_shell(send_bytes_max=65_536)
        raw = await shell.upgraded()
        raw.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        pings = masked(Opcode.PING, b"p" * 125) * 500
        with contextlib.suppress(ConnectionError):
            for _ in range(1000):
                await raw.send(pings)
                if shell.echo.ended:
                    break

        await expect_eventually(lambda: shell.echo.ended == [(Ending.OVERFLOWED, 0)])
        raw.close()

    async def test_a_close_to_a_client_that_does_not_read_ends_at_its_deadline(
        self, make_shell: MakeShell
    ) -> None:
        shell = await make_shell(linger_s=0.2, flush_s=0.2)
        raw = await shell.upgraded()
        await raw.send(text(b"flood") + text(b"close"))

        await expect_eventually(lambda: shell.echo.ended == [(Ending.CLOSED, 4774)])
        await expect_eventually(lambda: shell.server.descriptors == 0)
        raw.close()


class TestCrowds:
    async def test_a_thousand_connections_come_and_go_without_a_trace(self, shell: Shell) -> None:
        before = len(os.listdir("/proc/self/fd"))
        for batch in range(5):
            raws = await asyncio.gather(*(shell.upgraded() for _ in range(200)))
            assert shell.server.connections == 200
            for i, raw in enumerate(raws):
                if i % 4 == 0:
                    await raw.send(masked(Opcode.CLOSE, b"\x03\xe8"))
                elif i % 4 == 1:
                    await raw.send(text(b"abort"))
                elif i % 4 == 2:
                    await raw.send(text(b"close"))
            await asyncio.sleep(0)
            for raw in raws:
                raw.close()
            await expect_eventually(lambda: shell.server.descriptors == 0)
            assert len(shell.echo.ended) == 200 * (batch + 1)

        assert len(os.listdir("/proc/self/fd")) == before
        assert not list(shell.net.held())

    async def test_a_client_that_floods_does_not_starve_the_loop(self, shell: Shell) -> None:
        raw = await shell.upgraded()
        flood = text(b"{}") * 20_000

        async def swallow() -> None:
            while await raw.read():
                pass

        sending = asyncio.create_task(raw.send(flood))
        reading = asyncio.create_task(swallow())
        turns = 0
        async with asyncio.timeout(PATIENCE_S):
            while len(shell.echo.calls) < 20_000:
                await asyncio.sleep(0)
                turns += 1
        await sending

        assert turns >= 5, "the loop did nothing else meanwhile"
        reading.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await reading
        raw.close()

    async def test_news_for_everybody_is_written_over_several_turns(
        self, make_shell: MakeShell
    ) -> None:
        shell = await make_shell(writes_max=7)
        raws = [await shell.upgraded() for _ in range(50)]
        for connection in shell.echo.live:
            connection.send(text_frame(b"news"))

        assert [await raw.until(b"news") for raw in raws] == [text_frame(b"news")] * 50

    async def test_two_workers_share_a_port(self, make_shell: MakeShell) -> None:
        one, two = await make_shell(), await make_shell()
        two.server.listen(bound_socket("127.0.0.1", one.port))
        raws = [await one.upgraded() for _ in range(40)]

        assert one.server.connections + two.server.connections == 40
        assert one.server.connections > 0
        assert two.server.connections > 0
        for raw in raws:
            raw.close()


class TestFuzz:
    async def test_garbage_is_survived(self, make_shell: MakeShell) -> None:
        """Random bytes, damaged requests and damaged frames: others are served all the while."""
        chance = random.Random(6455)
        shell = await make_shell(linger_s=0.2, upgrade_timeout_s=0.5)
        async with connect(shell.url) as witness:
            for round_ in range(150):
                raw = await shell.raw()
                with contextlib.suppress(ConnectionError):
                    match round_ % 3:
                        case 0:
                            await raw.send(chance.randbytes(chance.randrange(1, 3000)))
                        case 1:
                            await raw.send(damaged(REQUEST, chance))
                        case _:
                            frames = b"".join(
                                masked(
                                    chance.choice(list(Opcode)),
                                    chance.randbytes(chance.randrange(125)),
                                )
                                for _ in range(chance.randrange(1, 30))
                            )
                            await raw.send(REQUEST)
                            await raw.send(damaged(frames, chance))
                if round_ % 10 == 0:
                    await witness.send(f"{round_}")
                    assert await asyncio.wait_for(witness.recv(), PATIENCE_S) == f"{round_}"
                    for connection in shell.echo.live:
                        assert connection.out_bytes <= 2**20
                if chance.random() < 0.5:
                    await asyncio.sleep(0)
                raw.close()
            await expect_eventually(lambda: shell.server.descriptors == 1)

            assert not shell.troubles


def damaged(data: bytes, chance: random.Random) -> bytes:
    copy = bytearray(data)
    for _ in range(chance.randrange(1, 6)):
        copy[chance.randrange(len(copy))] = chance.randrange(256)
    return bytes(copy[: chance.randrange(1, len(copy) + 1)] if chance.random() < 0.3 else copy)


# --- TLS -----------------------------------------------------------------------------------------


def contexts(folder: Path) -> tuple[ssl.SSLContext, ssl.SSLContext]:
    made = Certificates(folder)
    return made.server, made.client


class TestTls:
    async def test_a_conversation_over_tls(self, make_shell: MakeShell, tmp_path: Path) -> None:
        server_tls, client_tls = contexts(tmp_path / "one")
        shell = await make_shell(server_tls)
        async with connect(shell.url, ssl=client_tls) as client:
            for message in ("{}", "y" * 65536):
                await client.send(message)
                assert await client.recv() == message
            await (await client.ping())
            await client.send("close")
            assert await closing(client) == (4774, "enough")

        await expect_eventually(lambda: shell.server.descriptors == 0)
        assert shell.echo.ended == [(Ending.CLOSED, 4774)]

    async def test_old_and_new_protocol_versions_work(
        self, make_shell: MakeShell, tmp_path: Path
    ) -> None:
        server_tls, client_tls = contexts(tmp_path / "one")
        shell = await make_shell(server_tls)
        for version in (ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3):
            client_tls.minimum_version = ssl.TLSVersion.TLSv1_2
            client_tls.maximum_version = version
            async with connect(shell.url, ssl=client_tls) as client:
                await client.send("hi")
                assert await client.recv() == "hi"

    async def test_a_new_certificate_serves_those_who_come_later(
        self, make_shell: MakeShell, tmp_path: Path
    ) -> None:
        old_tls, old_client = contexts(tmp_path / "old")
        new_tls, new_client = contexts(tmp_path / "new")
        shell = await make_shell(old_tls)
        async with connect(shell.url, ssl=old_client) as early:
            shell.server.use_certificate(new_tls)
            with pytest.raises(ssl.SSLCertVerificationError):
                await connect(shell.url, ssl=old_client)
            async with connect(shell.url, ssl=new_client) as late:
                for client in (early, late):
                    await client.send("hi")
                    assert await client.recv() == "hi"

    async def test_a_slow_reader_gets_everything_over_tls(
        self, make_shell: MakeShell, tmp_path: Path
    ) -> None:
        server_tls, client_tls = contexts(tmp_path / "one")
        shell = await make_shell(server_tls, send_bytes_max=64 * 2**20)
        async with connect(shell.url, ssl=client_tls, max_queue=1) as client:
            await client.send("drown")
            await client.send("the end")
            await expect_eventually(lambda: bool(shell.echo.live) and shell.echo.live[0].congested)
            for _ in range(2000):
                assert await client.recv() == "x" * 4000

            assert await client.recv() == "the end"

    async def test_plain_text_and_silence_on_a_tls_port_are_survived(
        self, make_shell: MakeShell, tmp_path: Path
    ) -> None:
        server_tls, client_tls = contexts(tmp_path / "one")
        shell = await make_shell(server_tls, upgrade_timeout_s=0.3)
        plain, silent = await shell.raw(), await shell.raw()
        await plain.send(REQUEST)
        await plain.rest()

        assert await silent.rest() == b""
        await expect_eventually(lambda: shell.server.descriptors == 0)
        async with connect(shell.url, ssl=client_tls) as client:
            await client.send("hi")
            assert await client.recv() == "hi"
        plain.close()
        silent.close()
