"""The hook that `make hooks` installs accepts the form of CONTRIBUTING.md and nothing else."""

import subprocess
from pathlib import Path

import pytest

from tests.tidy.repository import ROOT

GOOD = "queue: reject small-order Ed448 keys\n\nThey verify any message.\n"


def verdict(tmp_path: Path, message: str) -> subprocess.CompletedProcess[str]:
    file = tmp_path / "COMMIT_EDITMSG"
    file.write_text(message)
    return subprocess.run(
        [ROOT / "tools" / "commit_message", file], capture_output=True, text=True, check=False
    )


@pytest.mark.parametrize(
    "message",
    [GOOD, f"{GOOD}\n# a comment of git\n", "Merge branch 'main'\n", "net/http1: x\n\nreason\n"],
    ids=["plain", "with comments", "merge", "component with a slash"],
)
def test_a_message_of_the_form_is_accepted(tmp_path: Path, message: str) -> None:
    done = verdict(tmp_path, message)

    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    "message,reason",
    [
        (f"queue: {'x' * 66}\n\nreason\n", "the limit is 72"),
        ("Reject small-order keys\n\nreason\n", "component"),
        ("queue: reject keys\nreason\n", "second line"),
        ("queue: reject keys\n", "body"),
    ],
    ids=["too long", "no component", "no blank line", "no body"],
)
def test_another_message_is_refused_with_the_reason(
    tmp_path: Path, message: str, reason: str
) -> None:
    done = verdict(tmp_path, message)

    assert done.returncode == 1
    assert reason in done.stderr
