"""Which workers are stalled, by their own words and the time that passes."""

from waystation.app.watchdog import BEATS, Watchdog, beat_s

LIMIT_S = 8.0


def looked_at(watchdog: Watchdog, *moments: float) -> list[str]:
    return [worker for now in moments for worker, _ in watchdog.stalled(now)]


def test_a_worker_that_is_silent_for_longer_than_the_limit_is_stalled() -> None:
    watchdog = Watchdog(LIMIT_S)
    watchdog.heard("push.0", 0.0)
    watchdog.heard("push.1", 0.0)
    for now in (0.0, 2.0, 4.0, 6.0, 8.0):
        assert watchdog.stalled(now) == []
        watchdog.heard("push.1", now)

    assert watchdog.stalled(10.0) == [("push.0", 10.0)]


def test_a_worker_that_ended_or_never_said_a_word_is_not_watched() -> None:
    watchdog = Watchdog(LIMIT_S)
    watchdog.heard("push.0", 0.0)
    watchdog.forget("push.0")
    watchdog.forget("push.1")

    assert watchdog.wake_at() is None
    assert looked_at(watchdog, 0.0, 2.0, 4.0, 100.0) == []


def test_a_watchdog_that_stood_still_gives_everybody_the_whole_limit_again() -> None:
    """What they said meanwhile may be lost, and they may have stood still with it."""
    watchdog = Watchdog(LIMIT_S)
    watchdog.heard("push.0", 0.0)

    assert looked_at(watchdog, 1.0, 60.0, 62.0, 64.0, 66.0, 68.0) == []
    assert looked_at(watchdog, 70.0) == ["push.0"]


def test_it_asks_to_be_woken_as_often_as_workers_speak() -> None:
    watchdog = Watchdog(LIMIT_S)
    assert watchdog.wake_at() is None
    watchdog.heard("push.0", 0.0)
    watchdog.stalled(1.0)

    assert watchdog.wake_at() == 1.0 + LIMIT_S / BEATS == 1.0 + beat_s(LIMIT_S)


def test_a_limit_of_zero_watches_nobody() -> None:
    watchdog = Watchdog(0.0)
    watchdog.heard("push.0", 0.0)

    assert looked_at(watchdog, 1.0, 2.0, 1_000.0) == []
    assert watchdog.wake_at() is None
