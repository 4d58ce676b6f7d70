from waystation.base.clock import ManualClock
from waystation.base.failures import AGAIN_S, Failures


def test_the_same_reason_is_new_once() -> None:
    failures = Failures(ManualClock().mono)
    full, busy = OSError("full"), OSError("busy")

    assert [failures.is_new("spawn", error) for error in (full, full, busy, full)] == [
        True, False, True, True,
    ]  # fmt: skip


def test_things_that_are_tried_do_not_hide_each_other() -> None:
    failures = Failures(ManualClock().mono)

    assert failures.is_new("spawn", OSError("full"))
    assert failures.is_new("metrics", OSError("full"))
    assert not failures.is_new("spawn", OSError("full"))


def test_after_a_time_without_failure_the_reason_is_new_again() -> None:
    clock = ManualClock()
    failures = Failures(clock.mono)
    failures.is_new("spawn", OSError("full"))
    clock.advance(AGAIN_S / 2)
    repeated = failures.is_new("spawn", OSError("full"))
    clock.advance(AGAIN_S + 1)

    assert not repeated
    assert failures.is_new("spawn", OSError("full"))
