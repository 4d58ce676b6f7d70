"""Timeouts, in virtual time."""

from collections.abc import Callable

import pytest

from tests.unit.presence.broker_harness import BrokerHarness, HarnessClient, codes, kinds
from waystation.net.http2.port import GrpcStatus
from waystation.presence.model import MessageType, Status
from waystation.presence.session.session import Admission, State
from waystation.presence.wire.client_messages import Ack
from waystation.presence.wire.party_presence_pb2 import ClientMessage

JOIN, LEAVE = MessageType.JOIN, MessageType.LEAVE
StageWith = Callable[..., BrokerHarness]


def when_left(
    harness: BrokerHarness, watcher: HarnessClient, patience_s: float
) -> tuple[float, Status]:
    """How long it takes until the watcher hears of a leave, and why."""
    started = harness.clock.mono()
    seen = len(watcher.seen)
    while harness.clock.mono() - started < patience_s:
        harness.pass_time(harness.settings.tick_s)
        watcher.ping()
        for one in watcher.seen[seen:]:
            if one.message_type == LEAVE:
                return harness.clock.mono() - started, Status(one.status_code)
        watcher.take()
    raise AssertionError("nobody left")


def keep_alive(
    harness: BrokerHarness, participants: list[HarnessClient], seconds: float, every_s: float = 50.0
) -> None:
    """They ping; everybody else stays silent."""
    while seconds > 1e-9:
        step = min(every_s, seconds)
        harness.pass_time(step)
        for one in participants:
            one.ping()
            one.take()
        seconds -= step


def test_silence_ends_a_session_after_its_ttl(harness: BrokerHarness) -> None:
    """P-053"""
    watcher = harness.member(1)
    silent = harness.member(2)
    silent.auto = False
    watcher.take()

    took_s, why = when_left(harness, watcher, 130)

    assert 119.999 <= took_s <= 120.2
    assert why is Status.CLIENT_TIMEOUT
    assert codes(silent.take()) == [Status.CLIENT_TIMEOUT]
    assert silent.status is GrpcStatus.DEADLINE_EXCEEDED


def test_a_ping_at_the_last_moment_gives_a_whole_ttl_more(harness: BrokerHarness) -> None:
    """P-054"""
    a = harness.member(1)
    harness.pass_time(119.9)
    a.ping()

    harness.pass_time(119.9)
    assert a.status is None
    harness.pass_time(0.3)
    assert a.status is GrpcStatus.DEADLINE_EXCEEDED


def test_only_valid_messages_keep_a_session_alive(harness: BrokerHarness) -> None:
    """P-055"""
    watcher, a = harness.member(1), harness.member(2)
    a.auto = False
    watcher.take()
    keep_alive(harness, [watcher], 100)
    a.say(MessageType.PING, timestamp=1)  # invalid
    a.say(MessageType.SIGNAL, payload=b"off")  # switched off
    a.say(99)

    took_s, why = when_left(harness, watcher, 30)

    assert 19.9 <= took_s <= 20.3
    assert why is Status.CLIENT_TIMEOUT


def test_a_message_over_the_rate_does_not_keep_a_session_alive(stage_with: StageWith) -> None:
    """P-055"""
    harness = stage_with(rate_per_s=0.001, rate_burst=1)
    a = harness.member(1)
    harness.pass_time(1.0)
    a.ping()
    harness.pass_time(100)
    a.ping()
    assert codes(a.take())[-1] is Status.RATE_LIMITED

    harness.pass_time(20.3)

    assert a.status is GrpcStatus.DEADLINE_EXCEEDED


def test_a_repeated_message_keeps_a_session_alive(harness: BrokerHarness) -> None:
    """P-055"""
    a = harness.member(1)
    a.say(MessageType.PING, message_id=77)
    harness.pass_time(100)
    a.say(MessageType.PING, message_id=77)

    harness.pass_time(119)

    assert a.status is None


def test_pings_do_not_replace_a_missing_ack(harness: BrokerHarness) -> None:
    """P-056"""
    a = harness.member(1)
    a.auto = False
    harness.pass_time(10)
    b = harness.member(2)
    sent_at = harness.clock.mono()
    while a.status is None:
        harness.pass_time(1.0)
        a.ping()
        b.ping()

    assert 119.9 <= harness.clock.mono() - sent_at <= 121.5
    assert codes(a.take())[-1] is Status.ACK_TIMEOUT
    assert a.status is GrpcStatus.DEADLINE_EXCEEDED
    b.take()
    assert [one.status_code for one in b.seen if one.message_type == LEAVE] == [Status.ACK_TIMEOUT]


def test_acks_alone_keep_a_session_alive(harness: BrokerHarness) -> None:
    """P-057"""
    a = harness.member(1)
    a.auto = False
    for client in range(2, 9):
        harness.member(client, auto=False).leave()
        told = a.take()
        harness.pass_time(100)
        a.ack_all(told)
        assert a.status is None


def test_pings_keep_the_sessions_of_a_quiet_party(harness: BrokerHarness) -> None:
    """P-058"""
    members = [harness.member(client) for client in (1, 2, 3)]

    for _ in range(60):
        harness.pass_time(60, step=1.0)
        for one in members:
            one.ping()

    assert all(one.status is None for one in members)


@pytest.mark.parametrize(
    "wish_ms, granted_ms", [(30_000, 30_000), (1_000, 10_000), (0, 120_000), (10**6, 600_000)]
)
def test_a_requested_ttl_is_limited(harness: BrokerHarness, wish_ms: int, granted_ms: int) -> None:
    """P-059"""
    a = harness.participant(1)
    a.join(session_ttl_ms=wish_ms)
    ack, listed = a.take()
    a.ack(listed.message_id)

    assert ack.session_ttl_ms == granted_ms
    harness.pass_time(granted_ms / 1000 - 1, step=1.0)
    assert a.status is None
    harness.pass_time(2.2)
    assert a.status is GrpcStatus.DEADLINE_EXCEEDED


def test_a_new_session_times_out_with_a_single_timer(harness: BrokerHarness) -> None:
    """That of its LIST comes out first; from then on it is the one of its life."""
    registry = harness.broker.registry
    harness.member(1)
    (session,) = registry.sessions.values()

    assert (len(registry.wheel), session.life_handle) == (1, 0)
    harness.pass_time(5.2)
    assert len(registry.wheel) == 1
    assert session.life_handle


def test_after_a_blocked_loop_due_timers_run_once_in_order(harness: BrokerHarness) -> None:
    """P-061"""
    watcher = harness.member(1, session_ttl_ms=600_000)
    for client in (2, 3, 4):
        harness.member(client)
        harness.pass_time(1.0)
    harness.clock.advance(130)
    while harness.broker.periodic_work.tick():
        pass
    watcher.take()

    left = [one.client_id for one in watcher.seen if one.message_type == LEAVE]
    assert left == [2, 3, 4]


@pytest.mark.parametrize("jump_s", [3600, -3600])
def test_a_jump_of_the_wall_clock_changes_no_timeout(harness: BrokerHarness, jump_s: int) -> None:
    """P-062"""
    a, b = harness.member(1), harness.member(2)
    b.cut()
    harness.clock.set_wall_ms(harness.clock.now_ms() + jump_s * 1000)
    harness.pass_time(100)
    a.ping()

    assert a.status is None
    assert len(harness.broker.registry.sessions) == 2
    b.resume()
    assert codes(b.take())[0] is Status.SESSION_RESUMED


def test_messages_do_not_touch_the_wheel(harness: BrokerHarness) -> None:
    """P-063: a thousand sessions, and a thousand messages to each. They are acks of what cannot be
    outstanding any more: every one is read, counted and keeps its session alive."""
    members = [harness.member(client, flags=8) for client in range(1, 1001)]
    sessions = [one.stream.holder.session for one in members]
    registry = harness.broker.registry
    before, started = registry.insertions, harness.clock.mono()
    taken = [one.messages_in for one in sessions]
    said = Ack(0, (1 << 63,), 0)

    for _ in range(1000):
        harness.clock.advance(0.3)
        harness.broker.periodic_work.tick()
        now = registry.now()
        for one in sessions:
            assert one.admit(said, now) is Admission.FRESH

    elapsed_s = harness.clock.mono() - started
    assert registry.insertions - before <= len(members) * (elapsed_s / 120 + 1)
    assert [one.messages_in for one in sessions] == [count + 1000 for count in taken]
    assert all(one.status is None for one in members)


def test_a_detached_session_ends_a_ttl_after_the_cut(harness: BrokerHarness) -> None:
    """P-068: not after its last message."""
    watcher, a = harness.member(1), harness.member(2)
    watcher.take()
    keep_alive(harness, [watcher], 100)
    a.cut()

    took_s, why = when_left(harness, watcher, 130)

    assert 119.999 <= took_s <= 120.2
    assert why is Status.CLIENT_TIMEOUT


def test_a_resume_within_the_ttl_works_and_a_later_one_does_not(harness: BrokerHarness) -> None:
    """P-069"""
    watcher, a, b = harness.member(1, session_ttl_ms=600_000), harness.member(2), harness.member(3)
    a.cut()
    b.cut()
    harness.pass_time(119.9)
    a.resume()
    assert codes(a.take())[0] is Status.SESSION_RESUMED
    harness.pass_time(0.4)
    watcher.take()
    seen = len(watcher.seen)

    b.resume()
    assert codes(b.take())[0] is Status.OK
    watcher.take()
    told = [(one.message_type, one.client_id) for one in watcher.seen[seen - 1 :]]
    assert told == [(LEAVE, 3), (JOIN, 3)]


def test_updates_are_sent_after_five_seconds_detached(harness: BrokerHarness) -> None:
    """P-081"""
    asked = harness.member(1, flags=4, auto=False)
    plain = harness.member(2, auto=False)
    b = harness.member(3)
    for one in (asked, plain):
        one.ack_all(one.take())

    b.cut()
    harness.pass_time(3)
    b.resume()
    b.welcomed()
    harness.pass_time(3)
    assert asked.take() == plain.take() == []

    b.cut()
    harness.pass_time(6)
    (lost,) = asked.take()
    asked.ack(lost.message_id)
    b.resume()
    (back,) = asked.take()
    assert (lost.message_type, lost.status_code) == (
        MessageType.UPDATE,
        Status.PARTICIPANT_DETACHED,
    )
    assert lost.party_seq == 3
    assert back.status_code == Status.PARTICIPANT_REATTACHED
    assert plain.take() == []


def test_a_thousand_cut_and_resumed_at_once(stage_with: StageWith) -> None:
    """P-080"""
    harness = stage_with(party_max=2000)
    watcher = harness.member(5000, flags=8)
    crowd = [harness.member(client, flags=8) for client in range(1, 1001)]
    joins = sum(1 for event in harness.events.events if event.k == 205)
    for one in crowd:
        one.cut()
    harness.pass_time(60, step=1.0)
    watcher.ping()
    for one in crowd:
        one.resume()

    answers = [ClientMessage.FromString(one.stream.raw[0]) for one in crowd]
    assert all(one.status_code == Status.SESSION_RESUMED for one in answers)
    assert sum(1 for event in harness.events.events if event.k == 205) == joins
    harness.pass_time(100, step=1.0)
    registry = harness.broker.registry
    assert sum(one.state is State.ACTIVE for one in registry.sessions.values()) >= 1000
    assert len(registry.wheel) <= 2 * 1001


def test_a_thousand_expire_together(stage_with: StageWith) -> None:
    """P-092: every survivor hears of each once."""
    harness = stage_with(party_max=2000, max_inflight=2000, max_lag=3000)
    survivors = [harness.member(5000 + at, session_ttl_ms=600_000) for at in range(3)]
    crowd = [harness.member(client, flags=8) for client in range(1, 1001)]
    for one in survivors:
        one.take()
        one.seen.clear()
    for one in crowd:
        one.cut()

    harness.pass_time(121, step=1.0)

    for one in survivors:
        left = [told.client_id for told in one.seen if told.message_type == LEAVE]
        assert sorted(left) == list(range(1, 1001))
        assert kinds(one.take()) == []


def test_nothing_is_left_when_all_sessions_have_ended(harness: BrokerHarness) -> None:
    """P-064"""
    members = [harness.member(client) for client in range(1, 6)]
    members[0].leave()
    members[1].cut()
    members[2].join()
    harness.pass_time(300)
    harness.pass_time(1)
    registry = harness.broker.registry

    assert not registry.sessions
    assert not registry.parties
    assert not registry.open_streams
    assert len(registry.wheel) == 0
    assert len(harness.tasks) == 0


def test_a_failing_timer_does_not_stop_the_others(harness: BrokerHarness) -> None:
    rang: list[str] = []

    def fails(_now: object) -> None:
        rang.append("fails")
        raise OSError("no descriptor")

    registry = harness.broker.registry
    registry.arm(registry.now().mono + 1, fails)
    registry.arm(registry.now().mono + 1, lambda _: rang.append("goes on"))
    harness.pass_time(2)

    assert rang == ["fails", "goes on"]
