"""RFC 9113, frame by frame: what a peer may say, and what ends a stream or the connection."""

import pytest

from tests.unit.net.http2.peers import (
    REQUEST,
    Peer,
    block,
    changed,
    data,
    headers,
    message,
)
from waystation.net.http2 import frames
from waystation.net.http2.connection import RESETS_REMEMBERED_MAX
from waystation.net.http2.frames import ErrorCode
from waystation.net.http2.port import Gone, GrpcStatus
from waystation.net.http2.response import NOT_GRPC_BODY

E = ErrorCode
HELLO = frames.PREFACE + frames.settings({}) + frames.SETTINGS_ACK
ONE = headers(1)


# --- how a connection begins ---------------------------------------------------------------------


def test_the_server_answers_the_preface_with_its_settings() -> None:
    peer = Peer(greet=False)

    peer.say(HELLO)
    first, second, ack = peer.hear()
    assert first.kind == frames.SETTINGS
    assert dict(frames.SETTING.iter_unpack(first.payload)) == {
        frames.SETTING_MAX_CONCURRENT_STREAMS: 1000,
        frames.SETTING_MAX_HEADER_LIST_SIZE: 16_384,
    }
    assert (ack.kind, ack.flags) == (frames.SETTINGS, frames.ACK) or second.flags == frames.ACK


def test_a_preface_may_come_byte_by_byte() -> None:
    peer = Peer(greet=False)
    peer.broker.echo = True

    for byte in HELLO + ONE + data(message(b"hello")):
        peer.say(bytes((byte,)))
    assert peer.broker.messages == [b"hello"]
    assert not peer.gone


@pytest.mark.parametrize("first", [b"GET / HTTP/1.1\r\n\r\n", b"PRI * HTTP/1", b"\x16\x03\x01"])
def test_something_else_than_http2_is_closed_at_its_first_bytes(first: bytes) -> None:
    peer = Peer(greet=False)

    peer.say(first)
    assert peer.gone


@pytest.mark.parametrize(
    "first",
    [
        pytest.param(frames.frame(frames.PING, 0, 0, bytes(8)), id="PING"),
        pytest.param(frames.SETTINGS_ACK, id="an acknowledgement"),
        pytest.param(ONE, id="HEADERS"),
        pytest.param(data(b"x"), id="DATA"),
    ],
)
def test_the_first_frame_is_settings(first: bytes) -> None:
    peer = Peer(greet=False)

    peer.say(frames.PREFACE, first)
    assert peer.goodbye().code == E.PROTOCOL_ERROR


# --- faults of the connection --------------------------------------------------------------------

CONTINUED = frames.frame(frames.HEADERS, 0, 1, block()[:10])
FAULTS = {
    "DATA on stream 0": (data(b"x", 0), E.PROTOCOL_ERROR),
    "DATA on an idle stream": (data(b"x", 5), E.PROTOCOL_ERROR),
    "HEADERS on stream 0": (headers(0), E.PROTOCOL_ERROR),
    "a stream of the server's": (headers(2), E.PROTOCOL_ERROR),
    "a stream below the last": (headers(5) + headers(3), E.STREAM_CLOSED),
    "a frame over 16 KiB": (frames.frame(frames.DATA, 0, 1, bytes(16_385)), E.FRAME_SIZE_ERROR),
    "an endless frame": (b"\xff\xff\xff" + bytes(6), E.FRAME_SIZE_ERROR),
    "RST_STREAM on stream 0": (frames.frame(3, 0, 0, bytes(4)), E.PROTOCOL_ERROR),
    "RST_STREAM of an idle stream": (frames.frame(3, 0, 7, bytes(4)), E.PROTOCOL_ERROR),
    "RST_STREAM of 3 bytes": (ONE + frames.frame(3, 0, 1, bytes(3)), E.FRAME_SIZE_ERROR),
    "SETTINGS on a stream": (frames.frame(4, 0, 1), E.PROTOCOL_ERROR),
    "SETTINGS of 5 bytes": (frames.frame(4, 0, 0, bytes(5)), E.FRAME_SIZE_ERROR),
    "an ACK that says something": (frames.frame(4, 1, 0, bytes(6)), E.FRAME_SIZE_ERROR),
    "ENABLE_PUSH 2": (frames.settings({2: 2}), E.PROTOCOL_ERROR),
    "INITIAL_WINDOW_SIZE 2^31": (frames.settings({4: 2**31}), E.FLOW_CONTROL_ERROR),
    "MAX_FRAME_SIZE 16383": (frames.settings({5: 16_383}), E.PROTOCOL_ERROR),
    "MAX_FRAME_SIZE 2^24": (frames.settings({5: 2**24}), E.PROTOCOL_ERROR),
    "PUSH_PROMISE": (ONE + frames.frame(5, 4, 1, bytes(4)), E.PROTOCOL_ERROR),
    "PING on a stream": (frames.frame(6, 0, 1, bytes(8)), E.PROTOCOL_ERROR),
    "PING of 7 bytes": (frames.frame(6, 0, 0, bytes(7)), E.FRAME_SIZE_ERROR),
    "GOAWAY on a stream": (frames.frame(7, 0, 1, bytes(8)), E.PROTOCOL_ERROR),
    "GOAWAY of 7 bytes": (frames.frame(7, 0, 0, bytes(7)), E.FRAME_SIZE_ERROR),
    "WINDOW_UPDATE by 0": (frames.window_update(0, 0), E.PROTOCOL_ERROR),
    "WINDOW_UPDATE of 3 bytes": (frames.frame(8, 0, 0, bytes(3)), E.FRAME_SIZE_ERROR),
    "WINDOW_UPDATE of an idle stream": (frames.window_update(9, 1), E.PROTOCOL_ERROR),
    "the connection's window overflows": (
        frames.window_update(0, 2**31 - 1),
        E.FLOW_CONTROL_ERROR,
    ),
    "PRIORITY on stream 0": (frames.frame(2, 0, 0, bytes(5)), E.PROTOCOL_ERROR),
    "PRIORITY of 4 bytes on an idle stream": (frames.frame(2, 0, 3, bytes(4)), E.FRAME_SIZE_ERROR),
    "CONTINUATION of nothing": (frames.frame(9, 4, 1), E.PROTOCOL_ERROR),
    "DATA inside a header block": (CONTINUED + data(b"x"), E.PROTOCOL_ERROR),
    "PING inside a header block": (CONTINUED + frames.frame(6, 0, 0, bytes(8)), E.PROTOCOL_ERROR),
    "CONTINUATION of another stream": (CONTINUED + frames.frame(9, 4, 3), E.PROTOCOL_ERROR),
    "an unknown frame inside a header block": (CONTINUED + frames.frame(99, 0, 1), 1),
    "a block that is not HPACK": (frames.frame(1, 4, 1, b"\x80"), E.COMPRESSION_ERROR),
    "headers that depend on themselves": (
        frames.frame(1, 0x24, 1, b"\x00\x00\x00\x01\x00" + block()),
        E.PROTOCOL_ERROR,
    ),
    "HEADERS too short for their priority": (frames.frame(1, 0x24, 1, b"\0"), E.FRAME_SIZE_ERROR),
    "HEADERS with more padding than frame": (
        frames.frame(1, 0xC, 1, b"\xff" + block()),
        E.PROTOCOL_ERROR,
    ),
    "DATA with more padding than frame": (
        ONE + data(b"\x05abcd", flags=frames.PADDED),
        E.PROTOCOL_ERROR,
    ),
    "DATA without room for its padding": (
        ONE + data(b"", flags=frames.PADDED),
        E.FRAME_SIZE_ERROR,
    ),
}


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_of_the_connection_ends_it(name: str) -> None:
    said, code = FAULTS[name]
    peer = Peer()

    peer.say(said)
    assert peer.goodbye().code == code
    peer.say(headers(99))
    assert peer.hear() == []


def test_all_calls_hear_of_the_end_of_their_connection_once() -> None:
    peer = Peer()
    peer.say(headers(1), headers(3), frames.window_update(0, 0))

    assert peer.goodbye().last_id == 3
    assert peer.broker.ends == [Gone.TRANSPORT, Gone.TRANSPORT]
    peer.connection.closed()
    assert len(peer.broker.ends) == 2


# --- faults of one stream -----------------------------------------------------------------------

STREAM_FAULTS = {
    "a pseudo-header too few": (headers(3, changed(_scheme=None)), E.PROTOCOL_ERROR),
    "upper case": (headers(3, [*REQUEST, (b"X", b"y")]), E.PROTOCOL_ERROR),
    "headers in the middle": (headers(3) + headers(3), E.PROTOCOL_ERROR),
    "trailers with a pseudo-header": (headers(3) + headers(3, flags=1), E.PROTOCOL_ERROR),
    "DATA after the end": (headers(3) + data(b"", 3, 1) + data(b"x", 3), E.STREAM_CLOSED),
    "a window that grows by 0": (headers(3) + frames.window_update(3, 0), E.PROTOCOL_ERROR),
    "a window that overflows": (
        headers(3) + frames.window_update(3, 2**31 - 1),
        E.FLOW_CONTROL_ERROR,
    ),
    "it depends on itself": (
        headers(3) + frames.frame(2, 0, 3, b"\x00\x00\x00\x03\x00"),
        E.PROTOCOL_ERROR,
    ),
    "PRIORITY of 4 bytes": (headers(3) + frames.frame(2, 0, 3, bytes(4)), E.FRAME_SIZE_ERROR),
}


@pytest.mark.parametrize("name", STREAM_FAULTS)
def test_a_fault_of_a_stream_ends_that_one_alone(name: str) -> None:
    said, code = STREAM_FAULTS[name]
    peer = Peer()
    peer.say(headers(1))

    peer.say(said)
    last = peer.hear()[-1]
    assert (last.kind, last.stream_id, last.code) == (frames.RST_STREAM, 3, code)
    assert not peer.gone
    peer.say(data(message(b"still here"), 1))
    assert peer.broker.messages == [b"still here"]


def test_more_data_than_a_streams_window_is_refused() -> None:
    """A peer is bound by 65,535 bytes a stream; a paused stream is given no more."""
    peer = Peer()
    peer.say(headers(1))
    peer.broker.streams[0].pause_reading()
    for _ in range(4):
        peer.say(data(bytes(16_000)))
    assert not any(frame.kind == frames.WINDOW_UPDATE and frame.stream_id for frame in peer.hear())

    peer.say(data(bytes(2_000)))
    (reset,) = peer.hear()
    assert (reset.kind, reset.code) == (frames.RST_STREAM, E.FLOW_CONTROL_ERROR)
    assert peer.connection.held_bytes == 0


def test_more_data_than_the_connections_window_ends_it() -> None:
    """What paused streams hold is bounded by one window for all of them."""
    peer = Peer(receive_window_bytes=65_535)
    peer.say(headers(1), headers(3))
    for stream in peer.broker.streams:
        stream.pause_reading()
    for _ in range(2):
        peer.say(data(bytes(16_384), 1), data(bytes(16_383), 3))

    peer.say(data(b"xx", 1))
    assert peer.goodbye().code == E.FLOW_CONTROL_ERROR


# --- what is allowed ----------------------------------------------------------------------------


def test_padding_priority_and_continuation_change_nothing() -> None:
    peer = Peer()
    whole = block()
    padded = b"\x03" + b"\x00\x00\x00\x00\x10" + whole[:20] + bytes(3)
    peer.say(frames.frame(1, 0x28, 1, padded))
    peer.say(frames.frame(9, 0, 1, whole[20:40]), frames.frame(9, 0, 1, b""))
    peer.say(frames.frame(9, 4, 1, whole[40:]))

    peer.say(data(b"\x04" + message(b"padded") + bytes(4), flags=frames.PADDED))
    assert peer.broker.messages == [b"padded"]


def test_unknown_frames_priorities_and_settings_are_ignored() -> None:
    peer = Peer()
    peer.say(frames.frame(0xBE, 0xFF, 7, b"whatever"), frames.settings({0xF0F0: 7}))
    peer.say(frames.frame(frames.PRIORITY, 0, 9, bytes(5)), headers(11))

    assert len(peer.broker.streams) == 1
    assert not peer.gone


def test_frames_for_a_stream_that_is_gone_are_ignored() -> None:
    peer = Peer()
    peer.say(headers(1))
    peer.connection.reset(1, E.CANCEL)
    peer.hear()

    peer.say(data(b"late"), frames.window_update(1, 5), frames.rst_stream(1, E.CANCEL))
    assert peer.hear() == []
    assert peer.broker.ends == [Gone.RESET]


@pytest.mark.parametrize(
    "late",
    [
        pytest.param(data(b"late", 3), id="data"),
        pytest.param(headers(3), id="headers"),
        pytest.param(frames.window_update(3, 5), id="window"),
        pytest.param(frames.rst_stream(3, E.CANCEL), id="reset"),
    ],
)
def test_a_call_that_crosses_our_goodbye_does_not_end_the_others(late: bytes) -> None:
    """The peer sent HEADERS and more before it saw GOAWAY; the stream is refused."""
    peer = Peer()
    peer.say(headers(1))
    peer.connection.go_away()
    peer.say(headers(3), late, data(message(b"still here"), 1))

    assert peer.broker.messages == [b"still here"]
    assert not peer.gone


@pytest.mark.parametrize("last", [frames.rst_stream(1, E.CANCEL), data(b"", flags=1)])
@pytest.mark.parametrize("late", [data(b"late"), headers(1)])
def test_a_peer_that_speaks_on_a_stream_that_it_has_closed_is_cut_off(
    last: bytes, late: bytes
) -> None:
    """Section 5.1, closed."""
    peer = Peer()
    peer.broker.finish_at_once = GrpcStatus.OK
    peer.patient = True
    peer.say(headers(1), last)
    assert peer.connection.calls == {}

    peer.say(late)
    assert peer.goodbye().code == E.STREAM_CLOSED


def test_only_the_newest_resets_are_remembered() -> None:
    peer = Peer()
    for number in range(1, 2 * RESETS_REMEMBERED_MAX + 201, 2):
        peer.connection.last_id = number
        peer.connection.reset(number, E.CANCEL)

    assert len(peer.connection._resets or ()) == RESETS_REMEMBERED_MAX


@pytest.mark.parametrize(
    "said",
    [
        pytest.param(data(b"12345") + data(b"6"), id="more"),
        pytest.param(data(b"1234", flags=frames.END_STREAM), id="less"),
        pytest.param(data(b"12") + headers(1, [], frames.END_STREAM), id="less, and trailers"),
    ],
)
def test_a_body_of_another_length_than_announced_is_malformed(said: bytes) -> None:
    """Section 8.1.1."""
    peer = Peer()
    peer.say(headers(1, changed(content_length=b"5")), said)

    last = peer.hear()[-1]
    assert (last.kind, last.code) == (frames.RST_STREAM, E.PROTOCOL_ERROR)
    assert peer.broker.ends == [Gone.RESET]


def test_a_request_that_ends_before_its_body_is_malformed() -> None:
    peer = Peer()
    peer.say(headers(1, changed(content_length=b"5"), frames.END_STREAM))

    (reset,) = peer.hear()
    assert (reset.kind, reset.code) == (frames.RST_STREAM, E.PROTOCOL_ERROR)
    assert peer.broker.streams == []


def test_trailers_end_the_clients_side() -> None:
    peer = Peer()
    peer.say(headers(1), frames.frame(1, 5, 1, b""))

    assert peer.broker.half_closes == 1


def test_a_stream_beyond_the_limit_is_refused_and_the_others_go_on() -> None:
    """P-091: stream 1,001 on a connection."""
    peer = Peer(streams_max=2)
    peer.say(headers(1), headers(3), headers(5))

    (refused,) = peer.hear()
    assert (refused.stream_id, refused.code) == (5, E.REFUSED_STREAM)
    peer.say(data(message(b"a"), 1), data(message(b"b"), 3))
    assert peer.broker.messages == [b"a", b"b"]
    peer.say(frames.rst_stream(1, E.CANCEL), headers(7))
    assert len(peer.broker.streams) == 3


def test_metadata_beyond_the_limit_is_answered() -> None:
    peer = Peer()
    small = [(b"x", b"y")] * 100  # 3 bytes each on the wire, and 34 by the rule
    peer.say(headers(1, [*REQUEST, (b"x", b"y" * 14_000), *small]))

    (answer,) = peer.hear()
    assert b"grpc-status\x018" in answer.payload
    assert peer.broker.streams == []


@pytest.mark.parametrize("method", [b"GET", b"HEAD"])
def test_a_request_of_plain_http_is_told_that_this_is_grpc(method: bytes) -> None:
    peer = Peer()
    peer.say(headers(1, changed(_method=method, content_type=None), frames.END_STREAM))

    answer, *body, trailers = peer.hear()
    assert b"415" in answer.payload
    assert [frame.payload for frame in body] == ([] if method == b"HEAD" else [NOT_GRPC_BODY])
    assert trailers.flags == frames.END_HEADERS | frames.END_STREAM
    assert peer.broker.streams == []
    assert peer.connection.calls == {}


def test_a_call_of_somebody_elses_is_unimplemented() -> None:
    peer = Peer()
    peer.say(headers(1, changed(_path=b"/grpc.health.v1.Health/Check"), frames.END_STREAM))

    (answer,) = peer.hear()
    assert answer.flags == frames.END_HEADERS | frames.END_STREAM
    assert b"grpc-status\x0212" in answer.payload
    assert peer.broker.streams == []
    assert peer.connection.calls == {}


# --- pings and goodbyes --------------------------------------------------------------------------


def test_a_ping_is_answered_with_its_own_bytes() -> None:
    peer = Peer()
    peer.say(frames.frame(frames.PING, 0, 0, b"12345678"))

    (pong,) = peer.hear()
    assert (pong.kind, pong.flags, pong.payload) == (frames.PING, frames.ACK, b"12345678")


def test_after_our_goodbye_old_streams_go_on_and_new_ones_are_refused() -> None:
    peer = Peer()
    peer.broker.echo = True
    peer.say(headers(1))
    peer.connection.go_away()
    (goodbye,) = peer.hear()
    assert (goodbye.code, goodbye.last_id) == (E.NO_ERROR, 1)

    peer.say(headers(3), data(message(b"x"), 1))
    kinds = [(frame.kind, frame.stream_id) for frame in peer.hear()]
    assert kinds == [(frames.RST_STREAM, 3), (frames.HEADERS, 1), (frames.DATA, 1)]
    peer.say(frames.rst_stream(1, E.CANCEL))
    assert peer.gone, "the last stream is over"


def test_a_goodbye_of_the_peers_changes_nothing_for_its_streams() -> None:
    peer = Peer()
    peer.say(headers(1), frames.goaway(0, E.NO_ERROR), data(message(b"x")))

    assert peer.broker.messages == [b"x"]
