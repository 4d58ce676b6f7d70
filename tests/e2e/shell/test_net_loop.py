"""The loop of all sockets on loopback: what every protocol above it relies on."""

import asyncio
import contextlib
import socket
import ssl
import struct
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.certificates import Certificates
from tests.unit.waiting import until
from waystation.base.clock import SystemClock
from waystation.net.connection import Connection
from waystation.net.loop import NetLimits, NetLoop, Port, bound_socket, unix_socket

PATIENCE_S = 10.0


class Talk(Connection):
    """Remembers what happens, and answers some words."""

    def __init__(self, port: Port, log: list[object]) -> None:
        super().__init__(port)
        self.log = log
        self.answers_late = False

    def opened(self) -> None:
        self.log.append("opened")

    def received(self, data: bytes) -> None:
        self.log.append(data)
        match data:
            case b"echo":
                self.send(b"one ")
                self.send(b"two")
            case b"large":
                for _ in range(100):
                    self.send(b"x" * 50_000)
            case b"huge":
                self.send(b"y" * 20_000_000)
            case b"end":
                self.send(b"bye")
                self.end()
                self.send(b"never sent")
            case b"abort":
                self.send(b"never sent")
                self.abort()
            case b"raise":
                raise RuntimeError("a mistake")
            case b"pause":
                self.pause()
            case b"become":
                self.send(b"before ")
                self.become(Talk(self.port, self.log), b"echo")
            case b"late":
                self.answers_late = True
            case _:
                pass

    def half_closed(self) -> None:
        self.log.append("half closed")
        if self.answers_late:
            self.send(b"an answer")
        self.end()

    def drained(self) -> None:
        self.log.append("drained")

    def closed(self) -> None:
        self.log.append("closed")


class Pulled(Talk):
    pulls = True
    left = 5

    def fill(self) -> bool:
        if self.left:
            self.left -= 1
            self.send(b"%d" % self.left)
        return bool(self.left)


class Stage:
    def __init__(self, net: NetLoop) -> None:
        self.net = net
        self.port = Port(net, send_bytes_max=0)
        self.log: list[object] = []
        self.made: list[Talk] = []
        self.kind = Talk
        self.writers: list[asyncio.StreamWriter] = []

    def make(self, address: str) -> Connection:
        self.made.append(self.kind(self.port, self.log))
        return self.made[-1]

    def listen(self, tls: ssl.SSLContext | None = None) -> int:
        sock = bound_socket("127.0.0.1", 0)
        self.port.listen(sock, self.make, tls)
        return self.port.address[1]

    async def client(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        reader, writer = await asyncio.open_connection("127.0.0.1", self.listen())
        self.writers.append(writer)
        return reader, writer


async def eventually(stage: Stage, what: object) -> None:
    await until(lambda: what in stage.log)


@pytest.fixture
async def stage() -> AsyncIterator[Stage]:
    made = Stage(NetLoop(clock=SystemClock(), limits=NetLimits(linger_s=0.3, flush_s=0.5)))
    asyncio.get_running_loop().set_exception_handler(
        lambda _, context: made.log.append(("trouble", str(context.get("exception"))))
    )
    try:
        yield made
    finally:
        for writer in made.writers:
            writer.transport.abort()
        made.net.close()
        assert made.port.descriptors == 0


async def read(reader: asyncio.StreamReader, size: int) -> bytes:
    async with asyncio.timeout(PATIENCE_S):
        return await reader.readexactly(size)


async def read_all(reader: asyncio.StreamReader) -> bytes:
    async with asyncio.timeout(PATIENCE_S):
        return await reader.read()


async def test_what_is_sent_in_a_turn_arrives_in_order(stage: Stage) -> None:
    reader, writer = await stage.client()
    writer.write(b"echo")

    assert await read(reader, 7) == b"one two"
    assert stage.log == ["opened", b"echo"]


@pytest.mark.parametrize("word, size", [(b"large", 5_000_000), (b"huge", 20_000_000)])
async def test_a_slow_peer_gets_everything(stage: Stage, word: bytes, size: int) -> None:
    reader, writer = await stage.client()
    writer.write(word)
    await eventually(stage, word)
    assert stage.made[0].congested
    assert stage.made[0].is_blocked

    assert len(await read(reader, size)) == size
    await eventually(stage, "drained")
    assert not stage.made[0].congested


async def test_the_last_words_arrive_and_nothing_after_them(stage: Stage) -> None:
    reader, writer = await stage.client()
    writer.write(b"end")

    assert await read_all(reader) == b"bye"
    await eventually(stage, "closed")


async def test_a_peer_that_does_not_close_is_closed(stage: Stage) -> None:
    reader, writer = await stage.client()
    writer.write(b"end")
    assert await read_all(reader) == b"bye"

    assert await stage.port.until_empty(PATIENCE_S)


async def test_a_peer_that_does_not_read_its_last_bytes_is_closed(stage: Stage) -> None:
    _, writer = await stage.client()
    writer.write(b"huge")
    await eventually(stage, b"huge")
    stage.made[0].end()

    assert await stage.port.until_empty(PATIENCE_S)
    assert stage.log.count("closed") == 1


async def test_an_abort_sends_nothing(stage: Stage) -> None:
    reader, writer = await stage.client()
    writer.write(b"abort")

    with contextlib.suppress(ConnectionError):
        assert await read_all(reader) == b""
    assert stage.log == ["opened", b"abort", "closed"]


async def test_a_mistake_costs_one_connection(stage: Stage) -> None:
    reader, writer = await stage.client()
    writer.write(b"raise")

    with contextlib.suppress(ConnectionError):
        assert await read_all(reader) == b""
    assert stage.log == ["opened", b"raise", ("trouble", "a mistake"), "closed"]


async def test_a_half_closed_peer_may_still_be_answered(stage: Stage) -> None:
    reader, writer = await stage.client()
    writer.write(b"late")
    await eventually(stage, b"late")
    writer.write_eof()

    assert await read_all(reader) == b"an answer"
    assert stage.log == ["opened", b"late", "half closed", "closed"]
    assert stage.made[0].has_left()


async def test_nothing_is_read_during_a_pause(stage: Stage) -> None:
    _, writer = await stage.client()
    writer.write(b"pause")
    await eventually(stage, b"pause")
    writer.write(b"more")
    await asyncio.sleep(0.05)
    assert stage.log == ["opened", b"pause"]

    stage.made[0].resume()
    await eventually(stage, b"more")
    assert stage.log == ["opened", b"pause", b"", b"more"]


async def test_a_peer_that_resets_during_a_pause_is_noticed(stage: Stage) -> None:
    with socket.create_connection(("127.0.0.1", stage.listen())) as sock:
        sock.sendall(b"pause")
        await eventually(stage, b"pause")
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))

    await eventually(stage, "closed")
    assert stage.log == ["opened", b"pause", "closed"]


async def test_another_protocol_takes_the_socket_and_what_is_unsent(stage: Stage) -> None:
    reader, writer = await stage.client()
    writer.write(b"become")

    assert await read(reader, 14) == b"before one two"
    assert stage.log == ["opened", b"become", "opened", b"echo"]
    assert stage.port.connections == 1
    writer.close()
    await eventually(stage, "closed")
    assert stage.log.count("closed") == 1


async def test_a_protocol_that_pulls_is_asked_until_it_has_nothing_left(stage: Stage) -> None:
    stage.kind = Pulled
    reader, writer = await stage.client()
    writer.write(b"go")
    await eventually(stage, b"go")
    stage.made[0].touch()

    assert await read(reader, 5) == b"43210"


async def test_a_peer_that_never_reads_is_cut_at_the_limit(stage: Stage) -> None:
    stage.port.send_bytes_max = 1_000_000
    _, writer = await stage.client()
    writer.write(b"large")

    await eventually(stage, "closed")
    assert stage.port.overflowed == 1


async def test_a_client_of_ours_speaks_to_a_server_of_ours(stage: Stage) -> None:
    port = stage.listen()
    log: list[object] = []
    ours = Talk(Port(stage.net), log)
    await ours.port.connect(ours, ("127.0.0.1", port))
    ours.send(b"echo")

    await until(lambda: b"one two" in log)
    assert stage.made[0].peer_address() == "127.0.0.1"


async def test_a_client_reaches_a_unix_socket(stage: Stage, tmp_path: Path) -> None:
    path = str(tmp_path / "s")
    stage.port.listen(unix_socket(path), stage.make)
    ours = Talk(Port(stage.net), [])
    await ours.port.connect(ours, path)
    ours.send(b"hello")

    await eventually(stage, b"hello")
    assert stage.made[0].peer_address() == ""


async def test_a_client_that_reaches_nobody_is_told(stage: Stage) -> None:
    sock = bound_socket("127.0.0.1", 0)
    ours = Talk(Port(stage.net), [])

    with pytest.raises(OSError, match=r"failed|refused"):
        await ours.port.connect(ours, sock.getsockname())
    sock.close()


@pytest.fixture
def contexts(tmp_path: Path) -> tuple[ssl.SSLContext, ssl.SSLContext]:
    certificates = Certificates(tmp_path)
    return certificates.server, certificates.client


async def test_both_ends_speak_tls(
    stage: Stage, contexts: tuple[ssl.SSLContext, ssl.SSLContext]
) -> None:
    server, client = contexts
    port = stage.listen(server)
    log: list[object] = []
    ours = Talk(Port(stage.net), log)
    await ours.port.connect(ours, ("127.0.0.1", port), tls=client, server_name="localhost")
    ours.send(b"huge")

    await until(lambda: sum(len(one) for one in log if isinstance(one, bytes)) == 20_000_000)
    theirs, mine = stage.made[0].secure, ours.secure
    assert theirs is not None
    assert mine is not None
    assert theirs.binding == mine.binding


async def test_a_client_that_does_not_trust_a_certificate_is_told(
    stage: Stage, contexts: tuple[ssl.SSLContext, ssl.SSLContext]
) -> None:
    port = stage.listen(contexts[0])
    ours = Talk(Port(stage.net), [])

    with pytest.raises(ssl.SSLCertVerificationError):
        await ours.port.connect(
            ours, ("127.0.0.1", port), tls=ssl.create_default_context(), server_name="localhost"
        )
    await eventually(stage, "closed")


async def test_plain_text_at_a_tls_port_is_survived(
    stage: Stage, contexts: tuple[ssl.SSLContext, ssl.SSLContext]
) -> None:
    port = stage.listen(contexts[0])
    with socket.create_connection(("127.0.0.1", port)) as sock:
        sock.sendall(b"GET / HTTP/1.1\r\n\r\n")
        await eventually(stage, "closed")

    assert stage.log == ["closed"]


async def test_the_port_is_free_after_accepting_stops_and_those_inside_go_on(stage: Stage) -> None:
    reader, writer = await stage.client()
    where = stage.port.address
    writer.write(b"hi")
    await eventually(stage, b"hi")
    stage.port.stop_accepting()

    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(where)
    writer.write(b"echo")
    assert await read(reader, 7) == b"one two"


async def test_both_ends_notice_a_machine_that_vanished(stage: Stage) -> None:
    stage.port.vanished_s = 15
    port = stage.listen()
    ours = Talk(Port(stage.net, vanished_s=15), [])
    await ours.port.connect(ours, ("127.0.0.1", port))
    await until(lambda: bool(stage.made) and stage.made[0].is_open)

    for one in (ours, stage.made[0]):
        sock = socket.socket(fileno=one.fd)
        wait_ms = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT)
        probe_s = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE)
        sock.detach()
        assert (wait_ms, probe_s) == (15_000, 5)
