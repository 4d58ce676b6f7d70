"""CPU of a tree of processes between two looks, whatever has ended meanwhile."""

import os

from benchmarks.cost import between
from benchmarks.process_tree import Spent, spent


def test_processes_that_live_are_counted_by_their_growth() -> None:
    before = {1: Spent(0, 10.0, 0.0), 2: Spent(1, 5.0, 0.0)}
    after = {1: Spent(0, 11.0, 0.0), 2: Spent(1, 7.5, 0.0), 3: Spent(2, 0.5, 0.0)}

    assert between(before, after) == 1.0 + 2.5 + 0.5


def test_one_that_has_ended_is_told_by_its_parent_and_not_twice() -> None:
    before = {1: Spent(0, 10.0, 2.0), 2: Spent(1, 5.0, 1.0)}
    after = {1: Spent(0, 10.0, 2.0 + 9.0)}

    assert between(before, after) == 9.0 - 6.0


def test_one_whose_parent_does_not_care_takes_nothing_away() -> None:
    """Idle Python workers of Spark end so: what they used before is not to be subtracted."""
    before = {1: Spent(0, 10.0, 0.0), 2: Spent(1, 5.0, 0.0)}

    assert between(before, {1: Spent(0, 12.0, 0.0)}) == 2.0


def test_this_process_has_used_something() -> None:
    mine = spent(os.getpid())[os.getpid()]

    assert mine.own_s > 0
    assert mine.parent == os.getppid()
