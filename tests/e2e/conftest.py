"""Servers that many end-to-end tests share, and their output beside a test that failed.

A server is started once for each test process and setting. Tests that kill, stop or wear out a
server start one of their own.
"""

from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.megaphone import Megaphone
from tests.e2e.platform import KEY, STARTED, Autoconnect, Autoendpoint, Serve
from tests.ports import free_ports

SHOWN_LINES_MAX = 120
_heard = pytest.StashKey[dict[int, int]]()


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serve]:
    """Defaults, two workers: what one takes in may have to reach the other. Nobody sweeps: a test
    that counts on expired rows must find them, whenever it comes."""
    with Serve(
        tmp_path_factory.mktemp("server"), workers=2, push__sweep_interval_s=86_400.0
    ) as serve:
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
        connect__megaphone_poll_interval_s=0.1,
    ) as serve:
        yield serve


@pytest.fixture(scope="session")
def megaphone() -> Iterator[Megaphone]:
    """Where `impatient_server` reads its broadcasts."""
    with Megaphone() as source:
        source.broadcasts = {"test/one": "v1", "test/two": "v1"}
        yield source


@pytest.fixture(scope="session")
def impatient_server(
    tmp_path_factory: pytest.TempPathFactory, megaphone: Megaphone
) -> Iterator[Serve]:
    """Short waits: for a hello, between pings, for a Pong, between looks at the broadcasts. Those
    that a busy machine must not miss are a second."""
    with Serve(
        tmp_path_factory.mktemp("impatient"),
        connect__open_handshake_timeout_s=1.0,
        connect__auto_ping_interval_s=0.4,
        connect__auto_ping_timeout_s=1.0,
        connect__megaphone_api_url=megaphone.url,
        connect__megaphone_poll_interval_s=0.1,
    ) as serve:
        yield serve


@pytest.fixture(scope="session")
def two_nodes(
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[tuple[Autoconnect, Autoconnect, Autoendpoint]]:
    """Two connection nodes and an endpoint node, each with a data directory of its own, on one
    store: what separate machines are to each other."""
    root = tmp_path_factory.mktemp("nodes")
    shared = {"db_dsn": f"embedded://{root / 'store'}", "cluster__secret": "x" * 43}
    port = free_ports(1)
    url = f"http://127.0.0.1:{port}"
    with (
        Autoendpoint(root / "endpoint", port=port, crypto_key=KEY, **shared) as endpoint,
        Autoconnect(root / "a", endpoint_url=url, crypto_key=KEY, **shared) as first,
        Autoconnect(root / "b", endpoint_url=url, crypto_key=KEY, **shared) as second,
    ):
        yield first, second, endpoint


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
