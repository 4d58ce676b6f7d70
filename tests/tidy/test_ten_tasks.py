"""CONTRIBUTING.md names where ten tasks begin, and these places exist."""

import re

import pytest

from tests.tidy.repository import ROOT, SRC
from tests.tidy.test_walks import names_in

ROW = re.compile(
    r"^\| (?P<task>.+?) \| `(?P<file>[a-z0-9_/]+\.py)` \| `(?P<name>[\w.]+)` \|$", re.MULTILINE
)
TASKS = [found.groupdict() for found in ROW.finditer((ROOT / "CONTRIBUTING.md").read_text())]


def test_there_are_ten_tasks() -> None:
    assert len(TASKS) == 10


@pytest.mark.parametrize("task", TASKS, ids=lambda task: task["file"])
def test_the_place_where_a_task_begins_exists(task: dict[str, str]) -> None:
    path = SRC / task["file"]

    assert path.is_file(), task["task"]
    assert task["name"] in names_in(path), task["task"]
