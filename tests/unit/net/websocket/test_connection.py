"""A WebSocket without a socket: what its handler hears, and what it sends."""

from typing import cast

import pytest
from websockets.frames import Frame, Opcode

from waystation.net.connection import DOOMED, ENDING, OPEN, PAUSED
from waystation.net.loop import NetLoop, Port
from waystation.net.websocket.connection import Ending, WebSocket
from waystation.net.websocket.frames import FrameReader, text_frame
from waystation.net.websocket.upgrade import Upgrade

UPGRADE = Upgrade(path="/", query="", key=b"", subprotocol=False, user_agent="", origin="")


class Loop:
    """Takes notice of nothing; the kernel takes no bytes."""

    def touched(self, connection: object) -> None: ...
    def ending(self, connection: object) -> None: ...
    def resumed(self, connection: object) -> None: ...
    def write(self, connection: object) -> None: ...


class Recorder:
    """The server and the handler."""

    def __init__(self) -> None:
        self.port = Port(cast("NetLoop", Loop()), send_high_bytes=100, send_bytes_max=200)
        self.reader = FrameReader()
        self.calls: list[object] = []

    def make_handler(self, connection: WebSocket, upgrade: Upgrade) -> "Recorder":
        assert upgrade == UPGRADE
        return self

    def text(self, connection: WebSocket, text: bytes) -> None:
        self.calls.append(text)
        if text == b"pause":
            connection.pause()
        elif text == b"close":
            connection.close(4774, "enough")

    def binary(self, connection: WebSocket) -> None:
        self.calls.append("binary")

    def pinged(self, connection: WebSocket, payload: bytes) -> None:
        self.calls.append(("pinged", payload))

    def ponged(self, connection: WebSocket) -> None:
        self.calls.append("ponged")

    def broken(self, connection: WebSocket, code: int, reason: str) -> None:
        self.calls.append(("broken", code))

    def closed(self, connection: WebSocket) -> None:
        self.calls.append(("closed", connection.ending, connection.close_code))


def masked(opcode: Opcode, data: bytes = b"") -> bytes:
    return Frame(opcode, data).serialize(mask=True)


def text(data: bytes) -> bytes:
    return masked(Opcode.TEXT, data)


@pytest.fixture
def host() -> Recorder:
    return Recorder()


@pytest.fixture
def connection(host: Recorder) -> WebSocket:
    connection = WebSocket(host, UPGRADE)
    connection.flags = OPEN
    connection.opened()
    return connection


def test_an_idle_connection_has_no_dictionary(connection: WebSocket) -> None:
    assert not hasattr(connection, "__dict__")
    assert connection.__sizeof__() <= 104
    assert connection.handler_state is None


def test_each_kind_of_frame_is_told_and_a_ping_is_answered(
    connection: WebSocket, host: Recorder
) -> None:
    connection.received(text(b"a") + masked(Opcode.PING, b"?") + masked(Opcode.PONG))
    connection.received(masked(Opcode.BINARY, b"x"))

    assert host.calls == [b"a", ("pinged", b"?"), "ponged", "binary"]
    assert connection.out == [b"\x8a\x01?"]


def test_what_is_incomplete_is_kept_and_nothing_else_is(
    connection: WebSocket, host: Recorder
) -> None:
    data = text(b"hello")
    connection.received(data[:4])
    assert connection.partial is not None
    connection.received(data[4:])

    assert host.calls == [b"hello"]
    assert connection.partial is None


def test_nothing_is_told_between_a_pause_and_a_resume(
    connection: WebSocket, host: Recorder
) -> None:
    connection.resume()
    connection.received(text(b"pause") + text(b"later"))
    assert connection.flags & PAUSED
    assert host.calls == [b"pause"]
    connection.resume()
    connection.received(b"")

    assert host.calls == [b"pause", b"later"]


def test_nothing_is_told_after_the_end(connection: WebSocket, host: Recorder) -> None:
    connection.received(text(b"close") + text(b"never"))
    connection.closed()

    assert host.calls == [b"close", ("closed", Ending.CLOSED, 4774)]
    assert connection.partial is None


def test_a_close_of_the_client_is_answered(connection: WebSocket, host: Recorder) -> None:
    connection.received(masked(Opcode.CLOSE, (4000).to_bytes(2, "big")))
    connection.closed()

    assert connection.out == [b"\x88\x02\x0f\xa0"]
    assert host.calls == [("closed", Ending.CLIENT_CLOSED, 4000)]


def test_a_broken_rule_is_told_and_closed(connection: WebSocket, host: Recorder) -> None:
    connection.received(b"\x81\x01a")
    connection.closed()

    assert host.calls == [("broken", 1002), ("closed", Ending.BROKEN, 1002)]


def test_what_a_handler_raises_closes_with_1011(connection: WebSocket, host: Recorder) -> None:
    connection.failed(RuntimeError("a mistake"))
    connection.closed()

    assert connection.out == [b"\x88\x07\x03\xf3error"]
    assert host.calls == [("closed", Ending.FAILED, 1011)]


def test_unsent_bytes_at_the_high_water_mark_make_it_congested(connection: WebSocket) -> None:
    connection.send(b"x" * 99)
    assert not connection.congested
    connection.send(b"x")

    assert connection.congested


def test_a_close_is_the_last_thing_that_is_sent(connection: WebSocket) -> None:
    connection.send(text_frame(b"before"))
    connection.close(1011, "SM")
    connection.send(b"after")
    connection.close(1000)
    connection.abort()

    assert (connection.ending, connection.close_code) == (Ending.CLOSED, 1011)


def test_an_abort_drops_what_is_unsent(connection: WebSocket) -> None:
    connection.send(b"before")
    connection.abort()
    connection.abort()

    assert connection.out is None
    assert (connection.ending, connection.close_code) == (Ending.ABORTED, 0)
    assert connection.flags & (ENDING | DOOMED) == ENDING | DOOMED


def test_a_close_frame_that_is_one_byte_too_many_cuts(connection: WebSocket) -> None:
    connection.send(b"x" * 199)
    connection.close(1000)

    assert connection.ending is Ending.OVERFLOWED


def test_how_it_ended_is_settled_by_the_first_reason(connection: WebSocket) -> None:
    connection.close(4774)
    connection.lost()

    assert (connection.ending, connection.close_code) == (Ending.CLOSED, 4774)


def test_a_connection_that_is_lost_has_vanished(connection: WebSocket, host: Recorder) -> None:
    connection.lost()
    connection.closed()
    connection.closed()

    assert host.calls == [("closed", Ending.VANISHED, 0)]
