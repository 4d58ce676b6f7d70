"""A connection without a socket: what it asks of its shell, and when."""

import pytest

from waystation.push.connect.connection import (
    DOOMED,
    ENDING,
    OPEN,
    PAUSED,
    Connection,
    Ending,
)


class NoCarrier:
    def read(self, fd: int) -> bytes | None:
        raise AssertionError

    def write(self, fd: int, data: bytes) -> int:
        raise AssertionError

    def finish(self, fd: int) -> None:
        raise AssertionError

    def close(self, fd: int) -> None:
        raise AssertionError


class RecordingShell:
    send_high_bytes = 100

    def __init__(self) -> None:
        self.calls: list[str] = []

    def touched(self, connection: Connection) -> None:
        self.calls.append("touched")

    def pressed(self, connection: Connection) -> None:
        self.calls.append("pressed")
        if connection.out_bytes >= 200:
            connection.doom(Ending.OVERFLOWED)

    def ending(self, connection: Connection) -> None:
        self.calls.append("ending")

    def resumed(self, connection: Connection) -> None:
        self.calls.append("resumed")


@pytest.fixture
def shell() -> RecordingShell:
    return RecordingShell()


@pytest.fixture
def connection(shell: RecordingShell) -> Connection:
    return Connection(shell, NoCarrier(), 7, OPEN)


def test_an_idle_connection_has_no_dictionary(connection: Connection) -> None:
    assert not hasattr(connection, "__dict__")
    assert connection.__sizeof__() <= 96


def test_frames_of_a_turn_are_queued_in_order_and_announced_once(
    connection: Connection, shell: RecordingShell
) -> None:
    for frame in (b"1", b"2", b"3"):
        connection.send(frame)

    assert connection.out == [b"1", b"2", b"3"]
    assert connection.out_bytes == 3
    assert shell.calls == ["touched"]


def test_unsent_bytes_at_the_high_water_mark_make_it_congested(
    connection: Connection, shell: RecordingShell
) -> None:
    connection.send(b"x" * 99)
    assert not connection.congested
    connection.send(b"x")

    assert connection.congested
    assert shell.calls == ["touched", "pressed"]


def test_a_close_is_the_last_thing_that_is_sent(
    connection: Connection, shell: RecordingShell
) -> None:
    connection.send(b"before")
    connection.close(1011, "SM")
    connection.send(b"after")
    connection.close(1000)
    connection.abort()

    assert connection.out == [b"before", b"\x88\x04\x03\xf3SM"]
    assert (connection.ending, connection.close_code) == (Ending.CLOSED, 1011)
    assert shell.calls == ["touched", "ending"]


def test_an_abort_drops_what_is_unsent(connection: Connection) -> None:
    connection.send(b"before")
    connection.abort()
    connection.abort()

    assert connection.out is None
    assert (connection.ending, connection.close_code) == (Ending.ABORTED, 0)
    assert connection.flags & (ENDING | DOOMED) == ENDING | DOOMED


def test_a_close_frame_that_is_one_byte_too_many_cuts(
    connection: Connection, shell: RecordingShell
) -> None:
    connection.send(b"x" * 199)
    connection.close(1000)

    assert connection.ending is Ending.OVERFLOWED
    assert "ending" not in shell.calls


def test_how_it_ended_is_settled_by_the_first_reason(connection: Connection) -> None:
    connection.close(4774)
    connection.doom(Ending.VANISHED)

    assert (connection.ending, connection.close_code) == (Ending.CLOSED, 4774)


def test_a_pause_costs_nothing_and_a_resume_is_told_once(
    connection: Connection, shell: RecordingShell
) -> None:
    connection.resume()
    connection.pause()
    connection.pause()
    assert connection.flags & PAUSED
    assert shell.calls == []
    connection.resume()
    connection.resume()

    assert shell.calls == ["resumed"]
