"""Forecasts find the trend that was put in, and know when a simple answer is the better one."""

import math
import random

import pytest

from waystation.pipeline.forecast import DAYS_MIN, WEEK_H, Forecast, forecast, quantile


def rhythm(at: int) -> float:
    return 6 + math.sin(at % 24 / 24 * math.tau) + (0.5 if at % WEEK_H < 120 else 0.0)


def grown(days: int, growth_per_day: float) -> list[int]:
    slope = math.log1p(growth_per_day) / 24
    return [round(math.expm1(rhythm(at) + slope * at)) for at in range(days * 24)]


def check_bands(made: Forecast) -> None:
    assert len(made.days) == 90
    assert [one.days_ahead for one in made.days] == list(range(1, 91))
    assert all(0 <= one.p10 <= one.p50 <= one.p90 for one in made.days)


def test_a_trend_and_a_rhythm_are_found_again() -> None:
    made = forecast(grown(60, 0.01))
    ahead = sum(grown(90, 0.01)[60 * 24 : 61 * 24])

    check_bands(made)
    assert made.model == "trend"
    assert made.growth_per_day == pytest.approx(0.01, abs=1e-4)
    assert made.days[0].p50 == pytest.approx(ahead, rel=0.01)
    assert made.mape is not None
    assert made.mape < 0.02
    assert made.naive_mape is not None
    assert made.naive_mape > made.mape


def test_the_trend_is_the_one_of_least_squares() -> None:
    """Any other trend, with the best factors for it, leaves larger squares."""
    chance = random.Random(4)
    hours = [max(0, round(value * chance.uniform(0.7, 1.4))) for value in grown(21, 0.02)]
    slope = math.log1p(forecast(hours).growth_per_day) / 24

    def squares(trend: float) -> float:
        residuals: dict[int, list[float]] = {}
        for at, count in enumerate(hours):
            residuals.setdefault(at % WEEK_H, []).append(math.log1p(count) - trend * at)
        return sum(
            (value - sum(its) / len(its)) ** 2 for its in residuals.values() for value in its
        )

    if forecast(hours).model == "trend":
        assert squares(slope) <= min(squares(slope * 0.99), squares(slope * 1.01))
    assert squares(slope) < squares(0.0)


def test_with_few_days_there_is_a_mean_and_no_trend() -> None:
    hours = grown(DAYS_MIN - 1, 0.05)
    made = forecast(hours)

    check_bands(made)
    assert (made.model, made.mape, made.growth_per_day) == ("mean", None, 0.0)
    assert made.days[0].p50 == made.days[89].p50


def test_a_fit_that_is_worse_than_a_week_ago_is_replaced_by_it() -> None:
    """Load that fell to a tenth two weeks ago: an exponential trend would go on falling."""
    hours = [1000] * 24 * 28 + [100] * 24 * 14
    made = forecast(hours)

    check_bands(made)
    assert made.model == "week_ago"
    assert made.days[30].p50 == pytest.approx(2400)


def test_nothing_at_all_stays_nothing() -> None:
    made = forecast([0] * 24 * 20)

    check_bands(made)
    assert made.days[50].p90 == 0


def test_a_quantile_lies_between_two_values() -> None:
    assert quantile([4.0, 1.0, 3.0, 2.0], 0.5) == 2.5
    assert quantile([7.0], 0.9) == 7.0
