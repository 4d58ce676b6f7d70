"""Servers that many end-to-end tests share, and their output beside a test that failed.

A server is started once for each test process and setting. Tests that kill, stop or wear out a
server start one of their own.
"""

from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.platform import STARTED, Serve

SHOWN_LINES_MAX = 120
_heard = pytest.StashKey[dict[int, int]]()


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serve]:
    """Defaults, two workers: what one takes in may have to reach the other."""
    with Serve(tmp_path_factory.mktemp("server"), workers=2) as serve:
        yield serve


@pytest.fixture(scope="session")
def strict_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serve]:
    """The narrow rules: one notification at a time, a limit for catching up, spoken refusals."""
    with Serve(
        tmp_path_factory.mktemp("strict"),
        connect__delivery_window=1,
        connect__msg_limit=20,
        connect__ws_error_replies=True,
        connect__simplepush="s",
    ) as serve:
        yield serve


@pytest.fixture
def data_dir(tmp_path: Path) -> Path:
    """For a server of the test's own."""
    return tmp_path / "data"


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[Any]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if call.when == "setup":
        item.stash[_heard] = {id(process): len(process.lines) for process in STARTED}
    if report.failed:
        heard = item.stash.get(_heard, {})
        for process in STARTED:
            new = process.lines[heard.get(id(process), 0) :]
            if new:
                report.sections.append(("server output", "\n".join(new[-SHOWN_LINES_MAX:])))
    return report
