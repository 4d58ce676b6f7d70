"""The tests of `tests/e2e/queue/test_proxying.py`, unchanged: edges forward, and are relays."""

from collections.abc import Iterator

import pytest

from tests.e2e.queue import test_proxying
from tests.e2e.queue_through.front import Front, Way
from tests.e2e.queue_through.unchanged import all_of

globals().update(
    all_of(
        test_proxying,
        but=("test_a_relay_that_accepts_and_says_nothing",),  # starts one server of its own
    )
)


@pytest.fixture(scope="session")
def proxy_server(queue_server: Front) -> Front:
    return queue_server


@pytest.fixture(scope="module")
def roomy_server(way: Way, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Front]:
    with Front(tmp_path_factory.mktemp("roomy"), way, queue_quota=2000) as front:
        yield front
