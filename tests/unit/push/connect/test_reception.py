"""The beginning of a connection, without sockets."""

import pytest

from waystation.push.connect.carriers import PlainCarrier
from waystation.push.connect.connection import DOOMED, ENDING, UPGRADING, Connection, Ending
from waystation.push.connect.limits import ShellLimits
from waystation.push.connect.reception import Reception
from waystation.push.wire.upgrade import HttpHead, Upgrade, http_answer

REQUEST = (
    b"GET /x HTTP/1.1\r\nHost: a\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\r\n"
)
HEALTH = b"GET /__lbheartbeat__ HTTP/1.1\r\nHost: a\r\n\r\n"


class RecordingHouse:
    send_high_bytes = 65_536

    def __init__(self) -> None:
        self.full = False
        self.upgrades: list[tuple[str, bytes]] = []
        self.reports: list[str] = []

    def touched(self, connection: Connection) -> None: ...

    def pressed(self, connection: Connection) -> None: ...

    def ending(self, connection: Connection) -> None: ...

    def resumed(self, connection: Connection) -> None: ...

    def hold(self, connection: Connection) -> None: ...

    def watch(self, connection: Connection) -> None: ...

    def is_full(self) -> bool:
        return self.full

    def upgraded(self, connection: Connection, upgrade: Upgrade, rest: bytes) -> None:
        self.upgrades.append((upgrade.path, rest))

    def report(self, what: str, exc: Exception) -> None:
        self.reports.append(str(exc))


def http(head: HttpHead) -> bytes | None:
    if head.path == "/raise":
        raise RuntimeError("no store")
    return http_answer(200, b"ok") if head.path == "/__lbheartbeat__" else None


@pytest.fixture
def house() -> RecordingHouse:
    return RecordingHouse()


@pytest.fixture
def reception(house: RecordingHouse) -> Reception:
    return Reception(house, PlainCarrier(1024), ShellLimits(head_bytes_max=500), http)


@pytest.fixture
def connection(house: RecordingHouse, reception: Reception) -> Connection:
    guest = Connection(house, PlainCarrier(1024), 7, UPGRADING)
    reception.present += 1
    reception._deadlines.add(100.0, guest)
    return guest


def answer_of(connection: Connection) -> bytes:
    assert connection.flags & ENDING
    assert connection.out is not None
    return b"".join(connection.out)


@pytest.mark.parametrize("step", [1, 7, 60, 1000])
def test_a_request_may_come_in_any_pieces(
    reception: Reception, house: RecordingHouse, connection: Connection, step: int
) -> None:
    for at in range(0, len(REQUEST), step):
        reception.receive(connection, REQUEST[at : at + step])

    assert house.upgrades == [("/x", b"")]
    assert not connection.flags & UPGRADING
    assert connection.partial is None
    assert reception.present == 0


def test_what_comes_behind_the_request_is_handed_on(
    reception: Reception, house: RecordingHouse, connection: Connection
) -> None:
    reception.receive(connection, REQUEST + b"\x81\x80")

    assert house.upgrades == [("/x", b"\x81\x80")]


def test_a_head_that_grows_too_long_is_refused_while_it_grows(
    reception: Reception, connection: Connection
) -> None:
    reception.receive(connection, b"GET / HTTP/1.1\r\nX: ")
    for _ in range(6):
        reception.receive(connection, b"x" * 96)
        if connection.flags & ENDING:
            break

    assert answer_of(connection).startswith(b"HTTP/1.1 431 ")
    assert connection.partial is None


def test_a_full_node_refuses_upgrades_and_answers_health(
    reception: Reception, house: RecordingHouse, connection: Connection
) -> None:
    house.full = True
    other = Connection(house, PlainCarrier(1024), 8, UPGRADING)
    reception.receive(connection, REQUEST)
    reception.receive(other, HEALTH)

    assert answer_of(connection).startswith(b"HTTP/1.1 503 ")
    assert answer_of(other).startswith(b"HTTP/1.1 200 ")
    assert reception.refused == 1


def test_a_health_check_that_raises_is_reported_and_answered(
    reception: Reception, house: RecordingHouse, connection: Connection
) -> None:
    reception.receive(connection, b"GET /raise HTTP/1.1\r\nHost: a\r\n\r\n")

    assert answer_of(connection).startswith(b"HTTP/1.1 500 ")
    assert house.reports == ["no store"]


def test_silence_is_dropped_and_half_a_request_is_told_so(
    reception: Reception, house: RecordingHouse, connection: Connection
) -> None:
    slow = Connection(house, PlainCarrier(1024), 8, UPGRADING)
    reception._deadlines.add(100.0, slow)
    reception.receive(slow, REQUEST[:30])
    reception.expire(104.9)
    assert not (connection.flags | slow.flags) & ENDING
    reception.expire(105.2)

    assert connection.flags & DOOMED
    assert connection.ending is Ending.VANISHED
    assert answer_of(slow).startswith(b"HTTP/1.1 408 ")
    assert not reception.waiting


def test_who_was_in_time_does_not_notice_the_deadline(
    reception: Reception, connection: Connection
) -> None:
    reception.receive(connection, REQUEST)
    reception.expire(200.0)

    assert not connection.flags & ENDING
