"""Requests as clients of many makes write them: in chunks, in a row, kept alive, asking first."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from urllib.parse import urlsplit

import pytest

from tests.e2e.platform import Serve
from tests.e2e.wire_clients import BODY, Answer, accepted, b64url, http, read_answer, user_agent

pytestmark = pytest.mark.e2e


class Line:
    """One connection to an endpoint, and bytes on it."""

    def __init__(
        self, endpoint: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        parts = urlsplit(endpoint)
        self._head = f"POST {parts.path} HTTP/1.1\r\nHost: {parts.netloc}\r\nTTL: 60\r\n"
        self._reader = reader
        self._writer = writer

    def begin(self, *headers: str) -> None:
        self.write((self._head + "\r\n".join([*headers, "", ""])).encode())

    def post(self, body: bytes = BODY, *headers: str) -> None:
        self.begin("Content-Encoding: aes128gcm", f"Content-Length: {len(body)}", *headers)
        self.write(body)

    def write(self, data: bytes) -> None:
        self._writer.write(data)

    async def answer(self) -> Answer:
        async with asyncio.timeout(30):
            return await read_answer(self._reader, "POST")

    async def ended(self) -> bool:
        async with asyncio.timeout(30):
            return await self._reader.read(1) == b""


@asynccontextmanager
async def line_to(endpoint: str) -> AsyncIterator[Line]:
    parts = urlsplit(endpoint)
    reader, writer = await asyncio.open_connection(parts.hostname, parts.port)
    try:
        yield Line(endpoint, reader, writer)
    finally:
        writer.transport.abort()


async def test_a_body_may_come_in_chunks(server: Serve) -> None:
    async with user_agent(server.ws_url) as agent:
        endpoint = await agent.subscribe()
        async with line_to(endpoint) as line:
            line.begin("Content-Encoding: aes128gcm", "Transfer-Encoding: chunked")
            line.write(b"3\r\nabc\r\n")
            await asyncio.sleep(0.02)
            line.write(b"4;x=y\r\ndefg\r\n0\r\n\r\n")
            answer = await line.answer()
        message = await agent.notification(ack=True)

        assert answer.status == 201
        assert message["data"] == b64url(b"abcdefg")


async def test_chunks_have_a_limit_too(server: Serve) -> None:
    async with user_agent(server.ws_url) as agent:
        endpoint = await agent.subscribe()
        async with line_to(endpoint) as line:
            line.begin("Content-Encoding: aes128gcm", "Transfer-Encoding: chunked")
            for _ in range(6):
                line.write(b"3e8\r\n" + b"x" * 1000 + b"\r\n")
            line.write(b"0\r\n\r\n")
            answer = await line.answer()

        assert answer.error == (413, 104)
        await agent.expect_silence(0.1)


async def test_a_connection_may_be_used_again(server: Serve) -> None:
    async with user_agent(server.ws_url) as agent:
        endpoint = await agent.subscribe()
        async with line_to(endpoint) as line:
            for status in (201, 201, 413, 201):
                line.post(BODY if status == 201 else b"x" * 6000)

                assert (await line.answer()).status == status
        assert len(await agent.notifications(3, ack=True)) == 3


async def test_requests_in_a_row_are_answered_in_their_order(server: Serve) -> None:
    async with user_agent(server.ws_url) as agent:
        endpoint = await agent.subscribe()
        async with line_to(endpoint) as line:
            for n in range(5):
                line.post(b"%d" % n)
            locations = [(await line.answer()).headers["location"] for _ in range(5)]
        received = await agent.notifications(5, ack=True)

        assert [one["data"] for one in received] == [b64url(b"%d" % n) for n in range(5)]
        assert all(
            location.endswith(one["version"])
            for location, one in zip(locations, received, strict=True)
        )


async def test_who_asks_before_sending_is_told_to_continue(server: Serve) -> None:
    async with user_agent(server.ws_url) as agent:
        endpoint = await agent.subscribe()
        async with line_to(endpoint) as line:
            line.begin(
                "Content-Encoding: aes128gcm",
                f"Content-Length: {len(BODY)}",
                "Expect: 100-continue",
            )
            first = await line.answer()
            line.write(BODY)
            second = await line.answer()

        assert (first.status, second.status) == (100, 201)
        assert await agent.notification(ack=True)


async def test_a_closing_client_is_answered_and_let_go(server: Serve) -> None:
    async with user_agent(server.ws_url) as agent:
        endpoint = await agent.subscribe()
        async with line_to(endpoint) as line:
            line.post(BODY, "Connection: close")

            assert (await line.answer()).status == 201
            assert await line.ended()
        assert await agent.notification(ack=True)


@pytest.mark.parametrize(
    "garbage",
    [
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",  # TLS on a plain port
        b"POST /wpush/v1/x HTTP/1.1\r\nContent-Length: many\r\n\r\n",
        b"POST /wpush/v1/x HTTP/1.1\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n",
        b"POST /wpush/v1/x HTTP/1.1\r\nBad Header\r\n\r\n",
        b"\r\n\r\nnonsense\r\n\r\n",
    ],
)
async def test_what_is_no_request_ends_the_connection(server: Serve, garbage: bytes) -> None:
    async with line_to(server.endpoint_url) as line:
        line.write(garbage)
        answer = await line.answer()

        assert answer.status == 400
        assert await line.ended()


async def test_an_escaped_message_id_is_the_same(server: Serve) -> None:
    """Ids end in `=`, which some clients escape."""
    async with user_agent(server.ws_url) as agent:
        endpoint = await agent.subscribe()
        await agent.leave()
        answer = await accepted(endpoint)
        deleted = await http("DELETE", answer.headers["location"].replace("=", "%3D"))
        await agent.connect()

        assert deleted.status == 204
        await agent.expect_silence()
