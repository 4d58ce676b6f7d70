"""Frames that cost the peer nothing end its connection before they cost us much."""

import pytest

from tests.unit.presence.transport.native.peers import Peer, block, data, headers, message
from waystation.presence.transport.native import frames
from waystation.presence.transport.native.frames import ErrorCode

PING = frames.frame(frames.PING, 0, 0, bytes(8))


def _calmed(peer: Peer) -> bool:
    return peer.connection.closing and peer.goodbye().code == ErrorCode.ENHANCE_YOUR_CALM


def test_rapid_resets_end_the_connection() -> None:
    """Opening and resetting streams without waiting for an answer."""
    peer = Peer()
    for number in range(1, 2_001, 2):
        peer.say(headers(number), frames.rst_stream(number, ErrorCode.CANCEL))
        if peer.connection.closing:
            break

    assert _calmed(peer)
    assert len(peer.broker.streams) <= 201


def test_a_crowd_that_is_cut_at_once_is_no_attack() -> None:
    """P-080: a thousand answered streams of one connection are cancelled together."""
    peer = Peer()
    peer.broker.echo = True
    ids = range(1, 2_001, 2)
    for number in ids:
        peer.say(headers(number), data(message(b"join"), number))
    peer.say(*(frames.rst_stream(number, ErrorCode.CANCEL) for number in ids))

    assert not peer.connection.closing
    assert len(peer.broker.ends) == 1_000
    assert peer.connection.calls == {}


def test_pings_without_anything_else_end_the_connection() -> None:
    """P-055: more often than every 10 s is too often."""
    peer = Peer()
    peer.say(PING, PING, PING)
    assert not peer.connection.closing

    peer.say(PING)
    assert b"too_many_pings" in peer.goodbye().payload


def test_pings_that_follow_our_data_are_forgiven() -> None:
    """gRPC's clients measure bandwidth that way."""
    peer = Peer()
    peer.broker.echo = True
    peer.say(headers(1))
    for _ in range(100):
        peer.say(data(message(b"x")), PING)

    assert not peer.connection.closing


def test_seldom_pings_are_welcome_for_ever() -> None:
    peer = Peer()
    for _ in range(100):
        peer.mono += 10.0
        peer.say(PING)

    assert not peer.connection.closing


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
        if peer.connection.closing:
            break

    assert _calmed(peer)


def test_endless_continuations_end_the_connection() -> None:
    peer = Peer()
    peer.say(frames.frame(frames.HEADERS, 0, 1, block()))
    for _ in range(20):
        if not peer.connection.closing:
            peer.say(frames.frame(frames.CONTINUATION, 0, 1, b""))

    assert _calmed(peer)


def test_headers_that_grow_and_grow_end_the_connection() -> None:
    peer = Peer()
    peer.say(frames.frame(frames.HEADERS, 0, 1, block()))
    for _ in range(3):
        if not peer.connection.closing:
            peer.say(frames.frame(frames.CONTINUATION, 0, 1, bytes(16_384)))

    assert _calmed(peer)


def test_a_message_that_comes_byte_by_byte_is_not_copied_each_time() -> None:
    """The bytes of a frame that is not complete are kept in place."""
    peer = Peer()
    peer.say(headers(1))
    frame = data(message(bytes(16_000)))
    for byte in frame[:-1]:
        peer.connection.feed(bytes((byte,)), peer.mono)
    held = peer.connection._held

    assert isinstance(held, bytearray)
    peer.say(frame[-1:])
    assert peer.broker.messages == [bytes(16_000)]
