"""Cells as they are read, and mutations as they are written.

A cell's timestamp is the time when it ends, in the future. Bigtable's garbage collection, told to
collect what is older than a second, removes the cell when that time is over.
"""

from collections.abc import Mapping
from typing import Any, Final, NamedTuple, TypeAlias

from google.cloud.bigtable_v2 import types

Mutation: TypeAlias = Any  # a protobuf message, without the library's wrapper


def raw(wrapper: Any) -> Any:
    """The class of protobuf messages behind a wrapper class of the library."""
    return wrapper.pb()


_Mutation: Final = raw(types.Mutation)
_ALL_TIMES: Final = raw(types.TimestampRange)()
_DROP_ROW: Final = _Mutation(delete_from_row=_Mutation.DeleteFromRow())


class Cell(NamedTuple):
    value: bytes
    ends_at_ms: int


Cells = Mapping[tuple[str, bytes], Cell]  # (family, column) -> its newest cell


class Row(NamedTuple):
    key: bytes
    cells: Cells


def set_cell(family: str, column: bytes, value: bytes, ends_at_ms: int) -> Mutation:
    # Bigtable keeps microseconds and takes whole milliseconds only.
    cell = _Mutation.SetCell(
        family_name=family,
        column_qualifier=column,
        timestamp_micros=ends_at_ms * 1000,
        value=value,
    )
    return _Mutation(set_cell=cell)


def replace_cell(family: str, column: bytes, value: bytes, ends_at_ms: int) -> list[Mutation]:
    """Of two cells the one that ends later is the newer, so a new one that ends sooner would
    not be seen."""
    return [drop_column(family, column), set_cell(family, column, value, ends_at_ms)]


def drop_column(family: str, column: bytes) -> Mutation:
    dropped = _Mutation.DeleteFromColumn(
        family_name=family, column_qualifier=column, time_range=_ALL_TIMES
    )
    return _Mutation(delete_from_column=dropped)


def drop_row() -> Mutation:
    return _DROP_ROW
