"""What a run leaves out, and what stays together: for every test of the repository.

Rule 1: SKIP=firefox,node deselects the tests that carry these markers, and the summary says so.
Rule 2: under xdist (`--dist loadgroup`), an e2e file is one group: it starts its servers once, and
        its tests keep their order. A folder below e2e is one group over all its files, since
        each test of Firefox would start a browser, and tests/pipeline is one group, since each
        process would start a JVM. Groups follow from paths: xdist's own way, a suffix of the
        node id, has no effect on a pytest whose ids are structured (9.2).
Rule 3: a test that is still running after TEST_LIMIT_S fails, and the run goes on. Should it be
        stuck where a signal cannot reach it, `faulthandler_timeout` ends its process later.
Rule 4: what collecting the tests left behind, half a million objects, is there to stay: no
        collection of garbage looks at it again.
Rule 5: an example of a property may take its time. Hypothesis would give it 200 ms by the clock on
        the wall, which on a busy machine says something about the machine; rule 3 holds for it too.
Rule 6: what tests start ends with the test process, also if that is killed (see `reaper`).
Rule 7: Ctrl-C reaches the programs that tests start. In a shell's background it is ignored, and
        whoever is started there inherits that.
"""

import gc
import signal
from collections.abc import Generator
from pathlib import PurePosixPath
from types import FrameType

import pytest
from hypothesis import HealthCheck, settings
from xdist.remote import Producer
from xdist.scheduler import LoadScopeScheduling

from tests.servers.reaper import reap_children
from tools.prepare_tests import skipped

TEST_LIMIT_S = 150  # generous: a small machine may be busy with other things

settings.register_profile(
    "busy machine", deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("busy machine")

reap_children()
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    left_out = [item for item in items if any(map(item.get_closest_marker, skipped()))]
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if item not in left_out]


def pytest_collection_finish() -> None:
    gc.collect()
    gc.freeze()


class Groups(LoadScopeScheduling):
    """Who runs together in one process (rule 2)."""

    def _split_scope(self, nodeid: str) -> str:
        path = PurePosixPath(nodeid.partition("::")[0])
        if path.parts[:2] == ("tests", "pipeline") or path.match("tests/e2e/test_pipeline.py"):
            return "tests/pipeline"  # one process, one JVM
        return "/".join(path.parts[:3]) if path.parts[:2] == ("tests", "e2e") else nodeid


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> Groups | None:
    return Groups(config, log) if config.getoption("dist") == "loadgroup" else None


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
