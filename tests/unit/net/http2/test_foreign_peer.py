"""The core talks with h2, an implementation by others, in memory; and hears noise."""

import random

import h2.config
import h2.connection
import h2.events
import h2.exceptions
import h2.settings
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.unit.net.http2.peers import (
    REQUEST,
    Peer,
    data,
    headers,
    message,
    split,
)
from waystation.net.http2 import frames
from waystation.net.http2.port import Gone, GrpcStatus


class Foreigner:
    """h2 as the client of the core."""

    def __init__(self, **limits: float) -> None:
        self.peer = Peer(greet=False, **limits)
        self.h2 = h2.connection.H2Connection(h2.config.H2Configuration(header_encoding=None))
        self.h2.initiate_connection()
        self.events: list[h2.events.Event] = []
        self.exchange()

    def exchange(self, chance: random.Random | None = None) -> None:
        """Carries bytes both ways, in pieces, until there are none."""
        while True:
            there = self.h2.data_to_send()
            for piece in _pieces(there, chance):
                self.peer.say(piece)
            back = self.peer.take()
            for piece in _pieces(back, chance):
                self.events += self.h2.receive_data(piece)
            if not there and not back:
                return

    def open(self) -> int:
        stream_id = self.h2.get_next_available_stream_id()
        self.h2.send_headers(stream_id, list(REQUEST))
        self.exchange()
        return stream_id

    def received(self, stream_id: int) -> bytes:
        return b"".join(
            event.data
            for event in self.events
            if isinstance(event, h2.events.DataReceived) and event.stream_id == stream_id
        )


def _pieces(text: bytes, chance: random.Random | None) -> list[bytes]:
    if chance is None or not text:
        return [text] if text else []
    pieces: list[bytes] = []
    while text:
        size = chance.choice((1, 3, 9, 50, 1000, 20_000))
        pieces.append(text[:size])
        text = text[size:]
    return pieces


def test_a_whole_call() -> None:
    foreigner = Foreigner()
    foreigner.peer.broker.echo = True
    stream_id = foreigner.open()
    foreigner.h2.send_data(stream_id, message(b"hello"))
    foreigner.exchange()
    foreigner.h2.end_stream(stream_id)
    foreigner.exchange()
    foreigner.peer.broker.streams[0].finish(GrpcStatus.OK)
    foreigner.exchange()

    assert foreigner.received(stream_id) == message(b"hello")
    trailers = [e for e in foreigner.events if isinstance(e, h2.events.TrailersReceived)]
    assert (b"grpc-status", b"0") in list(trailers[0].headers)
    assert any(isinstance(event, h2.events.StreamEnded) for event in foreigner.events)
    assert foreigner.peer.broker.half_closes == 1


def test_a_ping_and_new_settings_are_acknowledged() -> None:
    foreigner = Foreigner()
    foreigner.h2.ping(b"abcdefgh")
    foreigner.h2.update_settings({h2.settings.SettingCodes.INITIAL_WINDOW_SIZE: 1_000})
    foreigner.exchange()

    kinds = {type(event) for event in foreigner.events}
    assert h2.events.PingAckReceived in kinds
    assert h2.events.SettingsAcknowledged in kinds


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    seed=st.integers(0, 2**32),
    sizes=st.lists(st.integers(0, 16_384), min_size=1, max_size=12),
    window=st.sampled_from([0, 100, 5_000, 65_535]),
)
def test_messages_come_back_whole_whatever_the_windows_and_cuts(
    seed: int, sizes: list[int], window: int
) -> None:
    """Echoed by the core over three streams, in pieces of random length, with a window that the
    foreign end opens little by little."""
    chance = random.Random(seed)
    foreigner = Foreigner()
    foreigner.peer.broker.echo = True
    foreigner.h2.update_settings({h2.settings.SettingCodes.INITIAL_WINDOW_SIZE: window})
    foreigner.exchange(chance)
    ids = [foreigner.open() for _ in range(3)]
    expected = dict.fromkeys(ids, b"")
    unsent = dict.fromkeys(ids, b"")
    for size in sizes:
        stream_id = chance.choice(ids)
        text = message(chance.randbytes(size))
        expected[stream_id] += text
        unsent[stream_id] += text
    for _ in range(2_000):
        for stream_id in ids:
            room = min(foreigner.h2.local_flow_control_window(stream_id), 16_384)
            piece = unsent[stream_id][: chance.randint(0, room) if room else 0]
            if piece:
                foreigner.h2.send_data(stream_id, piece)
                unsent[stream_id] = unsent[stream_id][len(piece) :]
            if chance.random() < 0.5:
                foreigner.h2.increment_flow_control_window(chance.randint(1, 30_000), stream_id)
        foreigner.h2.increment_flow_control_window(chance.randint(1, 60_000))
        foreigner.exchange(chance)
        if all(foreigner.received(stream_id) == expected[stream_id] for stream_id in ids):
            break

    assert {stream_id: foreigner.received(stream_id) for stream_id in ids} == expected
    assert foreigner.peer.connection.held_bytes == 0


# --- noise ---------------------------------------------------------------------------------------

FRAMES = st.builds(
    frames.frame,
    st.integers(0, 12),
    st.integers(0, 255),
    st.integers(0, 9),
    st.one_of(
        st.binary(max_size=64),
        st.just(b"".join(frames.SETTING.pack(4, 10) for _ in range(2))),
        st.just(bytes(4)),
        st.just(bytes(8)),
        st.just(message(b"hello")),
    ),
)
GOOD = st.sampled_from(
    [
        headers(1),
        headers(3),
        headers(5, flags=frames.END_STREAM),
        data(message(b"x"), 1),
        data(message(b"yy"), 3, frames.END_STREAM),
        frames.window_update(0, 1000),
        frames.window_update(1, 1000),
        frames.rst_stream(3, frames.ErrorCode.CANCEL),
        frames.settings({4: 20}),
    ]
)


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    parts=st.lists(st.one_of(GOOD, FRAMES, st.binary(max_size=30)), max_size=25),
    cuts=st.lists(st.integers(1, 60), min_size=1, max_size=20),
    seed=st.integers(0, 2**16),
)
def test_noise_gives_answers_or_a_goodbye_and_never_an_exception(
    parts: list[bytes], cuts: list[int], seed: int
) -> None:
    """Whatever comes, the broker's rules hold: one opening, one end for each stream, nothing after
    it; and what we answer is well-formed."""
    chance = random.Random(seed)
    peer = Peer(greet=chance.random() < 0.9)
    peer.broker.echo = True
    text = b"".join(parts)
    at = 0
    said = b""
    for number in range(len(text)):
        size = cuts[number % len(cuts)]
        peer.say(text[at : at + size])
        at += size
        said += peer.take()
        if peer.broker.streams and chance.random() < 0.1:
            chance.choice(peer.broker.streams).finish(GrpcStatus.OK)
        if at >= len(text):
            break
    said += peer.take()

    open_before = len(peer.connection.calls)
    ended = len(peer.broker.ends)
    peer.connection.closed()
    assert peer.failures == []
    assert len(peer.broker.ends) - ended <= open_before
    assert len(peer.broker.ends) <= len(peer.broker.streams)
    assert set(peer.broker.ends) <= set(Gone)
    assert peer.connection.held_bytes == 0
    assert peer.connection.calls == {}
    for frame in split(said):
        assert frame.kind in {0, 1, 3, 4, 6, 7, 8}
        assert len(frame.payload) <= 16_384
