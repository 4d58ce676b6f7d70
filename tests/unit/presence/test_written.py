"""Lines that are written by hand are those that the event log would make of the structs."""

from hypothesis import given, settings
from hypothesis import strategies as st

from waystation.presence.model import (
    ClientId,
    Entry,
    MessageType,
    PartyId,
    SessionId,
    SessionKey,
    Status,
    session_key,
)
from waystation.presence.names import Names
from waystation.presence.store import Joined
from waystation.presence.written import Departure, WrittenEvents
from waystation.telemetry import events
from waystation.telemetry.eventlog import EventLines
from waystation.telemetry.hashes import EventHashes

MS = 1_700_000_000_000
TS_US = MS * 1000 + 123
EXAMPLES = settings(max_examples=60, deadline=None)
ids = st.integers(1, 2**64 - 1)
counts = st.integers(0, 2**40)
keys = st.builds(session_key, ids, ids, ids)


def names() -> Names:
    return Names(EventHashes(bytes(range(32))))


def lines(kind: events.Written, what: tuple[object, ...], event: events.Event) -> list[bytes]:
    """By hand, and as the event log makes it of the struct."""
    by_hand = EventLines("node-1", 17).encode([(TS_US * 1000, kind, what)])[0]
    return [by_hand, EventLines("node-1", 17).line(TS_US, event, 1)]


@EXAMPLES
@given(keys, counts, ids, st.integers(1, 10_000), st.floats(1.0, 1e6), st.booleans())
def test_somebody_came(  # noqa: PLR0917 one for each part of it
    key: SessionKey, seq: int, epoch: int, count: int, ttl_s: float, auth: bool
) -> None:
    joined = Joined(
        seq=seq, epoch=epoch >> 1, fence=1, at_ms=MS, device_sessions=count, party_size=count + 1
    )
    party, cli, sess = names().session(key, MS)
    by_hand, made = lines(
        WrittenEvents(names()).started,
        (key, joined, ttl_s, auth, MS),
        events.PartySessionStarted(
            party=party,
            cli=cli,
            sess=sess,
            n=count + 1,
            attrs=events.PartySessionStartedAttrs(
                seq=seq,
                epoch=epoch >> 1,
                device_sessions=count,
                ttl_ms=round(ttl_s * 1000),
                auth=auth,
            ),
        ),
    )

    assert by_hand == made


@EXAMPLES
@given(
    keys, st.sampled_from(list(Status)), st.lists(counts, min_size=8, max_size=8), st.floats(0, 1e7)
)
def test_somebody_left(key: SessionKey, code: Status, numbers: list[int], lived_s: float) -> None:
    seq, resumes, said, in_flight, acked, retried, dropped, superseded = numbers
    one = Departure(
        key, code, seq, lived_s, resumes, said, in_flight, acked, retried, dropped, superseded
    )
    party, cli, sess = names().session(key, MS)
    by_hand, made = lines(
        WrittenEvents(names()).left,
        (one, MS),
        events.PartySessionLeft(
            party=party,
            cli=cli,
            sess=sess,
            code=int(code),
            dur=round(lived_s * 1e6),
            attrs=events.PartySessionLeftAttrs(
                seq=seq,
                out=acked + dropped + superseded + in_flight,
                acked=acked,
                retried=retried,
                dropped=dropped,
                superseded=superseded,
                resumes=resumes,
            ),
        ),
    )

    assert by_hand == made


@EXAMPLES
@given(
    ids,
    st.sampled_from([MessageType.JOIN, MessageType.LEAVE, MessageType.SIGNAL]),
    st.integers(2**63, 2**64 - 1),
    counts,
    st.integers(0, 10_000),
)
def test_something_was_announced(
    party_id: int, kind: MessageType, message_id: int, seq: int, recipients: int
) -> None:
    entry = Entry(seq, kind, ClientId(2), SessionId(3), message_id, MS)
    by_hand, made = lines(
        WrittenEvents(names()).sent,
        (PartyId(party_id), entry, recipients, 91),
        events.PartyMessageSent(
            party=names().party(PartyId(party_id), MS),
            msg=message_id - 2**64,
            n=recipients,
            size=91,
            attrs=events.PartyMessageSentAttrs(type=kind.name.lower(), seq=seq),
        ),
    )

    assert by_hand == made
