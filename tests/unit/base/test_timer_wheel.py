import random

import pytest

from waystation.base.timer_wheel import TimerWheel


def wheel(slots: int = 8) -> TimerWheel[str]:
    return TimerWheel(0.1, slots, 50.0)


def test_an_entry_comes_out_at_its_deadline_and_not_before() -> None:
    timers = wheel()
    timers.add(50.25, "a")

    assert timers.advance(50.29) == []
    assert timers.advance(50.3) == ["a"]
    assert timers.advance(60.0) == []


def test_a_cancelled_entry_never_comes_out() -> None:
    timers = wheel()
    a, b = timers.add(50.2, "a"), timers.add(50.2, "b")

    assert timers.cancel(a)
    assert not timers.cancel(a)
    assert timers.advance(51.0) == ["b"]
    assert not timers.cancel(b)
    assert len(timers) == 0


def test_an_old_handle_does_not_cancel_the_entry_that_took_its_place() -> None:
    timers = wheel()
    old = timers.add(50.2, "old")
    timers.cancel(old)
    new = timers.add(50.2, "new")

    assert new != old
    assert not timers.cancel(old)
    assert timers.advance(50.2) == ["new"]


def test_handles_that_were_never_given_out_cancel_nothing() -> None:
    timers = wheel()
    timers.add(50.2, "a")

    assert not any(timers.cancel(handle) for handle in (0, 3, 7, 8, 9, 1 << 40, 5 << 32 | 8))
    assert len(timers) == 1


def test_entries_come_out_in_order_of_their_ticks_and_then_of_their_arrival() -> None:
    timers = wheel()
    for deadline, name in ((50.5, "d"), (50.11, "a"), (50.3, "c"), (50.19, "b")):
        timers.add(deadline, name)

    assert timers.advance(50.6) == ["a", "b", "c", "d"]


def test_an_entry_beyond_one_turn_waits_for_its_own_turn() -> None:
    timers = wheel(slots=4)
    timers.add(51.0, "later")
    timers.add(50.2, "now")

    assert timers.advance(50.2) == ["now"]
    assert timers.advance(50.6) == []
    assert timers.advance(50.9) == []
    assert timers.advance(51.0) == ["later"]


def test_missed_turns_are_caught_up_in_order() -> None:
    timers = wheel(slots=4)
    for deadline, name in ((53.0, "c"), (50.3, "a"), (51.0, "b"), (90.0, "z")):
        timers.add(deadline, name)

    assert timers.advance(60.0) == ["a", "b", "c"]
    assert timers.advance(90.0) == ["z"]


@pytest.mark.parametrize("until", [50.7, 90.0])
def test_a_limit_leaves_the_rest_for_the_next_call(until: float) -> None:
    """So that a crowd of timers does not hold up the loop."""
    timers = wheel()
    for index in range(10):
        timers.add(50.1 + index // 4 * 0.2, str(index))

    parts = [timers.advance(until, limit=3) for _ in range(5)]

    assert [len(part) for part in parts] == [3, 3, 3, 1, 0]
    assert [name for part in parts for name in part] == [str(index) for index in range(10)]


def test_a_deadline_in_the_past_is_due_with_the_next_tick() -> None:
    timers = wheel()
    timers.advance(55.0)
    timers.add(51.0, "late")

    assert timers.next_at() == pytest.approx(55.1)
    assert timers.advance(55.1) == ["late"]


def test_a_driver_that_sleeps_until_next_at_loses_nothing_and_never_spins() -> None:
    chance = random.Random(7)
    timers: TimerWheel[float] = TimerWheel(0.1, 16, 12_345.678)
    deadlines = [12_345.678 + chance.random() * 10 for _ in range(500)]
    for deadline in deadlines:
        timers.add(deadline, deadline)
    seen: list[float] = []
    wakes = 0
    while (at := timers.next_at()) is not None:
        wakes += 1
        for deadline in timers.advance(at):
            assert deadline - 1e-6 <= at <= deadline + 0.1 + 1e-6
            seen.append(deadline)

    assert sorted(seen) == sorted(deadlines)
    assert wakes <= 101


def test_an_empty_wheel_needs_no_wake() -> None:
    timers = wheel()
    assert timers.next_at() is None
    handle = timers.add(50.4, "a")
    assert timers.next_at() == pytest.approx(50.4)

    timers.cancel(handle)

    assert timers.next_at() is None


def test_hundred_thousand_timers_are_none_early_and_none_late_and_cancelled_ones_never() -> None:
    """Scenario 60 of presence: 100,000 timers over 0-300 s."""
    chance = random.Random(60)
    timers: TimerWheel[int] = TimerWheel(0.1, 2048, 0.0)
    deadlines = [chance.random() * 300 for _ in range(100_000)]
    handles = [timers.add(deadline, index) for index, deadline in enumerate(deadlines)]
    cancelled = set(chance.sample(range(100_000), 20_000))
    assert all(timers.cancel(handles[index]) for index in cancelled)
    seen: set[int] = set()
    mono = 0.0
    while mono < 301:
        mono += 0.05
        for index in timers.advance(mono):
            assert deadlines[index] - 1e-6 <= mono <= deadlines[index] + 0.15 + 1e-6
            seen.add(index)

    assert seen == set(range(100_000)) - cancelled
