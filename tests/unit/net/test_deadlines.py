"""Deadlines of one length."""

from hypothesis import given
from hypothesis import strategies as st

from waystation.net.deadlines import Deadlines


def test_an_item_expires_after_its_timeout_and_within_a_tick() -> None:
    deadlines: Deadlines[str] = Deadlines(5.0, 0.1)
    deadlines.add(100.0, "a")
    deadlines.add(100.05, "b")
    deadlines.add(103.0, "c")

    assert deadlines.expired(105.0, 10) == []
    assert deadlines.expired(105.15, 10) == ["a", "b"]
    assert deadlines
    assert deadlines.expired(108.2, 10) == ["c"]
    assert not deadlines


def test_a_limit_leaves_the_rest_for_the_next_call() -> None:
    deadlines: Deadlines[int] = Deadlines(1.0, 0.5)
    for i in range(10):
        deadlines.add(100.0 + i * 0.2, i)

    taken = [deadlines.expired(200.0, 3) for _ in range(5)]

    assert taken == [[0, 1, 2], [3, 4, 5], [6, 7, 8], [9], []]


@given(st.lists(st.tuples(st.booleans(), st.floats(0.0, 0.7)), max_size=60), st.integers(1, 4))
def test_never_early_at_most_a_tick_late_and_in_order(
    steps: list[tuple[bool, float]], limit: int
) -> None:
    deadlines: Deadlines[tuple[int, float]] = Deadlines(1.0, 0.25)
    mono = 50.0
    added: list[tuple[int, float]] = []
    out: list[tuple[int, float]] = []
    for is_add, pause in steps:
        mono += pause
        if is_add:
            added.append((len(added), mono))
            deadlines.add(mono, added[-1])
        else:
            while taken := deadlines.expired(mono, limit):
                assert len(taken) <= limit
                assert all(mono - at >= 1.0 for _, at in taken)
                out += taken
            assert all(mono - at <= 1.0 + 0.25 + 1e-6 for _, at in added[len(out) :])

    assert out == added[: len(out)]
