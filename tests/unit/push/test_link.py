"""Links over real sockets, on uvloop: both ends, their doors, and what happens when one dies."""

import asyncio
import time
from collections.abc import Coroutine
from pathlib import Path
from typing import Any, cast

import pytest
import uvloop

from tests.unit.waiting import until
from waystation.base.clock import Clock, SystemClock
from waystation.net.http1.server import HttpServer, Request, Response, no_body
from waystation.net.link import framed
from waystation.net.loop import NetLoop
from waystation.net.tls import Bytes, PlainCarrier
from waystation.push import link as link_module
from waystation.push.link import LinkClient, LinkServer, NotALinkError
from waystation.push.link_handshake import (
    TOKEN,
    UnixDial,
    UpgradeDial,
    accept_link,
    link_port,
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
from waystation.push.wire.relay import Answer, ServedNode

UAID = Uaid(bytes(range(16)))
CHID = ChannelId(bytes(16))
SECRET = b"a secret that both know"
CLOCK = SystemClock()


def run(test: Coroutine[Any, Any, None]) -> None:
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(asyncio.wait_for(test, 20))


def message(n: int) -> Notification:
    return Notification(CHID, MessageId(f"m{n}"), SortKey(f"02:{n}"), 5, 60, data="x" * 100)


class RecordingNode:
    def __init__(self) -> None:
        self.seen: list[object] = []
        self.left: list[tuple[Uaid, Notification | Update | None]] = []
        self.stands_still_s = 0.0
        self.gate: asyncio.Event | None = None
        self.answer = Answer.TAKEN

    async def push(self, uaid: Uaid, notification: Notification | Update) -> Answer:
        self.seen.append(notification)
        if self.stands_still_s:
            time.sleep(self.stands_still_s)
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

    def push_abandoned(self, uaid: Uaid, taken: Notification | Update | None) -> None:
        self.left.append((uaid, taken))


class Links:
    """Both ends of the links of a test, in one loop."""

    def __init__(self) -> None:
        self.net = NetLoop(clock=CLOCK)
        self.port = link_port(self.net)

    async def close(self) -> None:
        self.net.close()


def unix_pair(
    path: Path, node: ServedNode, timeout_s: float = 3.0, clock: Clock = CLOCK
) -> tuple[Links, LinkClient]:
    links = Links()
    serve_link_socket(links.port, str(path), node, clock)
    return links, LinkClient(UnixDial(links.port, str(path), 1.0), timeout_s=timeout_s)


def test_all_requests_reach_the_node_and_their_answers_come_back(tmp_path: Path) -> None:
    async def test() -> None:
        node = RecordingNode()
        server, client = unix_pair(tmp_path / "s", node)
        update = Update(CHID, 3, "d")

        assert await client.push(UAID, message(1)) is Answer.TAKEN
        assert await client.push(UAID, update) is Answer.TAKEN
        assert await client.check_stored(UAID) is Answer.FLAGGED
        assert await client.displace(UAID, 77) is Answer.ABSENT
        assert node.seen == [message(1), update, ("check", UAID), ("displace", 77)]
        assert (tmp_path / "s").stat().st_mode & 0o777 == 0o600
        await client.close()
        await server.close()

    run(test())


def test_many_requests_of_one_turn_leave_in_one_write(tmp_path: Path) -> None:
    async def test() -> None:
        node = RecordingNode()
        server, client = unix_pair(tmp_path / "s", node)
        await client.check_stored(UAID)
        connection = client._connection
        assert connection is not None
        carrier = connection.carrier
        assert carrier is not None
        writes: list[int] = []

        class Counting(PlainCarrier):
            def write(self, fd: int, data: Bytes) -> int:
                writes.append(len(data))
                return super().write(fd, data)

        connection.carrier = Counting(16_384)
        answers = await asyncio.gather(*(client.push(UAID, message(n)) for n in range(200)))

        assert set(answers) == {Answer.TAKEN}
        assert len(writes) == 1
        assert [n.message_id for n in cast(Any, node.seen[1:])] == [f"m{n}" for n in range(200)]
        await client.close()
        await server.close()

    run(test())


def test_a_peer_that_dies_answers_all_at_once_and_is_found_again(tmp_path: Path) -> None:
    async def test() -> None:
        node = RecordingNode()
        node.gate = asyncio.Event()
        server, client = unix_pair(tmp_path / "s", node, timeout_s=60)
        waiting = [asyncio.create_task(client.push(UAID, message(n))) for n in range(5)]
        await until(lambda: len(node.seen) == 5)
        for one in server.port.open_connections():
            if isinstance(one, LinkServer):
                one.end()

        assert set(await asyncio.gather(*waiting)) == {Answer.UNREACHABLE}
        node.gate.set()
        assert await client.push(UAID, message(9)) is Answer.TAKEN
        await client.close()
        await server.close()

    run(test())


def test_nobody_there_is_unreachable(tmp_path: Path) -> None:
    async def test() -> None:
        links = Links()
        client = LinkClient(UnixDial(links.port, str(tmp_path / "none"), 1.0))
        answers = await asyncio.gather(*(client.check_stored(UAID) for _ in range(5)))

        assert set(answers) == {Answer.UNREACHABLE}
        await client.close()
        await links.close()

    run(test())


def test_an_answer_that_does_not_come_is_unreachable_and_the_link_goes_on(tmp_path: Path) -> None:
    async def test() -> None:
        node = RecordingNode()
        node.gate = asyncio.Event()
        server, client = unix_pair(tmp_path / "s", node, timeout_s=0.2)

        assert await client.push(UAID, message(1)) is Answer.UNREACHABLE
        assert await client.check_stored(UAID) is Answer.FLAGGED
        node.gate.set()
        assert await client.push(UAID, message(2)) is Answer.TAKEN
        await client.close()
        await server.close()

    run(test())


def test_an_answer_that_waits_in_the_socket_is_read_before_the_asker_stops_waiting(
    tmp_path: Path,
) -> None:
    """The asker itself stood still: what it takes for unreachable has answered long ago."""

    async def test() -> None:
        node = RecordingNode()
        server, client = unix_pair(tmp_path / "s", node, timeout_s=0.3)
        await client.check_stored(UAID)
        answer = asyncio.create_task(client.push(UAID, message(1)))
        await until(lambda: len(node.seen) == 2)
        time.sleep(1.0)

        assert await answer is Answer.TAKEN
        assert node.left == []
        await client.close()
        await server.close()

    run(test())


class ClockAhead(SystemClock):
    """Of a process that goes on after `ahead_s`, in which it stood still."""

    ahead_s = 0.0

    def mono(self) -> float:
        return time.monotonic() + self.ahead_s


def pair(
    kind: str, path: Path, node: ServedNode, clock: Clock
) -> tuple[Links | HttpServer, LinkClient]:
    if kind == "unix":
        return unix_pair(path, node, 1.0, clock)
    server, port, _ = relay_port(node, clock=clock)
    return server, LinkClient(upgrade_dial(port), timeout_s=1.0)


@pytest.mark.parametrize("kind", ["unix", "machines"])
def test_a_push_that_is_found_too_late_is_refused(tmp_path: Path, kind: str) -> None:
    """A node that stood still finds it in its socket, when the endpoint has stored it already."""

    async def test() -> None:
        node, clock = RecordingNode(), ClockAhead()
        server, client = pair(kind, tmp_path / "s", node, clock)
        assert await client.push(UAID, message(1)) is Answer.TAKEN
        clock.ahead_s = 0.95  # of one second that the asker waits
        answers = await asyncio.gather(*(client.push(UAID, message(n)) for n in (2, 3)))

        assert answers == [Answer.BUSY, Answer.BUSY]
        assert node.seen == [message(1)]
        assert node.left == [(UAID, None)], "once for all that were read together"
        await client.close()
        await server.close()

    run(test())


def test_a_node_on_another_machine_may_have_any_time(tmp_path: Path) -> None:
    """And its clock may run ahead of ours: each reply tells what it shows."""

    async def test() -> None:
        node, clock = RecordingNode(), ClockAhead()
        clock.ahead_s = 5_000.0
        server, client = pair("machines", tmp_path / "s", node, clock)
        for n in range(5):
            assert await client.push(UAID, message(n)) is Answer.TAKEN
            clock.ahead_s += 0.5
        assert node.left == []
        await client.close()
        await server.close()

    run(test())


def test_a_node_of_an_earlier_release_has_no_limit(tmp_path: Path) -> None:
    async def test() -> None:
        node, clock = RecordingNode(), ClockAhead()
        server, client = pair("unix", tmp_path / "s", node, clock)
        await client.check_stored(UAID)
        assert client._connection is not None
        client._connection.clock_ahead_s = None
        clock.ahead_s = 5_000.0

        assert await client.push(UAID, message(1)) is Answer.TAKEN
        await client.close()
        await server.close()

    run(test())


@pytest.mark.parametrize("kind", ["unix", "machines"])
def test_a_node_that_stands_still_over_a_push_is_told_that_it_was_stored_too(
    tmp_path: Path, kind: str
) -> None:
    """The first of a batch was delivered before its answer came too late; the rest is refused."""

    async def test() -> None:
        node = RecordingNode()
        server, client = pair(kind, tmp_path / "s", node, CLOCK)
        await client.check_stored(UAID)
        node.stands_still_s = 1.1
        answers = await asyncio.gather(*(client.push(UAID, message(n)) for n in range(3)))

        assert answers == [Answer.TAKEN, Answer.BUSY, Answer.BUSY]  # it stood still with us
        assert node.seen == [("check", UAID), message(0)]
        assert node.left == [(UAID, None), (UAID, message(0))]
        await client.close()
        await server.close()

    run(test())


def test_a_node_that_raises_is_odd(tmp_path: Path) -> None:
    async def test() -> None:
        node = RecordingNode()
        server, client = unix_pair(tmp_path / "s", node)
        assert await client.push(UAID, Update(CHID, 666)) is Answer.UNEXPECTED
        node.gate = asyncio.Event()
        later = asyncio.create_task(client.push(UAID, Update(CHID, 666)))
        await asyncio.sleep(0.05)
        node.gate.set()

        assert await later is Answer.UNEXPECTED
        await client.close()
        await server.close()

    run(test())


def test_more_pushes_than_may_be_under_way_are_busy_but_checks_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(link_module, "IN_FLIGHT_MAX", 3)

    async def test() -> None:
        node = RecordingNode()
        node.gate = asyncio.Event()
        server, client = unix_pair(tmp_path / "s", node)
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
        await server.close()

    run(test())


@pytest.mark.parametrize(
    "noise",
    [
        b"GET / HTTP/1.1\r\n\r\n",
        b"\xff" * 100,
        framed(b"noise"),
        framed(encode_frame(Reply(1, 200))),
        framed(encode_frame(Prove(b"x"))),
    ],
)
def test_noise_ends_the_link(tmp_path: Path, noise: bytes) -> None:
    async def test() -> None:
        node = RecordingNode()
        server, _ = unix_pair(tmp_path / "s", node)
        reader, writer = await asyncio.open_unix_connection(str(tmp_path / "s"))
        writer.write(noise)

        assert await reader.read() == b""
        assert not node.seen
        writer.close()
        await server.close()

    run(test())


class RelayPort(HttpServer):
    async def close(self, timeout_s: float = 5.0) -> None:
        await super().close(timeout_s)
        self.port.net.close()


def relay_port(
    node: ServedNode, secret: bytes = SECRET, clock: Clock = CLOCK
) -> tuple[HttpServer, int, list[bytes]]:
    links = Links()
    paths: list[bytes] = []

    def handle(request: Request) -> Response:
        paths.append(request.path)
        if request.upgrade == TOKEN:
            return accept_link(request, links.port, node, secret, clock)
        return Response.of(404)

    server = RelayPort(
        handle,
        net=links.net,
        clock=CLOCK,
        body_limit=no_body,
        on_failure=lambda request, error: Response.of(500),
        upgrades=frozenset({TOKEN}),
    )
    return server, server.listen("127.0.0.1", 0), paths


def upgrade_dial(port: int, secret: bytes = SECRET, links: Links | None = None) -> UpgradeDial:
    return UpgradeDial(
        (links or Links()).port, ("127.0.0.1", port), "/w/2/link", secret=secret, timeout_s=2.0
    )


def test_between_machines_both_prove_that_they_know_the_secret() -> None:
    async def test() -> None:
        node = RecordingNode()
        server, port, paths = relay_port(node)
        client = LinkClient(upgrade_dial(port))

        assert await client.push(UAID, message(1)) is Answer.TAKEN
        assert await client.check_stored(UAID) is Answer.FLAGGED
        assert paths == [b"/w/2/link"]
        await client.close()
        await server.close()

    run(test())


def test_another_secret_is_no_link_and_nothing_reaches_the_node() -> None:
    async def test() -> None:
        node = RecordingNode()
        server, port, _ = relay_port(node)
        client = LinkClient(upgrade_dial(port, b"another"))
        with pytest.raises(NotALinkError):
            await client.push(UAID, message(1))

        assert not node.seen
        await client.close()
        await server.close()

    run(test())


def test_a_client_without_the_proof_is_cut_off() -> None:
    async def test() -> None:
        node = RecordingNode()
        server, port, _ = relay_port(node)
        ask = framed(encode_frame(CheckStored(1, UAID)))
        for first in (ask, framed(encode_frame(Prove(b"guess" * 6))) + ask):
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


def test_a_client_that_says_nothing_after_the_upgrade_is_cut_off(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Or it could hold as many connections as it likes without the secret."""
    monkeypatch.setattr(link_module, "PROOF_S", 0.05)

    async def test() -> None:
        node = RecordingNode()
        server, port, _ = relay_port(node)
        proven = LinkClient(upgrade_dial(port, SECRET))
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
            client = LinkClient(upgrade_dial(port))
            if error is None:
                assert await client.push(UAID, message(1)) is Answer.UNREACHABLE
            else:
                with pytest.raises(error):
                    await client.push(UAID, message(1))
            await client.close()
            server.close()

    run(test())
