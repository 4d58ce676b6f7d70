"""A session on one stream after the other: joining, acks, pings, breaks and the end."""

import pytest

from tests.unit.client.party.brokers import Table
from waystation.base.errors import BusyError
from waystation.client.party.model import (
    ContinuityLost,
    Joined,
    Left,
    Participant,
    Reachability,
    Signalled,
    Snapshot,
    TokenRefused,
)
from waystation.client.party.session import SIGNALS_MAX
from waystation.presence.wire import party_presence_pb2 as pb

B = Participant(2, 20)


def test_a_stream_begins_with_join() -> None:
    table = Table(session_ttl_ms=30_000, want_updates=True)
    table.pass_time(0.0)

    (join,) = table.said[1]
    assert table.opened == [(1, "a:1")]
    assert (join.message_type, join.message_id) == (pb.JOIN, 1)
    assert (join.session_id, join.client_id, join.party_id) == (11, 1, 7)
    assert (join.session_ttl_ms, join.flags, join.party_seq) == (30_000, 4, 0)


def test_the_list_and_later_messages_are_reported() -> None:
    table = Table()
    table.pass_time(0.0)
    table.attach()
    table.list(3, (2, 20))
    table.announce(pb.JOIN, 3, 30, 4, client_session_count=1)
    table.announce(pb.LEAVE, 2, 20, 5, status_code=pb.CLIENT_TIMEOUT)

    assert table.states == ["connecting", "single"]
    assert table.told == [
        Snapshot((B,), 3),
        Joined(Participant(3, 30), 1, 1004, 4),
        Left(B, pb.CLIENT_TIMEOUT, 0, 1005, 5),
    ]


def test_acks_are_batched_by_time() -> None:
    table = Table()
    table.sit()
    table.announce(pb.JOIN, 2, 20, 2)
    table.announce(pb.JOIN, 3, 30, 3)
    table.pass_time(0.24)
    assert table.last().message_type == pb.JOIN

    table.pass_time(0.02)
    ack = table.last()
    assert ack.message_type == pb.ACK
    assert len(ack.ack_message_ids) == 3  # the LIST as well
    assert table.session.wake_at() is not None


def test_acks_are_batched_by_number() -> None:
    table = Table()
    table.sit()
    for seq in range(2, 33):
        table.announce(pb.JOIN, seq, seq, seq)

    assert table.last().message_type == pb.ACK
    assert len(table.last().ack_message_ids) == 32


def test_a_repeated_message_is_acknowledged_again_and_reported_once() -> None:
    table = Table()
    table.sit()
    table.announce(pb.JOIN, 2, 20, 2)
    table.pass_time(0.3)
    table.announce(pb.JOIN, 2, 20, 2, delivery_attempt=2)
    table.pass_time(0.3)

    assert len(table.told) == 1
    assert len(table.last().ack_message_ids) == 1


def test_a_quiet_client_pings_at_half_the_ttl() -> None:
    table = Table()
    table.sit()
    table.pass_time(0.3)  # acks the LIST
    pings = 0
    for _ in range(5):
        table.pass_time(60.0)
        assert table.last().message_type == pb.PING
        table.ack()
        pings += 1

    assert len([m for m in table.said[1] if m.message_type == pb.PING]) == pings


def test_a_ping_without_an_answer_means_a_dead_stream() -> None:
    table = Table()
    table.sit()
    table.pass_time(71.0)

    assert table.closed == [1]
    assert [stream for stream, _ in table.opened] == [1, 2]
    assert table.last().resume_token == b"t1"


def test_a_broken_stream_is_resumed_with_what_is_known() -> None:
    """P-070: position and acks travel in the JOIN."""
    table = Table()
    table.sit((2, 20))
    heard = table.announce(pb.JOIN, 3, 30, 2)
    table.end()
    table.until_opened()

    join = table.last()
    assert join.message_type == pb.JOIN
    assert (join.resume_token, join.party_seq) == (b"t1", 2)
    assert heard.message_id in join.ack_message_ids
    assert join.message_id > 1
    table.attach(pb.SESSION_RESUMED, b"t2")
    table.list(2, (2, 20), (3, 30))
    assert table.states[-2:] == ["connecting", "single"]
    assert not [event for event in table.told if isinstance(event, ContinuityLost)]


def test_redelivered_messages_are_not_reported_again() -> None:
    table = Table()
    table.sit()
    table.announce(pb.JOIN, 2, 20, 2)
    table.end()
    table.until_opened()
    table.attach(pb.SESSION_RESUMED, b"t2")
    table.list(3, (2, 20), (3, 30))
    table.announce(pb.JOIN, 2, 20, 2, delivery_attempt=2)
    table.announce(pb.JOIN, 3, 30, 3, delivery_attempt=1)

    assert [type(event) for event in table.told] == [Joined, Snapshot]
    assert table.session.view.participants == (B, Participant(3, 30))


def test_the_position_after_a_resume_does_not_skip_what_is_still_to_come() -> None:
    """The LIST says who is there; a SIGNAL below it may be on its way."""
    table = Table()
    table.sit()
    table.end()
    table.until_opened()
    table.attach(pb.SESSION_RESUMED, b"t2")
    table.list(9)
    table.end()
    table.until_opened()

    assert table.last().party_seq == 1


def test_attempts_are_spread_and_go_round_the_nodes() -> None:
    table = Table("a:1", "b:1")
    table.sit()
    gaps: list[float] = []
    for _ in range(12):
        before = table.now
        table.end()
        table.until_opened()
        gaps.append(table.now - before)

    assert {endpoint for _, endpoint in table.opened} == {"a:1", "b:1"}
    assert max(gaps) <= 10.1
    assert max(gaps[6:]) > max(gaps[:3])


def test_after_a_ttl_without_an_answer_continuity_is_lost_once() -> None:
    table = Table()
    table.sit((2, 20))
    for _ in range(40):
        table.end()
        table.until_opened()
        table.pass_time(5.0)

    assert table.told == [ContinuityLost()]
    assert table.session.view.participants == ()
    assert table.last().party_seq == 0
    table.attach(pb.OK, b"t9")
    table.list(40, (3, 30))
    assert table.told[1:] == [Snapshot((Participant(3, 30),), 40)]


def test_a_session_that_the_broker_no_longer_knew_is_reported_as_lost() -> None:
    table = Table()
    table.sit((2, 20))
    table.end()
    table.until_opened()
    table.attach(pb.OK, b"t2")

    assert table.told == [ContinuityLost()]


def test_an_expired_session_joins_anew() -> None:
    table = Table()
    table.sit()
    table.hear(message_type=pb.ERROR, status_code=pb.ACK_TIMEOUT)
    table.until_opened()

    assert table.told == [ContinuityLost()]
    assert table.closed == [1]


@pytest.mark.parametrize("code", [pb.PARTY_FULL, pb.PERMISSION_DENIED, pb.INVALID_IDENTIFIER])
def test_a_join_that_cannot_succeed_is_not_repeated(code: int) -> None:
    table = Table()
    table.pass_time(0.0)
    table.refuse(code)

    assert table.finished is not None
    assert table.finished.code == code
    assert table.session.wake_at() is None


@pytest.mark.parametrize("code", [pb.STORE_BUSY, pb.OVERLOADED, pb.RATE_LIMITED])
def test_a_join_that_may_succeed_later_is_repeated_then(code: int) -> None:
    table = Table()
    table.pass_time(0.0)
    table.refuse(code, retry_after_ms=3_000)
    table.pass_time(2.9)
    assert len(table.opened) == 1

    table.pass_time(0.2)
    assert len(table.opened) == 2


def test_a_refused_resume_token_is_dropped() -> None:
    table = Table()
    table.sit()
    table.end()
    table.until_opened()
    table.refuse(pb.RESUME_REJECTED)
    table.until_opened()

    assert table.last().resume_token == b""
    table.refuse(pb.RESUME_REJECTED)
    assert table.finished is not None


def test_a_position_that_the_broker_does_not_know_is_left_out() -> None:
    table = Table()
    table.sit()
    table.end()
    table.until_opened()
    table.refuse(pb.INVALID_FIELD)

    assert table.last().message_type == pb.JOIN
    assert table.last().party_seq == 0
    assert table.closed == []


def test_a_stream_of_ours_that_is_not_noticed_to_be_dead_is_waited_for() -> None:
    """P-079: the ACK of the first JOIN was lost, so there is no token yet."""
    table = Table()
    table.pass_time(0.0)
    table.end()
    table.until_opened()
    table.refuse(pb.SESSION_ID_IN_USE)
    table.until_opened()
    table.attach()

    assert table.finished is None
    assert table.states[-1] == "single"


def test_a_session_taken_over_by_another_client_ends() -> None:
    table = Table()
    table.sit()
    table.hear(message_type=pb.ERROR, status_code=pb.TAKEN_OVER)

    assert table.finished is not None
    assert table.finished.reason == "TAKEN_OVER"


# --- tokens, signals, updates -------------------------------------------------------------------


def test_a_token_is_renewed_inside_the_stream() -> None:
    """P-101."""
    table = Table()
    table.sit()
    table.hear(message_type=pb.AUTH, status_code=pb.TOKEN_EXPIRING)
    assert table.tokens_wanted == 1
    table.take(table.session.renewed("jwt", table.now))

    assert (table.last().message_type, table.last().auth_token) == (pb.AUTH, "jwt")
    table.refuse(pb.TOKEN_REJECTED)
    assert table.told == [TokenRefused()]
    assert table.closed == []


def test_an_expired_token_is_replaced_and_the_session_resumed() -> None:
    table = Table()
    table.sit()
    table.hear(message_type=pb.ERROR, status_code=pb.REAUTHENTICATE)
    assert table.tokens_wanted == 1
    table.until_opened()
    table.end(16)

    assert table.finished is not None, "a second refusal in a row is final"
    assert table.finished.code == pb.UNAUTHENTICATED


def test_a_signal_that_was_not_answered_is_sent_again_under_its_id() -> None:
    table = Table()
    table.sit()
    table.take(table.session.signal(b"hi", table.now))
    first = table.last()
    table.end()
    table.until_opened()
    table.attach(pb.SESSION_RESUMED, b"t2")

    again = table.last()
    assert (again.message_type, again.payload) == (pb.SIGNAL, b"hi")
    assert again.message_id == first.message_id
    table.ack()
    assert not table.session._signals


def test_only_so_many_signals_wait() -> None:
    table = Table()
    for _ in range(SIGNALS_MAX):
        table.take(table.session.signal(b"x", table.now))

    with pytest.raises(BusyError):
        table.session.signal(b"x", table.now)


def test_signals_and_updates_are_reported() -> None:
    table = Table(want_updates=True)
    table.sit((2, 20))
    table.announce(pb.SIGNAL, 2, 20, 2, payload=b"boo")
    table.announce(pb.UPDATE, 2, 20, 2, message_id=99, status_code=pb.PARTICIPANT_DETACHED)
    table.announce(pb.UPDATE, 2, 20, 2, message_id=98, status_code=pb.PARTICIPANT_REATTACHED)

    assert table.told == [
        Signalled(B, b"boo", 1002, 2),
        Reachability(B, False),
        Reachability(B, True),
    ]


# --- the end -------------------------------------------------------------------------------------


def test_leaving_waits_for_the_broker() -> None:
    table = Table()
    table.sit()
    table.announce(pb.JOIN, 2, 20, 2)
    table.take(table.session.leave(table.now))
    leave = table.last()
    assert leave.message_type == pb.LEAVE
    assert len(leave.ack_message_ids) == 2
    table.ack()
    assert table.finished is None
    table.end(0)

    assert table.finished is not None
    assert table.finished.code == 0
    assert table.states[-1] == "closed"


def test_leaving_does_not_wait_for_ever() -> None:
    table = Table()
    table.sit()
    table.take(table.session.leave(table.now))
    table.pass_time(5.0)

    assert table.finished is not None


def test_leaving_over_a_broken_stream_resumes_only_to_leave() -> None:
    """A session that is gone already is not created again for a goodbye."""
    table = Table()
    table.sit()
    table.end()
    table.take(table.session.leave(table.now))
    table.until_opened()
    assert table.last().flags & 1

    table.refuse(pb.SESSION_NOT_FOUND)
    assert table.finished is not None
    assert table.finished.code == 0


def test_nothing_is_said_after_the_end() -> None:
    table = Table()
    table.sit()
    table.take(table.session.leave(table.now))
    table.end(0)
    said = sum(map(len, table.said.values()))
    table.announce(pb.JOIN, 2, 20, 2)
    table.pass_time(500.0)

    assert sum(map(len, table.said.values())) == said
