"""Two connection nodes and two endpoint nodes on PostgreSQL."""

import pytest

from tests.e2e.store_walk import SharedStore, StoreWalk
from tests.servers.postgres import PostgresServer, postgres_server

__all__ = ["postgres_server"]

pytestmark = [pytest.mark.e2e, pytest.mark.postgres]


@pytest.fixture(scope="module")
def shared_store(postgres_server: PostgresServer) -> SharedStore:
    return SharedStore(postgres_server.new_url(), postgres_server.port)


class TestOnPostgres(StoreWalk): ...
