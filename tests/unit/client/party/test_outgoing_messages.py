"""Messages are numbered over all streams, and JOIN contains the options."""

from waystation.client.party.model import SessionOptions
from waystation.client.party.outgoing_messages import OutgoingMessages
from waystation.presence.wire import party_presence_pb2 as pb


def test_ids_grow_from_one() -> None:
    words = OutgoingMessages(SessionOptions(party_id=1, client_id=2, session_id=3))

    assert [words.message(pb.PING).message_id for _ in range(3)] == [1, 2, 3]


def test_a_join_carries_flags_and_token() -> None:
    words = OutgoingMessages(
        SessionOptions(party_id=1, client_id=2, session_id=3, want_updates=True, no_delivery=True)
    )
    join = words.join(b"tok", standby=True, only_resume=True)

    assert join.flags == 1 | 2 | 4 | 8
    assert (join.party_id, join.client_id, join.session_id) == (1, 2, 3)
    assert (join.resume_token, join.session_ttl_ms) == (b"tok", 120_000)
