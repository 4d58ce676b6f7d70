"""Frames and messages of the link between edge and storage server."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from waystation.queue.errors import BadHelloError, Broker, RefusedError
from waystation.queue.model import (
    CorrId,
    DhPrivateKey,
    LinkId,
    MessageId,
    NotifierId,
    RecipientId,
    RefKind,
    SenderId,
    SessionId,
    Slot,
)
from waystation.queue.wire import link_messages as w
from waystation.queue.wire.boxes import pad
from waystation.queue.wire.fields import FieldError
from waystation.queue.wire.link import (
    CONTENT_BYTES_MAX,
    LINK_BLOCK_BYTES,
    PAYLOAD_BYTES_MAX,
    Body,
    ClientTransmission,
    Frame,
    ServerTransmission,
    decode_frames,
    decode_message,
    encode_frame,
    encode_message,
    join_frames,
)
from waystation.queue.wire.link_hello import LinkHandshake
from waystation.queue.wire.transmission import TRANSMISSION_BYTES_MAX

TX = b"t" * 16
CORR = CorrId(b"c" * 24)
ID = b"i" * 24
SESSION_ID = SessionId(b"\xaa" * 32)

MESSAGES: list[w.LinkMessage] = [
    w.Sopen(18, SESSION_ID, DhPrivateKey(b"k" * 32)),
    w.Sopen(6, SESSION_ID, None, True),
    w.Sclose(),
    w.Spause(),
    w.Sresume(),
    w.Newq(Slot(4095), TX, b"transmission"),
    w.Newr(TX, RecipientId(ID), SenderId(ID)),
    w.Newr(
        TX,
        RecipientId(ID),
        SenderId(ID),
        NotifierId(ID),
        LinkId(ID),
        (RefKind.SENDER, RefKind.LINK),
    ),
    w.Newc(TX),
    w.Newx(TX),
    *(w.SetRef(kind, ID, Slot(7), TX) for kind in RefKind),
    w.GetRef(RefKind.NOTIFIER, ID),
    w.DelRef(RefKind.LINK, ID, TX),
    w.DelRef(RefKind.LINK, ID),
    w.RefIs(Slot(0)),
    w.Sres(RecipientId(ID)),
    w.Sdlv(RecipientId(ID), True, MessageId(ID)),
    w.Cok(),
    w.Cping(),
    w.Cpong(2**40),
    w.Moderate(b"i" * 24, "block reason=spam"),
    w.Moderated("ok"),
    w.WrongSlot(CORR, 9),
    w.Unknown(CORR, 9),
    w.Moved(CORR, RefKind.SENDER, Slot(3)),
    w.Frozen(CORR),
    w.Duplicate(),
    w.NotFound(),
    w.Busy(CORR),
    w.CopyPart(5, Slot(9), 2**33, True, b"rows"),
    w.CopyAck(5, 77, True),
]


def understand(data: bytes) -> w.LinkMessage | None:
    try:
        return decode_message(data)
    except FieldError:
        return None


@pytest.mark.parametrize("message", MESSAGES, ids=str)
def test_every_message_decodes_to_itself(message: w.LinkMessage) -> None:
    data = encode_message(message)

    assert decode_message(data) == message
    assert understand(data[:-1]) != message
    if not isinstance(message, w.Newq | w.CopyPart):  # they end in whatever follows
        assert understand(data + b"#") is None


@pytest.mark.parametrize(
    "data",
    [b"", b"WHAT", b"SOPEN", b"SET_REF X\x01i\0\x01" + TX, b"REF \x10\x00", b"NEWC short"],
)
def test_unknown_link_messages_are_refused(data: bytes) -> None:
    with pytest.raises(FieldError):
        decode_message(data)


def test_a_clients_longest_transmission_fits() -> None:
    body = ClientTransmission(bytes(TRANSMISSION_BYTES_MAX))
    (content,) = join_frames([encode_frame(Frame(1, 2, body))])

    assert TRANSMISSION_BYTES_MAX + 16 < PAYLOAD_BYTES_MAX
    assert decode_frames(content) == [Frame(1, 2, body)]


def test_frames_fill_blocks_in_their_order() -> None:
    frames = [
        Frame(
            n,
            2**40 + n,
            ServerTransmission(bytes(n * 250)) if n % 2 else ClientTransmission(bytes(n)),
        )
        for n in range(60)
    ]
    small = [Frame(1, 0, w.Cping())] * 300

    contents = join_frames(map(encode_frame, [*frames, *small]))

    assert all(len(content) <= CONTENT_BYTES_MAX for content in contents)
    read = [frame for content in contents for frame in decode_frames(content)]
    assert [(frame.stream, frame.body) for frame in read] == [
        (frame.stream, frame.body) for frame in [*frames, *small]
    ]
    assert [frame.epoch for frame in read[:60]] == list(range(60))  # the low half
    assert join_frames([]) == []


@pytest.mark.parametrize(
    "content",
    [b"", b"\0", b"\x01", b"\x01" + bytes(8) + b"X\0\0", b"\x01" + bytes(8) + b"T\0\x05a"],
)
def test_what_is_no_block_of_frames(content: bytes) -> None:
    with pytest.raises(FieldError):
        decode_frames(content)


@settings(max_examples=200, deadline=None)
@given(st.binary(max_size=120))
def test_any_bytes_are_frames_or_refused(content: bytes) -> None:
    for data in (content, b"\x01" + bytes(8) + b"C" + len(content).to_bytes(2, "big") + content):
        try:
            frames = decode_frames(data)
        except FieldError:
            continue
        assert decode_frames(join_frames(map(encode_frame, frames))[0]) == frames


@settings(max_examples=100, deadline=None)
@given(
    st.lists(
        st.builds(
            Frame,
            st.integers(0, 2**32 - 1),
            st.integers(0, 2**32 - 1),
            st.sampled_from(MESSAGES) | st.builds(ClientTransmission, st.binary(max_size=900)),
        ),
        max_size=80,
    )
)
def test_frames_read_back(frames: list[Frame]) -> None:
    contents = join_frames(map(encode_frame, frames))

    assert [frame for content in contents for frame in decode_frames(content)] == frames


def both_ends(
    server_session: SessionId = SESSION_ID,
) -> tuple[LinkHandshake, LinkHandshake]:
    return (
        LinkHandshake(server_session, is_server=True),
        LinkHandshake(SESSION_ID, is_server=False),
    )


def test_a_link_begins_and_its_blocks_open_at_the_other_end() -> None:
    server, edge = both_ends()
    at_server, at_edge = server.accept(edge.hello()), edge.accept(server.hello())
    body: Body = w.Cping()
    (content,) = join_frames([encode_frame(Frame(0, 1, body))])

    for _ in range(3):
        block = at_edge.seal(content)
        assert len(block) == LINK_BLOCK_BYTES
        assert at_server.open(block) == content
        assert at_edge.open(at_server.seal(content)) == content
    with pytest.raises(RefusedError):
        at_server.open(at_server.seal(content))
    assert len(server.hello()) == LINK_BLOCK_BYTES


@pytest.mark.parametrize(
    "block, kind",
    [
        (pad(b"", LINK_BLOCK_BYTES), Broker.HANDSHAKE_PARSE),
        (b"\xff\xff", Broker.HANDSHAKE_PARSE),
    ],
)
def test_what_is_no_hello_of_a_link(block: bytes, kind: Broker) -> None:
    server, _ = both_ends()

    with pytest.raises(BadHelloError) as refused:
        server.accept(block)
    assert refused.value.kind is kind


def test_a_hello_of_another_connection_is_refused() -> None:
    server, edge = both_ends(SessionId(b"\xbb" * 32))

    with pytest.raises(BadHelloError) as refused:
        server.accept(edge.hello())
    assert refused.value.kind is Broker.TRANSPORT_SESSION
