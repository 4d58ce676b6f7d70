"""The repository speaks of the project alone, and works on any machine."""

import re

from tests.tidy.repository import ROOT, listed, relative, text_files

# Put together, so that this file does not find itself.
FOREIGN = re.compile(
    r"\b(sub" + r"agent|this ses" + r"sion|cl" + r"aude|language mo" + r"del|steering re" + r"po)\b"
    r"|/wo" + r"rk/(main|shared)|/ro" + r"ot/|/tmp/br" + r"ief"
    r"|\b(pypi\.o" + r"rg|files\.pythonho" + r"sted|registry\.npm" + r"js)",
    re.IGNORECASE,
)


def test_no_line_speaks_of_anything_but_the_project() -> None:
    found = [
        f"{relative(path)}:{number} {line.strip()[:120]}"
        for path in text_files()
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
        if FOREIGN.search(line)
    ]

    assert not found, listed("no workplace, no paths of one machine, no registry hosts", found)


def test_the_files_that_are_looked_at_include_the_ones_people_read() -> None:
    """Guards the walk itself: a filter that grew too wide would make the test above say nothing."""
    seen = {relative(path) for path in text_files()}

    assert {"README.md", "Makefile", ".ci/run", "pyproject.toml", "LICENSE"} <= seen
    assert "src/waystation/__init__.py" in seen
    assert not any(name.startswith((".venv/", ".git/")) for name in seen)
    assert (ROOT / "pyproject.toml").is_file()
