"""Another checkout of this repository with an environment of its own, whose servers are measured.

The load always comes from the current tree; of the other one only the servers are started.
"""

import contextlib
import os
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import msgspec

from .load import ROOT
from .wire import LoadError


class Checkout(msgspec.Struct, frozen=True):
    name: str  # its commit
    root: Path
    python: str

    @property
    def command(self) -> Sequence[str]:
        return (self.python, "-m", "waystation.cli.main")

    def known(self, settings: Mapping[str, str]) -> dict[str, str]:
        """Those that it has: a server does not start with a setting that it does not know."""
        told = tomllib.loads(_run(*self.command, "config", "show"))
        found: dict[str, str] = {}
        for name, value in settings.items():
            section, _, key = name.lower().rpartition("__")
            if key in (told.get(section, {}) if section else told):
                found[name] = value
        return found


def current() -> Checkout:
    return Checkout(f"{_commit(ROOT)} (current)", ROOT, sys.executable)


@contextlib.contextmanager
def checkout(name: str) -> Iterator[Checkout]:
    """`name`: a folder that has its environment, or a commit, which is checked out for as long as
    it is measured."""
    folder = Path(name)
    if (folder / "src" / "waystation").is_dir():
        yield _checkout_at(folder.resolve())
        return
    with tempfile.TemporaryDirectory(prefix="waystation-bench-") as where:
        tree = Path(where) / "checkout"
        _run("git", "worktree", "add", "--detach", str(tree), name)
        try:
            _run("make", "-C", str(tree), ".venv/base.stamp")
            yield _checkout_at(tree)
        finally:
            _run("git", "worktree", "remove", "--force", str(tree))


def _checkout_at(root: Path) -> Checkout:
    python = root / ".venv" / "bin" / "python"
    if not python.exists():
        raise LoadError(f"{root} has no environment: run `make .venv/base.stamp` there")
    return Checkout(_commit(root), root, str(python))


def _commit(root: Path) -> str:
    return _run("git", "-C", str(root), "rev-parse", "--short=9", "HEAD").strip()


def _run(*words: str) -> str:
    # A make that started us hands its own settings down, which are not meant for another tree.
    env = {name: value for name, value in os.environ.items() if not name.startswith("MAKE")}
    done = subprocess.run(words, cwd=ROOT, env=env, capture_output=True, text=True, check=False)
    if done.returncode:
        raise LoadError(f"{' '.join(words)}: {done.stderr.strip()[-500:]}")
    return done.stdout
