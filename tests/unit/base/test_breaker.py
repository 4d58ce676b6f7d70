"""When the breaker opens, and when it lets calls through again (§6.2)."""

from waystation.base.breaker import FAILURES_MAX, OPEN_S, Breaker
from waystation.base.clock import ManualClock


def opened(clock: ManualClock) -> Breaker:
    breaker = Breaker(clock)
    for _ in range(FAILURES_MAX):
        breaker.failed()
    return breaker


def test_four_failures_are_borne_and_five_are_not() -> None:
    breaker = Breaker(ManualClock())
    for _ in range(FAILURES_MAX - 1):
        breaker.failed()
        assert not breaker.wait_s()
    breaker.failed()

    assert breaker.wait_s() == OPEN_S == 30
    assert breaker.opened == 1


def test_only_failures_in_a_row_count() -> None:
    breaker = Breaker(ManualClock())
    for _ in range(3 * FAILURES_MAX):
        breaker.failed()
        breaker.succeeded()

    assert not breaker.wait_s()
    assert breaker.opened == 0


def test_it_lets_calls_through_when_its_time_is_over() -> None:
    clock = ManualClock()
    breaker = opened(clock)
    clock.advance(OPEN_S - 1)
    assert breaker.wait_s() == 1
    clock.advance(1)

    assert not breaker.wait_s()


def test_what_fails_while_it_is_open_does_not_keep_it_open_longer() -> None:
    """Calls that were under way when it opened."""
    clock = ManualClock()
    breaker = opened(clock)
    clock.advance(OPEN_S - 1)
    breaker.failed()

    assert breaker.wait_s() == 1
    assert breaker.opened == 1


def test_the_first_failure_after_it_opens_it_anew() -> None:
    clock = ManualClock()
    breaker = opened(clock)
    clock.advance(OPEN_S)
    breaker.failed()

    assert breaker.wait_s() == OPEN_S
    assert breaker.opened == 2


def test_a_success_after_it_forgets_what_was() -> None:
    clock = ManualClock()
    breaker = opened(clock)
    clock.advance(OPEN_S)
    breaker.succeeded()
    breaker.failed()

    assert not breaker.wait_s()
