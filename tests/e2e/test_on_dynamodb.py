"""Two connection nodes and two endpoint nodes on DynamoDB with monthly tables."""

import pytest

from tests.e2e.store_walk import SharedStore, StoreWalk
from tests.servers.dynamodb import DynamoServer, dynamodb_server

__all__ = ["dynamodb_server"]

pytestmark = [pytest.mark.e2e, pytest.mark.dynamodb]


@pytest.fixture(scope="module")
def shared_store(dynamodb_server: DynamoServer) -> SharedStore:
    return SharedStore(dynamodb_server.new_url("rotation=monthly"), dynamodb_server.port)


class TestOnDynamoDb(StoreWalk): ...
