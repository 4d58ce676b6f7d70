"""The commands of the Makefile and of CI are there and explained."""

import os
import re
import subprocess

from tests.tidy.repository import ROOT, files, listed, relative

MAKEFILE = (ROOT / "Makefile").read_text()
PROMISED = {
    "run",
    "test",
    "check",
    "release-test",
    "lint",
    "bench",
    "soak",
    "docs",
    "lock",
    "clean",
}
FRAGMENT = re.compile(r"^[\w-]+\.(added|changed|deprecated|removed|fixed|security)\.md$")


def _phony() -> set[str]:
    found = re.search(r"^\.PHONY: (.*)$", MAKEFILE, re.MULTILINE)
    assert found
    return set(found[1].split())


def test_make_help_explains_every_target() -> None:
    shown = subprocess.run(
        ["make", "--no-print-directory", "help"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    explained = set(re.findall(r"^  make ([\w-]+) +\S", shown, re.MULTILINE))

    assert explained == _phony()
    assert explained >= PROMISED


def test_ci_runs_what_people_run() -> None:
    script = ROOT / ".ci" / "run"

    assert os.access(script, os.X_OK)
    assert "exec make test" in script.read_text()


def test_every_fragment_of_the_changelog_is_named_after_its_kind() -> None:
    fragments = [path for path in files(ROOT / "changes") if path.name != "README.md"]
    odd = [relative(path) for path in fragments if not FRAGMENT.match(path.name)]

    assert not odd, listed("see changes/README.md", odd)
