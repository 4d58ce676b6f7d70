"""Two connection nodes and two endpoint nodes on Redis."""

import pytest

from tests.e2e.store_walk import SharedStore, StoreWalk
from tests.servers.redis import RedisServer, redis_server

__all__ = ["redis_server"]

pytestmark = [pytest.mark.e2e, pytest.mark.redis]


@pytest.fixture(scope="module")
def shared_store(redis_server: RedisServer) -> SharedStore:
    return SharedStore(redis_server.new_url(), redis_server.port)


class TestOnRedis(StoreWalk): ...
