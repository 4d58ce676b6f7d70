"""Peers that do not read, do not ask or ask too much cost little, whatever they do."""

from tests.unit.presence.broker_harness import BrokerHarness, kinds
from waystation.net.http2.port import GrpcStatus
from waystation.presence.model import MessageType, Status


def test_a_client_that_does_not_read_answers_is_stopped() -> None:
    """P-087: it pings and reads nothing; nothing happens in its party that would show it."""
    harness = BrokerHarness()
    a = harness.member(1)
    a.stream.writable = False
    for _ in range(19):
        a.ping()
        harness.pass_time(1.0)
    assert a.stream.status is None
    harness.pass_time(2.0)

    assert a.stream.status is GrpcStatus.RESOURCE_EXHAUSTED
    assert (a.stream.detail, a.stream.discarded) == (Status.WRITE_STALLED.name, True)
    harness.close()


def test_a_client_that_reads_again_in_time_keeps_its_stream() -> None:
    """P-087"""
    harness = BrokerHarness()
    a = harness.member(1)
    a.stream.writable = False
    a.ping()
    harness.pass_time(15.0)
    a.stream.writable = True
    harness.broker.unblocked(a.stream)
    harness.pass_time(30.0)
    a.ping()

    assert a.stream.status is None
    assert kinds(a.take())[-1] == "ACK"
    harness.close()


def test_a_stream_whose_join_was_refused_is_ended_in_time() -> None:
    """P-019: the time to join also ran out while the store was asked."""
    harness = BrokerHarness()
    a = harness.participant(1).open()
    client = a.stream.holder
    client.busy = True  # as while the store is asked
    harness.pass_time(11.0)
    assert a.stream.status is None
    harness.broker.go_on(client)  # it refused, and the stream goes on
    harness.pass_time(2.0)

    assert a.stream.status is GrpcStatus.FAILED_PRECONDITION
    assert kinds(a.take()) == ["ERROR"]
    assert not len(harness.broker.registry.wheel)
    harness.close()


def test_recorded_detaches_are_not_kept_in_memory() -> None:
    """P-078"""
    harness = BrokerHarness()
    a = harness.member(1)
    b = harness.member(2)
    for _ in range(3):
        a.cut()
        a.resume()
        assert a.take()[0].status_code == Status.SESSION_RESUMED
    a.leave()

    assert not harness.broker.session_end.detaching
    assert [one.client_id for one in b.take() if one.message_type == MessageType.LEAVE] == [1]
    harness.close()
