"""Reads the commits of a Delta table: which files each commit added or removed.

`DeltaTable` lists the files of a version, not the files that a commit *added*, which is what a
consumer needs. Compaction adds files too, flagged as no change of data; they are left out here.
"""

from collections.abc import Callable, Iterator
from urllib.parse import unquote

import msgspec

from waystation.base.errors import GoneError


class HistoryGoneError(GoneError):
    """Commits that a consumer has not read are trimmed; it starts again from the whole table."""

    label = "history_gone"


class DataFile(msgspec.Struct, frozen=True):
    """A Parquet file of a table; `path` is relative to the table's root."""

    path: str
    size_bytes: int
    rows: int
    partition: dict[str, str | None]
    least: int | str | None = None  # minimum of the table's statistics column
    greatest: int | str | None = None

    def __hash__(self) -> int:
        return hash(self.path)

    def lies_in(self, **values: set[str]) -> bool:
        """Whether its partition columns have one of these values each."""
        return all(self.partition.get(name) in wanted for name, wanted in values.items())


class _Add(msgspec.Struct, rename="camel"):
    path: str
    size: int
    data_change: bool
    partition_values: dict[str, str | None] = {}
    stats: str | None = None


class _Remove(msgspec.Struct, rename="camel"):
    path: str
    deletion_timestamp: int | None = None


class _Action(msgspec.Struct):
    add: _Add | None = None
    remove: _Remove | None = None


class _Stats(msgspec.Struct, rename="camel"):
    num_records: int = 0
    min_values: dict[str, int | float | str | bool | None] = {}
    max_values: dict[str, int | float | str | bool | None] = {}


class Added(msgspec.Struct, frozen=True):
    version: int
    file: DataFile
    changes_data: bool


class Removed(msgspec.Struct, frozen=True):
    version: int
    path: str
    at_ms: int


_action = msgspec.json.Decoder(_Action)
_stats = msgspec.json.Decoder(_Stats)


def commit_name(version: int) -> str:
    return f"_delta_log/{version:020d}.json"


class CommitLog:
    """Reads commits through `read`, which returns a file's bytes, or None if it does not exist."""

    def __init__(self, read: Callable[[str], bytes | None], stats_column: str) -> None:
        self._read = read
        self._column = stats_column

    def between(self, since: int, until: int) -> Iterator[Added | Removed]:
        """Files that the commits since+1 … until added and removed, in order."""
        for version in range(since + 1, until + 1):
            data = self._read(commit_name(version))
            if data is None:
                raise HistoryGoneError(f"commit {version} is not in the log any more")
            for line in data.splitlines():
                action = _action.decode(line)
                if action.add is not None:
                    yield Added(version, self._file(action.add), action.add.data_change)
                if action.remove is not None:
                    removed = action.remove
                    yield Removed(version, unquote(removed.path), removed.deletion_timestamp or 0)

    def _file(self, add: _Add) -> DataFile:
        stats = _stats.decode(add.stats) if add.stats else _Stats()
        least, greatest = (
            values.get(self._column) for values in (stats.min_values, stats.max_values)
        )
        return DataFile(
            path=unquote(add.path),
            size_bytes=add.size,
            rows=stats.num_records,
            partition=add.partition_values,
            least=least if isinstance(least, int | str) else None,
            greatest=greatest if isinstance(greatest, int | str) else None,
        )
