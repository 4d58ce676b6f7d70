"""Frames that cost the peer nothing end its connection before they cost us much."""

from collections.abc import Callable

import pytest

from tests.unit.net.http2.peers import Peer, block, changed, data, headers, message
from waystation.net.connection import BLOCKED
from waystation.net.http2 import frames
from waystation.net.http2.frames import ErrorCode

PING = frames.frame(frames.PING, 0, 0, bytes(8))


def _calmed(peer: Peer) -> bool:
    return peer.gone and peer.goodbye().code == ErrorCode.ENHANCE_YOUR_CALM


def test_rapid_resets_end_the_connection() -> None:
    """Opening and resetting streams without waiting for an answer."""
    peer = Peer()
    for number in range(1, 2_001, 2):
        peer.say(headers(number), frames.rst_stream(number, ErrorCode.CANCEL))
        if peer.gone:
            break

    assert _calmed(peer)
    assert len(peer.broker.streams) <= 201


@pytest.mark.parametrize(
    "fault",
    [
        pytest.param(lambda number: [frames.window_update(number, 0)], id="window update of 0"),
        pytest.param(
            lambda number: [frames.window_update(number, 2**31 - 1)] * 2, id="window too large"
        ),
        pytest.param(
            lambda number: [data(b"", number, frames.END_STREAM), data(b"x", number)],
            id="data after the end",
        ),
        pytest.param(lambda number: [headers(number)], id="headers in mid-stream"),
        pytest.param(
            lambda number: [
                frames.frame(frames.PRIORITY, 0, number, number.to_bytes(4, "big") + b"\0")
            ],
            id="depends on itself",
        ),
    ],
)
def test_resets_that_the_peer_provokes_end_the_connection(
    fault: Callable[[int], list[bytes]],
) -> None:
    """CVE-2025-8671: the peer breaks a rule of its stream, and the server resets it."""
    peer = Peer()
    for number in range(1, 2_001, 2):
        peer.say(headers(number), *fault(number))
        if peer.gone:
            break

    assert _calmed(peer)
    assert len(peer.broker.streams) <= 201


def test_malformed_requests_end_the_connection() -> None:
    peer = Peer()
    for number in range(1, 2_001, 2):
        peer.say(headers(number, changed(_method=b"GET", connection=b"close")))
        if peer.gone:
            break

    assert _calmed(peer)


def test_answers_to_a_peer_that_does_not_read_are_bounded() -> None:
    """The smallest requests get answers five times as long."""
    peer = Peer(blocked_bytes_max=10_000)
    peer.connection.flags |= BLOCKED
    for number in range(1, 20_001, 2):
        peer.say(headers(number, changed(_path=b"/no"), flags=frames.END_STREAM))
        if peer.gone:
            break

    assert peer.gone
    assert peer.port.overflowed == 1
    assert peer.connection.out is None, "what it does not read is dropped"
    assert len(peer.connection.calls) < 100


def test_a_peer_that_reads_again_in_time_is_served_on() -> None:
    peer = Peer(blocked_bytes_max=10_000)
    for number in range(1, 2_001, 2):
        peer.connection.flags |= BLOCKED
        peer.say(headers(number, changed(_path=b"/no"), flags=frames.END_STREAM))
        peer.read_on()

    assert not peer.gone


def test_a_crowd_that_is_cut_at_once_is_no_attack() -> None:
    """P-080: a thousand answered streams of one connection are cancelled together."""
    peer = Peer()
    peer.broker.echo = True
    ids = range(1, 2_001, 2)
    for number in ids:
        peer.say(headers(number), data(message(b"join"), number))
    peer.say(*(frames.rst_stream(number, ErrorCode.CANCEL) for number in ids))

    assert not peer.gone
    assert len(peer.broker.ends) == 1_000
    assert peer.connection.calls == {}


def test_pings_without_anything_else_end_the_connection() -> None:
    """P-055: more often than every 10 s is too often."""
    peer = Peer()
    peer.say(PING, PING, PING)
    assert not peer.gone

    peer.say(PING)
    assert b"too_many_pings" in peer.goodbye().payload


def test_pings_that_follow_our_data_are_forgiven() -> None:
    """gRPC's clients measure bandwidth that way."""
    peer = Peer()
    peer.broker.echo = True
    peer.say(headers(1))
    for _ in range(100):
        peer.say(data(message(b"x")), PING)

    assert not peer.gone


def test_seldom_pings_are_welcome_for_ever() -> None:
    peer = Peer()
    for _ in range(100):
        peer.now += 10.0
        peer.say(PING)

    assert not peer.gone


@pytest.mark.parametrize(
    "frame",
    [
        pytest.param(frames.settings({3: 1}), id="settings"),
        pytest.param(frames.frame(frames.PRIORITY, 0, 3, bytes(5)), id="priority"),
        pytest.param(frames.frame(0x77, 0, 0, bytes(3)), id="unknown"),
        pytest.param(data(b"", 1), id="empty data"),
        pytest.param(data(b"\x00", 1, frames.PADDED), id="data of padding"),
    ],
)
def test_a_flood_ends_the_connection(frame: bytes) -> None:
    peer = Peer()
    peer.say(headers(1))
    for _ in range(1_100):
        peer.say(frame)
        if peer.gone:
            break

    assert _calmed(peer)


def test_endless_continuations_end_the_connection() -> None:
    peer = Peer()
    peer.say(frames.frame(frames.HEADERS, 0, 1, block()))
    for _ in range(20):
        if not peer.gone:
            peer.say(frames.frame(frames.CONTINUATION, 0, 1, b""))

    assert _calmed(peer)


def test_headers_that_grow_and_grow_end_the_connection() -> None:
    peer = Peer()
    peer.say(frames.frame(frames.HEADERS, 0, 1, block()))
    for _ in range(3):
        if not peer.gone:
            peer.say(frames.frame(frames.CONTINUATION, 0, 1, bytes(16_384)))

    assert _calmed(peer)


def test_a_bomb_of_headers_ends_the_connection() -> None:
    """One large entry of the table, named again and again by one byte each time."""
    peer = Peer()
    entering = b"\x40\x01x\x7f\xa1\x1e" + bytes(4000)
    peer.say(frames.frame(frames.HEADERS, frames.END_HEADERS, 1, entering + b"\xbe" * 12_000))

    assert _calmed(peer)
    assert peer.broker.streams == []


def test_small_bombs_of_headers_are_refused_and_the_connection_goes_on() -> None:
    """More metadata than `header_list_bytes_max`, and not yet `header_unpacked_bytes_max`."""
    peer = Peer()
    entering = b"\x40\x01x\x7f\xa1\x1e" + bytes(4000)
    peer.say(frames.frame(frames.HEADERS, frames.END_HEADERS, 1, block() + entering + b"\xbe" * 9))

    (refused,) = peer.hear()
    assert b"grpc-status\x018" in refused.payload
    assert not peer.gone


def test_a_message_that_comes_byte_by_byte_is_not_copied_each_time() -> None:
    """The bytes of a frame that is not complete are kept in place."""
    peer = Peer()
    peer.say(headers(1))
    frame = data(message(bytes(16_000)))
    for byte in frame[:-1]:
        peer.say(bytes((byte,)))
    held = peer.connection._held

    assert isinstance(held, bytearray)
    peer.say(frame[-1:])
    assert peer.broker.messages == [bytes(16_000)]


def test_a_large_message_is_not_copied_with_each_frame() -> None:
    """What is unread is joined once, when its message is complete."""
    size = 2 << 20
    peer = Peer(message_bytes_max=size, receive_window_bytes=2 * size)
    peer.say(headers(1))
    text = message(bytes(size))
    *most, last = (text[at : at + 16_384] for at in range(0, len(text), 16_384))
    for piece in most:
        peer.say(data(piece))
    unread = peer.connection.calls[1].unread
    assert isinstance(unread, bytearray)
    assert len(unread) == 16_384 * len(most)
    peer.say(data(last))

    assert peer.broker.messages == [bytes(size)]
    assert peer.connection.held_bytes == 0
