"""Conditions on rows, as Bigtable's filters.

Every filter begins with one cell per column: older cells stay until they are collected, and a
predicate that sees them matches what is not so any more. A limit at the end of a chain is wrong
too, since it counts what the conditions before it have let through.

A cell's timestamp is the time when it ends, so what is alive is a range of timestamps.
"""

from typing import Any, Final, TypeAlias

from google.cloud.bigtable_v2 import types

from waystation.storage.bigtable.cells import raw

RowFilter: TypeAlias = Any  # a protobuf message, without the library's wrapper

_Filter: Final = raw(types.RowFilter)
_ColumnRange: Final = raw(types.ColumnRange)
_TimestampRange: Final = raw(types.TimestampRange)
_ValueRange: Final = raw(types.ValueRange)
_NEWEST: Final = _Filter(cells_per_column_limit_filter=1)

NOTHING: Final[RowFilter] = _Filter(block_all_filter=True)


def _chain(*filters: RowFilter) -> RowFilter:
    return _Filter(chain=_Filter.Chain(filters=[_NEWEST, *filters]))


def _families(*names: str) -> RowFilter:
    return _Filter(family_name_regex_filter="|".join(names))


def _column(family: str, name: bytes) -> RowFilter:
    return _Filter(
        column_range_filter=_ColumnRange(
            family_name=family, start_qualifier_closed=name, end_qualifier_closed=name
        )
    )


def _values(least: bytes, greatest: bytes) -> RowFilter:
    return _Filter(
        value_range_filter=_ValueRange(start_value_closed=least, end_value_closed=greatest)
    )


def _ends(*, from_ms: int = 0, before_ms: int = 0) -> RowFilter:
    """Cells that end in this range of milliseconds; 0: no bound."""
    return _Filter(
        timestamp_range_filter=_TimestampRange(
            start_timestamp_micros=from_ms * 1000, end_timestamp_micros=before_ms * 1000
        )
    )


def _alive(now_ms: int) -> RowFilter:
    return _ends(from_ms=now_ms + 1)  # what ends now has ended


def alive(now_ms: int, *families: str) -> RowFilter:
    """All columns of these families that have not ended."""
    return _chain(_families(*families), _alive(now_ms))


def columns(now_ms: int, family: str, pattern: bytes) -> RowFilter:
    """Columns of one family whose whole name matches."""
    return _chain(_families(family), _Filter(column_qualifier_regex_filter=pattern), _alive(now_ms))


def kept(family: str, pattern: bytes) -> RowFilter:
    """The same, for what has no end of its own."""
    return _chain(_families(family), _Filter(column_qualifier_regex_filter=pattern))


def of_families(*families: str) -> RowFilter:
    """All columns of these families, ended ones too."""
    return _chain(_families(*families))


def where(condition: RowFilter, wanted: RowFilter) -> RowFilter:
    """What is wanted of a row, if it has a cell that meets the condition."""
    return _Filter(condition=_Filter.Condition(predicate_filter=condition, true_filter=wanted))


def between(family: str, column: bytes, least: bytes, greatest: bytes) -> RowFilter:
    return _chain(_column(family, column), _values(least, greatest))


def due(now_ms: int, family: str, prefix: bytes, *, cells_max: int) -> RowFilter:
    """At most so many columns of each row, of those with this prefix, whose time has come."""
    end = prefix[:-1] + bytes([prefix[-1] + 1])
    return _chain(
        _Filter(
            column_range_filter=_ColumnRange(
                family_name=family, start_qualifier_closed=prefix, end_qualifier_open=end
            )
        ),
        _ends(before_ms=now_ms + 1),
        _Filter(cells_per_row_limit_filter=cells_max),
    )


def either(*alternatives: RowFilter) -> RowFilter:
    """The cells that any of them lets through; none through two of them."""
    return _Filter(interleave=_Filter.Interleave(filters=alternatives))


def keys_only(*families: str) -> RowFilter:
    """A cell for each row that there is, without its value; ended ones too."""
    return _Filter(
        chain=_Filter.Chain(
            filters=[
                _families(*families),
                _Filter(cells_per_row_limit_filter=1),
                _Filter(strip_value_transformer=True),
            ]
        )
    )


def keys_matching(pattern: bytes, *families: str) -> RowFilter:
    return _Filter(
        chain=_Filter.Chain(filters=[_Filter(row_key_regex_filter=pattern), keys_only(*families)])
    )


# Predicates: does the row have such a cell?


def has(family: str, column: bytes, *, now_ms: int | None = None) -> RowFilter:
    found = _column(family, column)
    return _chain(found) if now_ms is None else _chain(found, _alive(now_ms))


def holds(family: str, column: bytes, value: bytes, *, now_ms: int | None = None) -> RowFilter:
    """`value` exactly."""
    conditions = [_column(family, column), _values(value, value)]
    return _chain(*conditions, *([] if now_ms is None else [_alive(now_ms)]))


def holds_until(family: str, column: bytes, value: bytes, ends_at_ms: int) -> RowFilter:
    """That very cell: with this value and this end."""
    return _chain(
        _column(family, column),
        _values(value, value),
        _ends(from_ms=ends_at_ms, before_ms=ends_at_ms + 1),
    )
