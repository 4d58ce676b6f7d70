import time

from waystation.base.clock import Clock, ManualClock, SystemClock


def test_the_system_clock_tells_wall_and_monotonic_time() -> None:
    clock: Clock = SystemClock()

    assert abs(clock.now_ms() - time.time() * 1000) < 60_000
    assert abs(clock.now_us() // 1000 - clock.now_ms()) < 60_000
    assert clock.mono() <= time.monotonic()


def test_a_manual_clock_stands_still_until_it_is_advanced() -> None:
    clock = ManualClock(now_ms=5_000, mono=10.0)
    assert (clock.now_ms(), clock.now_us(), clock.mono()) == (5_000, 5_000_000, 10.0)

    clock.advance(1.5)

    assert (clock.now_ms(), clock.now_us(), clock.mono()) == (6_500, 6_500_000, 11.5)


def test_a_jump_of_the_wall_clock_leaves_monotonic_time_alone() -> None:
    clock = ManualClock(now_ms=5_000, mono=10.0)

    clock.set_wall_ms(1_000)

    assert (clock.now_ms(), clock.mono()) == (1_000, 10.0)
