"""Cells as we read and write them.

A cell's timestamp is the time when it ends, in the future; Bigtable's garbage collection, told to
collect what is older than a second, thus takes it when it is over.
"""

from collections.abc import Mapping
from typing import NamedTuple

from google.cloud.bigtable.data import DeleteAllFromRow, DeleteRangeFromColumn, SetCell
from google.cloud.bigtable.data.mutations import Mutation


class Cell(NamedTuple):
    value: bytes
    ends_at_ms: int


Cells = Mapping[tuple[str, bytes], Cell]  # (family, column) -> its newest cell


class Row(NamedTuple):
    key: bytes
    cells: Cells


def set_cell(family: str, column: bytes, value: bytes, ends_at_ms: int) -> Mutation:
    # Bigtable keeps microseconds and takes whole milliseconds only.
    return SetCell(family, column, value, ends_at_ms * 1000)


def replace_cell(family: str, column: bytes, value: bytes, ends_at_ms: int) -> list[Mutation]:
    """Of two cells the one that ends later is the newer, so a new one that ends sooner would
    not be seen."""
    return [drop_column(family, column), set_cell(family, column, value, ends_at_ms)]


def drop_column(family: str, column: bytes) -> Mutation:
    return DeleteRangeFromColumn(family, column)


def drop_row() -> Mutation:
    return DeleteAllFromRow()
