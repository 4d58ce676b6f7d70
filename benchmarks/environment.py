"""On what it was measured: machine, versions, commit, command."""

import importlib.metadata
import os
import platform
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path

import msgspec

from .load import ROOT

_PACKAGES = ("uvloop", "httptools", "msgspec", "cryptography", "lmdb", "pybase64")


class Environment(msgspec.Struct, frozen=True):
    measured_at: str
    machine: str
    python: str
    packages: dict[str, str]
    commit: str
    command: str


def environment() -> Environment:
    return Environment(
        measured_at=datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        machine=f"{_cpu()}, {os.cpu_count()} cores, {_memory_gib():.0f} GiB, {platform.system()}"
        f" {platform.release()}",
        python=f"{platform.python_implementation()} {platform.python_version()}",
        packages={name: _version(name) for name in _PACKAGES},
        commit=_commit(),
        command="python -m benchmarks " + " ".join(sys.argv[1:]),
    )


def _version(name: str) -> str:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return "absent"


def _cpu() -> str:
    for line in _lines("/proc/cpuinfo"):
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()


def _memory_gib() -> float:
    for line in _lines("/proc/meminfo"):
        if line.startswith("MemTotal:"):
            return int(line.split()[1]) / 2**20
    return 0.0


def _lines(path: str) -> list[str]:
    try:
        return Path(path).read_text().splitlines()
    except OSError:
        return []


def _commit() -> str:
    def git(*words: str) -> str:
        done = subprocess.run(
            ["git", *words], cwd=ROOT, capture_output=True, text=True, check=False
        )
        return done.stdout.strip()

    commit = git("rev-parse", "--short=12", "HEAD")
    return f"{commit} with changes" if commit and git("status", "--porcelain", "src") else commit
