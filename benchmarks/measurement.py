"""What one run of one scenario has shown, and how several runs are summed up."""

import statistics
from collections.abc import Sequence

import msgspec

QUEUE = "queue: "  # these scenarios have a floor of their own
QUEUE_BLOCKS = "queue: blocks, "
QUEUE_FLOOR = "queue: blocks, uvloop"


class Bar(msgspec.Struct, frozen=True):
    """What a specification demands, and what one round has shown."""

    name: str
    value: float
    limit: float | None = None  # none: only reported
    unit: str = "×"
    least: bool = False  # the limit is the least that will do, not the most

    @property
    def kept(self) -> bool:
        if self.limit is None:
            return True
        return self.value >= self.limit if self.least else self.value <= self.limit

    def __str__(self) -> str:
        shown = f"{self.name}: {self.value:.3g} {self.unit}"
        if self.limit is None:
            return shown
        sign = "≥" if self.least else "≤"
        return f"{shown} (bar {sign} {self.limit:g}: {'kept' if self.kept else 'MISSED'})"


class Measurement(msgspec.Struct, frozen=True, kw_only=True):
    """`cpu_us` is the server's, and in `stores` that of the process which asks the store; None if
    we may not look into its processes."""

    scenario: str
    operation: str  # what is counted
    operations: int
    seconds: float
    cpu_us: float | None = None  # per operation
    p50_ms: float | None = None
    p99_ms: float | None = None
    frame_ms: float | None = None  # POST to frame, median
    kib: float | None = None  # memory per connection
    round_trips: float | None = None  # to the store, of one operation alone
    round_trips_loaded: float | None = None  # of one among many: several may go together
    lost: int | None = None  # answered 201 and never seen again: must be 0
    notes: str = ""
    against: str = ""  # the scenario of the same round that this one is compared with
    bars: tuple[Bar, ...] = ()

    @property
    def rate(self) -> float:
        return self.operations / self.seconds if self.seconds else 0.0


class Summary(msgspec.Struct, frozen=True, kw_only=True):
    """Medians over the rounds; `floors` is the median of each round's ratio to its own floor."""

    scenario: str
    operation: str
    rounds: int
    rate: float
    cpu_us: float | None
    floors: float | None
    p50_ms: float | None
    p99_ms: float | None
    frame_ms: float | None
    kib: float | None
    round_trips: float | None
    round_trips_loaded: float | None
    lost: int | None
    notes: str


def percentile(values: Sequence[float], share: float) -> float | None:
    if not values:
        return None
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(len(ordered) * share))]


def summarise(rounds: Sequence[Sequence[Measurement]], floor: str) -> list[Summary]:
    """In the order of the first round in which a scenario appears."""
    names: dict[str, None] = {}
    for one in rounds:
        for measurement in one:
            names.setdefault(measurement.scenario, None)
    return [_sum_up(name, rounds, floor) for name in names]


def _sum_up(name: str, rounds: Sequence[Sequence[Measurement]], floor: str) -> Summary:
    mine = [measurement for one in rounds for measurement in one if measurement.scenario == name]
    lost = [one.lost for one in mine if one.lost is not None]
    notes = list(dict.fromkeys(one.notes for one in mine if one.notes))
    if name == "broadcast" and (over := _median(_ratios(name, "nchan", rounds))) is not None:
        notes.append(f"{over:.2f} × nchan")
    notes += map(str, _bars(mine))
    against = mine[0].against
    if against and (share := _median(_ratios(against, name, rounds))) is not None:
        notes.append(f"{share:.2f} × as many per CPU second as {against.rpartition(': ')[2]}")
    if name.startswith(QUEUE_BLOCKS) and name != QUEUE_FLOOR:
        over = _median(_ratios(name, QUEUE_FLOOR, rounds))
        notes += [] if over is None else [f"{over:.2f} × uvloop's TLS"]
    return Summary(
        scenario=name,
        operation=mine[0].operation,
        rounds=len(mine),
        rate=statistics.median(one.rate for one in mine),
        cpu_us=_median([one.cpu_us for one in mine]),
        floors=None if name.startswith(QUEUE) else _median(_ratios(name, floor, rounds)),
        p50_ms=_median([one.p50_ms for one in mine]),
        p99_ms=_median([one.p99_ms for one in mine]),
        frame_ms=_median([one.frame_ms for one in mine]),
        kib=_median([one.kib for one in mine]),
        round_trips=_median([one.round_trips for one in mine]),
        round_trips_loaded=_median([one.round_trips_loaded for one in mine]),
        lost=sum(lost) if lost else None,
        notes="; ".join(notes),
    )


def _bars(mine: Sequence[Measurement]) -> list[Bar]:
    """Each with the median of its rounds."""
    found: dict[str, list[Bar]] = {}
    for measurement in mine:
        for bar in measurement.bars:
            found.setdefault(bar.name, []).append(bar)
    return [
        msgspec.structs.replace(same[0], value=statistics.median(bar.value for bar in same))
        for same in found.values()
    ]


def _ratios(name: str, base: str, rounds: Sequence[Sequence[Measurement]]) -> list[float]:
    """CPU of one scenario in units of another's, each within its round."""
    ratios: list[float] = []
    for one in rounds:
        cpu_us = {measurement.scenario: measurement.cpu_us for measurement in one}
        above, below = cpu_us.get(name), cpu_us.get(base)
        if above is not None and below:
            ratios.append(above / below)
    return ratios


def _median(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return statistics.median(known) if known else None
