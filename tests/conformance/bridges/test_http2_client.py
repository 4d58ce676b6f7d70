"""The HTTP/2 client of bridges against a server that misbehaves."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from tests.certificates import Certificates
from tests.servers.http2_double import Asked, Fault, Handler, Http2Double, Said
from tests.unit.waiting import until
from waystation.base.errors import BusyError
from waystation.net.http2.client import Http2Answer, Http2Client, Http2FailedError, Http2Limits

WAIT_S = 20.0


def echo(asked: Asked) -> Said:
    return Said(200, asked.body or asked.path.encode(), (("x-seen", asked.headers[":authority"]),))


def first(fault: Fault | tuple[Fault, Said]) -> Handler:
    """This fault for the first request, and answers for all others."""
    left = [fault]
    return lambda asked: left.pop() if left else echo(asked)


@asynccontextmanager
async def talking(
    answer: Handler, *, streams_max: int = 100, limits: Http2Limits | None = None
) -> AsyncIterator[tuple[Http2Double, Http2Client]]:
    double = Http2Double(answer, streams_max=streams_max)
    await double.start()
    client = Http2Client(double.url, loop=asyncio.get_running_loop(), limits=limits)
    try:
        yield double, client
    finally:
        await client.close()
        await double.close()


async def ask(client: Http2Client, path: str, body: bytes = b"", wait_s: float = WAIT_S) -> bytes:
    answer = await client.request("POST", path, [], body, timeout_s=wait_s)
    assert answer.status == 200
    return answer.body


async def test_many_requests_share_one_connection_within_the_servers_streams() -> None:
    async with talking(echo, streams_max=7) as (double, client):
        answers = await asyncio.gather(*(ask(client, f"/{n}") for n in range(200)))

        assert answers == [b"/%d" % n for n in range(200)]
        assert double.connections_seen == 1
        assert double.most_streams <= 7


async def test_bodies_beyond_the_flow_control_windows_arrive_whole() -> None:
    bodies = [bytes([n]) * 60_000 for n in range(10)]
    arrived: list[bytes] = []

    def answer(asked: Asked) -> Said:
        arrived.append(asked.body)
        return Said(200)

    async with talking(answer) as (_, client):
        await asyncio.gather(*(ask(client, "/", body) for body in bodies))

    assert sorted(arrived) == bodies


async def test_headers_and_status_reach_the_caller() -> None:
    async with talking(lambda _: Said(429, b"no", (("retry-after", "7"),))) as (double, client):
        answer = await client.request("POST", "/", [("x-a", "b")], timeout_s=WAIT_S)

    assert answer == Http2Answer(429, {"retry-after": "7"}, b"no")
    assert double.connections_seen == 1


@pytest.mark.parametrize("fault", [Fault.REFUSE, Fault.GOAWAY_BEFORE])
async def test_what_the_server_has_not_seen_goes_out_again(fault: Fault) -> None:
    async with talking(first(fault)) as (_, client):
        assert await ask(client, "/again") == b"/again"


async def test_an_answer_after_a_goaway_counts_and_the_next_request_connects_anew() -> None:
    async with talking(first((Fault.GOAWAY_AFTER, Said(200, b"late")))) as (double, client):
        assert await ask(client, "/1") == b"late"
        assert await ask(client, "/2") == b"/2"
        await until(lambda: client.connections == 1)

        assert double.connections_seen == 2


async def test_a_goaway_among_many_requests_loses_and_repeats_nothing() -> None:
    seen: list[str] = []

    def answer(asked: Asked) -> Said | tuple[Fault, Said]:
        seen.append(asked.path)
        return (Fault.GOAWAY_AFTER, echo(asked)) if len(seen) % 50 == 0 else echo(asked)

    async with talking(answer, streams_max=20) as (_, client):
        answers = await asyncio.gather(*(ask(client, f"/{n}") for n in range(500)))

    assert answers == [b"/%d" % n for n in range(500)]
    assert len(seen) == len(set(seen)) == 500


@pytest.mark.parametrize("fault", [Fault.CUT, Fault.RESET])
async def test_what_the_server_may_have_seen_is_told_and_not_repeated(fault: Fault) -> None:
    async with talking(first(fault)) as (_, client):
        with pytest.raises(Http2FailedError):
            await ask(client, "/1")

        assert await ask(client, "/2") == b"/2"


async def test_a_request_that_is_refused_every_time_is_given_up() -> None:
    async with talking(lambda _: Fault.REFUSE) as (_, client):
        with pytest.raises(Http2FailedError, match="refused 3 times"):
            await ask(client, "/")


async def test_a_hanging_request_times_out_and_leaves_the_others_alone() -> None:
    def answer(asked: Asked) -> Said | Fault:
        return Fault.HANG if asked.path == "/hang" else echo(asked)

    async with talking(answer) as (double, client):
        hanging = asyncio.create_task(ask(client, "/hang", wait_s=0.3))
        await asyncio.sleep(0.1)
        assert await ask(client, "/other") == b"/other"
        with pytest.raises(TimeoutError):
            await hanging
        assert await ask(client, "/next") == b"/next"

        assert double.connections_seen == 1


async def test_a_connection_on_which_nothing_comes_any_more_is_replaced() -> None:
    """A request that gets nothing at all until its timeout may have met a dead connection."""
    hangs = [True]
    async with talking(lambda asked: Fault.HANG if hangs[0] else echo(asked)) as (double, client):
        await asyncio.sleep(0)
        with pytest.raises(TimeoutError):
            await ask(client, "/warm", wait_s=0.2)  # its SETTINGS may have come meanwhile
        with pytest.raises(TimeoutError):
            await ask(client, "/1", wait_s=0.2)
        hangs[0] = False

        assert await ask(client, "/2") == b"/2"
        assert double.connections_seen >= 2


async def test_a_server_that_is_not_there_is_told_at_once_and_found_when_it_comes() -> None:
    double = Http2Double(echo)
    await double.start()
    port = int(double.url.rpartition(":")[2])
    await double.close()
    client = Http2Client(double.url, loop=asyncio.get_running_loop())
    with pytest.raises(Http2FailedError):
        await ask(client, "/")
    await double.start(port=port)

    assert await ask(client, "/") == b"/"
    await client.close()
    await double.close()


async def test_more_waiting_requests_than_the_limit_are_refused() -> None:
    limits = Http2Limits(streams_max=2, waiting_max=3)
    async with talking(lambda _: Fault.HANG, limits=limits) as (_, client):
        asked = [asyncio.create_task(ask(client, f"/{n}", wait_s=1.0)) for n in range(12)]
        ended = await asyncio.gather(*asked, return_exceptions=True)

    kinds = [type(error) for error in ended]
    assert BusyError in kinds
    assert set(kinds) <= {BusyError, TimeoutError, Http2FailedError}


async def test_an_answer_without_end_is_cut_off() -> None:
    limits = Http2Limits(answer_bytes_max=1000)
    async with talking(lambda _: Said(200, b"x" * 10_000), limits=limits) as (_, client):
        with pytest.raises(Http2FailedError, match="exceeds 1000 bytes"):
            await ask(client, "/")


async def test_an_idle_connection_is_closed_and_made_again() -> None:
    limits = Http2Limits(idle_timeout_s=0.1)
    async with talking(echo, limits=limits) as (double, client):
        await ask(client, "/1")
        await until(lambda: client.connections == 0 and not double.connections)

        assert await ask(client, "/2") == b"/2"


async def test_closing_ends_what_is_under_way() -> None:
    async with talking(lambda _: Fault.HANG) as (_, client):
        asked = asyncio.create_task(ask(client, "/"))
        await asyncio.sleep(0.1)
        await client.close()

        with pytest.raises(Http2FailedError):
            await asked


async def test_over_tls_both_agree_on_http2(tmp_path: Path) -> None:
    certificates = Certificates(tmp_path)
    double = Http2Double(echo)
    await double.start(tls=certificates.server)
    tls = certificates.client
    tls.set_alpn_protocols(["h2"])
    client = Http2Client(double.url, loop=asyncio.get_running_loop(), tls=tls)

    assert await ask(client, "/tls") == b"/tls"
    await client.close()
    await double.close()


async def test_a_server_without_http2_is_named(tmp_path: Path) -> None:
    certificates = Certificates(tmp_path)
    server = await asyncio.start_server(
        lambda _reader, writer: writer.close(), "127.0.0.1", 0, ssl=certificates.server
    )
    port = server.sockets[0].getsockname()[1]
    tls = certificates.client
    tls.set_alpn_protocols(["h2"])
    origin = f"https://127.0.0.1:{port}"
    client = Http2Client(origin, loop=asyncio.get_running_loop(), tls=tls)
    with pytest.raises(Http2FailedError, match="HTTP/2"):
        await ask(client, "/")
    await client.close()
    server.close()
    await server.wait_closed()
