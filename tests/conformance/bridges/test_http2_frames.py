"""The HTTP/2 client of bridges against single frames that a server of `h2` would not write."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from hyperframe.frame import (
    Frame,
    GoAwayFrame,
    HeadersFrame,
    PingFrame,
    RstStreamFrame,
    SettingsFrame,
    WindowUpdateFrame,
)

from tests.servers.http2_script import Actor, Http2Script, Scene, ends
from tests.unit.waiting import until
from waystation.net.http2.client import Http2Client, Http2FailedError, Http2Limits

WAIT_S = 20.0


def answering(actor: Actor, frame: Frame) -> None:
    if ends(frame):
        actor.answer(frame.stream_id)


@asynccontextmanager
async def scripted(
    scene: Scene = answering, *, limits: Http2Limits | None = None, **script: Any
) -> AsyncIterator[tuple[Http2Script, Http2Client]]:
    async with Http2Script(scene, **script) as server:
        client = Http2Client(server.url, loop=asyncio.get_running_loop(), limits=limits)
        try:
            yield server, client
        finally:
            await client.close()


async def ask(client: Http2Client, body: bytes = b"", wait_s: float = WAIT_S) -> int:
    return (await client.request("POST", "/", [], body, timeout_s=wait_s)).status


async def test_a_server_that_never_sends_its_settings_counts_as_unreachable() -> None:
    """Such a connection would hold every later request until its timeout."""
    mute = [True]

    def opening(actor: Actor) -> None:
        if not mute[0]:
            actor.settings()

    limits = Http2Limits(connect_timeout_s=0.3)
    async with scripted(opening=opening, limits=limits) as (server, client):
        with pytest.raises(Http2FailedError, match="in time"):
            await ask(client)
        mute[0] = False

        assert await ask(client) == 200
        await until(lambda: server.lost == 1)


async def test_a_server_that_closes_each_connection_at_once_is_not_stormed() -> None:
    async with scripted(opening=lambda actor: actor.transport.close()) as (server, client):
        with pytest.raises(Http2FailedError):
            await ask(client)

        assert len(server.actors) == 1


async def test_a_server_that_goes_away_before_every_request_is_given_up() -> None:
    def opening(actor: Actor) -> None:
        actor.settings()
        actor.write(GoAwayFrame(0, last_stream_id=0))

    async with scripted(opening=opening) as (server, client):
        with pytest.raises(Http2FailedError, match="refused 3 times"):
            await ask(client)

        assert len(server.actors) == 3


async def test_a_caller_that_gives_up_leaves_the_requests_of_others_alone() -> None:
    """Its request may be cancelled long before its timeout, and before anything has come."""
    held: list[tuple[Actor, int]] = []

    def scene(actor: Actor, frame: Frame) -> None:
        if ends(frame):
            held.append((actor, frame.stream_id))

    async with scripted(scene) as (server, client):
        asked = [asyncio.create_task(ask(client)) for _ in range(3)]
        await until(lambda: len(held) == 3)
        asked[0].cancel()
        await until(lambda: any(isinstance(one, RstStreamFrame) for one in server.frames))
        for actor, stream_id in held[1:]:
            actor.answer(stream_id)

        assert await asyncio.gather(*asked[1:]) == [200, 200]
        assert client.connections_made == 1


async def test_a_timeout_in_silence_leaves_the_requests_of_others_their_time() -> None:
    """The connection may be slow only: it takes no new requests, and those it has go on."""
    held: list[tuple[Actor, int]] = []

    def scene(actor: Actor, frame: Frame) -> None:
        if ends(frame):
            held.append((actor, frame.stream_id))

    async with scripted(scene) as (server, client):
        patient = asyncio.create_task(ask(client))
        await until(lambda: len(held) == 1)
        with pytest.raises(TimeoutError):
            await ask(client, wait_s=0.2)
        later = asyncio.create_task(ask(client))
        await until(lambda: len(held) == 3)
        for actor, stream_id in (held[0], held[2]):
            actor.answer(stream_id)

        assert await asyncio.gather(patient, later) == [200, 200]
        assert client.connections_made == 2
        await until(lambda: client.connections == server.lost == 1)


async def test_a_reset_right_after_room_for_a_body_ends_that_request_alone() -> None:
    """Both frames in one piece: the stream is closed when its room is looked at."""

    def opening(actor: Actor) -> None:
        actor.settings(INITIAL_WINDOW_SIZE=10)

    def scene(actor: Actor, frame: Frame) -> None:
        match frame:
            case HeadersFrame(stream_id=1):
                pass  # held
            case HeadersFrame(stream_id=3):
                room = WindowUpdateFrame(1, window_increment=5)
                actor.write(room, RstStreamFrame(1, error_code=2))
                actor.answer(3)
            case _:
                pass

    async with scripted(scene, opening=opening) as (_, client):
        blocked = asyncio.create_task(ask(client, b"x" * 100))
        await asyncio.sleep(0.1)

        assert await ask(client) == 200
        with pytest.raises(Http2FailedError, match="reset the request"):
            await blocked
        assert client.connections_made == 1


async def test_an_answer_before_the_end_of_a_body_frees_its_stream() -> None:
    """Else the server's limit of streams would be used up by requests that are long answered."""

    def opening(actor: Actor) -> None:
        actor.settings(INITIAL_WINDOW_SIZE=10, MAX_CONCURRENT_STREAMS=2)

    def scene(actor: Actor, frame: Frame) -> None:
        if isinstance(frame, HeadersFrame):
            actor.answer(frame.stream_id, "413")

    async with scripted(scene, opening=opening) as (server, client):
        for _ in range(5):
            assert await ask(client, b"x" * 100) == 413

        resets = [one.stream_id for one in server.frames if isinstance(one, RstStreamFrame)]
        assert client.connections_made == 1
        await until(lambda: len(resets) >= 4)


@pytest.mark.parametrize(
    "headers",
    [[(":status", "abc")], [(":status", "200"), ("x-odd", b"\xff\xfe")]],
    ids=["a status of letters", "a header that is no UTF-8"],
)
async def test_an_answer_that_cannot_be_read_ends_the_connection(
    headers: list[tuple[str, str | bytes]], caplog: pytest.LogCaptureFixture
) -> None:
    odd = [True]

    def scene(actor: Actor, frame: Frame) -> None:
        if ends(frame) and odd:
            odd.clear()
            actor.write(actor.head(frame.stream_id, *headers, end=True))
        else:
            answering(actor, frame)

    async with scripted(scene) as (_, client):
        with pytest.raises(Http2FailedError, match="broke the protocol"):
            await ask(client)

        assert await ask(client) == 200
        assert caplog.records == [], "the loop's own handler would log the bytes"


class Watched:
    """A loop that keeps the protocols of the connections it made."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self.protocols: list[Any] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loop, name)

    async def create_connection(self, *args: Any, **more: Any) -> tuple[Any, Any]:
        transport, protocol = await self._loop.create_connection(*args, **more)
        self.protocols.append(protocol)
        return transport, protocol


async def test_a_request_that_was_not_written_yet_goes_out_on_the_next_connection() -> None:
    async with Http2Script(answering) as server:
        loop: Any = Watched()
        client = Http2Client(server.url, loop=loop)
        assert await ask(client) == 200
        (connection,) = loop.protocols
        asked = asyncio.create_task(ask(client))
        loop.call_soon(connection.eof_received)  # after the request began, before it is written

        assert await asked == 200
        assert client.connections_made == 2
        assert sum(ends(frame) for frame in server.frames) == 2
        await client.close()


async def test_a_connection_takes_no_request_once_its_server_has_closed() -> None:
    """The transport may stay, to write what it has: nothing would ever be answered on it."""
    seen = [0]

    def scene(actor: Actor, frame: Frame) -> None:
        if ends(frame):
            seen[0] += 1
            if seen[0] == 1:
                actor.transport.write_eof()
            else:
                actor.answer(frame.stream_id)

    async with scripted(scene) as (_, client):
        with pytest.raises(Http2FailedError, match="closed by the server"):
            await ask(client)

        assert client.connections == 0
        assert await ask(client) == 200


async def test_closing_while_connecting_is_told_as_unreachable() -> None:
    async with scripted(opening=lambda _: None) as (server, client):
        asked = asyncio.create_task(ask(client))
        await until(lambda: len(server.actors) == 1)
        await client.close()

        with pytest.raises(Http2FailedError, match="closed"):
            await asked


async def test_smaller_windows_and_fewer_streams_hold_from_when_they_come() -> None:
    """A window may become negative by SETTINGS (RFC 9113, section 6.9.2)."""
    most = 0
    bodies: dict[int, int] = {}

    def opening(actor: Actor) -> None:
        actor.settings(INITIAL_WINDOW_SIZE=100, MAX_CONCURRENT_STREAMS=3)

    def scene(actor: Actor, frame: Frame) -> None:
        nonlocal most
        match frame:
            case HeadersFrame():
                bodies[frame.stream_id] = 0
                most = max(most, len(bodies))
                if frame.stream_id == 1:
                    actor.settings(INITIAL_WINDOW_SIZE=20, MAX_CONCURRENT_STREAMS=1)
            case SettingsFrame() if "ACK" in frame.flags and 1 in bodies:
                for stream_id in list(bodies):
                    actor.write(WindowUpdateFrame(stream_id, window_increment=1000))
            case _ if ends(frame):
                del bodies[frame.stream_id]
                actor.answer(frame.stream_id)
            case _:
                pass
        if isinstance(frame, HeadersFrame) and frame.stream_id > 5:
            actor.write(WindowUpdateFrame(frame.stream_id, window_increment=1000))

    async with scripted(scene, opening=opening) as (server, client):
        asked = (ask(client, b"x" * 500) for _ in range(9))
        assert await asyncio.gather(*asked) == [200] * 9

        late = [one for one in server.frames if isinstance(one, HeadersFrame) and one.stream_id > 5]
        assert most <= 3
        assert len(late) == 6


async def test_a_ping_is_answered() -> None:
    def opening(actor: Actor) -> None:
        actor.settings()
        actor.write(PingFrame(0, opaque_data=b"12345678"))

    async with scripted(opening=opening) as (server, client):
        assert await ask(client) == 200

        await until(lambda: any(isinstance(one, PingFrame) for one in server.frames))
