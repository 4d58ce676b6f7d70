"""The view rule: new messages, repetitions, and the effect of a LIST."""

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from waystation.client.party.model import Joined, Left, Participant, Resynced, Snapshot
from waystation.client.party.view import PartyView
from waystation.presence.wire import party_presence_pb2 as pb
from waystation.presence.wire.party_presence_pb2 import ClientMessage

A, B = Participant(1, 10), Participant(2, 20)


def announcement(kind: int, who: Participant, seq: int, epoch: int = 9) -> ClientMessage:
    return ClientMessage(
        message_type=kind,  # type: ignore[arg-type]
        client_id=who.client_id,
        session_id=who.session_id,
        party_seq=seq,
        party_epoch=epoch,
        message_id=epoch << 32 | seq,
        client_session_count=1,
        timestamp=50,
    )


def listing(seq: int, *who: Participant, message_id: int = 0, epoch: int = 9) -> ClientMessage:
    return ClientMessage(
        message_type=pb.LIST,
        party_seq=seq,
        party_epoch=epoch,
        message_id=message_id or 1 << 50 | seq,
        participant_client_ids=[
            pb.ClientSessionIdEntry(client_id=one.client_id, session_id=[one.session_id])
            for one in who
        ],
    )


def test_joins_and_leaves_are_applied_in_order() -> None:
    view = PartyView()

    assert view.listed(listing(1, A)) == Snapshot((A,), 1)
    assert view.announced(announcement(pb.JOIN, B, 2)) == Joined(B, 1, 50, 2)
    assert view.participants == (A, B)
    assert view.announced(announcement(pb.LEAVE, A, 3)) == Left(A, 0, 1, 50, 3)
    assert view.participants == (B,)
    assert view.seq == 3


def test_a_repeated_message_is_reported_once() -> None:
    view = PartyView()
    join = announcement(pb.JOIN, A, 2)
    view.announced(join)

    assert view.announced(join) is None
    assert view.participants == (A,)


def test_what_a_list_covers_makes_no_ghost() -> None:
    """The JOIN of somebody whose LEAVE was acknowledged is delivered again after a resume."""
    view = PartyView()
    view.listed(listing(1))
    view.listed(listing(5))

    assert view.announced(announcement(pb.JOIN, A, 3)) is None
    assert view.participants == ()


def test_an_older_announcement_of_the_same_participant_changes_nothing() -> None:
    """A round of repetitions brings the JOIN after the LEAVE has counted."""
    view = PartyView()
    view.listed(listing(1))
    view.announced(announcement(pb.LEAVE, A, 4))

    assert view.announced(announcement(pb.JOIN, A, 3)) is None
    assert view.participants == ()


def test_a_list_that_was_overtaken_is_not_taken() -> None:
    view = PartyView()
    view.listed(listing(9, A))

    assert view.listed(listing(4, B)) is None
    assert view.participants == (A,)


def test_messages_of_an_older_stream_after_a_list_still_count() -> None:
    """A hand-off: the old stream was ahead of the LIST that the new one begins with."""
    view = PartyView()
    view.listed(listing(1, B))
    view.announced(announcement(pb.JOIN, A, 6))
    view.announced(announcement(pb.LEAVE, B, 7))

    view.listed(listing(5, B))
    assert view.announced(announcement(pb.JOIN, A, 6)) is None
    assert view.participants == (A,)


def test_a_resync_is_an_event_of_its_own() -> None:
    view = PartyView()
    message = listing(7, A)
    message.status_code = pb.LIST_RESYNC

    assert view.listed(message) == Resynced((A,), 7)


def test_another_epoch_begins_from_zero() -> None:
    view = PartyView()
    view.listed(listing(900, A))

    assert view.listed(listing(2, B, epoch=10, message_id=77)) == Snapshot((B,), 2)
    assert view.announced(announcement(pb.JOIN, A, 3, epoch=10)) is not None
    assert view.seq == 3


def test_ids_are_forgotten_after_so_many() -> None:
    view = PartyView(ids_max=10)
    for seq in range(1, 100):
        view.announced(announcement(pb.JOIN, Participant(seq, seq), seq))

    assert len(view._ids) == 10


@settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    history=st.lists(st.tuples(st.booleans(), st.integers(1, 4)), max_size=25),
    repeats=st.lists(st.integers(0, 24), max_size=25),
    lists=st.sets(st.integers(0, 24)),
)
def test_whatever_is_repeated_the_view_is_the_truth(
    history: list[tuple[bool, int]], repeats: list[int], lists: set[int]
) -> None:
    """Announcements in order, earlier ones again between them, and snapshots here and there."""
    view = PartyView()
    truth: set[Participant] = set()
    sent: list[ClientMessage] = []
    view.listed(listing(0, message_id=1))
    for number, (comes, name) in enumerate(history):
        who = Participant(name, name)
        (truth.add if comes else truth.discard)(who)
        message = announcement(pb.JOIN if comes else pb.LEAVE, who, number + 1)
        sent.append(message)
        view.announced(message)
        for at in repeats:
            if at < len(sent) and (at + number) % 3 == 0:
                view.announced(sent[at])
        if number in lists:
            view.listed(listing(number + 1, *sorted(truth)))

        assert set(view.participants) == truth
