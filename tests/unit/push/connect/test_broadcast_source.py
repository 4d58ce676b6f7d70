import asyncio
import contextlib
from collections.abc import AsyncIterator, Mapping

import pytest

from waystation.base.clock import ManualClock
from waystation.base.errors import UnavailableError
from waystation.push.connect.broadcast_source import (
    ANSWER_BYTES_MAX,
    BroadcastPoller,
    Source,
    megaphone,
    published_here,
)
from waystation.push.connect.broadcasts import Broadcasts
from waystation.storage.memory.push import MemoryPushStore


class Server:
    """Answers every request on a loopback port with the same bytes, and keeps the requests. A path
    of `redirects` is answered with its new place."""

    def __init__(self) -> None:
        self.answer = b""
        self.redirects: dict[bytes, str] = {}
        self.requests: list[bytes] = []
        self.url = ""

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
            self.requests.append(await reader.readuntil(b"\r\n\r\n"))
            place = self.redirects.get(self.requests[-1].split(b" ", 2)[1])
            writer.write(self.answer if place is None else _moved_to(place))
            await writer.drain()
        writer.close()

    def says(self, body: bytes, status: str = "200 OK") -> None:
        self.answer = (
            f"HTTP/1.1 {status}\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n"
        ).encode() + body


def _moved_to(place: str) -> bytes:
    return (
        f"HTTP/1.1 302 Found\r\nLocation: {place}\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
    ).encode()


@contextlib.asynccontextmanager
async def listening() -> AsyncIterator[Server]:
    its = Server()
    listener = await asyncio.start_server(its.serve, "127.0.0.1", 0)
    port = listener.sockets[0].getsockname()[1]
    its.url = f"http://127.0.0.1:{port}/v1/broadcasts"
    yield its
    listener.close()
    await listener.wait_closed()


@pytest.fixture
async def server() -> AsyncIterator[Server]:
    async with listening() as its:
        yield its


class Polled:
    def __init__(self, source: Source, broadcasts: Broadcasts | None = None) -> None:
        self.broadcasts = broadcasts if broadcasts is not None else Broadcasts()
        self.outcomes: list[Exception | None] = []
        self.poller = BroadcastPoller(
            self.broadcasts, source, interval_s=0.01, polled=self.outcomes.append
        )


async def test_a_megaphone_server_is_asked_and_its_versions_are_taken(server: Server) -> None:
    """C-133"""
    server.says(b'{"code":200,"broadcasts":{"a/b":"1"}}')
    polled = Polled(megaphone(server.url))
    await polled.poller.poll()

    assert polled.broadcasts.versions == {"a/b": "1"}
    assert polled.outcomes == [None]
    assert b"authorization" not in server.requests[0].lower()


async def test_the_token_is_sent(server: Server) -> None:
    server.says(b'{"broadcasts":{}}')
    await Polled(megaphone(server.url, "Bearer abc")).poller.poll()

    assert b"Authorization: Bearer abc\r\n" in server.requests[0]


@pytest.mark.parametrize(
    "body, status",
    [
        (b'{"broadcasts":{"a/b":"2"}}', "500 Oops"),
        (b'{"broadcasts":{"a/b":"2"}}', "404 Not Found"),
        (b"", "200 OK"),
        (b"not json", "200 OK"),
        (b"{}", "200 OK"),
        (b'{"broadcasts":[]}', "200 OK"),
        (b'{"broadcasts":{"a/b":2}}', "200 OK"),
        (b'{"broadcasts":{"a/b":"\xff"}}', "200 OK"),
        (b'{"broadcasts":{"a/b":"2"},"x":"' + b"x" * ANSWER_BYTES_MAX + b'"}', "200 OK"),
    ],
    ids=["500", "404", "empty", "text", "no map", "list", "number", "no utf-8", "too long"],
)
async def test_an_answer_that_cannot_be_taken_whole_changes_nothing(
    server: Server, body: bytes, status: str
) -> None:
    """C-137"""
    server.says(body, status)
    polled = Polled(megaphone(server.url))
    polled.broadcasts.update({"a/b": "1"})
    await polled.poller.poll()

    assert polled.broadcasts.versions == {"a/b": "1"}
    assert isinstance(polled.outcomes[0], Exception)


@pytest.mark.parametrize(
    "answer",
    [
        b"this is no HTTP\r\n\r\n",
        b"",
        b"HTTP/1.1 200 OK\r\nContent-Length: 900\r\n\r\n{}",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
    ],
    ids=["no http", "nothing", "cut", "bad chunk"],
)
async def test_a_server_that_does_not_speak_http_changes_nothing(
    server: Server, answer: bytes
) -> None:
    """C-137: whatever the source does, polling goes on."""
    server.answer = answer
    polled = Polled(megaphone(server.url))
    await polled.poller.poll()
    server.says(b'{"broadcasts":{"a/b":"1"}}')
    await polled.poller.poll()

    assert isinstance(polled.outcomes[0], Exception)
    assert polled.outcomes[1:] == [None]
    assert polled.broadcasts.versions == {"a/b": "1"}


async def test_a_source_that_cannot_be_reached_is_asked_again() -> None:
    """C-137"""

    asked, enough = 0, asyncio.Event()

    async def down() -> Mapping[str, str]:
        nonlocal asked
        asked += 1
        if asked == 3:
            enough.set()
        raise UnavailableError("down")

    polled = Polled(down)
    running = asyncio.ensure_future(polled.poller.run())
    await asyncio.wait_for(enough.wait(), 10)
    running.cancel()

    assert all(isinstance(outcome, UnavailableError) for outcome in polled.outcomes)


async def test_what_was_published_here_comes_from_the_store() -> None:
    store = MemoryPushStore(ManualClock())
    await store.publish_broadcast("a/b", "1")
    polled = Polled(published_here(store))
    await polled.poller.poll()
    await store.publish_broadcast("a/b", "2")
    await polled.poller.poll()

    assert polled.broadcasts.versions == {"a/b": "2"}


@pytest.mark.parametrize("url", ["file:///etc/passwd", "ftp://host/x", "host:80", ""])
def test_only_http_urls_are_polled(url: str) -> None:
    with pytest.raises(ValueError, match="begins with http"):
        megaphone(url)


async def test_every_poll_follows_redirects(server: Server) -> None:
    """urllib counts the redirects of a request in the request: one that is used again seems to go
    round in a loop, at the second poll."""
    server.redirects[b"/v1/broadcasts"] = "/v2/broadcasts"
    source = megaphone(server.url, "secret")
    for number in range(12):
        server.says(b'{"broadcasts": {"a": "%d"}}' % number)

        assert await source() == {"a": str(number)}
    assert all(b"Authorization: secret" in request for request in server.requests)


async def test_the_token_does_not_follow_a_redirect_to_another_origin(server: Server) -> None:
    async with listening() as other:
        other.says(b'{"broadcasts": {}}')
        server.redirects[b"/v1/broadcasts"] = other.url

        assert await megaphone(server.url, "secret")() == {}
    assert b"Authorization: secret" in server.requests[0]
    assert b"secret" not in other.requests[0]
