"""Which files commits added and removed, as the log itself tells."""

import json
from collections.abc import Callable

import pytest

from waystation.pipeline.commit_log import (
    Added,
    CommitLog,
    DataFile,
    HistoryGoneError,
    Removed,
    commit_name,
)


def add(path: str, *, changes: bool = True, least: int | None = 1) -> dict[str, object]:
    stats: dict[str, object] = {"numRecords": 5}
    if least is not None:
        stats |= {"minValues": {"ts": least}, "maxValues": {"ts": least + 9}}
    action = {
        "path": path,
        "size": 10,
        "partitionValues": {"date": "2026-01-31"},
        "dataChange": changes,
        "stats": json.dumps(stats),
        "tags": None,
    }
    return {"add": action}


def remove(path: str) -> dict[str, object]:
    return {"remove": {"path": path, "deletionTimestamp": 77, "dataChange": False}}


def log_of(*commits: list[dict[str, object]]) -> Callable[[str], bytes | None]:
    files = {
        commit_name(version): "\n".join(map(json.dumps, actions)).encode()
        for version, actions in enumerate(commits)
    }
    return files.get


def test_commits_are_told_in_their_order() -> None:
    read = log_of(
        [{"protocol": {}}, {"metaData": {}}],
        [{"commitInfo": {"run": "1"}}, add("data/r%20one/a.parquet")],
        [remove("data/r%20one/a.parquet"), add("data/packed.parquet", changes=False, least=None)],
    )

    changes = list(CommitLog(read, "ts").between(0, 2))

    partition: dict[str, str | None] = {"date": "2026-01-31"}
    assert changes == [
        Added(1, DataFile("data/r one/a.parquet", 10, 5, partition, 1, 10), changes_data=True),
        Removed(2, "data/r one/a.parquet", 77),
        Added(2, DataFile("data/packed.parquet", 10, 5, partition), changes_data=False),
    ]


def test_only_the_commits_asked_for_are_read() -> None:
    read = log_of([], [add("a")], [add("b")], [add("c")])

    found = [one.file.path for one in CommitLog(read, "ts").between(1, 2) if isinstance(one, Added)]

    assert found == ["b"]


def test_a_commit_that_is_trimmed_is_told() -> None:
    with pytest.raises(HistoryGoneError, match="commit 1 is not in the log"):
        list(CommitLog(lambda _path: None, "ts").between(0, 3))


def test_a_file_knows_where_it_lies() -> None:
    file = DataFile("a", 1, 1, {"date": "2026-01-31", "hour": "5"})

    assert file.lies_in()
    assert file.lies_in(date={"2026-01-31", "2026-02-01"}, hour={"5"})
    assert not file.lies_in(date={"2026-01-31"}, hour={"6"})
    assert len({file, DataFile("a", 1, 1, {"date": None})}) == 2
