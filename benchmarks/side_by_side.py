"""Two checkouts by turns under the same load: `python -m benchmarks --against CHECKOUT`.

Rule 1: each turn starts a new server with one worker and everything on: events, journal, metrics.
Rule 2: in each round both have a turn at every row, and who begins changes from round to round.
Rule 3: a ratio is taken within its round, so that a slow minute of the machine counts for both.
"""

import contextlib
import statistics
import sys
from collections.abc import Callable, Iterator, Sequence

import msgspec

from .checkout import Checkout
from .instructions import counted
from .measurement import Measurement
from .mixed_load import REALISTIC_QUICK, REALISTIC_SMOKE, RealisticScale
from .presence_target import UNLIMITED, PartyServer
from .queue_target import (
    QUEUE_QUICK,
    QUEUE_SMOKE,
    QueueScale,
    QueueTarget,
    own_queue_server,
    queue_address_of,
)
from .scenarios import direct, idle, presence, queue_idle, queue_messages, realistic, stored
from .target import QUICK, SMOKE, Scale, Target, own_server, serving

COUNTED = "instructions"  # by callgrind: slow, and the same in each round
PRESENCE_PORT_OFFSET = 5  # `--port-base N` gives presence N + 5
PARTY_SETTINGS = {
    "PRESENCE__TRANSPORT": "native",  # where there is more than one
    "PRESENCE__STORE": "memory:",
    **{f"PRESENCE__{name}": value for name, value in UNLIMITED.items()},
}


class Scales(msgspec.Struct, frozen=True):
    push: Scale
    queue: QueueScale
    realistic: RealisticScale


SCALES = {
    "full": Scales(Scale(), QueueScale(), RealisticScale()),
    "quick": Scales(QUICK, QUEUE_QUICK, REALISTIC_QUICK),
    "smoke": Scales(SMOKE, QUEUE_SMOKE, REALISTIC_SMOKE),
}


class Figure(msgspec.Struct, frozen=True):
    row: str
    unit: str
    value: float
    lost: int = 0


class Compared(msgspec.Struct, frozen=True):
    """Medians of both sides; the ratio is new to old, each taken within its round."""

    row: str
    unit: str
    old: float
    new: float
    ratio: float
    ratio_min: float
    ratio_max: float
    rounds: int
    lost: int


Turn = Callable[[Checkout, Scales], list[Figure]]


def run(
    old: Checkout, new: Checkout, rows: Sequence[str], scale: str, rounds: int
) -> Iterator[list[Compared]]:
    """What is known after each round."""
    found: dict[str, dict[str, list[Figure]]] = {}  # by row, by side
    for number in range(rounds):
        sides = [("old", old), ("new", new)]
        for row in rows:
            for side, checkout in sides if number % 2 == 0 else reversed(sides):
                print(f"round {number + 1} of {rounds}: {row}, {checkout.name}", file=sys.stderr)
                for figure in TURNS[row](checkout, SCALES[scale]):
                    found.setdefault(figure.row, {}).setdefault(side, []).append(figure)
        yield [compare(by_side["old"], by_side["new"]) for by_side in found.values()]


def compare(old: Sequence[Figure], new: Sequence[Figure]) -> Compared:
    ratios = [
        after.value / before.value
        for before, after in zip(old, new, strict=True)
        if before.value > 0
    ] or [float("nan")]
    return Compared(
        row=old[0].row,
        unit=old[0].unit,
        old=statistics.median(one.value for one in old),
        new=statistics.median(one.value for one in new),
        ratio=statistics.median(ratios),
        ratio_min=min(ratios),
        ratio_max=max(ratios),
        rounds=len(ratios),
        lost=sum(one.lost for one in (*old, *new)),
    )


def to_text(compared: Sequence[Compared], old: str, new: str) -> str:
    """A table in Markdown, for terminals too."""
    return "\n".join(
        [
            f"| one worker, everything on | unit | {old} | {new} | ratio | least – most | lost |",
            "|---|---|---:|---:|---:|---:|---:|",
            *(
                f"| {one.row} | {one.unit} | {one.old:,.2f} | {one.new:,.2f} | {one.ratio:.3f} |"
                f" {one.ratio_min:.3f} – {one.ratio_max:.3f} | {one.lost} |"
                for one in compared
            ),
        ]
    )


def _cpu(measurement: Measurement, row: str = "", *, times: int = 1) -> Figure:
    assert measurement.cpu_us is not None
    return Figure(
        row or measurement.scenario, "CPU µs", measurement.cpu_us * times, measurement.lost or 0
    )


def _memory(measurement: Measurement, row: str) -> Figure:
    assert measurement.kib is not None
    return Figure(row, "KiB", measurement.kib)


def _realistic(checkout: Checkout, scales: Scales) -> list[Figure]:
    with own_server("1", command=checkout.command) as target:
        return [_cpu(one) for one in realistic.run(target, scales.realistic)]


def _queue(checkout: Checkout, scales: Scales) -> list[Figure]:
    with own_queue_server(checkout.command) as target:
        return [_cpu(queue_messages.run(target, scales.queue), "SMP message end to end")]


def _presence(checkout: Checkout, scales: Scales) -> list[Figure]:
    with _party_server(checkout) as server:
        delivery, churn = (
            presence.measure(server, "plain", name, presence.WORKLOADS[name], scales.push)
            for name in ("fan-out", "churn")
        )
    return [
        _cpu(delivery, "presence delivery"),
        _cpu(churn, "membership change, told to 19", times=presence.PARTY - 1),
    ]


def _idle(checkout: Checkout, scales: Scales) -> list[Figure]:
    with own_server("1", command=checkout.command) as target:
        agents = idle.run(target, scales.push)
    with _party_server(checkout) as server:
        streams = presence.idle(server, scales.push)
    with own_queue_server(checkout.command) as queue:
        _, connections = queue_idle.run(queue, scales.queue)
    return [
        _memory(agents, "idle user agent"),
        _memory(streams, "idle stream"),
        _memory(connections, "idle SMP connection"),
    ]


def _instructions(checkout: Checkout, _scales: Scales) -> list[Figure]:
    """One message is under way at a time: how many share a turn of the event loop would depend on
    the machine."""
    push = Scale(seconds=6.0, agents=40, senders=1, stored_agents=40, stored_senders=1)
    found: list[Measurement] = []
    with counted(checkout, "connect", "endpoint") as (server, count):
        target = Target(server.ws_url, server.endpoint_url, (server.pid,), count)
        found += [direct.run(target, push), direct.run(target, push, fresh=True)]
        found += stored.run(target, push)[:1]
    with counted(checkout, "queue") as (server, count):
        queue = QueueTarget(queue_address_of(server), (server.pid,), count)
        found.append(queue_messages.run(queue, QueueScale(seconds=15.0, pairs=1)))
    settings = checkout.known(PARTY_SETTINGS)
    with counted(checkout, "presence", settings=settings) as (server, count):
        port = server.port_base + PRESENCE_PORT_OFFSET
        party = PartyServer("side by side", port, server.pid, None, count)
        fan_out = presence.WORKLOADS["fan-out"]
        parties = Scale(seconds=6.0, party_guests=presence.PARTY)
        found.append(presence.measure(party, "plain", "fan-out", fan_out, parties))
    names = ("direct", "direct, new token", "stored", "SMP message", "presence delivery")
    return [
        msgspec.structs.replace(_cpu(one, name), unit="instructions")
        for one, name in zip(found, names, strict=True)
    ]


@contextlib.contextmanager
def _party_server(checkout: Checkout) -> Iterator[PartyServer]:
    settings = checkout.known(PARTY_SETTINGS)
    with serving("presence", settings=settings, command=checkout.command) as server:
        port = server.port_base + PRESENCE_PORT_OFFSET
        yield PartyServer("side by side", port, server.pid)


TURNS: dict[str, Turn] = {
    "realistic": _realistic,
    "queue": _queue,
    "presence": _presence,
    "idle": _idle,
    COUNTED: _instructions,
}
