"""What is installed is pinned by hash, and the lock files fit any registry."""

import json
import re
import tomllib
from pathlib import Path

import pytest

from tests.tidy.repository import ROOT, listed

LOCKS = sorted((ROOT / "requirements").glob("*.lock"))
NPM_LOCKS = [
    ROOT / folder / "package-lock.json"
    for folder in ("tests/e2e/senders", "tests/servers/npm", "examples/party_in_node")
]
PIN = re.compile(r"^([a-z0-9._-]+)==(\S+)", re.MULTILINE)


def _name(path: Path) -> str:
    return str(path.relative_to(ROOT))


def _pins(name: str) -> dict[str, str]:
    return dict(PIN.findall((ROOT / "requirements" / name).read_text()))


def _normal(requirement: str) -> str:
    name = re.split(r"[^A-Za-z0-9._-]", requirement, maxsplit=1)[0]
    return re.sub(r"[-_.]+", "-", name).lower()


@pytest.mark.parametrize("path", [*LOCKS, *NPM_LOCKS], ids=_name)
def test_a_lock_file_names_no_host(path: Path) -> None:
    lines = path.read_text().splitlines()
    named = [line for line in lines if "://" in line or line.startswith("--") or "/home" in line]

    assert not named, listed("make lock writes it without addresses", named)


@pytest.mark.parametrize("path", LOCKS, ids=lambda path: path.name)
def test_every_pin_has_a_hash(path: Path) -> None:
    entries = re.split(r"\n(?=[a-z0-9])", path.read_text())
    bare = [entry for entry in entries if "==" in entry and "--hash=sha256:" not in entry]

    assert PIN.search(path.read_text())
    assert not bare


@pytest.mark.parametrize("path", NPM_LOCKS, ids=_name)
def test_every_npm_package_has_a_hash_and_no_address(path: Path) -> None:
    packages = json.loads(path.read_text())["packages"]
    installed = {name: package for name, package in packages.items() if name}

    assert installed
    assert all("integrity" in package for package in installed.values())
    assert not any("resolved" in package for package in installed.values())


def test_what_pyproject_asks_for_is_locked() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    base = {_normal(name) for name in project["project"]["dependencies"]}
    dev = {_normal(name) for name in project["dependency-groups"]["dev"]}

    assert base <= set(_pins("base.lock")), "run make lock"
    assert dev <= set(_pins("dev.lock")), "run make lock"


def test_tests_run_on_the_versions_that_people_get() -> None:
    base, dev, tools = _pins("base.lock"), _pins("dev.lock"), _pins("tools.lock")

    assert base.items() <= dev.items()
    assert {name: tools[name] for name in tools.keys() & dev.keys()}.items() <= dev.items()
