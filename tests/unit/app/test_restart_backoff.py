"""When a worker that died is started again."""

from waystation.app.restart_backoff import DELAY_MAX_S, LIVED_S, RestartBackoff


def lives(restarts: RestartBackoff, *lengths_s: float) -> list[float]:
    now, delays = 0.0, list[float]()
    for length_s in lengths_s:
        restarts.born(now)
        now += length_s
        delays.append(restarts.died(now))
        now += delays[-1]
    return delays


def test_one_that_lived_a_while_is_started_again_at_once() -> None:
    assert lives(RestartBackoff(), LIVED_S, 100.0, 5_000.0) == [0.0, 0.0, 0.0]


def test_one_that_dies_young_waits_twice_as_long_each_time() -> None:
    assert lives(RestartBackoff(), 1, 1, 1, 1, 1) == [0.0, 0.5, 1.0, 2.0, 4.0]


def test_the_wait_has_a_limit_and_there_is_always_another_try() -> None:
    assert lives(RestartBackoff(), *[0.1] * 50)[-1] == DELAY_MAX_S


def test_a_sound_life_forgets_the_young_deaths() -> None:
    assert lives(RestartBackoff(), 1, 1, 1, 60, 1) == [0.0, 0.5, 1.0, 0.0, 0.0]
