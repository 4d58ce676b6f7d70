"""Ratios of two checkouts, and the table made of them."""

import pytest

from benchmarks.side_by_side import Figure, compare, to_text


def figures(*values: float, lost: int = 0) -> list[Figure]:
    return [Figure("direct", "CPU µs", value, lost) for value in values]


def test_a_ratio_is_taken_within_its_round() -> None:
    """The second round was slow for both."""
    compared = compare(figures(100, 300, 100), figures(110, 300, 90))

    assert (compared.old, compared.new) == (100, 110)
    assert (compared.ratio_min, compared.ratio, compared.ratio_max) == pytest.approx((0.9, 1, 1.1))
    assert compared.rounds == 3


def test_losses_of_both_sides_are_told() -> None:
    compared = compare(figures(1.0, lost=2), figures(1.0, lost=1))

    assert compared.lost == 3


def test_a_row_names_both_figures_and_the_spread() -> None:
    text = to_text([compare(figures(100, 200), figures(110, 210))], "abc", "def")

    assert "| abc | def | ratio |" in text
    assert "| direct | CPU µs | 150.00 | 160.00 | 1.075 | 1.050 – 1.100 | 0 |" in text


def test_nothing_to_compare_with_is_no_ratio() -> None:
    compared = compare(figures(0.0), figures(1.0))

    assert compared.ratio != compared.ratio
