"""Links over real sockets, on uvloop: both ends, their doors, and what happens when one dies."""

import asyncio
from collections.abc import Coroutine
from pathlib import Path
from typing import Any, cast

import pytest
import uvloop

from tests.unit.waiting import until
from waystation.base.clock import SystemClock
from waystation.base.http_server import HttpServer, Request, Response, no_body
from waystation.push import link as link_module
from waystation.push.link import LinkClient, LinkServer, NotALinkError
from waystation.push.link_doors import (
    TOKEN,
    UnixDial,
    UpgradeDial,
    accept_link,
    serve_link_socket,
)
from waystation.push.model import (
    ChannelId,
    MessageId,
    Notification,
    SortKey,
    Uaid,
    Update,
)
from waystation.push.wire.link_frames import CheckStored, Prove, Reply, encode_frame
from waystation.push.wire.relay import Answer, Node

UAID = Uaid(bytes(range(16)))
CHID = ChannelId(bytes(16))
SECRET = b"a secret that both know"


def run(test: Coroutine[Any, Any, None]) -> None:
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(asyncio.wait_for(test, 20))


def message(n: int) -> Notification:
    return Notification(CHID, MessageId(f"m{n}"), SortKey(f"02:{n}"), 5, 60, data="x" * 100)


class RecordingNode:
    def __init__(self) -> None:
        self.seen: list[object] = []
        self.gate: asyncio.Event | None = None
        self.answer = Answer.TAKEN

    async def push(self, uaid: Uaid, notification: Notification | Update) -> Answer:
        self.seen.append(notification)
        if self.gate is not None:
            await self.gate.wait()
        if isinstance(notification, Update) and notification.version == 666:
            raise RuntimeError("a bug in the node")
        return self.answer

    async def check_stored(self, uaid: Uaid) -> Answer:
        self.seen.append(("check", uaid))
        return Answer.FLAGGED

    async def displace(self, uaid: Uaid, connected_at_ms: int) -> Answer:
        self.seen.append(("displace", connected_at_ms))
        return Answer.ABSENT


async def unix_pair(
    path: Path, node: Node, timeout_s: float = 3.0
) -> tuple[asyncio.Server, LinkClient]:
    loop = asyncio.get_running_loop()
    server = await serve_link_socket(str(path), node, loop)
    return server, LinkClient(UnixDial(str(path), loop, 1.0), loop, timeout_s=timeout_s)


def test_all_requests_reach_the_node_and_their_answers_come_back(tmp_path: Path) -> None:
    async def test() -> None:
        node = RecordingNode()
        server, client = await unix_pair(tmp_path / "s", node)
        update = Update(CHID, 3, "d")

        assert await client.push(UAID, message(1)) is Answer.TAKEN
        assert await client.push(UAID, update) is Answer.TAKEN
        assert await client.check_stored(UAID) is Answer.FLAGGED
        assert await client.displace(UAID, 77) is Answer.ABSENT
        assert node.seen == [message(1), update, ("check", UAID), ("displace", 77)]
        assert (tmp_path / "s").stat().st_mode & 0o777 == 0o600
        await client.close()
        server.close()

    run(test())


def test_many_requests_of_one_turn_leave_in_one_write(tmp_path: Path) -> None:
    async def test() -> None:
        node = RecordingNode()
        server, client = await unix_pair(tmp_path / "s", node)
        await client.check_stored(UAID)
        connection = client._connection
        assert connection is not None
        writes: list[int] = []
        transport = connection._writer.transport
        assert transport is not None

        class Counting:
            def write(self, data: bytes) -> None:
                writes.append(len(data))
                transport.write(data)

        connection._writer.transport = cast(Any, Counting())
        answers = await asyncio.gather(*(client.push(UAID, message(n)) for n in range(200)))

        assert set(answers) == {Answer.TAKEN}
        assert len(writes) == 1
        assert [n.message_id for n in cast(Any, node.seen[1:])] == [f"m{n}" for n in range(200)]
        connection._writer.transport = transport
        await client.close()
        server.close()

    run(test())


def test_a_peer_that_dies_answers_all_at_once_and_is_found_again(tmp_path: Path) -> None:
    async def test() -> None:
        node = RecordingNode()
        node.gate = asyncio.Event()
        path = tmp_path / "s"
        loop = asyncio.get_running_loop()
        servers: list[LinkServer] = []

        def accept() -> LinkServer:
            servers.append(LinkServer(node, loop))
            return servers[-1]

        server = await loop.create_unix_server(accept, str(path))
        client = LinkClient(UnixDial(str(path), loop, 1.0), loop, timeout_s=60)
        waiting = [asyncio.create_task(client.push(UAID, message(n))) for n in range(5)]
        await until(lambda: len(node.seen) == 5)
        servers[0].close()

        assert set(await asyncio.gather(*waiting)) == {Answer.UNREACHABLE}
        node.gate.set()
        assert await client.push(UAID, message(9)) is Answer.TAKEN
        await client.close()
        server.close()

    run(test())


def test_nobody_there_is_unreachable(tmp_path: Path) -> None:
    async def test() -> None:
        loop = asyncio.get_running_loop()
        client = LinkClient(UnixDial(str(tmp_path / "none"), loop, 1.0), loop)
        answers = await asyncio.gather(*(client.check_stored(UAID) for _ in range(5)))

        assert set(answers) == {Answer.UNREACHABLE}
        await client.close()

    run(test())


def test_an_answer_that_does_not_come_is_unreachable_and_the_link_goes_on(tmp_path: Path) -> None:
    async def test() -> None:
        node = RecordingNode()
        node.gate = asyncio.Event()
        server, client = await unix_pair(tmp_path / "s", node, timeout_s=0.2)

        assert await client.push(UAID, message(1)) is Answer.UNREACHABLE
        assert await client.check_stored(UAID) is Answer.FLAGGED
        node.gate.set()
        assert await client.push(UAID, message(2)) is Answer.TAKEN
        await client.close()
        server.close()

    run(test())


def test_a_node_that_raises_is_odd(tmp_path: Path) -> None:
    async def test() -> None:
        node = RecordingNode()
        server, client = await unix_pair(tmp_path / "s", node)
        assert await client.push(UAID, Update(CHID, 666)) is Answer.ODD
        node.gate = asyncio.Event()
        later = asyncio.create_task(client.push(UAID, Update(CHID, 666)))
        await asyncio.sleep(0.05)
        node.gate.set()

        assert await later is Answer.ODD
        await client.close()
        server.close()

    run(test())


def test_more_pushes_than_may_be_under_way_are_busy_but_checks_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(link_module, "IN_FLIGHT_MAX", 3)

    async def test() -> None:
        node = RecordingNode()
        node.gate = asyncio.Event()
        server, client = await unix_pair(tmp_path / "s", node)
        waiting = [asyncio.create_task(client.push(UAID, message(n))) for n in range(3)]
        await until(lambda: len(node.seen) == 3)

        assert await client.push(UAID, message(9)) is Answer.BUSY
        check = asyncio.create_task(client.check_stored(UAID))
        await asyncio.sleep(0.05)
        assert not check.done()  # the server reads on when something was answered
        node.gate.set()
        assert set(await asyncio.gather(*waiting)) == {Answer.TAKEN}
        assert await check is Answer.FLAGGED
        await client.close()
        server.close()

    run(test())


@pytest.mark.parametrize(
    "noise",
    [
        b"GET / HTTP/1.1\r\n\r\n",
        b"\xff" * 100,
        (5).to_bytes(4, "big") + b"noise",
        encode_frame(Reply(1, 200)),
        encode_frame(Prove(b"x")),
    ],
)
def test_noise_ends_the_link(tmp_path: Path, noise: bytes) -> None:
    async def test() -> None:
        node = RecordingNode()
        server = await serve_link_socket(str(tmp_path / "s"), node, asyncio.get_running_loop())
        reader, writer = await asyncio.open_unix_connection(str(tmp_path / "s"))
        writer.write(noise)

        assert await reader.read() == b""
        assert not node.seen
        writer.close()
        server.close()

    run(test())


async def relay_port(node: Node, secret: bytes = SECRET) -> tuple[HttpServer, int, list[bytes]]:
    loop = asyncio.get_running_loop()
    paths: list[bytes] = []

    def handle(request: Request) -> Response:
        paths.append(request.path)
        if request.upgrade == TOKEN:
            return accept_link(request, node, secret, loop)
        return Response.of(404)

    server = HttpServer(
        handle,
        loop=loop,
        clock=SystemClock(),
        body_limit=no_body,
        on_failure=lambda request, error: Response.of(500),
        upgrades=frozenset({TOKEN}),
    )
    return server, await server.listen("127.0.0.1", 0), paths


def upgrade_dial(port: int, secret: bytes = SECRET) -> UpgradeDial:
    return UpgradeDial(
        "127.0.0.1",
        port,
        "/w/2/link",
        secret=secret,
        loop=asyncio.get_running_loop(),
        timeout_s=2.0,
    )


def test_between_machines_both_prove_that_they_know_the_secret() -> None:
    async def test() -> None:
        node = RecordingNode()
        server, port, paths = await relay_port(node)
        client = LinkClient(upgrade_dial(port), asyncio.get_running_loop())

        assert await client.push(UAID, message(1)) is Answer.TAKEN
        assert await client.check_stored(UAID) is Answer.FLAGGED
        assert paths == [b"/w/2/link"]
        await client.close()
        await server.close()

    run(test())


def test_another_secret_is_no_link_and_nothing_reaches_the_node() -> None:
    async def test() -> None:
        node = RecordingNode()
        server, port, _ = await relay_port(node)
        client = LinkClient(upgrade_dial(port, b"another"), asyncio.get_running_loop())
        with pytest.raises(NotALinkError):
            await client.push(UAID, message(1))

        assert not node.seen
        await client.close()
        await server.close()

    run(test())


def test_a_client_without_the_proof_is_cut_off() -> None:
    async def test() -> None:
        node = RecordingNode()
        server, port, _ = await relay_port(node)
        ask = encode_frame(CheckStored(1, UAID))
        for first in (ask, encode_frame(Prove(b"guess" * 6)) + ask):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(
                b"GET /w/2/link HTTP/1.1\r\nConnection: Upgrade\r\nUpgrade: waystation-link\r\n"
                b"Waystation-Nonce: " + b"n" * 32 + b"\r\n\r\n" + first
            )
            head = await reader.readuntil(b"\r\n\r\n")

            assert head.startswith(b"HTTP/1.1 101")
            assert SECRET not in head
            assert await reader.read() == b""
            writer.close()
        assert not node.seen
        await server.close()

    run(test())


def test_an_open_link_is_offered_to_without_a_coroutine(tmp_path: Path) -> None:
    async def test() -> None:
        node = RecordingNode()
        server, client = await unix_pair(tmp_path / "w0", node)

        assert client.offer(UAID, message(1)) is None, "nobody has connected yet"
        assert await client.push(UAID, message(1)) is Answer.TAKEN
        answer = client.offer(UAID, message(2))
        assert isinstance(answer, asyncio.Future)
        assert await answer is Answer.TAKEN
        assert node.seen == [message(1), message(2)]
        server.close()
        await client.close()
        await until(lambda: client.offer(UAID, message(3)) is None)

    run(test())


def test_a_client_that_says_nothing_after_the_upgrade_is_cut_off(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Or it could hold as many connections as it likes without the secret."""
    monkeypatch.setattr(link_module, "PROOF_S", 0.05)

    async def test() -> None:
        node = RecordingNode()
        server, port, _ = await relay_port(node)
        proven = LinkClient(upgrade_dial(port, SECRET), asyncio.get_running_loop())
        assert await proven.check_stored(UAID) is Answer.FLAGGED
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(
            b"GET /w/2/link HTTP/1.1\r\nConnection: Upgrade\r\nUpgrade: waystation-link\r\n"
            b"Waystation-Nonce: " + b"n" * 32 + b"\r\n\r\n"
        )
        head = await reader.readuntil(b"\r\n\r\n")

        assert head.startswith(b"HTTP/1.1 101")
        assert await reader.read() == b""
        assert await proven.check_stored(UAID) is Answer.FLAGGED
        writer.close()
        await proven.close()
        await server.close()

    run(test())


def test_a_server_that_answers_otherwise_is_no_link() -> None:
    async def serve(answer: bytes) -> tuple[asyncio.Server, int]:
        async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.readuntil(b"\r\n\r\n")
            writer.write(answer)
            await writer.drain()
            writer.close()

        server = await asyncio.start_server(handle, "127.0.0.1", 0)
        return server, server.sockets[0].getsockname()[1]

    async def test() -> None:
        cases: list[tuple[bytes, type[Exception] | None]] = [
            (b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n", NotALinkError),
            (b"HTTP/1.1 101 Switching\r\nUpgrade: waystation-link\r\n\r\n", NotALinkError),
            (b"x" * 10_000, NotALinkError),
            (b"", None),
        ]
        for answer, error in cases:
            server, port = await serve(answer)
            client = LinkClient(upgrade_dial(port), asyncio.get_running_loop())
            if error is None:
                assert await client.push(UAID, message(1)) is Answer.UNREACHABLE
            else:
                with pytest.raises(error):
                    await client.push(UAID, message(1))
            await client.close()
            server.close()

    run(test())
