"""How long a connection lives: handshake, keep-alive, idleness."""

import pytest

from tests.unit.net.http2.peers import Peer, headers
from waystation.net.http2 import frames
from waystation.net.http2.connection import OUR_PING
from waystation.net.http2.frames import ErrorCode
from waystation.net.http2.port import Gone


@pytest.mark.parametrize(
    "said",
    [
        pytest.param(b"", id="nothing"),
        pytest.param(frames.PREFACE[:10], id="half a preface"),
        pytest.param(frames.PREFACE, id="no settings"),
        pytest.param(frames.PREFACE + frames.settings({}), id="no acknowledgement"),
    ],
)
def test_a_handshake_that_stalls_ends(said: bytes) -> None:
    peer = Peer(greet=False)
    peer.say(said)
    assert peer.wait(9.9) == pytest.approx(1010.0)

    assert peer.wait(0.1) is None
    assert peer.goodbye().code == ErrorCode.SETTINGS_TIMEOUT


def test_a_silent_peer_is_pinged_and_given_up() -> None:
    """P-079: a dead transport is noticed within 40 s."""
    peer = Peer()
    peer.say(headers(1))
    assert peer.wait(29.0) == pytest.approx(peer.now + 1.0)
    due = peer.wait(1.0)
    (ping,) = peer.hear()
    assert (ping.kind, ping.flags, ping.payload) == (frames.PING, 0, OUR_PING)
    assert due == pytest.approx(peer.now + 10.0)

    assert peer.wait(10.0) is None
    assert b"no answer to a ping" in peer.goodbye().payload
    assert peer.broker.ends == [Gone.TRANSPORT]


def test_any_frame_is_as_good_as_an_answer() -> None:
    peer = Peer()
    peer.say(headers(1))
    peer.wait(30.0)
    peer.now += 5.0
    peer.say(frames.window_update(0, 1))

    assert peer.wait(5.0) == pytest.approx(peer.now + 25.0)
    assert not peer.gone


def test_an_answered_ping_starts_the_wait_anew() -> None:
    peer = Peer()
    peer.say(headers(1))
    for _ in range(10):
        due = peer.wait(30.0)
        assert due == pytest.approx(peer.now + 10.0)
        peer.now += 1.0
        peer.say(frames.frame(frames.PING, frames.ACK, 0, OUR_PING))

    assert not peer.gone
    assert peer.broker.ends == []


def test_a_connection_without_streams_is_told_to_go() -> None:
    peer = Peer(idle_timeout_s=20.0)
    peer.say(headers(1), frames.rst_stream(1, ErrorCode.CANCEL))
    peer.wait(19.0)
    assert not peer.gone

    peer.wait(1.0)
    assert peer.goodbye().code == ErrorCode.NO_ERROR


def test_a_connection_with_a_quiet_stream_stays() -> None:
    peer = Peer(idle_timeout_s=20.0)
    peer.say(headers(1))
    for _ in range(20):
        peer.wait(30.0)
        peer.say(frames.frame(frames.PING, frames.ACK, 0, OUR_PING))

    assert not peer.gone
