"""Forecasts the load of one resource: a trend, a weekly profile and quantile bands.

Plain Python on hourly counts, because a few thousand numbers need no Spark.

Rule 1: with at least `DAYS_MIN` days, ln(1 + n) = trend · t + factor of the hour of the week, by
        least squares. Subtracting the mean of each hour of the week from both sides first gives the
        same trend without a large system of equations.
Rule 2: with fewer days there is no trend, only the mean of each hour of the day.
Rule 3: the bands are the 10 %, 50 % and 90 % quantiles of the residuals, added before exp.
Rule 4: the model is tested on the last week. If its error is larger than that of "same as a week
        ago", that naive model replaces it.
"""

import math
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence

import msgspec

DAYS_MIN = 14
WEEK_H = 168
HORIZON_DAYS = 90
BANDS = (0.1, 0.5, 0.9)


class Outlook(msgspec.Struct, frozen=True):
    """Forecast sums of one day, by band."""

    days_ahead: int
    p10: float
    p50: float
    p90: float


class Forecast(msgspec.Struct, frozen=True):
    model: str  # trend, mean or week_ago
    mape: float | None  # error of the chosen model over the last week, if testable
    naive_mape: float | None
    growth_per_day: float  # 0.01: 1 % growth per day
    days: tuple[Outlook, ...]


class _Fit(msgspec.Struct, frozen=True):
    trend: float  # change of ln(1 + n) per hour
    factors: Mapping[int, float]
    period: int

    def log(self, at: int) -> float:
        return self.trend * at + self.factors.get(at % self.period, 0.0)


def forecast(hours: Sequence[int], *, horizon_days: int = HORIZON_DAYS) -> Forecast:
    """Forecast from consecutive hourly counts that begin with the first hour of a day."""
    assert len(hours) % 24 == 0, "whole days"
    logs = [math.log1p(count) for count in hours]
    enough = len(hours) >= DAYS_MIN * 24
    fit = _fit(logs, WEEK_H if enough else 24, trend=enough)
    mape = naive = None
    if enough:
        known = len(hours) - WEEK_H
        # From the weeks before; a trend needs two of them, otherwise only the profile is used.
        tried = _fit(logs[:known], WEEK_H, trend=known >= DAYS_MIN * 24)
        week = range(known, len(hours))
        mape = _mape([math.expm1(tried.log(at)) for at in week], hours[known:])
        naive = _mape([hours[at - WEEK_H] for at in week], hours[known:])
        if mape > naive:
            return _week_ago(hours, logs, naive, horizon_days)
    residuals = [logs[at] - fit.log(at) for at in range(len(logs))]
    return Forecast(
        model="trend" if enough else "mean",
        mape=mape,
        naive_mape=naive,
        growth_per_day=math.expm1(24 * fit.trend),
        days=_outlook(fit.log, residuals, len(hours), horizon_days),
    )


def _fit(logs: Sequence[float], period: int, *, trend: bool) -> _Fit:
    places: dict[int, list[int]] = defaultdict(list)
    for at in range(len(logs)):
        places[at % period].append(at)
    centres = {
        key: (math.fsum(its) / len(its), math.fsum(logs[at] for at in its) / len(its))
        for key, its in places.items()
    }
    slope = 0.0
    if trend:
        offsets = [
            (at - centres[at % period][0], value - centres[at % period][1])
            for at, value in enumerate(logs)
        ]
        spread = math.fsum(x * x for x, _ in offsets)
        slope = math.fsum(x * y for x, y in offsets) / spread if spread else 0.0
    return _Fit(slope, {key: y - slope * x for key, (x, y) in centres.items()}, period)


def _week_ago(
    hours: Sequence[int], logs: Sequence[float], naive: float, horizon_days: int
) -> Forecast:
    residuals = [logs[at] - logs[at - WEEK_H] for at in range(WEEK_H, len(logs))]
    last = len(hours) - WEEK_H

    def as_last_week(at: int) -> float:
        return logs[last + (at - last) % WEEK_H]

    days = _outlook(as_last_week, residuals, len(hours), horizon_days)
    return Forecast(model="week_ago", mape=naive, naive_mape=naive, growth_per_day=0.0, days=days)


def _outlook(
    log_at: Callable[[int], float], residuals: Sequence[float], start: int, horizon_days: int
) -> tuple[Outlook, ...]:
    low, middle, high = (quantile(residuals, share) for share in BANDS)
    days: list[Outlook] = []
    for day in range(horizon_days):
        logs = [log_at(start + day * 24 + hour) for hour in range(24)]
        sums = (
            math.fsum(max(math.expm1(min(log + shift, 60.0)), 0.0) for log in logs)
            for shift in (low, middle, high)
        )
        days.append(Outlook(day + 1, *sums))
    return tuple(days)


def quantile(values: Sequence[float], share: float) -> float:
    """Interpolated quantile, like SQL's `percentile`."""
    ordered = sorted(values)
    place = share * (len(ordered) - 1)
    low, high = math.floor(place), math.ceil(place)
    return ordered[low] + (place - low) * (ordered[high] - ordered[low])


def _mape(predicted: Sequence[float], true: Sequence[int]) -> float:
    errors = [abs(one - other) / max(other, 1) for one, other in zip(predicted, true, strict=True)]
    return math.fsum(errors) / len(errors)
