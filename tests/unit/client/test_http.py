"""The HTTP client against correct and faulty servers."""

import asyncio
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest

from tests.certificates import Certificates
from waystation.client.http import HttpClient, HttpError

Handler = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@asynccontextmanager
async def serving(handler: Handler, tls: ssl.SSLContext | None = None) -> AsyncIterator[str]:
    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await handler(reader, writer)
        except (OSError, EOFError):
            pass
        finally:
            writer.close()

    server = await asyncio.start_server(handle, "127.0.0.1", 0, ssl=tls)
    try:
        yield f"{'https' if tls else 'http'}://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        server.close()
        await asyncio.sleep(0)


def answering(*answers: bytes) -> Handler:
    """Each request on a connection gets the next answer; then the connection ends."""

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for answer in answers:
            head = await reader.readuntil(b"\r\n\r\n")
            length = int(head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0])
            await reader.readexactly(length)
            writer.write(answer)
            await writer.drain()

    return handle


CREATED = b"HTTP/1.1 201 Created\r\nLocation: /m/x\r\nContent-Length: 0\r\n\r\n"


async def test_status_headers_and_body_come_back() -> None:
    answer = b"HTTP/1.1 410 Gone\r\nContent-Length: 4\r\nX-Y: z\r\n\r\nbody"
    async with serving(answering(answer)) as url, HttpClient() as http:
        response = await http.request("POST", f"{url}/wpush?a=b", headers={"TTL": "0"}, body=b"x")

    assert (response.status, response.headers["x-y"], response.body) == (410, "z", b"body")


async def test_what_we_send_is_one_plain_request() -> None:
    seen = bytearray()

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        seen.extend(await reader.readuntil(b"\r\n\r\nbody"))
        writer.write(CREATED)
        await writer.drain()

    async with serving(handle) as url, HttpClient() as http:
        await http.request("POST", f"{url}/p/q?r=s", headers={"TTL": "5"}, body=b"body")

    host = url.removeprefix("http://").encode()
    assert bytes(seen) == (
        b"POST /p/q?r=s HTTP/1.1\r\nHost: " + host + b"\r\nContent-Length: 4\r\nTTL: 5\r\n\r\nbody"
    )


async def test_a_connection_is_used_again() -> None:
    connections = 0
    handle = answering(CREATED, CREATED, CREATED)

    async def counting(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal connections
        connections += 1
        await handle(reader, writer)

    async with serving(counting) as url, HttpClient() as http:
        for _ in range(3):
            assert (await http.request("POST", url)).status == 201

    assert connections == 1


async def test_an_idle_connection_that_was_closed_is_replaced() -> None:
    async with serving(answering(CREATED)) as url, HttpClient() as http:
        for _ in range(3):
            assert (await http.request("POST", url)).status == 201
            await asyncio.sleep(0.05)  # the server's end of the connection arrives


async def test_idle_connections_are_limited() -> None:
    async with serving(answering(CREATED, CREATED)) as url, HttpClient(idle_max=1) as http:
        await asyncio.gather(*(http.request("POST", url) for _ in range(3)))

        assert len(http._idle) == 1


@pytest.mark.parametrize(
    "answer, body",
    [
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n", b"abc"),
        (b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\nuntil the end", b"until the end"),
        (
            b"HTTP/1.1 103 Early Hints\r\nA: b\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n",
            b"",
        ),
    ],
)
async def test_every_form_of_body_is_understood(answer: bytes, body: bytes) -> None:
    async with serving(answering(answer)) as url, HttpClient() as http:
        response = await http.request("GET", url)

    assert (response.status, response.body) == (200, body)
    assert "a" not in response.headers


@pytest.mark.parametrize(
    "answer",
    [
        b"",
        b"HTTP/1.1 20",
        b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nshort",
        b"nonsense\r\n\r\n",
    ],
)
async def test_an_answer_that_breaks_off_is_an_error(answer: bytes) -> None:
    async with serving(answering(answer)) as url, HttpClient() as http:
        with pytest.raises(HttpError):
            await http.request("GET", url)


async def test_an_answer_that_is_too_long_is_an_error() -> None:
    answer = b"HTTP/1.1 200 OK\r\nContent-Length: 200\r\n\r\n" + bytes(200)
    async with serving(answering(answer)) as url, HttpClient(body_bytes_max=100) as http:
        with pytest.raises(HttpError, match="more than 100"):
            await http.request("GET", url)


async def test_a_silent_server_is_an_error_after_the_timeout() -> None:
    async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()

    async with serving(silent) as url, HttpClient(timeout_s=0.1) as http:
        with pytest.raises(HttpError, match=r"within 0\.1 s"):
            await http.request("GET", url)


async def test_a_port_without_a_listener_is_an_error() -> None:
    async with serving(answering()) as url:
        pass
    async with HttpClient() as http:
        with pytest.raises(HttpError):
            await http.request("GET", url)


async def test_a_header_cannot_smuggle_another() -> None:
    async with HttpClient() as http:
        with pytest.raises(ValueError, match="character"):
            await http.request("GET", "http://127.0.0.1:9/", headers={"Topic": "a\r\nX: y"})


async def test_https_with_a_ca_that_we_trust(certificates: Certificates) -> None:
    async with (
        serving(answering(CREATED, CREATED), certificates.server) as url,
        HttpClient(tls=certificates.client) as http,
    ):
        assert (await http.request("POST", url, body=b"x")).status == 201
        assert (await http.request("POST", url, body=b"y")).status == 201


async def test_https_with_a_ca_that_we_do_not_trust_is_an_error(certificates: Certificates) -> None:
    async with serving(answering(CREATED), certificates.server) as url, HttpClient() as http:
        with pytest.raises(HttpError, match=r"(?i)certificate"):
            await http.request("POST", url)
