"""Queue servers shared by many scenarios: each is started once for each test process."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.e2e.queue.peer import Peer
from tests.e2e.queue.process import QueueServer

ADMIN = "admin-password"
USER = "user-password"

Connect = Callable[..., Peer]


@pytest.fixture(scope="session")
def queue_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[QueueServer]:
    """Version 8 to 18, a small quota, an operator."""
    with QueueServer(
        tmp_path_factory.mktemp("queue"),
        queue_quota=4,
        control_admin_password=ADMIN,
        control_user_password=USER,
        daily_block_quota=3,
    ) as server:
        yield server


@pytest.fixture(scope="session")
def legacy_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[QueueServer]:
    """Everything back to version 6, an Ed448 identity, a password, little room for slow readers."""
    with QueueServer(
        tmp_path_factory.mktemp("legacy"),
        min_version=6,
        identity_algorithm="ed448",
        create_password="sesame",
        out_blocks_max=2,
    ) as server:
        yield server


@pytest.fixture(scope="session")
def impatient_queue_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[QueueServer]:
    """Lets go of the idle, and forgets notifications, after a second."""
    with QueueServer(
        tmp_path_factory.mktemp("impatient-queue"),
        store_url="memory:",
        inactive_timeout_s=1.0,
        inactive_check_s=0.2,
        expire_ntfs_hours=1 / 3600,
    ) as server:
        yield server


@pytest.fixture
def connect(queue_server: QueueServer) -> Iterator[Connect]:
    """Connections to the usual server; all are closed after the test."""
    with ExitStack() as stack:

        def connect(server: QueueServer = queue_server, **how: object) -> Peer:
            return stack.enter_context(Peer(server, **how))  # pyright: ignore[reportArgumentType]

        yield connect


@pytest.fixture
def data_dir(tmp_path: Path) -> Path:
    return tmp_path / "data"
