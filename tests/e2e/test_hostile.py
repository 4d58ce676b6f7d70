"""Peers that never read, that take their time, that send nonsense: promises 3 and 5.

Nobody else may notice them. Times are compared with those of the same server a moment before, and
generously: what is looked for is a queue behind somebody slow, not a few milliseconds.
"""

import asyncio
import contextlib
import json
import os
import random
import resource
import socket
import statistics
import struct
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.crowd import going_on
from tests.e2e.platform import Serve, until
from tests.e2e.scrape import sample
from tests.e2e.wire_clients import (
    CLOSE,
    TEXT,
    RawSocket,
    UserAgent,
    Vapid,
    accepted,
    http,
    new_channel,
    post,
)

pytestmark = pytest.mark.e2e

PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
LARGE = b"x" * 5000
PATIENCE_S = 1.5  # the server's, with those who do not get to the point
UPGRADE_HEADERS = {
    "Upgrade": "websocket",
    "Connection": "Upgrade",
    "Sec-WebSocket-Version": "13",
    "Sec-WebSocket-Key": "AAAAAAAAAAAAAAAAAAAAAA==",
}
UPGRADE = "\r\n".join(
    [
        "GET / HTTP/1.1",
        "Host: 127.0.0.1",
        *(f"{name}: {value}" for name, value in UPGRADE_HEADERS.items()),
        "\r\n",
    ]
).encode()


@pytest.fixture(scope="module")
def _many_descriptors() -> Iterator[None]:
    """For this process and for the servers that it starts."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.fixture(scope="module")
def sturdy_server(
    tmp_path_factory: pytest.TempPathFactory, _many_descriptors: None
) -> Iterator[Serve]:
    with Serve(
        tmp_path_factory.mktemp("sturdy"),
        workers=2,
        connect__open_handshake_timeout_s=PATIENCE_S,
    ) as serve:
        yield serve
        assert not [line for line in serve.lines if "Traceback" in line]


# --- how the others fare -------------------------------------------------------------------------


class Regulars:
    """A few honest user agents, and how long their notifications take."""

    def __init__(self, server: Serve, count: int = 8) -> None:
        self._agents = [UserAgent(server.ws_url) for _ in range(count)]
        self._endpoints: list[str] = []

    async def latencies_s(self, each: int) -> list[float]:
        return [
            await self._latency_s(agent, endpoint)
            for _ in range(each)
            for agent, endpoint in zip(self._agents, self._endpoints, strict=True)
        ]

    async def _latency_s(self, agent: UserAgent, endpoint: str) -> float:
        began = time.monotonic()
        answer, _ = await asyncio.gather(post(endpoint), agent.notification(ack=True))
        assert answer.status == 201
        return time.monotonic() - began

    async def __aenter__(self) -> "Regulars":
        for agent in self._agents:
            await agent.connect()
            self._endpoints.append(await agent.subscribe())
        return self

    async def __aexit__(self, *_: object) -> None:
        for agent in self._agents:
            await agent.vanish()


def report(name: str, before: list[float], during: list[float]) -> None:
    def told(times: list[float]) -> str:
        cuts = statistics.quantiles(times, n=20)
        return f"median {cuts[9] * 1000:.1f} ms, 95 % {cuts[18] * 1000:.1f} ms"

    print(f"{name}: {told(before)}; with them: {told(during)}")


def slowed_down(before: list[float], during: list[float]) -> bool:
    """By more than a busy machine explains, which may have got busy in between. Whoever waits for
    those who do not read waits for seconds."""
    return statistics.median(during) > 6 * statistics.median(before) + 0.3 or max(during) > 10.0


def rss_bytes(server: Serve) -> int:
    return sum(
        int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * PAGE_BYTES
        for pid in server.worker_pids()
    )


# --- never read ----------------------------------------------------------------------------------


class Deaf:
    """A user agent that says hello, subscribes and never reads again."""

    def __init__(self) -> None:
        self._sock = socket.socket()
        self._sock.setblocking(False)
        self._sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        self.endpoint = ""

    async def connect(self, port: int) -> None:
        """All it has to say at once; the answers stay where they are."""
        loop = asyncio.get_running_loop()
        await loop.sock_connect(self._sock, ("127.0.0.1", port))
        await loop.sock_sendall(self._sock, UPGRADE + _say(HELLO) + _say(registering()))

    async def listen_for_its_endpoint(self) -> None:
        """The only thing it ever hears."""
        heard = b""
        loop = asyncio.get_running_loop()
        async with asyncio.timeout(15):
            while b'"pushEndpoint"' not in heard or not heard.endswith(b"}"):
                heard += await loop.sock_recv(self._sock, 4096)
        self.endpoint = json.loads(heard[heard.rindex(b"{") :])["pushEndpoint"]

    async def ping(self) -> None:
        """Asks and asks, and does not listen to the answers."""
        loop = asyncio.get_running_loop()
        asking = _frame(9, b"p" * 125) * 200
        with contextlib.suppress(OSError):
            while True:
                await loop.sock_sendall(self._sock, asking)

    def close(self) -> None:
        self._sock.close()


HELLO = {"messageType": "hello", "use_webpush": True}


def registering() -> dict[str, str]:
    return {"messageType": "register", "channelID": new_channel()}


def _say(message: dict[str, Any]) -> bytes:
    return _frame(TEXT, json.dumps(message).encode())


def _frame(opcode: int, payload: bytes) -> bytes:
    """Masked with zeros, which is a mask."""
    if len(payload) < 126:
        head = bytes([0x80 | opcode, 0x80 | len(payload)])
    else:
        head = bytes([0x80 | opcode, 0x80 | 126]) + struct.pack("!H", len(payload))
    return head + bytes(4) + payload


async def flood(endpoints: list[str], each: int) -> None:
    """More than any of them can take without reading."""
    for _ in range(each):
        for endpoint in endpoints:
            answer = await post(endpoint, LARGE)
            assert answer.status == 201


async def slowed_down_by_deaf(server: Serve, *, count: int, flooded: int) -> bool:
    """Whether the others feel that `count` never read, and `flooded` of them should."""
    port = server.addresses["ports"]["connect.port"]
    deaf = [Deaf() for _ in range(count)]
    async with Regulars(server) as regulars:
        await regulars.latencies_s(3)
        before_bytes = rss_bytes(server)
        before = await regulars.latencies_s(10)
        try:
            for start in range(0, count, 100):
                await asyncio.gather(*(one.connect(port) for one in deaf[start : start + 100]))
            await asyncio.to_thread(
                until,
                lambda: sample(server, "waystation_ua_connections") >= count,
                timeout_s=60,
            )
            for one in deaf[:flooded]:
                await one.listen_for_its_endpoint()
            endpoints = [one.endpoint for one in deaf[:flooded]]
            pinging = [one.ping() for one in deaf[-4:]]
            async with going_on(flood(endpoints, 40), *pinging):
                during = await regulars.latencies_s(12)
            grown_bytes = rss_bytes(server) - before_bytes
            heartbeat = await http("GET", f"{server.ws_url.replace('ws:', 'http:')}__heartbeat__")
        finally:
            for one in deaf:
                one.close()
    report(f"{count} that never read", before, during)
    print(f"memory grew by {grown_bytes / 2**20:.1f} MiB")

    # 64 KiB unsent make one busy, 1 MiB cut it; an idle one costs next to nothing.
    assert grown_bytes < 48 * 2**20 + count * 8 * 2**10 + flooded * 256 * 2**10
    assert heartbeat.status == 200
    return slowed_down(before, during)


async def test_two_thousand_that_never_read_do_not_slow_down_the_others(
    sturdy_server: Serve,
) -> None:
    assert not await slowed_down_by_deaf(sturdy_server, count=2000, flooded=20)


@pytest.mark.soak
async def test_ten_thousand_that_never_read_do_not_slow_down_the_others(
    sturdy_server: Serve,
) -> None:
    assert not await slowed_down_by_deaf(sturdy_server, count=10_000, flooded=100)


async def test_what_one_does_not_read_waits_for_it_in_storage(sturdy_server: Serve) -> None:
    """It is busy, not gone: when it comes back and reads, everything is there."""
    async with UserAgent(sturdy_server.ws_url) as agent:
        await agent.connect()
        endpoint = await agent.subscribe()
        agent.socket.transport.pause_reading()
        for number in range(200):
            await accepted(endpoint, b"%04d" % number + LARGE)
        await agent.vanish()
        await agent.connect()
        came: set[str] = set()
        while len(came) < 200:
            came.add((await agent.notification(ack=True))["version"])

        await agent.expect_silence()


class ServeWithFew(Serve):
    """A server that the system allows few descriptors."""

    def __init__(self, data_dir: Path, descriptors: int) -> None:
        super().__init__(data_dir)
        self._command = ["sh", "-c", f'ulimit -n {descriptors} && exec "$@"', "sh", *self._command]


async def test_user_agents_leave_descriptors_for_posts(data_dir: Path) -> None:
    """Those who came in time are served; whoever comes when it is full hears 503."""
    with ServeWithFew(data_dir, 300) as server:
        port = server.addresses["ports"]["connect.port"]
        deaf = [Deaf() for _ in range(500)]
        async with Regulars(server) as regulars:
            for number, one in enumerate(deaf):
                await one.connect(port)
                if number % 20 == 0:
                    await asyncio.sleep(0.01)
            during = await regulars.latencies_s(3)
            upgrade = await http("GET", server.ws_url.replace("ws:", "http:"), UPGRADE_HEADERS)
            for one in deaf:
                one.close()

        assert max(during) < 10.0
        assert upgrade.status == 503
        assert sample(server, "waystation_ua_connections") < 300


# --- take their time -----------------------------------------------------------------------------


async def dribble(port: int, data: bytes, every_s: float) -> float:
    """One byte after the other; how long the server listened."""
    began = time.monotonic()
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    ended = asyncio.create_task(reader.read())
    try:
        for byte in data:
            if ended.done() or writer.transport.is_closing():
                break
            writer.write(bytes([byte]))
            await asyncio.sleep(every_s)
        await asyncio.wait([ended], timeout=30)
        assert ended.done(), "the server still waits for the rest"
        with contextlib.suppress(OSError):
            await ended
        return time.monotonic() - began
    finally:
        ended.cancel()
        writer.transport.abort()


async def test_who_dribbles_is_let_go_and_nobody_waits_for_it(sturdy_server: Serve) -> None:
    """At every port at once; a request may take 20 s."""
    ports = sturdy_server.addresses["ports"]
    slow = b"POST /wpush/v1/abc HTTP/1.1\r\nX-Long: " + b"a" * 200
    at_connect = [(ports["connect.port"], data, 0.1) for data in (UPGRADE, b"")]
    at_http = [(ports[name], slow, 0.25) for name in ("endpoint.port", "connect.relay_port")]
    async with Regulars(sturdy_server) as regulars:
        before = await regulars.latencies_s(4)
        shortly, slowly = (
            [asyncio.create_task(dribble(*one)) for one in several for _ in range(100)]
            for several in (at_connect, at_http)
        )
        during = await regulars.latencies_s(12)
        short_s, long_s = await asyncio.gather(*shortly), await asyncio.gather(*slowly)
    report("400 that dribble", before, during)

    assert not slowed_down(before, during)
    assert max(short_s) < PATIENCE_S + 10
    assert max(long_s) < 30


async def test_who_upgrades_and_says_nothing_is_closed(sturdy_server: Serve) -> None:
    async with await RawSocket.open(sturdy_server.ws_url) as raw:
        began = time.monotonic()
        frame = await raw.frame()

        assert frame.opcode == CLOSE
        assert time.monotonic() - began < PATIENCE_S + 10


# --- nonsense ------------------------------------------------------------------------------------

# What the specification knows of (webpush 4.4, 4.8, 8.1), and what HTTP asks of every server.
STATUSES = {
    *(101, 200, 201, 202, 204),
    *(400, 401, 404, 405, 408, 410, 411, 413, 414, 418, 426, 429, 431),
    *(501, 503, 505),
}
CLOSE_CODES = {1000, 1001, 1002, 1003, 1005, 1007, 1009, 1011, 4774}
ROUNDS = 10
THROWN_AT_ONCE = 50  # at each port


def mutated(chance: random.Random, originals: list[bytes]) -> bytes:
    data = bytearray(b"".join(chance.choices(originals, k=chance.choice((1, 1, 1, 2, 4)))))
    for _ in range(chance.choice((0, 1, 1, 2, 4, 12))):
        where = chance.randrange(len(data) + 1)
        much = chance.randrange(1, 40)
        match chance.randrange(5):
            case 0:
                data[where : where + 1] = chance.randbytes(1)
            case 1:
                del data[where : where + much]
            case 2:
                data[where:where] = chance.randbytes(much)
            case 3:
                data[where:where] = data[:much]
            case _:
                odd = (b"\r\n", b"\r\n\r\n", b"\0", b":", b"\xff", b"A" * 9000, b"{" * 300)
                data[where:where] = chance.choice(odd)
    return bytes(data) or b"\n"


async def throw(port: int, data: bytes, *, wait_s: float) -> bytes:
    """All that comes back until the server closes, or has said nothing for a while."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    heard = bytearray()
    try:
        writer.write(data)
        while True:
            async with asyncio.timeout(wait_s):
                part = await reader.read(65_536)
            if not part:
                break
            heard += part
    except (OSError, TimeoutError):
        pass
    finally:
        writer.transport.abort()
    return bytes(heard)


def statuses(heard: bytes) -> set[int]:
    found: set[int] = set()
    for part in heard.split(b"HTTP/1.1 ")[1:]:
        assert part[:3].isdigit(), part[:80]
        found.add(int(part[:3]))
    return found


def closes(heard: bytes) -> set[int]:
    """Codes of the Close frames behind an upgrade."""
    found: set[int] = set()
    at = heard.find(b"\r\n\r\n") + 4
    while heard.startswith(b"HTTP/1.1 101") and at + 2 <= len(heard):
        opcode, length = heard[at] & 0x0F, heard[at + 1] & 0x7F
        at += 2
        if length == 126:
            length = int.from_bytes(heard[at : at + 2])
            at += 2
        if opcode == CLOSE and length >= 2:
            found.add(int.from_bytes(heard[at : at + 2]))
        at += length
    return found


def thrown_closes(data: bytes) -> set[int]:
    """Codes of the Close frames that a client sends behind its upgrade, which are masked."""
    found: set[int] = set()
    at = data.find(b"\r\n\r\n") + 4
    while at + 6 <= len(data):
        opcode, length = data[at] & 0x0F, data[at + 1] & 0x7F
        at += 2
        if length == 126:
            length = int.from_bytes(data[at : at + 2])
            at += 2
        mask, payload = data[at : at + 4], data[at + 4 : at + 6]
        if opcode == CLOSE and length >= 2:
            found.add(int.from_bytes(bytes(a ^ b for a, b in zip(payload, mask, strict=False))))
        at += 4 + length
    return found


async def originals(server: Serve, endpoint: str, vapid: Vapid) -> dict[str, list[bytes]]:
    path = endpoint.removeprefix(server.endpoint_url).encode()
    signed = vapid.vapid(endpoint)["Authorization"].encode()
    uaid = b"0f1e2d3c4b5a469788796a5b4c3d2e1f"
    head = b" HTTP/1.1\r\nHost: a\r\n"
    says = [
        _say(HELLO | {"broadcasts": {"a/b": "v"}}),
        _say(registering()),
        _say({"messageType": "unregister", "channelID": new_channel(), "code": 200}),
        _say({"messageType": "ack", "updates": [{"channelID": new_channel(), "version": "v"}]}),
        _say({"messageType": "nack", "version": "v", "code": 301}),
        _say({"messageType": "broadcast_subscribe", "broadcasts": {"a/b": "v"}}),
        _say({}),
        _frame(9, b"ping"),
        _frame(8, b"\x03\xe8"),
        _frame(2, b"binary"),
    ]
    return {
        "connect.port": [
            UPGRADE + b"".join(says),
            *(UPGRADE + says[0] + one for one in says),
            b"GET /__heartbeat__" + head + b"\r\n",
        ],
        "connect.relay_port": [
            b"PUT /push/" + uaid + head + b'Content-Length: 18\r\n\r\n{"channelID":"abc"',
            b"PUT /notif/" + uaid + head + b"Content-Length: 0\r\n\r\n",
            b"DELETE /notif/" + uaid + b"/17" + head + b"\r\n",
            b"PUT /w/1/push/" + uaid + head + b"Content-Length: 2\r\n\r\n{}",
            b"GET /metrics" + head + b"\r\n",
        ],
        "endpoint.port": [
            b"POST " + path + head + b"TTL: 5\r\nAuthorization: " + signed + b"\r\n"
            b"Content-Encoding: aes128gcm\r\nTopic: t\r\nContent-Length: 5\r\n\r\nabcde",
            b"POST " + path + head + b"TTL: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
            b"DELETE /m/gAAAAAB" + head + b"\r\n",
            b"GET /m/gAAAAAB/status" + head + b"Authorization: " + signed + b"\r\n\r\n",
            b"PUT /spush/v1/abc" + head + b"Content-Length: 9\r\n\r\nversion=5",
            b"POST /_matrix/push/v1/notify" + head + b"Content-Length: 2\r\n\r\n{}",
            b"OPTIONS " + path + head + b"Origin: https://a\r\n\r\n",
        ],
        "console.port": [
            b"GET /" + head + b"\r\n",
            b"GET /v1/broadcasts" + head + b"Authorization: Bearer x\r\n\r\n",
            b"PUT /v1/broadcasts/a/b" + head + b"Content-Length: 2\r\n\r\nv1",
        ],
    }


async def test_nonsense_is_refused_and_changes_nothing(sturdy_server: Serve) -> None:
    seed = random.SystemRandom().randrange(2**32)
    chance = random.Random(seed)
    print(f"seed {seed}")
    vapid = Vapid()
    pids = sturdy_server.worker_pids()
    ports = sturdy_server.addresses["ports"]
    async with UserAgent(sturdy_server.ws_url) as agent:
        await agent.connect()
        endpoint = await agent.subscribe(key=vapid.key)
        kinds = await originals(sturdy_server, await agent.subscribe(), vapid)
        answered: set[int] = set()
        closed: set[int] = set()
        for _ in range(ROUNDS):
            thrown = [
                (name, mutated(chance, samples))
                for name, samples in kinds.items()
                for _ in range(THROWN_AT_ONCE)
            ]
            answers = await asyncio.gather(
                *(throw(ports[name], data, wait_s=0.5) for name, data in thrown)
            )
            for (name, data), heard in zip(thrown, answers, strict=True):
                if name == "connect.port":
                    # A Close is answered with its own code, whatever that has become.
                    closed |= closes(heard) - thrown_closes(data)
                    heard = heard.partition(b"\r\n\r\n")[0]
                answered |= statuses(heard)
        # What was thrown may have been a good POST by chance; ours still arrives.
        last = await accepted(endpoint, b"after all that", vapid=vapid)
        version = last.headers["location"].rpartition("/m/")[2]
        while (await agent.notification(ack=True))["version"] != version:
            pass

    print(f"statuses {sorted(answered)}, close codes {sorted(closed)}")

    assert answered <= STATUSES, f"seed {seed}"
    assert closed <= CLOSE_CODES, f"seed {seed}"
    assert {400, 404} <= answered
    assert sturdy_server.worker_pids() == pids
    for url in (sturdy_server.endpoint_url, sturdy_server.relay_url, sturdy_server.console_url):
        assert (await http("GET", f"{url}/__heartbeat__")).status == 200
    assert not [line for line in sturdy_server.lines if "Traceback" in line], f"seed {seed}"
