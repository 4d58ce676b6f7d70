"""The frame codec against RFC 6455, against itself, and against the `websockets` package."""

import itertools
import random
import re
import struct
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st
from websockets.exceptions import PayloadTooBig, ProtocolError
from websockets.frames import Frame, Opcode
from websockets.protocol import OPEN
from websockets.server import ServerProtocol

from waystation.net.websocket import frames as websocket
from waystation.net.websocket.frames import (
    HEADER_BYTES_MAX,
    Binary,
    Broken,
    Close,
    Event,
    FrameReader,
    Partial,
    Ping,
    Pong,
    Text,
    close_frame,
    ping_frame,
    pong_frame,
    text_frame,
)

LIMIT = 1000
BROKEN = Broken(0, "")
UNFINISHED = Broken(1002, "incomplete fragmented message")
MASK = b"\x01\xfe\x33\x80"


def masked(
    opcode: int,
    payload: bytes = b"",
    *,
    fin: bool = True,
    rsv: int = 0,
    mask: bytes = MASK,
    length_form: int | None = None,
) -> bytes:
    """A frame as a client sends it; written independently of the code under test."""
    first = (0x80 if fin else 0) | rsv << 4 | opcode
    size = len(payload)
    form = length_form or (7 if size < 126 else 16 if size < 65536 else 64)
    if form == 7:
        head = bytes((first, 0x80 | size))
    elif form == 16:
        head = struct.pack("!BBH", first, 0x80 | 126, size)
    else:
        head = struct.pack("!BBQ", first, 0x80 | 127, size)
    return head + mask + bytes(byte ^ mask[i % 4] for i, byte in enumerate(payload))


def read(*chunks: bytes, limit: int = LIMIT) -> list[Event]:
    reader = FrameReader(message_bytes_max=limit)
    partial: Partial | None = None
    events: list[Event] = []
    for chunk in chunks:
        reader.begin(chunk, partial)
        while (event := reader.next()) is not None:
            events.append(event)
        partial = reader.end()
        if events and isinstance(events[-1], Close | Broken):
            break
    return events


def split(data: bytes, cuts: list[int]) -> Iterator[bytes]:
    edges = [0, *sorted(cut % (len(data) + 1) for cut in cuts), len(data)]
    for start, end in itertools.pairwise(edges):
        yield data[start:end]


class TestMessages:
    def test_the_example_of_section_5_7_is_hello(self) -> None:
        frame = bytes.fromhex("818537fa213d7f9f4d5158")

        assert read(frame) == [Text(b"Hello")]

    def test_the_fragmented_example_of_section_5_7_is_hello(self) -> None:
        assert read(masked(1, b"Hel", fin=False) + masked(0, b"lo")) == [Text(b"Hello")]

    @pytest.mark.parametrize("size", [0, 1, 125, 126, 127, 999, 1000])
    def test_every_length_form_is_read(self, size: int) -> None:
        payload = b"x" * size

        assert read(masked(1, payload)) == [Text(payload)]

    def test_a_message_of_64_kib_is_taken_and_one_byte_more_is_not(self) -> None:
        whole = b"x" * 65536

        assert read(masked(1, whole), limit=65536) == [Text(whole)]
        assert read(masked(1, whole + b"x"), limit=65536) == [Broken(1002, "message too long")]

    def test_a_length_in_a_longer_form_than_needed_is_taken(self) -> None:
        assert read(masked(1, b"{}", length_form=16)) == [Text(b"{}")]
        assert read(masked(1, b"{}", length_form=64)) == [Text(b"{}")]

    def test_binary_is_an_event_whole_or_in_fragments(self) -> None:
        assert read(masked(2, b"\xff")) == [Binary(b"\xff")]
        assert read(masked(2, b"\xff", fin=False), masked(0, b"\xfe")) == [Binary(b"\xff\xfe")]

    def test_a_character_may_be_cut_by_fragments(self) -> None:
        assert read(masked(1, b"\xe2\x82", fin=False) + masked(0, b"\xac")) == [Text("€".encode())]

    def test_control_frames_may_come_between_fragments(self) -> None:
        data = masked(1, b"a", fin=False) + masked(9, b"?") + masked(10) + masked(0, b"b")

        assert read(data) == [Ping(b"?"), Pong(b""), Text(b"ab")]

    def test_several_messages_in_one_read_come_in_order(self) -> None:
        assert read(masked(1, b"1") + masked(1, b"2") + masked(9)) == [
            Text(b"1"),
            Text(b"2"),
            Ping(b""),
        ]


class TestViolations:
    @pytest.mark.parametrize(
        "frame,reason",
        [
            (b"\x81\x01a", "frame is not masked"),
            (b"\x88\x00", "frame is not masked"),
            (masked(1, b"a", rsv=4), "reserved bits are set"),
            (masked(1, b"a", rsv=1), "reserved bits are set"),
            (masked(9, b"a", rsv=2), "reserved bits are set"),
            (masked(3), "unknown opcode"),
            (masked(7, fin=False), "unknown opcode"),
            (masked(11), "unknown opcode"),
            (masked(15), "unknown opcode"),
            (masked(9, fin=False), "fragmented control frame"),
            (masked(8, fin=False), "fragmented control frame"),
            (masked(9, b"x" * 126), "control frame too long"),
            (masked(8, b"\x03\xe8" + b"x" * 124), "control frame too long"),
            (masked(0), "nothing to continue"),
            (masked(1, b"a", fin=False) + masked(1, b"b"), "a message within a message"),
            (masked(2, b"a", fin=False) + masked(1, b"b", fin=False), "a message within a message"),
            (masked(1, b"x" * 1001), "message too long"),
            (b"\x81\xff" + b"\xff" * 8 + MASK, "message too long"),
            (masked(1, b"x" * 999, fin=False) + masked(0, b"xx"), "message too long"),
            (masked(8, b"\x03"), "half a close code"),
        ],
    )
    def test_a_broken_rule_is_a_protocol_error(self, frame: bytes, reason: str) -> None:
        assert read(frame) == [Broken(1002, reason)]

    @pytest.mark.parametrize(
        "code", [0, 999, 1004, 1005, 1006, 1015, 1100, 2000, 2999, 5000, 65535]
    )
    def test_close_codes_that_must_not_travel_are_a_protocol_error(self, code: int) -> None:
        assert read(masked(8, code.to_bytes(2, "big"))) == [Broken(1002, "invalid close code")]

    @pytest.mark.parametrize(
        "payload", [b"\xff", b"a\xc3", b"\xed\xa0\x80", b"\xc0\xaf", b"\xf4\x90\x80\x80"]
    )
    def test_text_that_is_not_utf8_is_bad_text(self, payload: bytes) -> None:
        assert read(masked(1, payload)) == [Broken(1007, "text is not UTF-8")]
        assert read(masked(1, payload[:1], fin=False) + masked(0, payload[1:])) == [
            Broken(1007, "text is not UTF-8")
        ]

    def test_a_close_reason_that_is_not_utf8_is_bad_text(self) -> None:
        assert read(masked(8, b"\x03\xe8\xff")) == [Broken(1007, "close reason is not UTF-8")]

    def test_a_message_that_is_too_long_is_refused_before_its_payload_comes(self) -> None:
        head = masked(1, b"x" * 1001)[:8]

        assert read(head) == [Broken(1002, "message too long")]

    def test_what_came_before_the_violation_is_still_read(self) -> None:
        assert read(masked(1, b"a") + masked(0)) == [
            Text(b"a"),
            Broken(1002, "nothing to continue"),
        ]

    def test_nothing_is_read_after_a_violation_or_a_close(self) -> None:
        assert len(read(masked(0) + masked(1, b"a"))) == 1
        assert read(masked(8) + masked(1, b"a")) == [Close(1005, "")]


class TestClosing:
    @pytest.mark.parametrize("code", [1000, 1001, 1003, 1007, 1011, 1012, 1014, 3000, 4774, 4999])
    def test_code_and_reason_are_read(self, code: int) -> None:
        assert read(masked(8, code.to_bytes(2, "big") + "grüß".encode())) == [Close(code, "grüß")]

    def test_a_close_without_code_has_none(self) -> None:
        assert read(masked(8)) == [Close(1005, "")]

    def test_after_a_close_nothing_is_kept(self) -> None:
        reader = FrameReader()
        reader.begin(masked(8) + b"more", None)

        assert reader.next() == Close(1005, "")
        assert reader.next() is None
        assert reader.end() is None


class TestKeeping:
    def test_nothing_is_kept_between_complete_messages(self) -> None:
        reader = FrameReader()
        reader.begin(masked(1, b"a") + masked(9), None)
        while reader.next() is not None:
            pass

        assert reader.end() is None

    def test_a_reader_can_stop_between_two_messages_and_go_on(self) -> None:
        reader = FrameReader()
        reader.begin(masked(1, b"1") + masked(1, b"2") + masked(1, b"3")[:4], None)
        assert reader.next() == Text(b"1")
        partial = reader.end()

        assert partial is not None
        assert partial.unread
        reader.begin(b"", partial)
        assert reader.next() == Text(b"2")
        assert reader.next() is None
        partial = reader.end()
        assert partial is not None
        assert not partial.unread
        reader.begin(masked(1, b"3")[4:], partial)
        assert reader.next() == Text(b"3")
        assert reader.end() is None

    def test_bytes_that_arrive_while_stopped_come_after_those_that_wait(self) -> None:
        reader = FrameReader()
        reader.begin(masked(1, b"1") + masked(1, b"2"), None)
        assert reader.next() == Text(b"1")
        partial = reader.end()
        reader.begin(masked(1, b"3"), partial)

        assert [reader.next(), reader.next(), reader.next()] == [Text(b"2"), Text(b"3"), None]

    def test_connections_that_share_a_reader_do_not_mix(self) -> None:
        reader = FrameReader()
        kept: dict[str, Partial | None] = {"a": None, "b": None}
        frames = {"a": masked(1, b"aaaa", fin=False) + masked(0, b"A"), "b": masked(1, b"bbbbbbb")}
        events: list[tuple[str, Event]] = []
        for i in range(20):
            for who, data in frames.items():
                reader.begin(data[i : i + 1], kept[who])
                while (event := reader.next()) is not None:
                    events.append((who, event))
                kept[who] = reader.end()

        assert events == [("b", Text(b"bbbbbbb")), ("a", Text(b"aaaaA"))]


class TestFrames:
    @pytest.mark.parametrize("size", [0, 1, 125, 126, 65535, 65536, 70000])
    def test_a_text_frame_is_what_websockets_would_send(self, size: int) -> None:
        payload = b"y" * size

        assert text_frame(payload) == Frame(Opcode.TEXT, payload).serialize(mask=False)

    @pytest.mark.parametrize("size", [0, 1, 125])
    def test_pings_and_pongs_are_what_websockets_would_send(self, size: int) -> None:
        payload = b"y" * size

        assert ping_frame(payload) == Frame(Opcode.PING, payload).serialize(mask=False)
        assert pong_frame(payload) == Frame(Opcode.PONG, payload).serialize(mask=False)
        assert ping_frame() == websocket.PING

    def test_a_close_frame_carries_code_and_reason(self) -> None:
        assert close_frame(1011, "SM") == b"\x88\x04\x03\xf3SM"
        assert close_frame(1005) == b"\x88\x00"

    def test_a_reason_that_is_too_long_is_cut_between_characters(self) -> None:
        frame = close_frame(1000, "€" * 60)

        assert len(frame) <= 127
        assert frame[4:].decode() == "€" * 41


class TestMasks:
    @given(st.binary(max_size=300), st.binary(min_size=4, max_size=4))
    def test_the_slow_mask_does_what_the_quick_one_does(self, data: bytes, mask: bytes) -> None:
        expected = bytes(byte ^ mask[i % 4] for i, byte in enumerate(data))

        assert websocket._mask_slowly(data, mask) == expected
        assert websocket.apply_mask(data, mask) == expected


# --- properties ----------------------------------------------------------------------------------

message = st.one_of(
    st.builds(lambda text: (1, text.encode()), st.text(max_size=80)),
    st.builds(lambda data: (2, data), st.binary(max_size=200)),
)
control = st.builds(lambda op, data: (op, data), st.sampled_from([9, 10]), st.binary(max_size=125))


@st.composite
def conversations(draw: st.DrawFn) -> tuple[bytes, list[Event]]:
    """Valid frames in any fragmentation, with control frames in between; what they mean."""
    data = bytearray()
    events: list[Event] = []

    def interject() -> None:
        for op, payload in draw(st.lists(control, max_size=2)):
            data.extend(masked(op, payload, mask=draw(st.binary(min_size=4, max_size=4))))
            events.append(Ping(payload) if op == 9 else Pong(payload))

    for op, payload in draw(st.lists(message, max_size=5)):
        pieces = list(split(payload, draw(st.lists(st.integers(0, 1000), max_size=3))))
        for i, piece in enumerate(pieces):
            interject()
            data.extend(masked(op if i == 0 else 0, piece, fin=i == len(pieces) - 1))
        events.append(Text(payload) if op == 1 else Binary(payload))
    if draw(st.booleans()):
        data.extend(masked(8, b"\x03\xe8bye"))
        events.append(Close(1000, "bye"))
    return bytes(data), events


class TestProperties:
    @given(conversations(), st.lists(st.integers(0, 5000), max_size=12))
    def test_any_split_and_fragmentation_gives_the_same_events(
        self, conversation: tuple[bytes, list[Event]], cuts: list[int]
    ) -> None:
        data, events = conversation

        assert read(*split(data, cuts)) == events

    @given(conversations())
    def test_byte_by_byte_gives_the_same_events(
        self, conversation: tuple[bytes, list[Event]]
    ) -> None:
        data, events = conversation

        assert read(*(data[i : i + 1] for i in range(len(data)))) == events

    @given(conversations(), st.randoms(use_true_random=False))
    def test_stopping_anywhere_gives_the_same_events(
        self, conversation: tuple[bytes, list[Event]], chance: random.Random
    ) -> None:
        data, expected = conversation
        reader = FrameReader(message_bytes_max=LIMIT)
        partial: Partial | None = None
        events: list[Event] = []
        for chunk in split(data, [chance.randrange(5000) for _ in range(8)]):
            reader.begin(chunk, partial)
            while chance.random() < 0.6 and (event := reader.next()) is not None:
                events.append(event)
            partial = reader.end()
        reader.begin(b"", partial)
        while (event := reader.next()) is not None:
            events.append(event)

        assert events == expected

    @given(st.binary(max_size=4000), st.lists(st.integers(0, 5000), max_size=12))
    def test_random_bytes_never_raise_and_never_keep_more_than_the_limit(
        self, data: bytes, cuts: list[int]
    ) -> None:
        self.check_bounded(data, cuts)

    @given(
        st.lists(
            st.builds(
                masked,
                st.sampled_from([0, 0, 1, 2, 9, 10]),
                st.binary(max_size=600),
                fin=st.booleans(),
            ),
            max_size=20,
        ),
        st.lists(st.integers(0, 9000), max_size=12),
    )
    def test_wild_frames_never_keep_more_than_the_limit(
        self, frames: list[bytes], cuts: list[int]
    ) -> None:
        self.check_bounded(b"".join(frames), cuts)

    def check_bounded(self, data: bytes, cuts: list[int]) -> None:
        reader = FrameReader(message_bytes_max=LIMIT)
        partial: Partial | None = None
        over = False
        for chunk in split(data, cuts):
            reader.begin(chunk, partial)
            while (event := reader.next()) is not None:
                assert not over, "an event after the end"
                over = isinstance(event, Close | Broken)
            partial = reader.end()
            if over:
                assert partial is None
                break
            held = 0 if partial is None else partial.held_bytes
            assert held <= LIMIT + HEADER_BYTES_MAX + 125

    def test_endless_empty_fragments_hold_nothing(self) -> None:
        reader = FrameReader(message_bytes_max=LIMIT)
        partial: Partial | None = None
        for i in range(5000):
            reader.begin(masked(1 if i == 0 else 0, fin=False), partial)
            assert reader.next() is None
            partial = reader.end()

        assert partial is not None
        assert partial.held_bytes == 0


# --- the other implementation --------------------------------------------------------------------


def read_with_websockets(data: bytes, limit: int) -> list[Event]:
    """The same bytes through the sans-I/O server of `websockets`, in our words."""
    protocol = ServerProtocol(state=OPEN, max_size=limit)
    events: list[Event] = []
    opcode, fragments = Opcode.CONT, b""
    protocol.receive_data(data)
    for frame in protocol.events_received():
        assert isinstance(frame, Frame)
        payload = bytes(frame.data)
        match frame.opcode:
            case Opcode.PING:
                events.append(Ping(payload))
            case Opcode.PONG:
                events.append(Pong(payload))
            case Opcode.CLOSE:
                assert protocol.close_rcvd is not None
                events.append(Close(protocol.close_rcvd.code, protocol.close_rcvd.reason))
            case kind:
                if kind is not Opcode.CONT:
                    opcode, fragments = kind, b""
                fragments += payload
                if frame.fin:
                    events.append(Text(fragments) if opcode is Opcode.TEXT else Binary(fragments))
    match protocol.parser_exc:
        case PayloadTooBig():
            events.append(Broken(1009, ""))
        case ProtocolError() as error:
            events.append(Broken(1002, str(error)))
        case UnicodeDecodeError():
            events.append(Broken(1007, ""))
        case _:
            pass
    return events


LONG_CONTROL = re.compile(rb"[\x88-\x8f][\xfe\xff]")
REST = bytes(LIMIT + HEADER_BYTES_MAX)


def difference(data: bytes) -> tuple[list[Event], list[Event]] | None:
    """What we read and what `websockets` reads, if it is not the same. `websockets` judges UTF-8
    above its codec, except in close reasons."""
    ours, theirs = without_codes(read(data)), without_codes(read_with_websockets(data, LIMIT))
    # One may judge a frame by its first bytes, the other when it is complete.
    if ours == [*theirs, BROKEN]:
        theirs = without_codes(read_with_websockets(data + REST, LIMIT))[: len(ours)]
    elif theirs == [*ours, BROKEN]:
        ours = without_codes(read(data + REST))[: len(theirs)]
    if ours == theirs:
        return None
    # What we refuse alone: bad UTF-8 in a text, and a control frame whose length takes more bytes
    # than it needs (RFC 6455, section 5.2).
    refused_alone = ours[-1:] == [BROKEN] and ours[:-1] == theirs[: len(ours) - 1]
    last = read(data)[-1:]
    bad_text = isinstance(last[0], Broken) and last[0].code == 1007 if last else False
    if refused_alone and (bad_text or LONG_CONTROL.search(data)):
        return None
    # What `websockets` refuses alone, between the fragments of a message: a Close, and a control
    # frame if both together are longer than a message may be (RFC 6455, section 5.5).
    refusal = read_with_websockets(data, LIMIT)[-1:]
    at = len(theirs) - 1
    if at < len(ours) and ours[:at] == theirs[:at]:
        if refusal == [Broken(1009, "")] and isinstance(ours[at], Ping | Pong | Close):
            return None
        if refusal == [UNFINISHED] and isinstance(ours[at], Close):
            return None
    return ours, theirs


def without_codes(events: list[Event]) -> list[Event]:
    return [BROKEN if isinstance(event, Broken) else event for event in events]


def random_frames(chance: random.Random) -> bytes:
    """A few frames as a client sends them, with up to three changed, lost or added bytes."""
    data = bytearray()
    for _ in range(chance.choice([1, 1, 2, 3, 5])):
        size = chance.choice([0, 1, 2, 20, 125, 126, 130, 700, LIMIT, LIMIT + 1])
        data += masked(
            chance.choice([0, 1, 1, 1, 2, 8, 9, 10, chance.randrange(16)]),
            bytes(chance.choices(range(128 if chance.random() < 0.9 else 256), k=size)),
            fin=chance.random() < 0.8,
            rsv=chance.choice([0] * 20 + [1, 2, 4]),
            mask=chance.randbytes(4),
            length_form=chance.choice([None] * 10 + [16, 64]),
        )
    for _ in range(chance.choice([0, 0, 1, 2, 3])):
        at = chance.randrange(min(len(data), 40) + 1)
        match chance.randrange(4):
            case 0:
                data[at : at + 1] = chance.randbytes(1)
            case 1:
                del data[at : at + 1]
            case 2:
                data[at:at] = chance.randbytes(1)
            case _:
                del data[len(data) - at :]
    return bytes(data)


def differences(seed: int, cases: int) -> list[object]:
    chance = random.Random(seed)
    drawn = (random_frames(chance) for _ in range(cases))
    return [(data, what) for data in drawn if (what := difference(data)) is not None]


class TestAgainstWebsockets:
    @given(conversations())
    def test_valid_conversations_mean_the_same(
        self, conversation: tuple[bytes, list[Event]]
    ) -> None:
        data, _ = conversation

        assert read(data) == read_with_websockets(data, LIMIT)

    @given(
        st.lists(
            st.builds(
                masked,
                st.integers(0, 15),
                st.one_of(
                    st.binary(max_size=130).filter(bytes.isascii),
                    st.sampled_from(
                        [b"\x03\xe8", b"\x03", b"\x03\xec", b"\x03\xe8\xff", b"x" * 700]
                    ),
                ),
                fin=st.booleans(),
                rsv=st.sampled_from([0, 0, 0, 0, 0, 0, 1, 4]),
            ),
            max_size=8,
        )
    )
    def test_wild_frames_are_judged_the_same(self, frames: list[bytes]) -> None:
        assert difference(b"".join(frames)) is None

    def test_random_frames_with_mistakes_are_judged_the_same(self) -> None:
        assert differences(seed=1, cases=5_000) == []

    @pytest.mark.soak
    @pytest.mark.parametrize("seed", range(2, 12))
    def test_a_million_random_frames_with_mistakes_are_judged_the_same(self, seed: int) -> None:
        assert differences(seed, cases=100_000) == []
