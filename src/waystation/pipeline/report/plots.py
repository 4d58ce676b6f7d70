"""Charts as SVG: lines, stacked columns, bars, histograms and a heat map of slots.

The same numbers give the same bytes: no ids, no clock, coordinates with one decimal. Charts need no
script; the value of a mark is in its `<title>`, which browsers show as a tooltip. Colours are
classes of the style sheet, which has variants for light, dark and print.
"""

import math
from collections.abc import Sequence
from html import escape
from typing import NamedTuple

from waystation.base.numbers import significant

WIDTH, HEIGHT = 860, 260
LEFT, RIGHT, TOP, BOTTOM = 64, 14, 12, 34
_TICKS = 5
_LABELS_MAX = 9
_STRIDES = (1, 2, 3, 4, 6, 12, 24, 36, 48, 72, 96, 144, 288)  # labels fall on hours and days
_MOMENTS_MS = (1, 10, 100, 1e3, 1e4, 6e4, 6e5, 3.6e6, 8.64e7, 8.64e8)  # 1 ms … 1 s, 1 min, 1 h, 1 d
_LETTER_PX = 7.2  # approximate width of a letter in a label


class Series(NamedTuple):
    name: str
    values: Sequence[float]
    tone: str  # a colour class of the style sheet


class Bar(NamedTuple):
    label: str
    value: float
    text: str
    tone: str = "c1"


def short(value: float) -> str:
    """A number for an axis: 1.2 k, 30 M."""
    for limit, letter in ((1e9, " G"), (1e6, " M"), (1e3, " k")):
        if abs(value) >= limit:
            return f"{significant(value / limit, 3)}{letter}"
    return significant(value, 3)


def nice_steps(most: float, count: int = _TICKS) -> list[float]:
    """Round values from 0 to at least `most`."""
    if most <= 0:
        return [0.0, 1.0]
    raw = most / count
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(power * factor for factor in (1, 2, 2.5, 5, 10) if power * factor >= raw * 0.999)
    if most >= 4:
        step = max(1.0, float(round(step))) if step < 10 else step
    return [round(step * number, 10) for number in range(math.ceil(most / step - 1e-9) + 1)]


def _svg(body: Sequence[str], label: str, height: float = HEIGHT, width: float = WIDTH) -> str:
    return (
        f'<svg viewBox="0 0 {width:g} {height:g}" role="img" aria-label="{escape(label)}">'
        + "".join(body)
        + "</svg>"
    )


def _text(x: float, y: float, text: str, kind: str = "m") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" class="{kind}">{escape(text)}</text>'


class _Frame:
    """Maps values to coordinates, and draws the axes."""

    def __init__(self, points: int, most: float) -> None:
        self.steps = nice_steps(most)
        self._top = self.steps[-1] or 1.0
        self._points = max(points, 2)

    def x(self, at: float) -> float:
        return LEFT + (WIDTH - LEFT - RIGHT) * at / (self._points - 1)

    def y(self, value: float) -> float:
        return HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * value / self._top

    def step_text(self, step: float) -> str:
        return short(step)

    def axes(self, labels: Sequence[str]) -> list[str]:
        parts: list[str] = []
        for step in self.steps:
            y = self.y(step)
            parts.append(f'<path class="grid" d="M{LEFT} {y:.1f}H{WIDTH - RIGHT}"/>')
            parts.append(_text(LEFT - 8, y + 4, self.step_text(step), "e"))
        return parts + self.names(labels)

    def names(self, labels: Sequence[str], shift: float = 0.0) -> list[str]:
        """As many labels as fit without touching each other or the edge."""
        return [
            _text(x, HEIGHT - 12, labels[at])
            for at in range(0, len(labels), _stride(len(labels)))
            if (x := self.x(at) + shift) + len(labels[at]) * _LETTER_PX / 2 <= WIDTH
        ]


def _stride(count: int) -> int:
    least = count / _LABELS_MAX
    return next((step for step in _STRIDES if step >= least), math.ceil(least))


class _Durations(_Frame):
    """A frame for milliseconds on a logarithmic axis."""

    def __init__(self, points: int, least: float, most: float) -> None:
        super().__init__(points, 1.0)
        self._low = math.log10(max(least, 0.5)) - 0.1
        self._high = max(math.log10(max(most, 1.0)) + 0.1, self._low + 1)
        self.steps = [
            moment for moment in _MOMENTS_MS if self._low <= math.log10(moment) <= self._high
        ]

    def y(self, value: float) -> float:
        share = (math.log10(max(value, 0.5)) - self._low) / (self._high - self._low)
        return HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * max(share, 0.0)

    def step_text(self, step: float) -> str:
        return duration(step)


def lines(
    label: str, ticks: Sequence[str], series: Sequence[Series], *, durations: bool = False
) -> str:
    """One line per series; `ticks` name the points. `durations`: milliseconds, logarithmic axis."""
    values = [value for one in series for value in one.values]
    most = max(values, default=0.0)
    if durations:
        frame = _Durations(len(ticks), min(values, default=1.0), most)
    else:
        frame = _Frame(len(ticks), most)
    parts = frame.axes(ticks)
    for one in series:
        if not one.values:
            continue
        points = [f"{frame.x(at):.1f} {frame.y(value):.1f}" for at, value in enumerate(one.values)]
        if len(points) == 1:
            points.append(f"{WIDTH - RIGHT} {points[0].split()[1]}")
        parts.append(f'<path class="line {one.tone}" d="M{"L".join(points)}"/>')
    return _svg(parts, label)


def stacked(label: str, ticks: Sequence[str], series: Sequence[Series]) -> str:
    """Stacked columns, one per point; the first series is at the bottom."""
    totals = [sum(values) for values in zip(*(one.values for one in series), strict=True)]
    frame = _Frame(len(ticks) + 1, max(totals, default=0.0))
    wide = frame.x(1) - frame.x(0)
    gap = 1.5 if wide > 5 else 0.0
    below = [0.0] * len(ticks)
    parts = frame.axes([]) + frame.names(ticks, wide / 2)
    for one in series:
        for at, value in enumerate(one.values):
            if value <= 0:
                continue
            top = frame.y(below[at] + value)
            high = frame.y(below[at]) - top
            parts.append(
                f'<rect class="{one.tone}" x="{frame.x(at) + gap / 2:.1f}" y="{top:.1f}"'
                f' width="{wide - gap:.1f}" height="{high:.1f}">'
                f"<title>{escape(ticks[at])} {escape(one.name)}: {value:,.0f}</title></rect>"
            )
            below[at] += value
    return _svg(parts, label)


def bars(label: str, rows: Sequence[Bar]) -> str:
    """Horizontal bars with their texts beside them."""
    name_px = min(230.0, 12 + _LETTER_PX * max((len(row.label) for row in rows), default=0))
    text_px = 16 + _LETTER_PX * max((len(row.text) for row in rows), default=0)
    most = max((row.value for row in rows), default=0.0) or 1.0
    room = WIDTH - name_px - text_px
    high, step = 20, 28
    parts: list[str] = []
    for at, row in enumerate(rows):
        y = at * step + 4
        wide = max(room * row.value / most, 1.0 if row.value else 0.0)
        parts.append(_text(name_px - 10, y + 15, row.label, "e"))
        parts.append(
            f'<rect class="{row.tone}" x="{name_px:.1f}" y="{y}" width="{wide:.1f}"'
            f' height="{high}" rx="2"/>'
        )
        parts.append(_text(name_px + wide + 8, y + 15, row.text, "s"))
    return _svg(parts, label, max(len(rows) * step + 4, step))


def histogram(
    label: str, edges: Sequence[float], counts: Sequence[float], marks: Sequence[tuple[str, float]]
) -> str:
    """Counts between edges on a logarithmic axis in milliseconds, with named marks."""
    if not counts:
        return _svg([_text(WIDTH / 2, HEIGHT / 2, "no measurements")], label)
    frame = _Frame(2, max(counts))
    low, high = math.log10(edges[0]), math.log10(edges[-1])
    span = (high - low) or 1.0

    def x(millis: float) -> float:
        share = (math.log10(max(millis, edges[0])) - low) / span
        return LEFT + (WIDTH - LEFT - RIGHT) * min(share, 1.0)

    parts = frame.axes([])
    for at, count in enumerate(counts):
        if count <= 0:
            continue
        left, right, top = x(edges[at]), x(edges[at + 1]), frame.y(count)
        parts.append(
            f'<rect class="c1" x="{left:.1f}" y="{top:.1f}" width="{max(right - left - 1, 1):.1f}"'
            f' height="{frame.y(0) - top:.1f}"><title>{duration(edges[at])} to'
            f" {duration(edges[at + 1])}: {count:,.0f}</title></rect>"
        )
    moments = [moment for moment in _MOMENTS_MS if edges[0] <= moment <= edges[-1]]
    parts += [_text(x(moment), HEIGHT - 12, duration(moment)) for moment in moments]
    taken = -1e9
    for name, millis in marks:
        at = x(millis)
        wide = (len(name) + 1) * _LETTER_PX
        parts.append(f'<path class="mark" d="M{at:.1f} {TOP}V{frame.y(0):.1f}"/>')
        if at - taken > wide:  # else it would overlap the label before
            kind = (
                "s" if at + wide < WIDTH else "s e"
            )  # at the right edge the label is left of the mark
            parts.append(_text(at + (4 if kind == "s" else -4), TOP + 10, name, kind))
            taken = at
    return _svg(parts, label)


def duration(millis: float) -> str:
    """A duration with a suitable unit."""
    if millis < 1000:
        return f"{significant(millis, 3)} ms"
    for limit, divisor, unit in ((60e3, 1e3, "s"), (3600e3, 60e3, "min"), (172_800e3, 3600e3, "h")):
        if millis < limit:
            return f"{significant(millis / divisor, 3)} {unit}"
    return f"{significant(millis / 86_400e3, 3)} d"


def heat_map(label: str, values: dict[int, float], side: int = 64, levels: int = 9) -> str:
    """A square of `side` × `side` cells by number; higher values have stronger colours.

    Levels are logarithmic, so one hot slot does not hide the differences of the others.
    """
    cell = 9
    most = max(values.values(), default=0.0)
    parts = [f'<rect class="h0" x="40" y="4" width="{side * cell}" height="{side * cell}"/>']
    for number in sorted(values):
        value = values[number]
        if value <= 0:
            continue
        level = 1 + round((levels - 1) * math.log1p(value) / math.log1p(most))
        row, column = divmod(number, side)
        parts.append(
            f'<rect class="h{level}" x="{40 + column * cell}" y="{4 + row * cell}" width="{cell}"'
            f' height="{cell}"><title>slot {number}: {value:,.0f}</title></rect>'
        )
    parts += [
        _text(34, 4 + row * cell + 9, str(row * side), "e") for row in range(0, side, side // 8)
    ]
    x = 40 + side * cell + 24
    floors = [
        max(1, math.ceil(math.expm1(math.log1p(most) * max(level - 0.5, 0) / (levels - 1))))
        for level in range(levels)
    ]
    shown = [level for level in range(levels) if level == 0 or floors[level] > floors[level - 1]]
    for place, level in enumerate(reversed(shown)):
        y = 4 + place * 22
        parts.append(f'<rect class="h{level + 1}" x="{x}" y="{y}" width="22" height="20"/>')
        parts.append(_text(x + 30, y + 15, f"from {short(floors[level])}", "s"))
    return _svg(parts, label, side * cell + 8, 40 + side * cell + 130)
