"""Conditions on rows, as Bigtable's filters.

Every filter begins with one cell per column: older cells stay until they are collected, and a
predicate that sees them matches what is not so any more. A limit at the end of a chain is wrong
too, since it counts what the conditions before it have let through.

A cell's timestamp is the time when it ends, so what is alive is a range of timestamps.
"""

from datetime import UTC, datetime, timedelta

from google.cloud.bigtable.data.row_filters import (
    BlockAllFilter,
    CellsColumnLimitFilter,
    CellsRowLimitFilter,
    ColumnQualifierRegexFilter,
    ColumnRangeFilter,
    ConditionalRowFilter,
    FamilyNameRegexFilter,
    RowFilter,
    RowFilterChain,
    RowFilterUnion,
    RowKeyRegexFilter,
    StripValueTransformerFilter,
    TimestampRangeFilter,
    ValueRangeFilter,
)

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_NEWEST = CellsColumnLimitFilter(1)

NOTHING = BlockAllFilter(True)


def _at(time_ms: int) -> datetime:
    return _EPOCH + timedelta(milliseconds=time_ms)


def _chain(*filters: RowFilter) -> RowFilter:
    return RowFilterChain([_NEWEST, *filters])


def _alive(now_ms: int) -> RowFilter:
    return TimestampRangeFilter(start=_at(now_ms + 1))  # what ends now has ended


def alive(now_ms: int, *families: str) -> RowFilter:
    """All columns of these families that have not ended."""
    return _chain(FamilyNameRegexFilter("|".join(families)), _alive(now_ms))


def columns(now_ms: int, family: str, pattern: bytes) -> RowFilter:
    """Columns of one family whose whole name matches."""
    return _chain(
        FamilyNameRegexFilter(family), ColumnQualifierRegexFilter(pattern), _alive(now_ms)
    )


def kept(family: str, pattern: bytes) -> RowFilter:
    """The same, for what has no end of its own."""
    return _chain(FamilyNameRegexFilter(family), ColumnQualifierRegexFilter(pattern))


def of_families(*families: str) -> RowFilter:
    """All columns of these families, ended ones too."""
    return _chain(FamilyNameRegexFilter("|".join(families)))


def where(condition: RowFilter, wanted: RowFilter) -> RowFilter:
    """What is wanted of a row, if it has a cell that meets the condition."""
    return ConditionalRowFilter(condition, wanted)


def between(family: str, column: bytes, least: bytes, greatest: bytes) -> RowFilter:
    return _chain(ColumnRangeFilter(family, column, column), ValueRangeFilter(least, greatest))


def due(now_ms: int, family: str, prefix: bytes, *, cells_max: int) -> RowFilter:
    """At most so many columns of each row, of those with this prefix, whose time has come."""
    end = prefix[:-1] + bytes([prefix[-1] + 1])
    return _chain(
        ColumnRangeFilter(family, prefix, end, inclusive_end=False),
        TimestampRangeFilter(end=_at(now_ms + 1)),
        CellsRowLimitFilter(cells_max),
    )


def either(*alternatives: RowFilter) -> RowFilter:
    """The cells that any of them lets through; none through two of them."""
    return RowFilterUnion(list(alternatives))


def keys_only(*families: str) -> RowFilter:
    """A cell for each row that there is, without its value; ended ones too."""
    return RowFilterChain(
        [
            FamilyNameRegexFilter("|".join(families)),
            CellsRowLimitFilter(1),
            StripValueTransformerFilter(True),
        ]
    )


def keys_matching(pattern: bytes, *families: str) -> RowFilter:
    return RowFilterChain([RowKeyRegexFilter(pattern), keys_only(*families)])


# Predicates: does the row have such a cell?


def has(family: str, column: bytes, *, now_ms: int | None = None) -> RowFilter:
    found = ColumnRangeFilter(family, column, column)
    return _chain(found) if now_ms is None else _chain(found, _alive(now_ms))


def holds(family: str, column: bytes, value: bytes, *, now_ms: int | None = None) -> RowFilter:
    """`value` exactly."""
    conditions = [ColumnRangeFilter(family, column, column), ValueRangeFilter(value, value)]
    return _chain(*conditions, *([] if now_ms is None else [_alive(now_ms)]))


def holds_until(family: str, column: bytes, value: bytes, ends_at_ms: int) -> RowFilter:
    """That very cell: with this value and this end."""
    return _chain(
        ColumnRangeFilter(family, column, column),
        ValueRangeFilter(value, value),
        TimestampRangeFilter(start=_at(ends_at_ms), end=_at(ends_at_ms + 1)),
    )
