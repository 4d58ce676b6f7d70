"""Every test asserts something, and none is left for another day."""

import ast
import re
from pathlib import Path

from tests.tidy.repository import SRC, TESTS, listed, parsed, python_files, relative

SUITES = SRC / "testing"
# Put together, so that this file does not find itself.
LEFT_OPEN = re.compile(
    r"pytest\.(sk" + r"ip\b|mark\.(sk" + r"ip|xf" + r"ail))"
    r"|# *(TO" + r"DO|FIX" + r"ME|XX" + r"X)\b"
    r"|NotImpl" + r"ementedError"
)
RAISING = {"raises", "warns", "deprecated_call", "fail"}
CHECKING = ("assert_", "check_", "expect")


def _called_name(call: ast.Call) -> str:
    match call.func:
        case ast.Attribute(attr=name) | ast.Name(id=name):
            return name
        case _:
            return ""


def _asserts(function: ast.AST) -> bool:
    for node in ast.walk(function):
        if isinstance(node, ast.Assert):
            return True
        if isinstance(node, ast.Call):
            name = _called_name(node)
            if name in RAISING or name == "run_state_machine_as_test":
                return True
            if name.startswith(CHECKING) and name != "assert_never":
                return True
    return False


def _tests(path: Path) -> list[ast.FunctionDef | ast.AsyncFunctionDef]:
    return [
        node
        for node in ast.walk(parsed(path))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and node.name.startswith("test_")
    ]


def test_every_test_asserts_something() -> None:
    hollow = [
        f"{relative(path)}:{test.lineno} {test.name}"
        for path in python_files(TESTS, SUITES)
        for test in _tests(path)
        if not _asserts(test)
    ]

    assert not hollow, listed(
        "assert, pytest.raises, or call something named assert_…, check_… or expect…", hollow
    )


def test_the_check_for_hollow_tests_sees_them() -> None:
    hollow = ast.parse("def test_it_runs():\n    serve()\n    assert_never(1)\n")
    solid = ast.parse("async def test_it():\n    async with pytest.raises(OSError):\n        x()\n")

    assert not _asserts(hollow)
    assert _asserts(solid)


def test_nothing_is_left_for_another_day() -> None:
    found = [
        f"{relative(path)}:{number} {line.strip()}"
        for path in python_files(SRC, TESTS)
        # A shared suite leaves out what a backend's Capabilities say it cannot do.
        if not path.is_relative_to(SUITES / "conformance")
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if LEFT_OPEN.search(line)
    ]

    assert not found, listed("do it, or write down why it is not needed", found)
