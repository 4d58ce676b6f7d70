"""Messages of a call: across frames, across windows, while reading is paused, and at its end."""

import pytest

from tests.unit.net.http2.peers import Peer, data, headers, message
from waystation.net.connection import BLOCKED
from waystation.net.http2 import frames
from waystation.net.http2.call import Call
from waystation.net.http2.frames import ErrorCode
from waystation.net.http2.port import Gone, GrpcStatus


def _payload(peer: Peer, stream_id: int = 1) -> bytes:
    return b"".join(
        frame.payload
        for frame in peer.hear()
        if frame.kind == frames.DATA and frame.stream_id == stream_id
    )


def _opened() -> Peer:
    peer = Peer()
    peer.say(headers(1))
    return peer


# --- in ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [1, 2, 3, 7])
def test_a_message_may_be_cut_anywhere(size: int) -> None:
    peer = _opened()
    stream = message(b"first") + message(b"") + message(b"second")
    for at in range(0, len(stream), size):
        peer.say(data(stream[at : at + size]))

    assert peer.broker.messages == [b"first", b"", b"second"]
    assert peer.connection.held_bytes == 0


def test_several_messages_in_one_frame_keep_their_order() -> None:
    peer = _opened()
    peer.say(data(b"".join(message(b"%d" % number) for number in range(50))))

    assert peer.broker.messages == [b"%d" % number for number in range(50)]


def test_a_message_over_the_limit_ends_the_call_when_its_length_is_known() -> None:
    """P-028."""
    peer = _opened()
    peer.say(data(message(bytes(16_385))[:100]))

    (trailers,) = peer.hear()
    assert b"grpc-status\x018" in trailers.payload
    assert peer.broker.ends == [Gone.TOO_LARGE]
    assert peer.connection.held_bytes == 0


def test_a_compressed_message_is_unimplemented() -> None:
    """P-030."""
    peer = _opened()
    peer.say(data(message(b"x", flag=1)))

    assert b"grpc-status\x0212" in peer.hear()[0].payload
    assert peer.broker.ends == [Gone.RESET]


def test_paused_reading_brings_nothing_until_it_is_resumed() -> None:
    peer = _opened()
    peer.broker.pause_after = 1
    peer.say(data(message(b"a") + message(b"b")), data(message(b"c"), flags=frames.END_STREAM))
    assert peer.broker.messages == [b"a"]
    assert peer.broker.half_closes == 0

    peer.broker.pause_after = None
    peer.broker.streams[0].resume_reading()
    assert peer.broker.messages == [b"a", b"b", b"c"]
    assert peer.broker.half_closes == 1
    assert peer.connection.held_bytes == 0


def test_windows_open_again_while_messages_are_taken() -> None:
    peer = _opened()
    big = message(bytes(16_000))
    for _ in range(200):
        peer.say(data(big))

    opened = {0: 0, 1: 0}
    for frame in peer.hear():
        if frame.kind == frames.WINDOW_UPDATE:
            opened[frame.stream_id] += int.from_bytes(frame.payload, "big")
    assert len(peer.broker.messages) == 200
    assert opened[0] > 200 * 16_000 - 65_535
    assert opened[1] > 200 * 16_000 - 65_535


def test_a_mistake_of_the_broker_ends_one_call_only() -> None:
    peer = _opened()
    peer.say(headers(3))
    peer.broker.fail = True
    peer.say(data(message(b"x"), 1))
    peer.broker.fail = False
    peer.say(data(message(b"y"), 3))

    assert [type(exc) for exc in peer.failures] == [LookupError]
    assert b"grpc-status\x0213" in peer.hear()[0].payload
    assert peer.broker.messages == [b"y"]
    assert peer.broker.ends == [Gone.RESET]


# --- out -----------------------------------------------------------------------------------------


def test_the_answer_begins_with_headers_once() -> None:
    peer = _opened()
    (stream,) = peer.broker.streams
    stream.send(b"one")
    stream.send(b"two")

    first, *rest = peer.hear()
    assert (first.kind, first.flags) == (frames.HEADERS, frames.END_HEADERS)
    assert [frame.payload for frame in rest] == [message(b"one"), message(b"two")]
    assert peer.net.touches == 2, "the loop hears once of output until it has taken it"


def test_a_message_larger_than_a_frame_leaves_in_pieces() -> None:
    peer = _opened()
    peer.broker.streams[0].send(bytes(40_000))

    pieces = [frame for frame in peer.hear() if frame.kind == frames.DATA]
    assert [len(piece.payload) for piece in pieces] == [16_384, 16_384, 7_237]


def test_nothing_leaves_beyond_the_windows() -> None:
    peer = Peer()
    peer.say(frames.settings({4: 100}), headers(1))
    (stream,) = peer.broker.streams
    sent = b"".join(message(bytes((number,)) * 50) for number in range(10))
    for number in range(10):
        stream.send(bytes((number,)) * 50)
    got = _payload(peer)
    assert len(got) == 100

    for _ in range(5):
        peer.say(frames.window_update(1, 70))
        more = _payload(peer)
        assert len(more) == 70
        got += more
    peer.say(frames.settings({4: 1_000}))
    got += _payload(peer)
    assert got == sent


def test_a_smaller_initial_window_makes_streams_wait_below_zero() -> None:
    peer = _opened()
    (stream,) = peer.broker.streams
    stream.send(bytes(995))
    peer.say(frames.settings({4: 500}))
    peer.hear()
    stream.send(b"later")
    peer.say(frames.window_update(1, 500))
    assert _payload(peer) == b""

    peer.say(frames.window_update(1, 10))
    assert _payload(peer) == message(b"later")


def test_the_connections_window_is_shared() -> None:
    peer = Peer()
    peer.say(frames.settings({4: 2**20}), headers(1), headers(3))
    one, two = peer.broker.streams
    one.send(bytes(60_000))
    two.send(bytes(10_000))
    assert sum(len(f.payload) for f in peer.hear() if f.kind == frames.DATA) == 65_535

    peer.say(frames.window_update(0, 100_000))
    assert len(_payload(peer, 3)) == 60_005 + 10_005 - 65_535


def test_a_peer_that_does_not_read_is_noticed_and_forgiven() -> None:
    """P-087: `writable` ends at 256 KiB and comes back below 64 KiB."""
    peer = _opened()
    peer.connection.flags |= BLOCKED
    (stream,) = peer.broker.streams
    while stream.writable:
        stream.send(bytes(1_000))
    assert 256 * 1024 <= len(peer.connection.calls[1].unsent or b"") < 256 * 1024 + 1_005

    peer.read_on()
    assert peer.broker.unblocks == 0, "the window alone does not empty it"
    peer.say(frames.window_update(0, 2**20), frames.window_update(1, 100_000))
    assert not stream.writable
    peer.say(frames.window_update(1, 2**20))
    assert stream.writable
    assert peer.broker.unblocks == 1


# --- ends ----------------------------------------------------------------------------------------


def test_a_finished_call_ends_with_trailers_and_hears_no_more() -> None:
    """P-011: what the peer still says is ignored."""
    peer = _opened()
    (stream,) = peer.broker.streams
    stream.send(b"bye")
    stream.finish(GrpcStatus.ABORTED, "TAKEN_OVER")
    stream.send(b"too late")
    stream.finish(GrpcStatus.OK)

    kinds = [(frame.kind, frame.flags) for frame in peer.hear()]
    assert kinds == [(1, 4), (0, 0), (1, 5)]
    peer.say(data(message(b"x")), data(message(b"y")))
    assert (peer.broker.messages, peer.broker.ends) == ([], [])
    assert peer.hear() == []
    peer.say(data(b"", flags=frames.END_STREAM))
    assert peer.connection.calls == {}


def test_a_peer_that_does_not_end_its_side_is_asked_to_stop() -> None:
    peer = _opened()
    peer.broker.streams[0].finish(GrpcStatus.OK)
    peer.hear()
    peer.wait(1.0)
    assert peer.hear() == []
    peer.wait(9.0)

    (reset,) = peer.hear()
    assert (reset.kind, reset.code) == (frames.RST_STREAM, ErrorCode.NO_ERROR)
    assert peer.connection.calls == {}


def test_after_a_half_close_no_reset_is_needed() -> None:
    peer = _opened()
    peer.say(data(b"", flags=frames.END_STREAM))
    peer.broker.streams[0].finish(GrpcStatus.OK)

    (trailers,) = peer.hear()
    assert trailers.flags == frames.END_HEADERS | frames.END_STREAM


def test_a_call_that_is_refused_when_it_opens_has_trailers_only() -> None:
    peer = Peer()
    peer.broker.finish_at_once = GrpcStatus.UNAUTHENTICATED
    peer.say(headers(1, flags=frames.END_STREAM))

    (answer,) = peer.hear()
    assert answer.flags == frames.END_HEADERS | frames.END_STREAM
    assert b"application/grpc" in answer.payload
    assert peer.broker.half_closes == 0


def test_the_end_waits_for_what_was_sent_before() -> None:
    peer = Peer()
    peer.say(frames.settings({4: 0}), headers(1))
    (stream,) = peer.broker.streams
    stream.send(b"last words")
    stream.finish(GrpcStatus.OK)
    assert [frame.kind for frame in peer.hear()] == [frames.SETTINGS, frames.HEADERS]

    peer.say(frames.window_update(1, 100))
    assert [frame.kind for frame in peer.hear()] == [frames.DATA, frames.HEADERS]
    peer.say(frames.rst_stream(1, ErrorCode.NO_ERROR))
    assert peer.connection.calls == {}


def test_the_end_waits_no_longer_than_it_lingers() -> None:
    peer = Peer()
    peer.say(frames.settings({4: 0}), headers(1))
    (stream,) = peer.broker.streams
    stream.send(b"last words")
    stream.finish(GrpcStatus.OK)
    peer.hear()

    due = peer.wait(1.0)
    assert due == pytest.approx(peer.now + 9.0)
    peer.wait(9.0)
    (reset,) = peer.hear()
    assert (reset.kind, reset.code) == (frames.RST_STREAM, ErrorCode.CANCEL)
    assert peer.broker.ends == [], "it was finished: the broker hears no more of it"


def test_what_is_unsent_may_be_dropped() -> None:
    peer = Peer()
    peer.say(frames.settings({4: 0}), headers(1))
    (stream,) = peer.broker.streams
    stream.send(b"nobody reads")
    stream.finish(GrpcStatus.RESOURCE_EXHAUSTED, "WRITE_STALLED", discard_unsent=True)

    assert [frame.kind for frame in peer.hear()][-2:] == [frames.HEADERS, frames.HEADERS]
    peer.say(data(b"", flags=frames.END_STREAM))
    assert peer.connection.calls == {}


def test_a_cancelled_call_is_told_once() -> None:
    peer = _opened()
    peer.say(frames.rst_stream(1, ErrorCode.CANCEL))
    peer.broker.streams[0].finish(GrpcStatus.OK)

    assert peer.broker.ends == [Gone.RESET]
    assert peer.hear() == []


# --- a moment before the end ---------------------------------------------------------------------


def _patient() -> tuple[Peer, list[Call]]:
    """Whose calls end a moment after they were finished."""
    peer = Peer()
    peer.patient = True
    peer.say(headers(1))
    return peer, peer.ending


def test_a_peer_that_speaks_while_its_call_ends_is_heard_out() -> None:
    """P-011: its words are swallowed, and the trailers follow them."""
    peer, held = _patient()
    stream = peer.broker.streams[0]
    stream.send(b"bye")
    stream.finish(GrpcStatus.OK)
    peer.say(data(message(b"x")))
    assert [frame.kind for frame in peer.hear()] == [frames.HEADERS, frames.DATA]

    held[0].release()
    held[0].release()
    (trailers,) = peer.hear()
    assert trailers.flags == frames.END_HEADERS | frames.END_STREAM
    assert peer.broker.messages == []


def test_who_has_said_everything_does_not_wait() -> None:
    peer, held = _patient()
    peer.broker.streams[0].finish(GrpcStatus.OK)
    peer.say(data(b"", flags=frames.END_STREAM))

    assert [frame.kind for frame in peer.hear()] == [frames.HEADERS]
    assert peer.connection.calls == {}
    held[0].release()
    assert peer.hear() == []


def test_a_cancelled_call_has_no_end_to_wait_for() -> None:
    peer, held = _patient()
    peer.broker.streams[0].finish(GrpcStatus.OK)
    peer.say(frames.rst_stream(1, ErrorCode.CANCEL))

    held[0].release()
    assert peer.hear() == []


def test_a_stop_does_not_swallow_the_ends_of_calls() -> None:
    peer, _ = _patient()
    peer.broker.streams[0].finish(GrpcStatus.UNAVAILABLE, "DRAINING")
    peer.connection.go_away(close=True)

    assert [frame.kind for frame in peer.hear()] == [frames.HEADERS, frames.GOAWAY]
