"""How commands speak: to people, to programs, and to nobody."""

import subprocess
import sys
from pathlib import Path

import pytest

from waystation.cli import terminal


def test_a_terminal_is_not_given_orders_by_those_who_write(monkeypatch: pytest.MonkeyPatch) -> None:
    text = "two\nlines\tand \x1b]0;a title\x07 \x9b2J\x7f grüße"

    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    assert terminal.harmless(text) == ("two\nlines\tand \\x1b]0;a title\\x07 \\x9b2J\\x7f grüße")
    monkeypatch.setattr("sys.stdout.isatty", lambda: False)
    assert terminal.harmless(text) == text


@pytest.mark.parametrize("how, code", [("say", 0), ("pass_on", 1)])
def test_facts_are_told_to_nobody_but_what_is_passed_on_needs_a_reader(how: str, code: int) -> None:
    lines = f"from waystation.cli.terminal import {how}\nfor _ in range(3): {how}('x')"
    with subprocess.Popen(
        [sys.executable, "-c", lines], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as child:
        assert child.stdout is not None
        assert child.stderr is not None
        child.stdout.close()

        assert child.stderr.read() == b""
        assert child.wait(20) == code


def test_a_file_that_is_no_certificate_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    no_certificate = tmp_path / "ca.pem"
    no_certificate.write_text("nonsense")
    for path in (no_certificate, tmp_path / "missing.pem"):
        with pytest.raises(SystemExit):
            terminal.trusting(path)
        assert f"--ca: {path} holds no certificate" in capsys.readouterr().err

    assert terminal.trusting(None) is None
