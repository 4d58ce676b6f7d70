"""Hand-offs and standbys: the session moves without events for others."""

from tests.unit.client.party.brokers import Table
from waystation.client.party.model import ContinuityLost, Joined
from waystation.presence.wire import party_presence_pb2 as pb


def paired() -> Table:
    """The primary on a:1 is stream 1, the standby on b:1 stream 2."""
    table = Table("a:1", "b:1", "c:1", highly_available=True)
    table.sit()
    assert table.opened == [(1, "a:1"), (2, "b:1")]
    table.ack(2, status_code=pb.STANDBY_ATTACHED, node_id="n2")
    assert table.states[-1] == "paired"
    return table


def promoted(table: Table, stream: int) -> None:
    assert table.last(stream).message_type == pb.PROMOTE
    table.ack(stream, status_code=pb.PROMOTED, resume_token=b"t2", session_ttl_ms=120_000)


# --- hand-off ------------------------------------------------------------------------------------


def handoff(table: Table, *, ticket: bytes = b"ticket") -> None:
    table.hear(
        1,
        message_type=pb.HANDOFF,
        handoff=pb.HandoffInfo(endpoints=["z:9"], ticket=ticket, deadline_ms=99),
    )


def test_a_hand_off_opens_the_next_stream_while_the_old_one_is_read() -> None:
    """P-117: with the ticket; both are read, and nothing is told twice."""
    table = Table()
    table.sit()
    handoff(table)
    assert table.opened[-1] == (2, "z:9")
    assert table.last(2).resume_token == b"ticket"
    table.announce(pb.JOIN, 2, 20, 2, stream=1)
    table.ack(2, status_code=pb.SESSION_RESUMED, resume_token=b"t2", session_ttl_ms=120_000)
    table.list(2, (2, 20))
    table.announce(pb.JOIN, 2, 20, 2, stream=2)

    assert [type(event) for event in table.told if not isinstance(event, Joined)]
    assert len([event for event in table.told if isinstance(event, Joined)]) == 1
    assert table.closed == [1]
    assert "connecting" not in table.states[2:]


def test_the_old_stream_may_end_before_the_new_one_answers() -> None:
    table = Table()
    table.sit()
    handoff(table)
    table.end(0, stream=1)
    table.ack(2, status_code=pb.SESSION_RESUMED, resume_token=b"t2", session_ttl_ms=120_000)
    table.pass_time(1.0)

    assert len(table.opened) == 2
    assert table.session.resumes == 1


def test_a_hand_off_that_fails_leaves_the_old_stream_in_use() -> None:
    """P-119, P-120: a ticket that is refused costs nothing."""
    table = Table()
    table.sit()
    handoff(table)
    table.refuse(pb.RESUME_REJECTED, 2)
    table.announce(pb.JOIN, 2, 20, 2, stream=1)
    assert table.closed == [2]
    assert len(table.told) == 1
    table.end(14, stream=1)
    table.until_opened()

    assert table.last().resume_token == b"t1", "the ticket was wrong, not the token"


def test_a_draining_node_names_where_to_go() -> None:
    table = Table()
    table.sit()
    table.hear(message_type=pb.DRAIN, handoff=pb.HandoffInfo(endpoints=["y:1"], deadline_ms=5))
    table.hear(message_type=pb.ERROR, status_code=pb.DRAINING)
    table.until_opened()

    assert table.opened[-1][1] == "y:1"


# --- standby -------------------------------------------------------------------------------------


def test_a_standby_is_sought_on_another_node() -> None:
    """P-125: with the flag, the token, and no position."""
    table = Table("a:1", "b:1", highly_available=True)
    table.sit()

    join = table.last(2)
    assert (join.flags & 2, join.resume_token, join.party_seq) == (2, b"t1", 0)
    assert not join.ack_message_ids


def test_nodes_are_looked_for_when_none_is_known() -> None:
    table = Table(highly_available=True)
    table.sit()
    table.pass_time(0.1)
    assert table.searches == 1
    table.take(table.session.nodes_found(["a:1", "b:1"], table.now))

    assert table.opened[-1][1] == "b:1"


def test_a_node_that_cannot_be_standby_is_left_alone() -> None:
    table = Table("a:1", "b:1", "c:1", highly_available=True)
    table.sit()
    table.refuse(pb.NOT_SUPPORTED, 2)
    table.pass_time(1.0)

    assert table.opened[-1] == (3, "c:1")
    assert table.states[-1] == "single"


def test_both_streams_are_pinged_every_ten_seconds() -> None:
    table = paired()
    for _ in range(3):
        table.pass_time(10.3)
        for stream in (1, 2):
            assert table.last(stream).message_type == pb.PING
            table.ack(stream)

    assert table.closed == []


def test_when_the_primary_ends_the_standby_is_promoted_at_once() -> None:
    """P-123: within the second, nothing lost or doubled, and a new standby on a third node."""
    table = paired()
    table.announce(pb.JOIN, 2, 20, 2, stream=1)
    before = table.now
    table.end(14, stream=1)
    assert table.states[-1] == "promoting"
    promoted(table, 2)
    table.hear(2, message_type=pb.LIST, party_seq=2, party_epoch=5)
    table.announce(pb.JOIN, 2, 20, 2, stream=2, delivery_attempt=2)

    assert table.now - before < 1.0
    assert len([event for event in table.told if isinstance(event, Joined)]) == 1
    assert not [event for event in table.told if isinstance(event, ContinuityLost)]
    assert table.opened[-1] == (3, "c:1")
    table.ack(3, status_code=pb.STANDBY_ATTACHED)
    assert table.states[-1] == "paired"


def test_a_frozen_primary_is_given_five_seconds() -> None:
    """P-124."""
    table = paired()
    table.pass_time(10.3)
    table.ack(2)
    table.pass_time(5.0)

    assert 1 in table.closed
    promoted(table, 2)
    table.hear(1, message_type=pb.ERROR, status_code=pb.TAKEN_OVER)
    assert table.finished is None


def test_a_drain_promotes_the_standby_once() -> None:
    table = paired()
    info = pb.HandoffInfo(endpoints=["c:1"], deadline_ms=99)
    table.hear(1, message_type=pb.DRAIN, handoff=info)
    table.hear(1, message_type=pb.HANDOFF, handoff=info)
    table.hear(1, message_type=pb.ERROR, status_code=pb.TAKEN_OVER)
    promoted(table, 2)

    assert [m.message_type for m in table.said[2]].count(pb.PROMOTE) == 1
    assert table.finished is None
    assert table.states[-1] == "single"
    assert table.opened[-1][1] == "c:1"


def test_acks_go_to_the_new_primary() -> None:
    table = paired()
    table.end(14, stream=1)
    promoted(table, 2)
    table.announce(pb.JOIN, 2, 20, 2, stream=2)
    table.pass_time(0.3)

    assert table.last(2).message_type == pb.ACK


def test_when_both_fail_the_session_is_resumed_elsewhere() -> None:
    """P-126."""
    table = paired()
    table.end(14, stream=1)
    table.end(14, stream=2)
    table.until_opened()

    assert table.opened[-1] == (3, "c:1")
    assert table.last().resume_token == b"t1"
    table.attach(pb.SESSION_RESUMED, b"t3")
    assert table.states[-1] == "single"


def test_a_promotion_without_an_answer_falls_back_to_a_resume() -> None:
    table = paired()
    table.end(14, stream=1)
    table.pass_time(5.1)
    assert 2 in table.closed

    table.until_opened()
    assert table.last().message_type == pb.JOIN


def test_leaving_lets_go_of_both() -> None:
    table = paired()
    table.take(table.session.leave(table.now))
    assert table.last(1).message_type == pb.LEAVE
    table.ack(1)
    table.end(0, stream=1)

    assert table.finished is not None
    assert 2 in table.closed
