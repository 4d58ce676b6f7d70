"""What a run leaves out, and what stays together: for every test of the repository.

Rule 1: SKIP=firefox,node deselects the tests that carry these markers, and the summary says so.
Rule 2: under xdist, an e2e file without a group of its own is one group: it starts its server
        once, and its tests keep their order. Tests of Firefox are one group over all files,
        since each starts a browser.
"""

from pathlib import Path

import pytest

from tools.prepare_tests import skipped

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


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    for piece in sorted(skipped()):
        terminalreporter.write_line(f"left out because SKIP names it: tests that need {piece}")
