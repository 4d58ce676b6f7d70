"""The light clients, fed with bytes in every portion."""

import asyncio
from typing import cast

import pytest

from benchmarks.senders import number_of
from benchmarks.wire import AgentConnection, LoadError, PostConnection, client_frame, host_and_port
from waystation.client.encryption import b64url

ANSWER = b"HTTP/1.1 201 Created\r\nLocation: x\r\nContent-Length: 4\r\n\r\nbody"
REFUSAL = b"HTTP/1.1 503 Service Unavailable\r\ncontent-length:0\r\n\r\n"


class Transport:
    def __init__(self) -> None:
        self.written: list[bytes] = []
        self.ended = False

    def write(self, data: bytes) -> None:
        self.written.append(data)

    def abort(self) -> None:
        self.ended = True

    close = abort

    def get_extra_info(self, name: str) -> None:
        return None


@pytest.mark.parametrize("portion", [1, 7, 1000])
def test_answers_are_read_in_any_portion(portion: int) -> None:
    statuses: list[int] = []
    connection = PostConnection(lambda _, status: statuses.append(status))
    for answer in (ANSWER, REFUSAL, ANSWER):
        for start in range(0, len(answer), portion):
            connection.data_received(answer[start : start + portion])

    assert statuses == [201, 503, 201]


def server_frame(payload: bytes, opcode: int = 0x81) -> bytes:
    if len(payload) < 126:
        return bytes((opcode, len(payload))) + payload
    return bytes((opcode, 126)) + len(payload).to_bytes(2) + payload


@pytest.mark.parametrize("portion", [1, 5, 4096])
def test_frames_are_read_in_any_portion(portion: int) -> None:
    texts: list[bytes] = []
    transport = Transport()
    connection = AgentConnection("host:1", lambda _, text: texts.append(text))
    connection.connection_made(cast(asyncio.Transport, transport))
    stream = (
        b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\n\r\n"
        + server_frame(b"short")
        + server_frame(b"ping", 0x89)
        + server_frame(b"x" * 1400)
        + server_frame(b"", 0x88)
    )
    for start in range(0, len(stream), portion):
        connection.data_received(stream[start : start + portion])

    assert texts == [b"short", b"x" * 1400]
    assert transport.written[1] == client_frame(0x8A, b"ping")
    assert transport.ended


def test_a_refused_upgrade_ends_the_connection() -> None:
    transport = Transport()
    connection = AgentConnection("host:1", lambda *_: None)
    connection.connection_made(cast(asyncio.Transport, transport))
    connection.data_received(b"HTTP/1.1 400 Bad Request\r\n\r\n")

    assert transport.ended


def test_the_number_of_a_post_is_found_in_its_data() -> None:
    body = (123_456).to_bytes(9) + b"\xff" * 1015

    assert number_of(b64url(body)) == 123_456


@pytest.mark.parametrize("url", ["https://h:1", "ws://host", "nonsense"])
def test_only_plain_urls_with_a_port_can_be_measured(url: str) -> None:
    with pytest.raises(LoadError):
        host_and_port(url)
    assert host_and_port("ws://127.0.0.1:8080") == ("127.0.0.1", 8080)
