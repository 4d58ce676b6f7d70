"""Who gets the next entry at once, and who catches up: rule 4 of `presence.party`."""

import random
from collections.abc import Callable

import pytest

from tests.unit.presence.broker_harness import PARTY, BrokerHarness, HarnessClient, kinds
from waystation.presence.model import Flags, MessageType, PartyId
from waystation.presence.party.party import Party
from waystation.presence.session.session import State

StageWith = Callable[..., BrokerHarness]


def check_places(party: Party) -> None:
    """Everybody stands in the table where they belong, and nobody in two."""
    for session in party.sessions.values():
        delivery = session.delivery
        listens = session.state is State.ACTIVE and not delivery.muted
        flows, waits = delivery in party.flowing, delivery in party.behind
        assert flows == (delivery.behind_at is None)
        assert flows + waits == listens
        assert (delivery.stream is None) == (session.state is not State.ACTIVE)
        if flows:
            assert party.flowing[delivery] is delivery.stream
            assert delivery.has_room()
        assert delivery.sent_seq <= party.seq
    theirs = {session.delivery for session in party.sessions.values()}
    assert party.flowing.keys() | party.behind.keys() <= theirs


def do_something(harness: BrokerHarness, one: HarnessClient, rng: random.Random) -> None:
    what = rng.random()
    if one.stream.holder is None or one.status is not None:
        # Of six clients one knows only the first fields, and one wants no messages at all.
        flags = Flags.NO_DELIVERY if one.client % 6 == 0 else 0
        one.join(extended=one.client % 6 != 1, resume_token=one.token, flags=flags)
    elif what < 0.1:
        one.leave()
    elif what < 0.2:
        one.cut()
        one.stream.holder = None
    elif what < 0.5:
        one.ack_all(one.take())
    elif what < 0.6:
        one.stream.writable = not one.stream.writable
        if one.stream.writable:
            harness.broker.unblocked(one.stream)
    elif what < 0.8:
        one.say(MessageType.SIGNAL, payload=b"hello")
    elif what < 0.9:
        one.say(MessageType.LIST)
    else:
        harness.pass_time(rng.choice((0.1, 1.0, 6.0)))


@pytest.mark.parametrize("seed", range(3))
def test_deliveries_are_flowing_or_behind_after_any_history(
    stage_with: StageWith, seed: int
) -> None:
    harness = stage_with(
        join_burst=10_000, rate_burst=10_000, max_inflight=6, max_lag=15, signal_enabled=True
    )
    rng = random.Random(seed)
    harness.member(99, session_ttl_ms=600_000)
    party = harness.broker.registry.parties[PartyId(PARTY)]
    participants = [harness.participant(client) for client in range(1, 13)]
    flowing = behind = 0
    for _ in range(800):
        do_something(harness, rng.choice(participants), rng)
        check_places(party)
        flowing += len(party.flowing) > 2
        behind += len(party.behind) > 1

    assert flowing > 100
    assert behind > 100
    assert not harness.failures


def test_a_failing_stream_does_not_skip_other_recipients(harness: BrokerHarness) -> None:
    first, second, third = (harness.member(client) for client in (1, 2, 3))
    for one in (first, second):
        one.take()

    def fail(message: bytes) -> None:
        raise OSError("a fault of ours")

    second.stream.send = fail
    harness.participant(4).join()  # is recorded, and ends in an error
    del second.stream.send
    harness.member(5)

    assert kinds(first.take()) == ["JOIN", "JOIN"]
    assert kinds(third.take()) == ["JOIN", "JOIN"]
    check_places(harness.broker.registry.parties[PartyId(PARTY)])
