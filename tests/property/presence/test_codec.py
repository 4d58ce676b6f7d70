"""Every layout that is packed by hand says what protobuf says."""

from hypothesis import given, settings
from hypothesis import strategies as st

from waystation.presence.model import (
    ClientId,
    Entry,
    MessageType,
    PartyId,
    SessionId,
    Status,
    session_key,
)
from waystation.presence.wire import server_messages as write
from waystation.presence.wire.client_messages import (
    Ack,
    Input,
    Join,
    MalformedMessageError,
    Ping,
    Signal,
    decode_client,
)
from waystation.presence.wire.party_presence_pb2 import ClientMessage

ids = st.integers(1, 2**64 - 1)
times = st.integers(1, 2**48)
EXAMPLES = settings(max_examples=150, deadline=None)


def proto(**fields: object) -> ClientMessage:
    return ClientMessage(**fields)  # pyright: ignore[reportArgumentType]


JOIN = proto(
    session_id=1, client_id=2, party_id=3, message_id=4, message_type=2, session_ttl_ms=120_000
)


@EXAMPLES
@given(ids, times, ids)
def test_an_ack(message_id: int, at_ms: int, acked: int) -> None:
    written = write.ack(message_id, at_ms, acked)

    expected = proto(
        message_id=message_id, message_type=1, timestamp=at_ms, ack_message_ids=[acked]
    )
    assert ClientMessage.FromString(written) == expected
    assert written == expected.SerializeToString()


@EXAMPLES
@given(ids, times, ids, st.tuples(ids, ids), st.integers(1, 2**32 - 1))
def test_the_answer_to_a_join_to_a_leave_and_to_a_signal(
    message_id: int, at_ms: int, acked: int, position: tuple[int, int], ttl_ms: int
) -> None:
    seq, epoch = position
    signalled = write.ack_seq(message_id, at_ms, acked, seq)
    left = write.ack_at(message_id, at_ms, acked, seq, epoch)
    joined = write.ack_join(
        message_id,
        at_ms,
        acked,
        seq=seq,
        epoch=epoch,
        token=bytes(range(16)),
        ttl_ms=ttl_ms,
        node_id="node.7",
    )

    expected = proto(
        message_id=message_id,
        message_type=1,
        timestamp=at_ms,
        ack_message_ids=[acked],
        party_seq=seq,
        party_epoch=epoch,
    )
    assert left == expected.SerializeToString()
    expected.ClearField("party_epoch")
    assert signalled == expected.SerializeToString()
    expected.party_epoch = epoch
    expected.resume_token = bytes(range(16))
    expected.session_ttl_ms = ttl_ms
    expected.node_id = "node.7"
    assert joined == expected.SerializeToString()


@EXAMPLES
@given(
    st.tuples(ids, times),
    st.lists(ids, max_size=20),
    st.sampled_from([Status.OK, Status.SESSION_RESUMED, Status.TOKEN_ACCEPTED]),
    st.tuples(st.integers(0, 2**40), st.integers(0, 2**64 - 1), st.integers(0, 2**32 - 1)),
    st.tuples(st.binary(max_size=200), st.text(max_size=70)),
)
def test_an_ack_with_more(
    head: tuple[int, int],
    acked: list[int],
    status: Status,
    numbers: tuple[int, int, int],
    texts: tuple[bytes, str],
) -> None:
    seq, epoch, ttl_ms = numbers
    written = write.ack_with(
        *head,
        acked,
        status=status,
        party_seq=seq,
        party_epoch=epoch,
        resume_token=texts[0],
        session_ttl_ms=ttl_ms,
        node_id=texts[1],
    )

    expected = proto(
        message_id=head[0],
        message_type=1,
        timestamp=head[1],
        ack_message_ids=acked,
        status_code=status,
        party_seq=seq,
        party_epoch=epoch,
        resume_token=texts[0],
        session_ttl_ms=ttl_ms,
        node_id=texts[1],
    )
    assert written == expected.SerializeToString()


@EXAMPLES
@given(
    ids,
    st.sampled_from([MessageType.JOIN, MessageType.LEAVE, MessageType.SIGNAL]),
    st.tuples(ids, ids, ids),
    st.tuples(times, st.integers(1, 2**40)),
    st.tuples(st.integers(0, 300), st.sampled_from([0, 2, 16, 22]), st.binary(max_size=128)),
)
def test_an_announcement(
    message_id: int,
    kind: MessageType,
    names: tuple[int, int, int],
    when: tuple[int, int],
    rest: tuple[int, int, bytes],
) -> None:
    party, client, session = names
    at_ms, seq = when
    count, code, payload = rest
    entry = Entry(
        seq, kind, ClientId(client), SessionId(session), message_id, at_ms, count, code, payload
    )
    written = write.announcement(PartyId(party), 77, entry)

    expected = proto(
        session_id=session,
        client_id=client,
        party_id=party,
        message_id=message_id,
        message_type=kind,
        timestamp=at_ms,
        party_seq=seq,
        client_session_count=count,
        status_code=code,
        party_epoch=77,
        payload=payload,
    )
    assert written == expected.SerializeToString()
    expected.delivery_attempt = 3
    assert ClientMessage.FromString(write.repeated(written, 3)) == expected


@EXAMPLES
@given(
    ids,
    times,
    st.integers(1, 2**40),
    st.dictionaries(ids, st.sets(ids, min_size=1, max_size=40), max_size=6),
    st.sampled_from([Status.OK, Status.LIST_RESYNC]),
)
def test_a_list(
    message_id: int, at_ms: int, seq: int, members: dict[int, set[int]], status: Status
) -> None:
    rows = {client: sorted(sessions) for client, sessions in sorted(members.items())}
    written = write.participants(
        message_id,
        at_ms,
        seq=seq,
        epoch=5,
        entries=[write.participant(client, one, one[:1]) for client, one in rows.items()],
        status=status,
    )

    expected = proto(
        message_id=message_id,
        message_type=4,
        timestamp=at_ms,
        party_seq=seq,
        status_code=status,
        party_epoch=5,
    )
    for client, one in rows.items():
        expected.participant_client_ids.add(
            client_id=client, session_id=one, detached_session_id=one[:1]
        )
    assert written == expected.SerializeToString()


@EXAMPLES
@given(st.integers(0, 2**64 - 1), st.lists(ids, min_size=1, max_size=20))
def test_acks_of_clients_are_read(message_id: int, acked: list[int]) -> None:
    data = proto(message_id=message_id, message_type=1, ack_message_ids=acked).SerializeToString()

    assert decode_client(data, ack_ids_max=1024) == Ack(message_id, tuple(acked))


@EXAMPLES
@given(ids)
def test_pings_of_clients_are_read(message_id: int) -> None:
    data = proto(message_id=message_id, message_type=5).SerializeToString()

    assert decode_client(data, ack_ids_max=1024) == Ping(message_id)


@EXAMPLES
@given(st.tuples(ids, ids, ids), ids, st.integers(0, 2**32 - 1), st.binary(max_size=3))
def test_joins_of_clients_are_read(
    names: tuple[int, int, int], message_id: int, ttl_ms: int, token: bytes
) -> None:
    party, client, session = names
    data = proto(
        session_id=session,
        client_id=client,
        party_id=party,
        message_id=message_id,
        message_type=2,
        session_ttl_ms=ttl_ms,
        resume_token=token,
    ).SerializeToString()

    assert decode_client(data, ack_ids_max=1024) == Join(
        message_id,
        key=session_key(party, client, session),
        resume_token=token,
        ttl_ms=ttl_ms,
        extended=bool(ttl_ms or token),
    )


@EXAMPLES
@given(ids, st.binary(max_size=300), st.integers(0, 3))
def test_signals_of_clients_are_read(message_id: int, payload: bytes, seq: int) -> None:
    data = proto(
        message_id=message_id, message_type=11, payload=payload, party_seq=seq
    ).SerializeToString()

    assert decode_client(data, 1024) == Signal(message_id, party_seq=seq, payload=payload)


@settings(max_examples=600, deadline=None)
@given(
    st.one_of(
        st.binary(max_size=80),
        st.tuples(
            st.sampled_from(
                [
                    proto(message_id=9, message_type=5).SerializeToString(),
                    proto(message_id=9, message_type=1, ack_message_ids=[1]).SerializeToString(),
                    proto(message_type=1, ack_message_ids=[1, 2]).SerializeToString(),
                    proto(message_id=9, message_type=3).SerializeToString(),
                    JOIN.SerializeToString(),
                    proto(message_id=9, message_type=11, payload=b"abc").SerializeToString(),
                    proto(session_ttl_ms=120_000).SerializeToString(),
                ]
            ),
            st.integers(0, 40),
            st.integers(0, 255),
        ).map(lambda one: one[0][: one[1]] + bytes([one[2]]) + one[0][one[1] + 1 :]),
    )
)
def test_any_bytes_are_decoded_or_refused(data: bytes) -> None:
    """P-033: arbitrary bytes give a value or MALFORMED_MESSAGE, and nothing else."""
    try:
        got = decode_client(data, ack_ids_max=1024)
    except MalformedMessageError:
        return

    assert isinstance(got, Input)
