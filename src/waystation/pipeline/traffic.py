"""Synthetic traffic whose results are known in advance, as plain Python.

Rule 1: every value is a hash of (seed, message, draw), so any slice can be computed alone. This
        module computes single rows, `traffic_columns` whole columns; both give the same rows.
Rule 2: outcomes repeat every BLOCK messages in a shuffled order, so counts, outcomes and even
        sequence numbers follow from a message's number alone.
Rule 3: integers only: fractions would differ between the two implementations.
Rule 4: irregularities (repeats, late, disordered and lost events, missing ends) are assigned to
        positions in the block too, so their results are known the same way. They never affect a
        message whose outcome would then depend on its TTL.
"""

from collections import Counter
from collections.abc import Iterable, Iterator
from datetime import UTC, date, datetime, timedelta
from functools import cached_property
from typing import Any

import msgspec

from waystation.pipeline.seeded_random import draw, signed
from waystation.queue.model import SLOTS

BLOCK = 1000
_STRIDE = 617  # coprime to BLOCK: steps of this size visit every place once
IRREGULAR_STRIDE = 389  # the same for irregularities, each with its own start
IRREGULAR_STARTS = {"repeats": 0, "late": 211, "disordered": 433, "endless": 677, "lossy": 859}

ENDPOINTS = ("sim.endpoint.0", "sim.endpoint.1")
CONNECTS = ("sim.connect.0", "sim.connect.1", "sim.connect.2", "sim.connect.3")
SKEWED = CONNECTS[1]
QUEUE = "sim.queue.0"
PRESENCE = "sim.presence.0"
DAY_US = 86_400_000_000


class Step(msgspec.Struct, frozen=True):
    """An event of a message: code, time after the message was received, and writer."""

    k: int
    at_us: int
    spread_us: int
    by: str = "connect"


class MessageKind(msgspec.Struct, frozen=True):
    """The events and the outcome of a message, and its share in a thousand messages."""

    name: str
    outcome: str
    share: int
    steps: tuple[Step, ...]


def _received() -> Step:
    return Step(0, 0, 1, "endpoint")


MESSAGE_KINDS = (
    MessageKind("direct", "delivered", 600, (
        _received(), Step(6, 300, 5_000), Step(7, 6_000, 4_000), Step(8, 10_000, 90_000))),
    MessageKind("relayed", "delivered", 150, (
        _received(), Step(3, 300, 500, "endpoint"), Step(4, 1_000, 3_000), Step(6, 5_000, 2_000),
        Step(8, 20_000, 400_000))),
    MessageKind("stored", "delivered", 120, (
        _received(), Step(1, 500, 3_000, "endpoint"), Step(2, 60_000_000, 3_000_000_000),
        Step(6, 3_100_000_000, 5_000), Step(8, 3_100_010_000, 900_000))),
    MessageKind("bridged", "bridged", 60, (_received(), Step(5, 40_000, 300_000, "endpoint"))),
    MessageKind("expired", "expired", 25, (
        _received(), Step(1, 500, 3_000, "endpoint"), Step(11, 3_600_000_000, 60_000_000))),
    MessageKind("superseded", "superseded", 10, (
        _received(), Step(1, 500, 3_000, "endpoint"), Step(13, 10_000_000, 600_000_000))),
    MessageKind("withdrawn", "withdrawn", 5, (
        _received(), Step(1, 500, 3_000, "endpoint"),
        Step(14, 10_000_000, 600_000_000, "endpoint"))),
    MessageKind("undecryptable", "rejected", 10, (
        _received(), Step(6, 300, 5_000), Step(9, 10_000, 90_000))),
    MessageKind("errored", "errored", 5, (_received(), Step(12, 500, 9_000, "endpoint"))),
    MessageKind("unacked", "expired", 5, (_received(), Step(6, 300, 5_000))),
    # Whether a node accepted it must be known.
    MessageKind("vanished", "lost", 5, (_received(), Step(3, 300, 500, "endpoint"))),
    # An event was lost: delivery without a transmission is impossible.
    MessageKind("gap", "delivered", 5, (_received(), Step(8, 10_000, 90_000))),
)  # fmt: skip
CONNECTION = (Step(20, 0, 1), Step(21, 1_000, 50_000), Step(29, 60_000_000, 1_800_000_000))
QUEUED = (
    Step(103, 0, 1, "queue"),
    Step(104, 500, 9_000, "queue"),
    Step(105, 20_000, 9_000, "queue"),
)
PARTY = (Step(200, 0, 1, "presence"), Step(201, 30_000_000, 1_200_000_000, "presence"))


LATE_US = 2 * DAY_US  # how much earlier than its neighbours a late message is
AGAIN_US = 1_000_000
# Kinds whose last event may be missing, and their outcome without it.
_ENDLESS = {
    "direct": "expired",
    "relayed": "expired",
    "stored": "expired",
    "undecryptable": "expired",
    "expired": "expired",
    "superseded": "expired",
    "withdrawn": "expired",
}


class Planned(msgspec.Struct, frozen=True):
    """One event of the message at a place in every block."""

    place: int
    number: int  # of the event within its message; selects the draw of its time
    k: int
    node: str
    peer: str
    at_us: int
    spread_us: int
    shift_us: int  # clock error of its node
    offset: int  # sequence number within the block
    per_block: int  # sequence numbers of its node per block


class Traffic(msgspec.Struct, frozen=True, kw_only=True, dict=True):
    seed: int = 1
    messages: int = 100_000
    days: int = 1
    last_day: date = date(2026, 11, 6)
    clients: int = 0  # 0: one per twenty messages
    apps: int = 50
    slots: int = SLOTS
    kinds: tuple[MessageKind, ...] = MESSAGE_KINDS
    # Irregularities: in how many of a thousand messages …
    repeats: int = 0  # … the last event is repeated
    late: int = 0  # … all events arrive two days late
    disordered: int = 0  # … the times of the second and third event are swapped
    endless: int = 0  # … the last event is missing, also of its connection and session
    lossy: int = 0  # … the second event has a sequence number and no line
    skew_ms: int = 0  # how much the clock of one connection node is behind
    restarts: int = 0  # restarts of every node

    @property
    def start_us(self) -> int:
        first = self.last_day - timedelta(days=self.days - 1)
        midnight = datetime(first.year, first.month, first.day, tzinfo=UTC)
        return int(midnight.timestamp()) * 1_000_000

    @property
    def spacing_us(self) -> int:
        """Time between messages; the last one is two hours before the end of the last day, so that
        its events are in that day."""
        return max(1, (self.days * DAY_US - 7_200_000_000) // self.messages)

    @property
    def client_count(self) -> int:
        return self.clients or self.messages // 20 + 1

    def kind_of(self, message: int) -> MessageKind:
        return self._kinds[message % BLOCK]

    @cached_property
    def _kinds(self) -> list[MessageKind]:
        ladder = [kind for kind in self.kinds for _ in range(kind.share)]
        assert len(ladder) == BLOCK, "the shares of all kinds add up to a thousand"
        return [ladder[(place * _STRIDE + self.seed) % BLOCK] for place in range(BLOCK)]

    def is_irregular(self, irregularity: str, place: int) -> bool:
        """Whether messages at a place of the block have this irregularity."""
        chosen = (place * IRREGULAR_STRIDE + IRREGULAR_STARTS[irregularity]) % BLOCK < getattr(
            self, irregularity
        )
        if irregularity == "endless":
            return chosen and self._kinds[place].name in _ENDLESS
        if irregularity == "lossy":
            return chosen and self._kinds[place].name in _ENDLESS and not self._is_endless(place)
        return chosen

    def _is_endless(self, place: int) -> bool:
        return self.is_irregular("endless", place)

    @cached_property
    def plan(self) -> list[Planned]:
        """Every event of a block, ordered by message."""
        raw = [(place, *step) for place in range(BLOCK) for step in self._steps(place)]
        totals = Counter(self._nodes(place)[step.by] for place, _, step, _ in raw)
        used: Counter[str] = Counter()
        planned: list[Planned] = []
        for place, number, step, told in raw:
            nodes = self._nodes(place)
            node = nodes[step.by]
            if told:
                planned.append(
                    Planned(
                        place=place,
                        number=number,
                        k=step.k,
                        node=node,
                        peer=nodes["connect"],
                        at_us=step.at_us,
                        spread_us=step.spread_us,
                        shift_us=-1000 * self.skew_ms if node == SKEWED else 0,
                        offset=used[node],
                        per_block=totals[node],
                    )
                )
            used[node] += 1
        return planned

    def _nodes(self, place: int) -> dict[str, str]:
        return {
            "endpoint": ENDPOINTS[place % 2],
            "connect": CONNECTS[place % 4],
            "queue": QUEUE,
            "presence": PRESENCE,
        }

    def _steps(self, place: int) -> list[tuple[int, Step, bool]]:
        """(number, event, whether a line exists) of a message and its connection and session."""
        steps = [*self._kinds[place].steps]
        ends = None
        if self.is_irregular("endless", place):
            ends = -1
            steps = steps[:ends]
        if self.is_irregular("disordered", place) and len(steps) > 2:
            second, third = steps[1:3]
            steps[1] = Step(second.k, third.at_us, third.spread_us, second.by)
            steps[2] = Step(third.k, second.at_us, second.spread_us, third.by)
        lost = steps[1] if self.is_irregular("lossy", place) else None
        if self.is_irregular("repeats", place):
            last = steps[-1]
            steps.append(Step(last.k, last.at_us + AGAIN_US, last.spread_us, last.by))
        steps += CONNECTION[:ends] if place % 10 == 0 else ()
        steps += QUEUED if place % 5 == 1 else ()
        steps += PARTY[:ends] if place % 20 == 2 else ()
        return [(number, step, step is not lost) for number, step in enumerate(steps)]

    @property
    def blocks_a_life(self) -> int:
        """Blocks of messages between restarts of the nodes."""
        blocks = -(-self.messages // BLOCK)
        return -(-blocks // (self.restarts + 1))

    @property
    def life_us(self) -> int:
        return self.blocks_a_life * BLOCK * self.spacing_us

    def event_count(self) -> int:
        return sum(self.codes().values())

    def codes(self) -> Counter[int]:
        """Number of events by code."""
        whole, rest = divmod(self.messages, BLOCK)
        counts: Counter[int] = Counter()
        for one in self.plan:
            counts[one.k] += whole + (one.place < rest)
        return counts

    def outcomes(self) -> Counter[str]:
        """Number of messages by outcome, after all deadlines."""
        whole, rest = divmod(self.messages, BLOCK)
        counts: Counter[str] = Counter()
        for place, kind in enumerate(self._kinds):
            outcome = _ENDLESS[kind.name] if self._is_endless(place) else kind.outcome
            counts[outcome] += whole + (place < rest)
        return +counts

    def gaps(self) -> int:
        """Messages with an impossible sequence of milestones. A lost event is invisible in
        messages that expire or are replaced, because that can happen at once."""
        return self._messages_at(
            place
            for place, kind in enumerate(self._kinds)
            if kind.name == "gap"
            or (kind.name not in {"expired", "superseded"} and self.is_irregular("lossy", place))
        )

    def lost_lines(self) -> int:
        """Sequence numbers without a line."""
        return self._messages_at(
            place for place in range(BLOCK) if self.is_irregular("lossy", place)
        )

    def repeated(self) -> int:
        """Messages with a repeated event."""
        return self._messages_at(
            place for place in range(BLOCK) if self.is_irregular("repeats", place)
        )

    def unclosed(self) -> int:
        """Connections without an end event."""
        return self._messages_at(place for place in range(0, BLOCK, 10) if self._is_endless(place))

    def _messages_at(self, places: Iterable[int]) -> int:
        whole, rest = divmod(self.messages, BLOCK)
        return sum(whole + (place < rest) for place in places)

    def slot_of(self, message: int) -> int:
        """The slot of a message; low slots get more messages."""
        share = draw(self.seed, message, 105) % self.slots
        return share * share // self.slots

    def slot_sends(self) -> Counter[int]:
        """Number of messages by slot."""
        return Counter(self.slot_of(i) for i in range(self.messages) if i % BLOCK % 5 == 1)


def rows(traffic: Traffic, first: int = 0, end: int | None = None) -> Iterator[dict[str, Any]]:
    """The events of messages first … end-1, with the contract's columns that are not null."""
    by_place: dict[int, list[Planned]] = {}
    for one in traffic.plan:
        by_place.setdefault(one.place, []).append(one)
    for message in range(first, traffic.messages if end is None else end):
        for planned in by_place[message % BLOCK]:
            yield _row(traffic, message, planned)


def _row(traffic: Traffic, message: int, planned: Planned) -> dict[str, Any]:
    def lot(number: int) -> int:
        return draw(traffic.seed, message, number)

    t0 = traffic.start_us + message * traffic.spacing_us + lot(100) % traffic.spacing_us
    t0 -= LATE_US if traffic.is_irregular("late", planned.place) else 0
    life, block = divmod(message // BLOCK, traffic.blocks_a_life)
    second_ms = t0 // 1_000_000 * 1000
    client = lot(101) % traffic.client_count
    app = lot(102) % traffic.apps
    k = planned.k
    everything: dict[str, Any] = {
        "mid": f"{second_ms:012x}{lot(103) % (1 << 40):010x}{lot(104) % (1 << 40):010x}",
        "uah": signed(draw(traffic.seed, client, 201)),
        "chh": signed(draw(traffic.seed, client * traffic.apps + app, 202)),
        "app": signed(draw(traffic.seed, app, 203)),
        "cid": message,
        "via": via_of(traffic.kind_of(message).name),
        "path": path_of(planned),
        "slot": traffic.slot_of(message),
        "party": signed(draw(traffic.seed, lot(106) % (traffic.messages // 200 + 1), 204)),
        "cli": signed(draw(traffic.seed, client, 205)),
        "sess": signed(lot(107)),
        "peer": planned.peer,
        "iph": signed(draw(traffic.seed, client % 251, 206)),
        "code": CODES_OF.get(k, 0),
        "errno": ERRNO,
        "size": lot(108) % 3994 + 1,
        "ttl": TTLS[lot(109) % len(TTLS)],
        "dur": planned.at_us + lot(planned.number) % planned.spread_us,
        "n": 1,
        "flag": lot(110) % 4 == 0,
        "attrs": attrs_of(k, lot(111) % 4),
    }
    if traffic.kind_of(message).name in KEPT:
        everything["ttl"] = KEPT_TTL_S
    row = {
        "v": 1,
        "ts": t0 + planned.at_us + lot(planned.number) % planned.spread_us + planned.shift_us,
        "node": planned.node,
        "boot": traffic.start_us + life * traffic.life_us,
        "seq": block * planned.per_block + planned.offset,
        "k": k,
    }
    return row | {name: everything[name] for name in COLUMNS_OF[k]}


CODES_OF = {5: 201, 9: 301, 29: 1001}
ERRNO = 201
TTLS = (0, 60, 3600, 3600, 86_400)
KEPT = frozenset(
    {"stored", "expired", "superseded", "withdrawn", "vanished"}
)  # kinds that need a TTL
KEPT_TTL_S = 3600
COLUMNS_OF: dict[int, tuple[str, ...]] = {
    0: ("mid", "uah", "chh", "ttl", "size", "via", "app"),
    1: ("mid", "uah", "flag"),
    2: ("mid", "uah"),
    3: ("mid", "peer"),
    4: ("mid", "uah"),
    5: ("mid", "via", "code", "dur"),
    6: ("mid", "uah", "path"),
    7: ("mid", "uah"),
    8: ("mid", "uah"),
    9: ("mid", "code"),
    11: ("mid",),
    12: ("mid", "errno"),
    13: ("mid",),
    14: ("mid",),
    20: ("cid", "iph"),
    21: ("cid", "uah", "flag", "n", "attrs"),
    29: ("cid", "uah", "dur", "code"),
    103: ("slot", "size", "code", "n"),
    104: ("slot", "size", "n"),
    105: ("slot", "size", "n", "dur"),
    200: ("party", "cli", "sess", "n", "attrs"),
    201: ("party", "cli", "sess", "code", "dur", "attrs"),
}
ATTRS_OF = {
    21: (
        '{"os":"linux","browser":"firefox"}',
        '{"os":"android","browser":"firefox"}',
        '{"os":"windows","browser":"firefox"}',
        '{"os":"android","browser":"sunup"}',
    ),
    200: ('{"seq":1,"epoch":1,"device_sessions":1,"ttl_ms":60000,"auth":true}',) * 4,
    201: tuple(
        f'{{"seq":2,"out":{n + 3},"acked":{n + 2},"retried":{n},"dropped":1,"superseded":0,'
        f'"resumes":{n}}}'
        for n in range(4)
    ),
}


def via_of(kind: str) -> str:
    return "fcm" if kind == "bridged" else "webpush"


def path_of(planned: Planned) -> int:
    return 1 if planned.at_us >= 3_000_000_000 else 0


def attrs_of(k: int, variety: int) -> str | None:
    return ATTRS_OF[k][variety] if k in ATTRS_OF else None
