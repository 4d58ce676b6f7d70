"""What a run leaves out, and what stays together: for every test of the repository.

Rule 1: SKIP=firefox,node deselects the tests that carry these markers, and the summary says so.
Rule 2: under xdist, an e2e file without a group of its own is one group: it starts its server
        once, and its tests keep their order. Tests of Firefox are one group over all files,
        since each starts a browser.
Rule 3: a test that is still running after TEST_LIMIT_S fails, and the run goes on. Should it be
        stuck where a signal cannot reach it, `faulthandler_timeout` ends its process later.
"""

import signal
from collections.abc import Generator
from pathlib import Path
from types import FrameType

import pytest

from tools.prepare_tests import skipped

TEST_LIMIT_S = 150  # generous: a small machine may be busy with other things
E2E = Path(__file__).parent / "tests" / "e2e"


@pytest.hookimpl(tryfirst=True)  # before xdist reads the groups
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    left_out = [item for item in items if any(map(item.get_closest_marker, skipped()))]
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if item not in left_out]
    for item in items:
        if item.get_closest_marker("xdist_group"):
            continue
        if item.get_closest_marker("firefox"):
            item.add_marker(pytest.mark.xdist_group("firefox"))
        elif item.path.is_relative_to(E2E):
            item.add_marker(pytest.mark.xdist_group(item.path.stem))


def _too_long(_signum: int, _frame: FrameType | None) -> None:
    pytest.fail(f"still running after {TEST_LIMIT_S} s")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    if item.get_closest_marker("soak"):
        return (yield)
    previous = signal.signal(signal.SIGALRM, _too_long)
    signal.setitimer(signal.ITIMER_REAL, TEST_LIMIT_S)
    try:
        return (yield)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, previous)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    for piece in sorted(skipped()):
        terminalreporter.write_line(f"left out because SKIP names it: tests that need {piece}")
