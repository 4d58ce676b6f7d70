"""The rows of `traffic`, computed by column: events of a slice of messages as Arrow batches.

Rule 1: kinds of messages repeat every BLOCK messages, so an event is a message and an entry of the
        plan. Values that depend on the entry alone are looked up; others are drawn per column.
Rule 2: events of one code have the same columns, so each code has its own batches. Other columns
        are runs of nulls, which cost almost nothing, also in Parquet.
Rule 3: rows are in the order of the table: by hour, code, `mid` and `ts`. Messages are sorted once,
        instead of all their events.
"""

from collections.abc import Callable, Iterator
from functools import cached_property
from importlib import import_module
from typing import Any, cast

import msgspec

from waystation.pipeline.schema import EVENTS
from waystation.pipeline.seeded_random import Draws, remainder
from waystation.pipeline.traffic import (
    ATTRS_OF,
    BLOCK,
    CODES_OF,
    COLUMNS_OF,
    ERRNO,
    KEPT,
    KEPT_TTL_S,
    LATE_US,
    TTLS,
    Planned,
    Traffic,
    path_of,
    via_of,
)

_arrow: Any = import_module("pyarrow")
_compute: Any = import_module("pyarrow.compute")
_spark_types: Any = import_module("pyspark.sql.pandas.types")  # only its name mentions pandas

HOUR_US = 3_600_000_000
WORDS = ("node", "peer", "via", "attrs")  # few distinct values: kept as dictionaries
_LONG: Any = _arrow.int64()
_HEX_DIGITS = 4
_RANDOM_BITS = 40  # of each of the two draws at the end of a mid


class Plan:
    """The plan of a block as columns: place -> entries, and the values of an entry."""

    def __init__(self, traffic: Traffic) -> None:
        plan = traffic.plan
        self.codes = sorted({one.k for one in plan})
        self.places = {k: _layers(plan, k) for k in self.codes}
        self.number, self.at_us, self.spread_us, self.shift_us, self.offset, self.per_block = (
            _arrow.array([getattr(one, name) for one in plan], _LONG)
            for name in ("number", "at_us", "spread_us", "shift_us", "offset", "per_block")
        )
        kinds = [traffic.kind_of(one.place).name for one in plan]
        self.kept_ttl = _arrow.array([KEPT_TTL_S if kind in KEPT else None for kind in kinds])
        self.path = _arrow.array([path_of(one) for one in plan])
        self.code = _arrow.array([CODES_OF.get(one.k, 0) for one in plan])
        self.words = {
            "node": _arrow.array([one.node for one in plan]).dictionary_encode(),
            "peer": _arrow.array([one.peer for one in plan]).dictionary_encode(),
            "via": _arrow.array([via_of(kind) for kind in kinds]).dictionary_encode(),
        }
        texts = [text for varieties in ATTRS_OF.values() for text in varieties]
        self.attrs = _arrow.array(texts)
        self.attrs_at = {k: at * len(ATTRS_OF[k]) for at, k in enumerate(ATTRS_OF)}
        late = [LATE_US if traffic.is_irregular("late", place) else 0 for place in range(BLOCK)]
        self.late_us = _arrow.array(late, _LONG)

    def dictionary(self, name: str) -> Any:
        return self.attrs if name == "attrs" else self.words[name].dictionary


def _layers(plan: list[Planned], k: int) -> list[Any]:
    """Place -> its entry of a code; a further column for each further entry of a place."""
    layers: list[list[int | None]] = []
    for entry, one in enumerate(plan):
        if one.k != k:
            continue
        free = next((layer for layer in layers if layer[one.place] is None), None)
        if free is None:
            free = cast(list[int | None], [None] * BLOCK)
            layers.append(free)
        free[one.place] = entry
    return [_arrow.array(layer, _arrow.int32()) for layer in layers]


class Happened(msgspec.Struct, frozen=True):
    """Events of one code, in the order of the table."""

    k: int
    position: Any  # of the message in the slice
    entry: Any  # of the plan
    after_us: Any  # since the message was received
    ts: Any
    hour: Any


class Slice:
    """The messages first … end-1; any slice can be computed alone."""

    def __init__(self, traffic: Traffic, plan: Plan, first: int, end: int, in_us: int = 0) -> None:
        self._traffic = traffic
        self._plan = plan
        self._in_us = in_us
        message = _numbers(first, end - first)
        draws = Draws(traffic.seed, message)
        place = remainder(message, BLOCK)
        since = _compute.add(
            _compute.multiply(message, traffic.spacing_us), draws.below(100, traffic.spacing_us)
        )
        began = _compute.add(_compute.subtract(since, plan.late_us.take(place)), traffic.start_us)
        second = _compute.divide(began, 1_000_000)
        drawn = [draws.below(number, 1 << _RANDOM_BITS) for number in (103, 104)]
        order = _sorted(second, *drawn)  # the order of their mids
        self._message = message.take(order)
        self._place = place.take(order)
        self._began = began.take(order)
        self._draws = draws.of(order)
        self._mid = _mids(second.take(order), *(one.take(order) for one in drawn))

    @cached_property
    def _client(self) -> Any:
        return self._draws.below(101, self._traffic.client_count)

    @cached_property
    def _client_draws(self) -> Draws:
        return Draws(self._traffic.seed, self._client)

    @cached_property
    def _uah(self) -> Any:
        return self._client_draws.ids(201)

    def batches(self) -> Iterator[tuple[Any, Any]]:
        """(batch of one code, hours of its rows), ordered by code."""
        for k in self._plan.codes:
            happened = self._happened(k)
            if happened is not None:
                yield self._batch(happened), happened.hour

    def by_hour(self) -> dict[int, Any]:
        """Hour since the epoch -> its events."""
        pieces: dict[int, list[Any]] = {}
        for batch, hours in self.batches():
            at = 0
            for run in _compute.value_counts(hours).to_pylist():  # in the order of the rows
                pieces.setdefault(run["values"], []).append(batch.slice(at, run["counts"]))
                at += run["counts"]
        return {hour: _arrow.Table.from_batches(pieces[hour]) for hour in sorted(pieces)}

    def _happened(self, k: int) -> Happened | None:
        plan = self._plan
        found = [layer.take(self._place) for layer in plan.places[k]]
        numbers = _numbers(0, len(self._place))
        position = _joined([numbers.filter(one.is_valid()) for one in found])
        if not len(position):
            return None
        entry = _joined([one.drop_null() for one in found])
        draws = self._draws.of(position)
        drawn = draws.below(plan.number.take(entry), plan.spread_us.take(entry))
        after_us = _compute.add(plan.at_us.take(entry), drawn)
        ts = _compute.add(self._began.take(position), after_us)
        ts = _compute.add(ts, plan.shift_us.take(entry))
        hour = _compute.divide(ts, HOUR_US)
        by = [position] if "mid" in COLUMNS_OF[k] else []
        # With one entry per message, rows are in mid order already, and sorting by hour is stable.
        order = _sorted(hour) if by and len(found) == 1 else _sorted(hour, *by, ts)
        return Happened(k, *(one.take(order) for one in (position, entry, after_us, ts, hour)))

    def _batch(self, happened: Happened) -> Any:
        values = self._values(happened)
        wanted = {"v", "ts", "node", "boot", "seq", "k", "_in", *COLUMNS_OF[happened.k]}
        count = len(happened.ts)
        made = [
            values[field.name]().cast(field.type) if field.name in wanted
            else _nulls(field.type, count, self._plan.dictionary(field.name))
            if field.name in WORDS
            else _arrow.nulls(count, field.type)
            for field in SCHEMA
        ]  # fmt: skip
        return _arrow.RecordBatch.from_arrays(made, schema=SCHEMA)

    def _values(self, happened: Happened) -> dict[str, Callable[[], Any]]:
        """A function per column that the code has."""
        traffic, plan = self._traffic, self._plan
        position, entry = happened.position, happened.entry
        count = len(position)
        draws = self._draws.of(position)

        def client() -> Any:
            return self._client.take(position)

        def app() -> Any:
            return draws.below(102, traffic.apps)

        def ids(of: Any, number: int) -> Any:
            return Draws(traffic.seed, of).ids(number)

        def channel() -> Any:
            return _compute.add(_compute.multiply(client(), traffic.apps), app())

        def slot() -> Any:
            share = draws.below(105, traffic.slots)
            return _compute.divide(_compute.multiply(share, share), traffic.slots)

        def ttl() -> Any:
            drawn = _arrow.array(TTLS).take(draws.below(109, len(TTLS)))
            return _compute.coalesce(plan.kept_ttl.take(entry), drawn)

        def attrs() -> Any:
            variety = _compute.add(draws.below(111, 4), plan.attrs_at[happened.k])
            return _arrow.DictionaryArray.from_arrays(variety.cast(_arrow.int32()), plan.attrs)

        block = _compute.divide(self._message.take(position), BLOCK)
        life = _compute.divide(block, traffic.blocks_a_life)
        lived = _compute.subtract(block, _compute.multiply(life, traffic.blocks_a_life))

        def seq() -> Any:
            before = _compute.multiply(lived, plan.per_block.take(entry))
            return _compute.add(before, plan.offset.take(entry))

        parties = traffic.messages // 200 + 1
        return {
            "v": lambda: _same(1, count),
            "ts": lambda: happened.ts,
            "node": lambda: plan.words["node"].take(entry),
            "boot": lambda: _compute.add(
                _compute.multiply(life, traffic.life_us), traffic.start_us
            ),
            "seq": seq,
            "k": lambda: _same(happened.k, count),
            "mid": lambda: self._mid.take(position),
            "uah": lambda: self._uah.take(position),
            "chh": lambda: ids(channel(), 202),
            "app": lambda: ids(app(), 203),
            "cid": lambda: self._message.take(position),
            "via": lambda: plan.words["via"].take(entry),
            "path": lambda: plan.path.take(entry),
            "slot": slot,
            "party": lambda: ids(draws.below(106, parties), 204),
            "cli": lambda: self._client_draws.of(position).ids(205),
            "sess": lambda: draws.ids(107),
            "peer": lambda: plan.words["peer"].take(entry),
            "iph": lambda: ids(remainder(client(), 251), 206),
            "code": lambda: plan.code.take(entry),
            "errno": lambda: _same(ERRNO, count),
            "size": lambda: _compute.add(draws.below(108, 3994), 1),
            "ttl": ttl,
            "dur": lambda: happened.after_us,
            "n": lambda: _same(1, count),
            "flag": lambda: _compute.equal(draws.below(110, 4), 0),
            "attrs": attrs,
            "_in": lambda: _same(self._in_us, count),
        }


def _schema() -> Any:
    words = _arrow.dictionary(_arrow.int32(), _arrow.string())
    return _arrow.schema(
        [
            _arrow.field(field.name, words if field.name in WORDS else field.type)
            for field in _spark_types.to_arrow_schema(EVENTS.data)
        ]
    )


SCHEMA: Any = _schema()


def _numbers(first: int, count: int) -> Any:
    return _compute.cumulative_sum(_same(1, count), start=first - 1)


def _same(value: int, count: int) -> Any:
    return _arrow.repeat(_arrow.scalar(value, _LONG), count)


def _nulls(kind: Any, count: int, dictionary: Any) -> Any:
    return _arrow.DictionaryArray.from_arrays(_arrow.nulls(count, kind.index_type), dictionary)


def _joined(parts: list[Any]) -> Any:
    return parts[0] if len(parts) == 1 else _arrow.concat_arrays(parts)


def _sorted(*keys: Any) -> Any:
    """Positions sorted by the first key, then the second …; stable."""
    if len(keys) == 1:
        return _compute.sort_indices(keys[0])
    names = [str(number) for number in range(len(keys))]
    table = _arrow.RecordBatch.from_arrays(list(keys), names=names)
    return _compute.sort_indices(table, sort_keys=[(name, "ascending") for name in names])


def _mids(second: Any, upper: Any, lower: Any) -> Any:
    """48 bits of time and twice 40 random bits, as hex digits."""
    seconds = _compute.dictionary_encode(second)
    texts = _arrow.array([f"{at * 1000:012x}" for at in seconds.dictionary.to_pylist()])
    middle = _compute.bit_wise_or(
        _compute.shift_left(_compute.bit_wise_and(upper, 0xFF), 8),
        _compute.shift_right(lower, 32),
    )
    words = (
        _compute.shift_right(upper, 24),
        _compute.bit_wise_and(_compute.shift_right(upper, 8), 0xFFFF),
        middle,
        _compute.bit_wise_and(_compute.shift_right(lower, 16), 0xFFFF),
        _compute.bit_wise_and(lower, 0xFFFF),
    )
    hexed = _arrow.array([f"{word:04x}" for word in range(1 << 4 * _HEX_DIGITS)])
    parts = [hexed.take(word) for word in words]
    return _compute.binary_join_element_wise(texts.take(seconds.indices), *parts, "")
