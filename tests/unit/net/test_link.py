"""Frames over a connection: whatever pieces they come in."""

from typing import cast

import pytest

from waystation.net.connection import ENDING, OPEN
from waystation.net.link import FRAME_BYTES_MAX, FrameConnection, framed
from waystation.net.loop import NetLoop, Port

FRAMES = [b"", b"a", b"b" * 300, b"", b"c" * 70_000]


class Loop:
    """Takes notice of nothing."""

    def touched(self, connection: object) -> None: ...
    def ending(self, connection: object) -> None: ...
    def resumed(self, connection: object) -> None: ...


class Recorder(FrameConnection):
    def __init__(self) -> None:
        super().__init__(Port(cast("NetLoop", Loop())))
        self.flags = OPEN
        self.seen: list[bytes] = []
        self.pauses_at: bytes | None = None

    def frame(self, payload: bytes) -> None:
        self.seen.append(payload)
        if payload == self.pauses_at:
            self.pause()


@pytest.mark.parametrize("size", [1, 3, 4, 5, 1000, 1_000_000])
def test_frames_survive_any_cutting(size: int) -> None:
    stream = b"".join(map(framed, FRAMES))
    connection = Recorder()
    for at in range(0, len(stream), size):
        connection.received(stream[at : at + size])

    assert connection.seen == FRAMES


def test_a_pause_keeps_the_frames_behind_it() -> None:
    connection = Recorder()
    connection.pauses_at = b"a"
    connection.received(b"".join(map(framed, FRAMES)))
    assert connection.seen == FRAMES[:2]
    connection.resume()
    connection.received(b"")

    assert connection.seen == FRAMES


def test_a_frame_that_is_too_long_ends_the_connection_by_its_length() -> None:
    connection = Recorder()
    connection.received(framed(b"a") + (FRAME_BYTES_MAX + 1).to_bytes(4, "big"))

    assert connection.seen == [b"a"]
    assert connection.flags & ENDING


def test_what_is_sent_is_framed() -> None:
    connection = Recorder()
    connection.send_frame(b"abc")

    assert connection.out == [b"\0\0\0\x03abc"]
