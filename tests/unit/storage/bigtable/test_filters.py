"""Every condition on a row sees the newest cell of each column, and what has not ended."""

from typing import Any

import pytest
from google.protobuf.json_format import MessageToDict

from waystation.storage.bigtable import filters
from waystation.storage.bigtable.filters import RowFilter

NOW_MS = 1_731_650_000_123

PREDICATES = {
    "has": filters.has("f", b"c"),
    "has, alive": filters.has("f", b"c", now_ms=NOW_MS),
    "holds": filters.holds("f", b"c", b"v"),
    "holds, alive": filters.holds("f", b"c", b"v", now_ms=NOW_MS),
    "holds_until": filters.holds_until("f", b"c", b"v", NOW_MS),
}
READS = {
    "alive": filters.alive(NOW_MS, "f", "g"),
    "columns": filters.columns(NOW_MS, "f", b"c"),
    "kept": filters.kept("f", b"c"),
    "due": filters.due(NOW_MS, "f", b"p:", cells_max=9),
}


def chain(row_filter: RowFilter) -> list[dict[str, Any]]:
    found: dict[str, Any] = MessageToDict(row_filter, preserving_proto_field_name=True)
    return found["chain"]["filters"]


def bounds(row_filter: RowFilter) -> dict[str, int]:
    found: list[dict[str, Any]] = [
        part["timestamp_range_filter"] for part in chain(row_filter) if "timestamp" in str(part)
    ]
    return {name: int(micros) for name, micros in found[0].items()}  # JSON has them as texts


@pytest.mark.parametrize("name", [*PREDICATES, *READS])
def test_it_begins_with_one_cell_per_column(name: str) -> None:
    """First, or outdated cells match; not last either, since that counts what matched."""
    row_filter = (PREDICATES | READS)[name]
    limits = [n for n, part in enumerate(chain(row_filter)) if "per_column" in str(part)]

    assert limits == [0]
    assert chain(row_filter)[0] == {"cells_per_column_limit_filter": 1}


@pytest.mark.parametrize("name", ["has, alive", "holds, alive"])
def test_what_ends_now_has_ended(name: str) -> None:
    assert bounds(PREDICATES[name]) == {"start_timestamp_micros": (NOW_MS + 1) * 1000}
    assert bounds(READS["alive"]) == {"start_timestamp_micros": (NOW_MS + 1) * 1000}


def test_what_is_due_now_is_due() -> None:
    assert bounds(READS["due"]) == {"end_timestamp_micros": (NOW_MS + 1) * 1000}


def test_a_cell_is_told_by_its_end_to_the_millisecond() -> None:
    assert bounds(PREDICATES["holds_until"]) == {
        "start_timestamp_micros": NOW_MS * 1000,
        "end_timestamp_micros": (NOW_MS + 1) * 1000,
    }


def test_a_value_is_compared_as_bytes_never_as_a_pattern() -> None:
    """A row version is 16 random bytes, among them what a pattern takes for more."""
    parts = filters.holds("f", b"c", b".*").chain.filters
    (condition,) = (part for part in parts if part.HasField("value_range_filter"))

    assert condition.value_range_filter.start_value_closed == b".*"
    assert condition.value_range_filter.end_value_closed == b".*"
