"""A live endpoint under mutated, cut, stalled and senseless bytes.

Every answer is one that the specification knows, nothing raises inside, connections do not pile
up, and afterwards an honest sender is served as before.
"""

import asyncio
import random
from collections.abc import Coroutine
from typing import Any

import pytest
import uvloop

from tests.unit.push.endpoint.endpoint_world import NODE, World
from tests.unit.waiting import until
from waystation.net.http1.server import HttpLimits, HttpServer
from waystation.net.loop import NetLoop

STATUSES = {
    *(200, 201, 202, 204),
    *(400, 401, 404, 405, 408, 410, 413, 429, 431),
    *(500, 503),
}
ROUNDS = 400


def run(test: Coroutine[Any, Any, None]) -> None:
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(asyncio.wait_for(test, 120))


class Live:
    def __init__(self) -> None:
        self.world = World()
        self.server = HttpServer(
            self.world.server.handle,
            net=NetLoop(clock=self.world.clock),
            clock=self.world.clock,
            body_limit=self.world.server.body_limit,
            on_failure=self.world.server.failure,
            limits=HttpLimits(head_bytes_max=4096),
        )
        self.port = 0

    async def start(self) -> None:
        await self.world.subscribe(node_id=NODE)
        self.port = self.server.listen("127.0.0.1", 0)

    async def send(self, data: bytes, rng: random.Random | None = None) -> bytes:
        """All that comes back until the server closes or goes quiet."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        try:
            if rng is None or rng.random() < 0.7:
                writer.write(data)
            else:
                cut = rng.randrange(len(data) + 1)
                writer.write(data[:cut])
                await asyncio.sleep(0.002)
                writer.write(data[cut:])
            if writer.can_write_eof():
                writer.write_eof()
            return await asyncio.wait_for(reader.read(4_000_000), 10)
        except (ConnectionError, OSError):
            return b""
        finally:
            writer.close()

    def requests(self) -> list[bytes]:
        world = self.world
        signed = world.signed()["authorization"]
        path = world.path("v2", world.sender.key_hash).encode()
        v1 = world.path().encode()
        head = b"POST %b HTTP/1.1\r\nHost: a\r\nTTL: 60\r\n"
        return [
            head % v1 + b"Content-Length: 0\r\n\r\n",
            head % v1
            + b"Content-Encoding: aes128gcm\r\nTopic: abc\r\nContent-Length: 5\r\n\r\nabcde",
            head % path + b"Authorization: " + signed + b"\r\nContent-Length: 0\r\n\r\n",
            head
            % v1
            + b"Content-Encoding: aesgcm\r\nEncryption: salt=ab\r\nCrypto-Key: dh=cd;k=x\r\n"
            b"Transfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n",
            head % v1 + b"Content-Length: 6000\r\nExpect: 100-continue\r\n\r\n" + b"x" * 6000,
            head % v1 + b"Connection: Upgrade\r\nUpgrade: h2c\r\nContent-Length: 0\r\n\r\n",
            b"DELETE /m/gAAAAAB HTTP/1.1\r\nHost: a\r\n\r\n",
            b"GET /m/gAAAAAB/status HTTP/1.1\r\nHost: a\r\nAuthorization: " + signed + b"\r\n\r\n",
            b"PUT /spush/v1/abc HTTP/1.1\r\nContent-Length: 9\r\n\r\nversion=5",
            b"OPTIONS * HTTP/1.1\r\nOrigin: https://a\r\n\r\n",
            b"POST /_matrix/push/v1/notify HTTP/1.1\r\nContent-Length: 41\r\n\r\n"
            b'{"notification":{"devices":[{"pushkey":1}',
        ]


def mutated(rng: random.Random, requests: list[bytes]) -> bytes:
    data = bytearray(b"".join(rng.choices(requests, k=rng.choice((1, 1, 1, 2, 5)))))
    for _ in range(rng.choice((0, 1, 1, 2, 4, 16))):
        where = rng.randrange(len(data))
        match rng.randrange(6):
            case 0:
                data[where] = rng.randrange(256)
            case 1:
                data[where : where + rng.randrange(1, 30)] = b""
            case 2:
                data[where:where] = rng.randbytes(rng.randrange(1, 30))
            case 3:
                data[where:where] = data[: rng.randrange(1, 200)]
            case 4:
                data[where:where] = rng.choice((b"\r\n", b"\r\n\r\n", b":", b"%", b"=", b"\0"))
            case _:
                data[where:where] = bytes([rng.choice(b"A0 \t;,")]) * rng.choice((10, 500, 9000))
        if not data:
            return b"\n"
    return bytes(data)


def statuses(answer: bytes) -> list[int]:
    """Of the answers in a stream; bodies are JSON or text without line ends of their own."""
    return [
        int(part.split(b" ", 2)[1])
        for part in answer.split(b"HTTP/1.1 ")[1:]
        for part in [b"HTTP/1.1 " + part]
        if part[9:12].isdigit()
    ]


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_mutated_requests_get_only_known_answers(seed: int) -> None:
    async def test() -> None:
        rng = random.Random(seed)
        live = Live()
        await live.start()
        requests = live.requests()
        seen: set[int] = set()
        for _ in range(ROUNDS):
            answer = await live.send(mutated(rng, requests), rng)
            found = statuses(answer)
            assert set(found) <= STATUSES | {100}, answer[:200]
            seen.update(found)

        assert not live.world.bugs
        assert {201, 400, 404} <= seen
        honest = await live.send(requests[0])
        assert b" 201 " in honest[:16]
        await until(lambda: len(live.server.connections) < 20 and not live.server.tasks)
        await live.server.close(1)

    run(test())


def test_noise_of_every_kind_is_refused_or_ignored() -> None:
    async def test() -> None:
        rng = random.Random(7)
        live = Live()
        await live.start()
        noises = [rng.randbytes(rng.randrange(1, 3000)) for _ in range(60)]
        noises += [
            b"\r\n" * 5000,
            b"\0" * 5000,
            b"GET /" + b"%" * 3000 + b" HTTP/1.1\r\n\r\n",
            b"POST /wpush/v1/" + b"A" * 3000 + b" HTTP/1.1\r\nTTL: 1\r\nContent-Length: 0\r\n\r\n",
            b"POST /wpush/v1/x HTTP/1.1\r\nContent-Length: 99999999999999999999999\r\n\r\n",
            b"POST /wpush/v1/x HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\nffffffffffffffff\r\n",
            b"POST /wpush/v1/x HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n"
            + b"1\r\nx\r\n" * 20_000,
            b"GET / HTTP/1.1\r\n" + b"A: b\r\n" * 3000 + b"\r\n",
            b"GET /a HTTP/1.1\r\n\r\n" * 3000,
        ]
        for noise in noises:
            answer = await live.send(noise)
            assert set(statuses(answer)) <= STATUSES, answer[:200]
        assert not live.world.bugs
        await live.server.close(1)

    run(test())


def test_clients_that_stall_anywhere_cost_a_connection_and_no_more() -> None:
    async def test() -> None:
        live = Live()
        await live.start()
        request = live.requests()[1]
        writers: list[asyncio.StreamWriter] = []
        readers: list[asyncio.StreamReader] = []
        for cut in range(0, len(request) - 1, 7):
            reader, writer = await asyncio.open_connection("127.0.0.1", live.port)
            writer.write(request[:cut])
            readers.append(reader)
            writers.append(writer)
        assert b" 201 " in (await live.send(live.requests()[0]))[:16]
        reading = len(writers) - 1  # the first has sent nothing
        await until(lambda: sum(c._reader.in_message for c in live.server.connections) == reading)

        # As the sweep would find them a while later.
        live.server.tick += 21
        for connection in list(live.server.connections):
            connection.check_age()
        answers = [await asyncio.wait_for(reader.read(), 5) for reader in readers[1:]]
        assert all(statuses(answer) == [408] for answer in answers)
        for writer in writers:
            writer.close()
        await live.server.close(1)
        assert not live.server.connections

    run(test())
