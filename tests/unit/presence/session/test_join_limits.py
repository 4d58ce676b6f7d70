"""Limits with a name, and what happens beyond them."""

from collections.abc import Callable

from tests.unit.presence.broker_harness import BrokerHarness, codes, kinds, listed
from waystation.net.http2.port import GrpcStatus
from waystation.presence.model import MessageType, Status

StageWith = Callable[..., BrokerHarness]


def test_a_party_is_full_at_its_limit(stage_with: StageWith) -> None:
    """P-083: the thousand-and-first."""
    harness = stage_with()
    members = [harness.member(client, flags=8) for client in range(1, 1001)]
    late = harness.participant(1001).join()
    (error,) = late.take()
    assert (error.status_code, late.status) == (Status.PARTY_FULL, GrpcStatus.RESOURCE_EXHAUSTED)

    members[0].leave()

    late.join()
    assert kinds(late.take()) == ["ACK", "LIST"]


def test_the_ninth_session_of_a_client_is_refused(harness: BrokerHarness) -> None:
    """P-084"""
    for session in range(1, 9):
        harness.member(1, session=session)
    ninth = harness.participant(1, 9).join()

    assert codes(ninth.take()) == [Status.SESSION_LIMIT]
    assert ninth.status is GrpcStatus.RESOURCE_EXHAUSTED


def test_the_oldest_session_is_evicted_where_that_is_the_policy(stage_with: StageWith) -> None:
    """P-084: a detached one first."""
    harness = stage_with(client_sessions_policy="evict_oldest", client_sessions_max=2)
    watcher = harness.member(2)
    oldest, detached = harness.member(1, session=1), harness.member(1, session=2)
    detached.cut()
    third = harness.member(1, session=3)
    fourth = harness.participant(1, 4).join()

    assert listed(fourth.take()[1]) == [(1, [3]), (2, [watcher.session])]
    assert codes(oldest.take())[-1] is Status.REPLACED_BY_NEWER_SESSION
    assert oldest.status is GrpcStatus.ABORTED
    assert third.status is None
    watcher.take()
    left = [
        (one.session_id, one.status_code)
        for one in watcher.seen
        if one.message_type == MessageType.LEAVE
    ]
    assert left == [
        (2, Status.REPLACED_BY_NEWER_SESSION),
        (1, Status.REPLACED_BY_NEWER_SESSION),
    ]


def test_the_parties_of_a_client_are_limited(stage_with: StageWith) -> None:
    harness = stage_with(client_parties_max=2)
    harness.member(1, party=1)
    harness.member(1, party=2)
    third = harness.participant(1, party=3).join()

    assert codes(third.take()) == [Status.SESSION_LIMIT]


def test_a_burst_above_the_rate_is_refused_with_a_retry_time(harness: BrokerHarness) -> None:
    """P-085"""
    a = harness.member(1)
    for _ in range(61):
        a.ping()
    answers = a.take()

    assert codes(answers).count(Status.OK) == 60
    assert codes(answers)[-1] is Status.RATE_LIMITED
    assert answers[-1].retry_after_ms > 0

    for _ in range(4):
        a.ping()
    assert codes(a.take())[-1] is Status.PROTOCOL_VIOLATION
    assert a.status is GrpcStatus.FAILED_PRECONDITION


def test_acks_of_something_outstanding_are_free(stage_with: StageWith) -> None:
    """P-085"""
    harness = stage_with(max_inflight=600)
    a = harness.member(1, auto=False)
    for client in range(2, 502):
        harness.member(client, flags=8)
    told = [one for one in a.take() if one.message_type == MessageType.JOIN]
    wanted = {one.message_id for one in told}
    assert len(wanted) == 500
    for one in sorted(wanted):
        a.ack(one)

    assert Status.RATE_LIMITED not in codes(a.take())
    assert a.status is None


def test_joins_of_one_client_have_a_rate(harness: BrokerHarness) -> None:
    """P-086"""
    a = harness.participant(1)
    for _ in range(60):
        a.join()
        a.leave()
    a.join()
    (error,) = a.take()

    assert error.status_code == Status.RATE_LIMITED
    assert error.retry_after_ms > 0
    assert a.status is GrpcStatus.RESOURCE_EXHAUSTED
    harness.pass_time(0.6)
    a.join()
    assert kinds(a.take()) == ["ACK", "LIST"]


def test_a_full_node_refuses_new_sessions(stage_with: StageWith) -> None:
    """P-090: its health is in tests/conformance."""
    harness = stage_with(node_sessions_max=3)
    a, _, _ = (harness.member(client) for client in (1, 2, 3))
    late = harness.participant(4).join()

    assert codes(late.take()) == [Status.OVERLOADED]
    assert late.status is GrpcStatus.UNAVAILABLE
    a.cut()
    a.resume()
    assert codes(a.take())[0] is Status.SESSION_RESUMED


def test_a_list_of_a_thousand_sessions_is_one_message_in_order(harness: BrokerHarness) -> None:
    """P-013"""
    for client in range(250, 0, -1):
        for session in (4, 2, 3, 1):
            if client * session != 1:
                harness.member(client, session=session, flags=8)
    last = harness.participant(1, 1).join()
    _, welcome = last.take()

    entries = listed(welcome)
    assert sum(len(sessions) for _, sessions in entries) == 999
    assert [client for client, _ in entries] == list(range(1, 251))
    assert entries[0] == (1, [2, 3, 4])
    assert all(sessions == [1, 2, 3, 4] for _, sessions in entries[1:])
