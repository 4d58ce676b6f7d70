"""The servers of `tests/e2e/queue/conftest.py`; here each is a cluster behind an edge.

Both ways to find a queue and both ways to share links are run: two of their four combinations in
`make test`, so that each of the ways is there once, and the other two in `make soak`. What an edge
does by itself, before it looks for a queue, is run once in `make test`.
"""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.e2e.queue.peer import Peer
from tests.e2e.queue_through.front import Front, Way

Connect = Callable[..., Peer]
USUAL = Way("hybrid", "shared")
BY_ITSELF = ("test_syntax.py", "test_transport.py")


@pytest.hookimpl(tryfirst=True)  # before soaks are left out
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = Path(__file__).parent
    for item in items:
        if item.path.parent == here and item.path.name in BY_ITSELF:
            assert isinstance(item, pytest.Function)
            if item.callspec.params["way"] != USUAL:
                item.add_marker(pytest.mark.soak)


@pytest.fixture(
    scope="session",
    params=[
        USUAL,
        Way("refs", "dedicated"),
        pytest.param(Way("hybrid", "dedicated"), marks=pytest.mark.soak),
        pytest.param(Way("refs", "shared"), marks=pytest.mark.soak),
    ],
    ids=str,
)
def way(request: pytest.FixtureRequest) -> Way:
    return request.param


@pytest.fixture(scope="session")
def queue_server(way: Way, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Front]:
    with Front(tmp_path_factory.mktemp("queue"), way, queue_quota=4) as front:
        yield front


@pytest.fixture(scope="session")
def legacy_server(way: Way, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Front]:
    """Everything back to version 6, an Ed448 identity, a password, little room for slow readers."""
    with Front(
        tmp_path_factory.mktemp("legacy"),
        way,
        min_version=6,
        identity_algorithm="ed448",
        create_password="sesame",
        out_blocks_max=2,
    ) as front:
        yield front


@pytest.fixture(scope="session")
def impatient_queue_server(way: Way, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Front]:
    """Lets go of the idle, and forgets notifications, after a second."""
    with Front(
        tmp_path_factory.mktemp("impatient-queue"),
        way,
        servers=1,
        inactive_timeout_s=1.0,
        inactive_check_s=0.2,
        expire_ntfs_hours=1 / 3600,
    ) as front:
        yield front


@pytest.fixture
def connect(queue_server: Front) -> Iterator[Connect]:
    """Connections to the usual server; all are closed after the test."""
    with ExitStack() as stack:

        def connect(server: Front = queue_server, **how: object) -> Peer:
            return stack.enter_context(Peer(server, **how))  # pyright: ignore[reportArgumentType]

        yield connect
