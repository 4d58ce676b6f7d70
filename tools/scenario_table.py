"""Which tests cover which conformance scenario: writes docs/conformance/*.md.

A test covers a scenario when its number, `C-033`, stands in its docstring, in its class's
docstring, in a decorator (a parameter's id) or in its name (`test_c033_…`). The files are parsed,
not run. The page names files, not tests, so that it changes only when the coverage does.

The scenarios of push have titles (docs/conformance/scenarios.toml). Those of queue (`Q-017`) and
presence (`P-017`) are described by the names of their tests, which are sentences.

usage: tools/scenario_table.py
"""

import ast
import re
import sys
import tomllib
from collections import defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parent.parent
SCENARIOS = ROOT / "docs" / "conformance" / "scenarios.toml"
PAGE = ROOT / "docs" / "conformance" / "push.md"
# The suites that every backend inherits ship with the package; their tests count as well.
TEST_ROOTS = (ROOT / "tests", ROOT / "src" / "waystation" / "testing")

IN_TEXT = re.compile(r"\b[CPQ]-\d{3}[a-z]?\b")
IN_NAME = re.compile(r"(?:^|_)c_?(\d{3}[a-z]?)(?=_|$)")

HEAD = """\
# Conformance

What a Web Push service owes its user agents and app servers, scenario by scenario, and the files
whose tests show it. Written by `make docs` from [scenarios.toml](scenarios.toml) and from the
numbers in the tests; a test of the repository fails when this page is not current.
"""


class Service(NamedTuple):
    letter: str
    name: str
    last: int  # scenarios are numbered from 1
    page: Path


SERVICES = (
    Service("Q", "queue", 131, ROOT / "docs" / "conformance" / "queue.md"),
    Service("P", "presence", 138, ROOT / "docs" / "conformance" / "presence.md"),
)


class Scenario(NamedTuple):
    id: str
    title: str
    group: str
    later: str | None
    instead: str | None

    @property
    def wanted_now(self) -> bool:
        return self.later is None and self.instead is None


class Test(NamedTuple):
    path: Path
    name: str


def load_scenarios() -> list[Scenario]:
    groups: list[dict[str, Any]] = tomllib.loads(SCENARIOS.read_text())["group"]
    return [
        Scenario(
            id=row["id"],
            title=row["title"],
            group=group["name"],
            later=group.get("later"),
            instead=row.get("instead"),
        )
        for group in groups
        for row in group["scenarios"]
    ]


def _tests_in(body: list[ast.stmt], class_doc: str = "") -> Iterator[tuple[str, set[str]]]:
    for node in body:
        if isinstance(node, ast.ClassDef):
            yield from _tests_in(node.body, ast.get_docstring(node) or "")
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            if not node.name.startswith("test"):
                continue
            texts = [class_doc, ast.get_docstring(node) or ""]
            texts += [
                leaf.value
                for decorator in node.decorator_list
                for leaf in ast.walk(decorator)
                if isinstance(leaf, ast.Constant) and isinstance(leaf.value, str)
            ]
            numbers = {number for text in texts for number in IN_TEXT.findall(text)}
            numbers |= {f"C-{digits}" for digits in IN_NAME.findall(node.name)}
            yield node.name, numbers


def collect() -> dict[str, list[Test]]:
    """Scenario number -> the tests that name it."""
    covered: dict[str, list[Test]] = defaultdict(list)
    for root in TEST_ROOTS:
        for path in sorted(root.rglob("*.py")):
            if "node_modules" in path.parts:
                continue
            for name, numbers in _tests_in(ast.parse(path.read_text(), str(path)).body):
                for number in numbers:
                    covered[number].append(Test(path.relative_to(ROOT), name))
    return covered


def render(scenarios: list[Scenario], covered: Mapping[str, list[Test]]) -> str:
    wanted = [scenario for scenario in scenarios if scenario.wanted_now]
    shown = sum(scenario.id in covered for scenario in wanted)
    lines = [HEAD, f"{shown} of {len(wanted)} scenarios are shown by tests."]
    group = None
    for scenario in scenarios:
        if scenario.group != group:
            group = scenario.group
            lines += ["", f"## {group}", ""]
            if scenario.later:
                lines += [f"These come with later work ({scenario.later}).", ""]
            lines += ["| scenario | what | shown by |", "|---|---|---|"]
        paths = sorted({test.path.as_posix() for test in covered.get(scenario.id, ())})
        shown_by = ", ".join(f"[{path.removeprefix('tests/')}](../../{path})" for path in paths)
        if scenario.instead:
            shown_by = f"not ours: see {scenario.instead}"
        lines.append(f"| {scenario.id} | {scenario.title} | {shown_by} |")
    return "\n".join(lines) + "\n"


def render_service(service: Service, covered: Mapping[str, list[Test]]) -> str:
    numbers = [f"{service.letter}-{number:03}" for number in range(1, service.last + 1)]
    missing = [number for number in numbers if number not in covered]
    lines = [
        f"# Conformance of {service.name}",
        "",
        "Each numbered scenario of the specification, and the tests that show it: their names are"
        " sentences. Written by `make docs`; a test of the repository fails when this page is not"
        " current.",
        "",
        f"{len(numbers) - len(missing)} of {len(numbers)} scenarios are shown by tests.",
    ]
    if missing:
        lines += ["", f"Without a test: {', '.join(missing)}."]
    lines += ["", "| scenario | what is shown | where |", "|---|---|---|"]
    for number in numbers:
        tests = covered.get(number, [])
        names = "; ".join(dict.fromkeys(_sentence(test.name) for test in tests))
        paths = sorted({test.path.as_posix() for test in tests})
        where = ", ".join(f"[{path.removeprefix('tests/')}](../../{path})" for path in paths)
        lines.append(f"| {number} | {names} | {where} |")
    return "\n".join(lines) + "\n"


def _sentence(name: str) -> str:
    return name.removeprefix("test_").replace("_", " ")


def main() -> int:
    scenarios, covered = load_scenarios(), collect()
    for service in SERVICES:
        service.page.write_text(render_service(service, covered))
        print(f"{service.page.relative_to(ROOT)} is written")
    PAGE.write_text(render(scenarios, covered))
    missing = [s.id for s in scenarios if s.wanted_now and s.id not in covered]
    print(f"{PAGE.relative_to(ROOT)} is written; {len(missing)} scenarios have no test yet")
    return 0


if __name__ == "__main__":
    sys.exit(main())
