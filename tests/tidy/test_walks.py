"""The walks of docs/architecture.md name files and functions that exist."""

import ast
import re
from pathlib import Path

import pytest

from tests.tidy.repository import ROOT, SRC

PAGE = ROOT / "docs" / "architecture.md"
WALKS = ("POST", "EVENT", "SEND", "JOIN")
HOPS_MAX = 15
HOP = re.compile(r"^\d+\. `(?P<file>[a-z0-9_/]+\.py)` `(?P<name>[A-Za-z0-9_.]+)`: \S")


def hops_of(walk: str) -> list[str]:
    """The numbered lines below the walk's heading."""
    text = PAGE.read_text()
    found = re.search(rf"^### {walk}\b.*?\n(.*?)(?=^##)", text + "\n##", re.MULTILINE | re.DOTALL)
    assert found is not None, f"docs/architecture.md has no walk {walk}"
    return [line for line in found[1].splitlines() if re.match(r"\d+\. ", line)]


def names_in(path: Path) -> set[str]:
    """Functions and classes of a module, methods as `Class.method`."""
    found: set[str] = set()

    def look(body: list[ast.stmt], prefix: str) -> None:
        for node in body:
            if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                found.add(prefix + node.name)
                if isinstance(node, ast.ClassDef):
                    look(node.body, f"{prefix}{node.name}.")

    look(ast.parse(path.read_text()).body, "")
    return found


@pytest.mark.parametrize("walk", WALKS)
def test_a_walk_has_at_most_fifteen_hops_and_each_exists(walk: str) -> None:
    hops = hops_of(walk)

    assert 3 <= len(hops) <= HOPS_MAX
    for line in hops:
        hop = HOP.match(line)
        assert hop is not None, f"not `file` `function`: what it does: {line}"
        path = SRC / hop["file"]
        assert path.is_file(), line
        assert hop["name"] in names_in(path), line
