"""gRPC methods written as coroutines, called by a peer in memory."""

import asyncio
from collections.abc import AsyncIterator, Callable

import pytest

from tests.unit.net.http2.peers import Peer, changed, data, headers, message
from waystation.base.tasks import Tasks
from waystation.net.connection import BLOCKED
from waystation.net.http2 import frames
from waystation.net.http2.frames import ErrorCode
from waystation.net.http2.methods import (
    WAITING_MAX,
    Caller,
    GrpcError,
    Method,
    Service,
    service_routes,
)
from waystation.net.http2.port import GrpcStatus


def decoded(given: bytes) -> str:
    return given.decode()


class House:
    """What the methods of these tests do, and what became of them."""

    def __init__(self) -> None:
        self.failures: list[Exception] = []
        self.callers: list[Caller] = []
        self.taken: list[str] = []
        self.go = asyncio.Event()
        self.cancelled = False
        self.tasks = Tasks(lambda name, error: self.failures.append(RuntimeError(name)))
        methods = {
            "Shout": Method(self.shout, decoded, str.encode),
            "Refuse": Method(self.refuse, decoded, str.encode),
            "Fail": Method(self.fail, decoded, str.encode),
            "Count": Method(self.count, decoded, str.encode, many_out=True),
            "Join": Method(self.join, decoded, str.encode, many_in=True),
            "Echo": Method(self.echo, decoded, str.encode, many_in=True, many_out=True),
        }
        service = Service("demo.House", methods)
        self.peer = Peer()
        self.peer.routes = {
            path.encode(): handler
            for path, handler in service_routes([service], self.tasks, self.failures.append).items()
        }

    async def shout(self, request: str, caller: Caller) -> str:
        self.callers.append(caller)
        return request.upper()

    async def refuse(self, request: str, caller: Caller) -> str:
        raise GrpcError(GrpcStatus.NOT_FOUND, "no " + request)

    async def fail(self, request: str, caller: Caller) -> str:
        raise LookupError(request)

    async def count(self, request: str, caller: Caller) -> AsyncIterator[str]:
        for number in range(int(request)):
            self.taken.append(str(number))
            yield str(number % 10) * 1000

    async def join(self, requests: AsyncIterator[str], caller: Caller) -> str:
        await self.go.wait()
        async for one in requests:
            self.taken.append(one)
        return "".join(self.taken)

    async def echo(self, requests: AsyncIterator[str], caller: Caller) -> AsyncIterator[str]:
        try:
            async for one in requests:
                yield one
        except asyncio.CancelledError:
            self.cancelled = True
            raise

    def call(self, method: str, *requests: bytes, ends: bool = True) -> None:
        fields = changed(_path=f"/demo.House/{method}".encode(), authorization=b"Bearer x")
        self.peer.say(headers(1, fields), *(data(message(one)) for one in requests))
        if ends:
            self.peer.say(data(b"", flags=frames.END_STREAM))

    async def answers(self) -> tuple[list[bytes], bytes]:
        """The messages so far, and the trailers if the call has ended."""
        for _ in range(20):
            await asyncio.sleep(0)
        heard = self.peer.hear()
        payload = b"".join(one.payload for one in heard if one.kind == frames.DATA)
        found: list[bytes] = []
        while payload:
            size = int.from_bytes(payload[1:5], "big")
            found.append(payload[5 : 5 + size])
            payload = payload[5 + size :]
        ends = [one.payload for one in heard if one.flags & frames.END_STREAM]
        return found, b"".join(ends)


@pytest.fixture
async def house() -> AsyncIterator[House]:
    house = House()
    yield house
    await house.tasks.close()


async def test_one_request_has_one_reply(house: House) -> None:
    house.call("Shout", b"hello")

    assert await house.answers() == ([b"HELLO"], b"\x00\x0bgrpc-status\x010")
    assert house.callers[0].authorization == "Bearer x"
    assert not house.callers[0].certified


@pytest.mark.parametrize("requests", [(), (b"a", b"b")])
async def test_another_number_of_requests_is_unimplemented(
    house: House, requests: tuple[bytes, ...]
) -> None:
    house.call("Shout", *requests)

    said, end = await house.answers()
    assert said == []
    assert b"grpc-status\x0212" in end


@pytest.mark.parametrize(
    "method, request_, status",
    [
        pytest.param("Refuse", b"one", b"grpc-status\x015", id="refused"),
        pytest.param("Shout", b"\xff", b"grpc-status\x013", id="malformed"),
        pytest.param("Fail", b"one", b"grpc-status\x0213", id="failed"),
        pytest.param("Other", b"one", b"grpc-status\x0212", id="unknown"),
    ],
)
async def test_a_call_that_fails_ends_with_its_status(
    house: House, method: str, request_: bytes, status: bytes
) -> None:
    house.call(method, request_)

    said, end = await house.answers()
    assert said == []
    assert status in end
    assert [type(one) for one in house.failures] == [LookupError] * (method == "Fail")


async def test_a_method_may_reply_several_times(house: House) -> None:
    house.call("Count", b"3")

    said, end = await house.answers()
    assert said == [b"0" * 1000, b"1" * 1000, b"2" * 1000]
    assert b"grpc-status\x010" in end


async def test_a_method_waits_for_a_client_that_does_not_read(house: House) -> None:
    house.peer.connection.flags |= BLOCKED
    house.call("Count", b"1000")
    await house.answers()
    taken = len(house.taken)
    assert 256 <= taken < 300, "more than `send_high_bytes` does not gather"

    house.peer.read_on()
    house.peer.say(frames.window_update(0, 2**20), frames.window_update(1, 2**20))
    await house.answers()
    assert len(house.taken) > taken


async def test_requests_wait_for_a_slow_method_and_reading_pauses(house: House) -> None:
    requests = [b"%d," % number for number in range(3 * WAITING_MAX)]
    house.call("Join", *requests)
    assert house.peer.connection.held_bytes > 0
    await asyncio.sleep(0)
    house.go.set()

    said, end = await house.answers()
    assert said == [b"".join(requests)]
    assert b"grpc-status\x010" in end
    assert house.peer.connection.held_bytes == 0


async def test_both_sides_may_speak_in_turn(house: House) -> None:
    house.call("Echo", b"one", ends=False)
    assert await house.answers() == ([b"one"], b"")
    house.peer.say(data(message(b"two")))
    assert await house.answers() == ([b"two"], b"")

    house.peer.say(data(b"", flags=frames.END_STREAM))
    assert (await house.answers())[1] != b""


@pytest.mark.parametrize(
    "leave",
    [
        pytest.param(
            lambda house: house.peer.say(frames.rst_stream(1, ErrorCode.CANCEL)), id="reset"
        ),
        pytest.param(lambda house: house.peer.connection.closed(), id="connection"),
    ],
)
async def test_a_method_whose_client_has_gone_is_cancelled(
    house: House, leave: Callable[[House], None]
) -> None:
    house.call("Echo", b"one", ends=False)
    await house.answers()
    leave(house)
    await house.answers()

    assert house.cancelled
    assert len(house.tasks) == 0
    assert house.failures == []
