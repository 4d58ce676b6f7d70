"""What the row classes of one DynamoDB store share: client, URL, tables, keys and clock."""

from waystation.base.clock import Clock
from waystation.storage.dynamodb.layout import Keys
from waystation.storage.dynamodb.session import Dynamo
from waystation.storage.dynamodb.tables import MessageTables
from waystation.storage.dynamodb.url import DynamoUrl


class StoreContext:
    def __init__(self, dynamo: Dynamo, url: DynamoUrl, tables: MessageTables, clock: Clock) -> None:
        self.dynamo = dynamo
        self.url = url
        self.tables = tables
        self.keys = Keys(url.key_hash)
        self.clock = clock

    def now_s(self) -> int:
        return self.clock.now_ms() // 1000
