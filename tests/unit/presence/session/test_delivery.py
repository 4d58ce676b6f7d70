"""Retries, drops, the window and what a client's view comes to: in virtual time."""

import random
from collections.abc import Callable

from tests.unit.presence.broker_harness import BrokerHarness, HarnessClient, codes, kinds, listed
from waystation.net.http2.port import GrpcStatus
from waystation.presence.model import MessageType, Status
from waystation.presence.session.session import State
from waystation.presence.wire.party_presence_pb2 import ClientMessage
from waystation.telemetry.events import PartySessionLeft

ACK, JOIN, LEAVE, LIST = MessageType.ACK, MessageType.JOIN, MessageType.LEAVE, MessageType.LIST
StageWith = Callable[..., BrokerHarness]


def watch(
    harness: BrokerHarness, participant: HarnessClient, seconds: float
) -> list[tuple[float, ClientMessage]]:
    """What arrives and when, while the actor only pings."""
    started = harness.clock.mono()
    got: list[tuple[float, ClientMessage]] = []
    while harness.clock.mono() - started < seconds - 1e-9:
        harness.pass_time(0.1)
        if participant.status is None and round(harness.clock.mono() - started, 1) % 10 == 0:
            participant.ping()
        got += [
            (harness.clock.mono() - started, one)
            for one in participant.take()
            if one.message_type != ACK
        ]
    return got


def test_unacknowledged_messages_are_sent_again(harness: BrokerHarness) -> None:
    """P-043 P-045"""
    a = harness.member(1, auto=False)
    harness.member(2, session_ttl_ms=600_000)
    (first,) = a.take()

    got = watch(harness, a, 119.5)

    again = [(round(at, 1), one) for at, one in got if one.message_type == JOIN]
    assert [at for at, _ in again] == [5.0, 15.0, 35.0, 75.0]
    assert [one.delivery_attempt for _, one in again] == [2, 3, 4, 5]
    assert {(one.message_id, one.timestamp, one.party_seq) for _, one in again} == {
        (first.message_id, first.timestamp, first.party_seq)
    }
    resync = [(round(at), one) for at, one in got if one.message_type == LIST]
    assert [(at, one.status_code) for at, one in resync] == [(115, Status.LIST_RESYNC)]
    (dropped,) = [event for event in harness.events.events if event.k == 209]
    assert (dropped.n, dropped.code) == (5, 1)  # pyright: ignore[reportAttributeAccessIssue]

    harness.pass_time(0.7)
    assert codes(a.take()) == [Status.ACK_TIMEOUT]
    assert a.status is GrpcStatus.DEADLINE_EXCEEDED


def test_an_ack_ends_the_retries(harness: BrokerHarness) -> None:
    """P-044"""
    a = harness.member(1, auto=False)
    harness.member(2, session_ttl_ms=600_000)
    (first,) = a.take()
    assert len(watch(harness, a, 16.0)) == 2

    a.ack(first.message_id)

    assert watch(harness, a, 60.0) == []


def test_a_retry_round_with_outdated_messages_is_followed_by_a_resync(
    harness: BrokerHarness,
) -> None:
    """P-046: X joins and leaves, Y joins; only X's leave is acknowledged."""
    a = harness.member(1, auto=False)
    x = harness.member(7, session_ttl_ms=600_000)
    x.leave()
    harness.member(8, session_ttl_ms=600_000)
    joined_x, left_x, joined_y = a.take()
    a.ack(left_x.message_id)

    got = [one for _, one in watch(harness, a, 5.2)]

    assert kinds(got) == ["JOIN", "JOIN", "LIST"]
    assert [one.message_id for one in got[:2]] == [joined_x.message_id, joined_y.message_id]
    assert got[2].status_code == Status.LIST_RESYNC
    assert view_of([joined_x, left_x, joined_y, *got]) == {8}


def test_the_waits_for_acks_scale_with_the_ttl(harness: BrokerHarness) -> None:
    a = harness.member(1, auto=False, session_ttl_ms=12_000)
    harness.member(2, session_ttl_ms=600_000)
    a.take()

    got = watch(harness, a, 7.6)

    assert [round(at, 1) for at, _ in got] == [0.5, 1.5, 3.5, 7.5]


def test_all_sessions_receive_the_same_sequence(stage_with: StageWith) -> None:
    """P-048"""
    harness = stage_with(join_burst=10_000)
    watchers = [harness.member(1000 + at, session_ttl_ms=600_000) for at in range(20)]
    rng = random.Random(48)
    there: dict[int, HarnessClient] = {}
    for _ in range(1000):
        client = rng.randint(1, 40)
        if client in there:
            there.pop(client).leave()
        else:
            there[client] = harness.member(client)
        if rng.random() < 0.1:
            harness.pass_time(0.1)
    harness.pass_time(0.1)

    views = [
        [(m.party_seq, m.message_id, m.message_type) for m in one.seen if m.message_type in (2, 3)]
        for one in watchers
    ]
    last = views[-1]
    assert len(last) == 1000
    assert all(view[-1000:] == last for view in views)
    assert [seq for seq, _, _ in last] == list(range(last[0][0], last[0][0] + 1000))
    ids = [message_id for _, message_id, _ in last]
    assert ids == sorted(set(ids))
    assert harness.broker.serialisations == 19 + 1000  # nobody was there to hear of the first


def test_every_delivery_is_accounted_for(stage_with: StageWith) -> None:
    """P-052"""
    harness = stage_with(join_burst=10_000, max_inflight=8, max_lag=20)
    rng = random.Random(52)
    watchers = [harness.member(1000 + at, auto=False) for at in range(5)]
    there: dict[int, HarnessClient] = {}
    for _ in range(400):
        client = rng.randint(1, 10)
        if client in there:
            there.pop(client).leave()
        else:
            there[client] = harness.member(client)
        for one in watchers:
            if one.status is not None:
                one.resume()
            fresh = [m for m in one.take() if m.message_type not in (ACK, MessageType.ERROR)]
            if rng.random() < 0.6:
                one.ack_all(fresh)
            elif rng.random() < 0.1:
                one.cut()
                one.resume()
        harness.pass_time(rng.choice([0.1, 1.0, 6.0]), step=1.0)
        for member in there.values():
            member.ping()

    counters = harness.broker.counters
    living = sum(session.delivery.out_n for session in harness.broker.registry.sessions.values())
    ended = [event for event in harness.events.events if isinstance(event, PartySessionLeft)]
    assert ended
    assert counters.out == living + sum(event.attrs.out for event in ended)
    inflight = sum(len(s.delivery.inflight) for s in harness.broker.registry.sessions.values())
    settled = counters.acked + counters.dropped + counters.superseded + counters.abandoned
    assert counters.out == settled + inflight


def test_a_backlog_above_the_limit_is_replaced_by_one_list(stage_with: StageWith) -> None:
    """P-088 P-089"""
    harness = stage_with(max_inflight=16, max_lag=64, party_log=256, join_burst=10_000)
    a = harness.member(1, auto=False)
    visitor = harness.participant(2)

    def events(number: int) -> None:
        for _ in range(number // 2):
            visitor.join()
            visitor.leave()

    events(16 + 64)
    assert len(a.take()) == 16
    visitor.join()
    (resync,) = a.take()
    assert (resync.message_type, resync.status_code) == (LIST, Status.LIST_RESYNC)
    delivery = next(iter(harness.broker.registry.sessions.values())).delivery
    assert list(delivery.inflight) == [resync.message_id]
    again = [one.message_type for _, one in watch(harness, a, 6.0)]
    assert again == [LIST]
    visitor.leave()

    for _ in range(2):
        events(16 + 66)
    harness.pass_time(0.2)
    assert codes(a.take())[-1] is Status.SLOW_CONSUMER
    assert a.status is GrpcStatus.RESOURCE_EXHAUSTED
    session = next(iter(harness.broker.registry.sessions.values()))
    assert session.state is State.DETACHED
    watcher = harness.member(3, session_ttl_ms=600_000)
    harness.pass_time(121)
    watcher.take()
    left = [one.status_code for one in watcher.seen if one.message_type == LEAVE]
    assert left == [Status.SLOW_CONSUMER]


def far_behind(harness: BrokerHarness) -> HarnessClient:
    """Somebody who was sent a LIST_RESYNC and has not acknowledged it."""
    a = harness.member(1, auto=False)
    visitor = harness.participant(2)
    for _ in range(40):
        visitor.join()
        visitor.leave()
    visitor.join()
    assert codes(a.take())[-1] is Status.LIST_RESYNC
    return a


def test_a_resync_lost_with_its_stream_is_sent_again(
    stage_with: StageWith,
) -> None:
    """7.5: its position shows what was lost; a plain LIST would not."""
    harness = stage_with(max_inflight=16, max_lag=64, party_log=256, join_burst=10_000)
    a = far_behind(harness)
    a.cut()
    a.resume()
    _, again = a.take()
    a.ack(again.message_id)
    a.cut()
    a.resume()

    _, plain = a.take()
    assert (again.message_type, again.status_code) == (LIST, Status.LIST_RESYNC)
    assert (plain.message_type, plain.status_code) == (LIST, Status.OK)


def test_a_resync_that_waits_for_the_transport_is_sent_later(
    stage_with: StageWith,
) -> None:
    harness = stage_with(max_inflight=16, max_lag=64, party_log=256, join_burst=10_000)
    a = harness.member(1, auto=False)
    visitor = harness.participant(2)
    a.stream.writable = False
    for _ in range(41):
        visitor.join()
        visitor.leave()
    assert Status.LIST_RESYNC not in codes(a.take())
    a.cut()
    a.resume()

    assert codes(a.take()) == [Status.SESSION_RESUMED, Status.LIST_RESYNC]


def test_a_position_is_saved_when_the_list_that_covers_it_is_acknowledged(
    stage_with: StageWith,
) -> None:
    """Another node would take it for heard, and say nothing of what was lost."""
    harness = stage_with(max_inflight=16, max_lag=64, party_log=256, join_burst=10_000)
    a = far_behind(harness)
    delivery = next(iter(harness.broker.registry.sessions.values())).delivery
    before = delivery.saved_cursor

    a.ack(a.seen[-1].message_id)

    assert before == 1
    assert delivery.saved_cursor == harness.broker.registry.parties[delivery.party.party_id].seq


def test_a_requested_list_does_not_replace_a_resync(harness: BrokerHarness) -> None:
    a = harness.member(1, auto=False)
    delivery = next(iter(harness.broker.registry.sessions.values())).delivery
    visitor = harness.participant(2)
    a.stream.writable = False
    visitor.join()
    visitor.take()
    visitor.leave()
    now = harness.broker.registry.now()
    delivery.list_when_caught_up(Status.LIST_RESYNC, now)
    a.say(LIST)
    a.take()
    a.stream.writable = True
    harness.broker.unblocked(a.stream)

    assert codes(a.take())[-1] is Status.LIST_RESYNC


def test_a_session_detached_for_longer_than_the_log_gets_a_resync(stage_with: StageWith) -> None:
    """P-076: 5,000 events, of which the log keeps 4,096."""
    harness = stage_with(join_burst=10_000, max_lag=4095)
    a = harness.member(1)
    a.cut()
    visitor = harness.participant(2)
    for _ in range(2500):
        visitor.join()
        visitor.leave()
    assert len(next(iter(harness.broker.registry.parties.values())).log) == 4096
    stayer = harness.member(3)

    a.auto = False
    a.resume()
    ack, resync = a.take()

    assert ack.status_code == Status.SESSION_RESUMED
    assert (resync.message_type, resync.status_code) == (LIST, Status.LIST_RESYNC)
    assert listed(resync) == [(3, [stayer.session])]


def test_a_client_that_does_not_read_costs_no_memory_and_is_ended(harness: BrokerHarness) -> None:
    """P-087: what waits is a position, not messages."""
    a, b = harness.member(1, auto=False), harness.member(2)
    a.ack_all(a.take())
    c = harness.member(3, session_ttl_ms=600_000)
    a.stream.writable = False
    harness.member(4)
    sent = len(a.stream.raw)
    for client in range(5, 200):
        harness.member(client)
    assert len(a.stream.raw) <= sent + 1
    harness.pass_time(19.8)
    a.ping()
    assert a.status is None

    harness.pass_time(0.4)

    assert a.status is GrpcStatus.RESOURCE_EXHAUSTED
    assert a.stream.discarded
    assert a.stream.detail == "WRITE_STALLED"
    a.stream.writable = True
    a.resume()
    assert codes(a.take())[0] is Status.SESSION_RESUMED
    assert b.status is c.status is None


def test_a_client_that_reads_again_gets_the_rest(harness: BrokerHarness) -> None:
    a = harness.member(1, auto=False)
    a.stream.writable = False
    for client in range(2, 8):
        harness.member(client)
    a.stream.writable = True
    harness.broker.unblocked(a.stream)

    assert [one.party_seq for one in a.take()] == [2, 3, 4, 5, 6, 7]
    harness.pass_time(60)
    assert a.status is None


def test_a_slow_session_delays_no_other_session(harness: BrokerHarness) -> None:
    """P-051: the others are sent everything in the same step."""
    slow = harness.member(1, auto=False)
    others = [harness.member(client) for client in range(2, 21)]
    for one in others:
        one.take()
        one.seen.clear()
    slow.stream.writable = False
    before = harness.clock.mono()
    for client in range(100, 130):
        harness.member(client).leave()

    for one in others:
        one.take()
        assert len([m for m in one.seen if m.message_type in (JOIN, LEAVE)]) == 60
        assert one.stream.at[-1] == before


def test_a_session_that_never_acknowledges_delays_no_other_session(stage_with: StageWith) -> None:
    """P-051: the other 19 are told the same at the same moments as without it."""

    def run(*, with_silent: bool) -> list[list[float]]:
        harness = stage_with(join_burst=1000)
        silent = harness.member(1, auto=not with_silent)
        others = [harness.member(client) for client in range(2, 21)]
        for client in range(100, 160):
            visitor = harness.member(client)
            harness.pass_time(0.3)
            visitor.leave()
            silent.ping()
        if with_silent:
            assert len(silent.stream.holder.session.delivery.inflight) > 100
        moments: list[list[float]] = []
        for one in others:
            pairs = zip(one.stream.raw, one.stream.at, strict=True)
            decoded = [(ClientMessage.FromString(data), at) for data, at in pairs]
            moments.append([at for m, at in decoded if m.message_type in (JOIN, LEAVE)])
        return moments

    assert run(with_silent=True) == run(with_silent=False)


# --- what a client comes to believe ---------------------------------------------------------------


def view_of(messages: list[ClientMessage]) -> set[int]:
    """A client that takes every message at face value; clients have one session each here."""
    view: set[int] = set()
    for one in messages:
        if one.message_type == LIST:
            view = {client for client, _ in listed(one)}
        elif one.message_type == JOIN:
            view.add(one.client_id)
        elif one.message_type == LEAVE:
            view.discard(one.client_id)
    return view


def careful_view_of(messages: list[ClientMessage]) -> set[int]:
    """A client that knows positions: nothing older than its last LIST or what it applied."""
    view: set[int] = set()
    floor = 0
    applied: dict[int, int] = {}
    for one in messages:
        if one.message_type == LIST:
            view = {client for client, _ in listed(one)}
            floor = one.party_seq
            applied.clear()
        elif one.message_type in (JOIN, LEAVE):
            if one.party_seq <= max(floor, applied.get(one.client_id, 0)):
                continue
            applied[one.client_id] = one.party_seq
            (view.add if one.message_type == JOIN else view.discard)(one.client_id)
    return view


def test_views_converge_after_cuts_and_acks_in_any_order() -> None:
    """P-082: 500 histories."""
    for seed in range(500):
        rng = random.Random(seed)
        harness = BrokerHarness(join_burst=10_000, max_inflight=rng.choice([2, 5, 256]))
        a = harness.member(1, auto=False, session_ttl_ms=600_000)
        got = list(a.seen)
        there: dict[int, HarnessClient] = {}
        owed: list[int] = []
        for _ in range(rng.randint(5, 40)):
            action = rng.random()
            client = rng.randint(2, 6)
            if action < 0.45:
                if client in there:
                    there.pop(client).leave()
                else:
                    there[client] = harness.member(client, session_ttl_ms=600_000)
            elif action < 0.6 and a.status is None:
                a.cut()
                a.resume()
            elif action < 0.8:
                harness.pass_time(rng.choice([0.1, 5.1, 10.1]), step=1.0)
                a.ping()
            fresh = a.take()
            got += fresh
            owed += [one.message_id for one in fresh if one.message_type in (JOIN, LEAVE, LIST)]
            rng.shuffle(owed)
            cut = rng.randint(0, len(owed))
            if owed[:cut]:
                a.ack(*owed[:cut])
            owed = owed[cut:]
        for _ in range(30):
            if owed:
                a.ack(*owed)
            harness.pass_time(6.0, step=1.0)
            a.ping()
            fresh = a.take()
            got += fresh
            owed = [one.message_id for one in fresh if one.message_type in (JOIN, LEAVE, LIST)]

        truth = set(there)
        assert view_of(got) == truth, f"seed {seed}"
        assert careful_view_of(got) == truth, f"seed {seed}"
        harness.close()
