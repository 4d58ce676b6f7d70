"""The tables of a store: how they are made, and which of them are message tables.

| table | keys | indexes | holds |
|---|---|---|---|
| `router` | uaid | `AccessIndex` on last_connect | records of user agents |
| `message_YYYY_MM` | uaid, chidmessageid | | channel sets, notifications |
| `storage` | uaid, chid | | SimplePush versions |
| `waystation` | pk, sk | `DueIndex` on pk, due | broadcasts, statuses, tracked messages |

Each has DynamoDB's own expiry on `expiry` (seconds).
"""

import asyncio
from collections.abc import Mapping
from typing import Any

from waystation.base.clock import Clock
from waystation.base.errors import StoreUnavailableError
from waystation.storage.dynamodb.months import (
    DATELESS,
    month_at,
    month_of_table,
    table_name,
)
from waystation.storage.dynamodb.session import Dynamo
from waystation.storage.dynamodb.url import DynamoUrl

REFRESH_S = 60.0  # how often a table that should be there is looked for
UNKNOWN_REFRESH_S = 1.0  # and how often because of a name that nobody knows
MADE_WITHIN_S = 120.0
DAY_MS = 86_400_000
ACCESS_INDEX = "AccessIndex"
_POLL_S = 0.25


class MessageTables:
    """Which message tables there are, and which of them is the one to use now.

    Rule 1: without rotation the newest table is used, whatever month it is.
    Rule 2: with rotation it is the table of this month by our clock; while that is missing, the
            newest one before it, and the missing one is looked for now and then.
    """

    def __init__(self, dynamo: Dynamo, url: DynamoUrl, clock: Clock) -> None:
        self._dynamo = dynamo
        self._prefix = url.message_table
        self._monthly = url.rotation == "monthly"
        self._clock = clock
        self._known: dict[str, int] = {}  # name -> month
        self._frozen = ""
        self._refreshed_mono = -1e9
        self._refreshing: asyncio.Task[None] | None = None

    async def open(self) -> None:
        await self._refresh()
        if not self._known:
            raise StoreUnavailableError(
                f"there is no message table {self._prefix}: run waystation store init"
            )
        self._frozen = max(self._known, key=self._known.__getitem__)

    @property
    def only(self) -> str | None:
        """The one table in which everything is; None if there may be others."""
        return self._frozen if not self._monthly and len(self._known) == 1 else None

    @property
    def names(self) -> Mapping[str, int]:
        return self._known

    async def current(self) -> str:
        if not self._monthly:
            return self._frozen
        month = month_at(self._clock.now_ms())
        wanted = table_name(self._prefix, month)
        if wanted in self._known:
            return wanted
        await self._refresh_after(REFRESH_S)
        past = {name: at for name, at in self._known.items() if at <= month}
        return max(past or self._known, key=self._known.__getitem__)

    async def known(self, name: str) -> bool:
        if name not in self._known:
            await self._refresh_after(UNKNOWN_REFRESH_S)
        return name in self._known

    def older(self, name: str, than: str) -> bool:
        return self._known.get(name, DATELESS) < self._known.get(than, DATELESS)

    def settled(self, name: str) -> bool:
        """No node can be moving user agents away from this table now, whatever its clock says
        within a day."""
        if not self._monthly:
            return name == self._frozen
        return self._known.get(name) == month_at(self._clock.now_ms() + DAY_MS)

    async def _refresh_after(self, pause_s: float) -> None:
        if self._refreshing is None:
            if self._clock.mono() - self._refreshed_mono < pause_s:
                return
            self._refreshing = asyncio.get_running_loop().create_task(self._refresh())
        refreshing = self._refreshing
        try:
            await asyncio.shield(refreshing)
        finally:
            if refreshing.done():
                self._refreshing = None

    async def _refresh(self) -> None:
        known: dict[str, int] = {}
        for name in await list_tables(self._dynamo):
            month = month_of_table(self._prefix, name)
            if month is not None:
                known[name] = month
        self._known = known
        self._refreshed_mono = self._clock.mono()


async def list_tables(dynamo: Dynamo) -> list[str]:
    names: list[str] = []
    request: dict[str, Any] = {}
    while True:
        answer = await dynamo.read("ListTables", **request)
        names += answer["TableNames"]
        if "LastEvaluatedTableName" not in answer:
            return names
        request = {"ExclusiveStartTableName": answer["LastEvaluatedTableName"]}


# Making tables


def _definition(name: str, keys: Mapping[str, str], **more: Any) -> dict[str, Any]:
    """`keys`: attribute -> HASH or RANGE."""
    return {
        "TableName": name,
        "KeySchema": [{"AttributeName": key, "KeyType": kind} for key, kind in keys.items()],
        "AttributeDefinitions": [{"AttributeName": key, "AttributeType": "S"} for key in keys],
    } | more


def message_definition(name: str) -> dict[str, Any]:
    return _definition(name, {"uaid": "HASH", "chidmessageid": "RANGE"})


def definitions(url: DynamoUrl, message_table: str) -> list[dict[str, Any]]:
    router = _definition(
        url.router_table,
        {"uaid": "HASH"},
        GlobalSecondaryIndexes=[
            {
                "IndexName": ACCESS_INDEX,
                "KeySchema": [{"AttributeName": "last_connect", "KeyType": "HASH"}],
                "Projection": {"ProjectionType": "KEYS_ONLY"},
            }
        ],
    )
    router["AttributeDefinitions"].append({"AttributeName": "last_connect", "AttributeType": "N"})
    own = _definition(
        url.own_table,
        {"pk": "HASH", "sk": "RANGE"},
        LocalSecondaryIndexes=[
            {
                "IndexName": "DueIndex",
                "KeySchema": [
                    {"AttributeName": "pk", "KeyType": "HASH"},
                    {"AttributeName": "due", "KeyType": "RANGE"},
                ],
                "Projection": {"ProjectionType": "ALL"},
            }
        ],
    )
    own["AttributeDefinitions"].append({"AttributeName": "due", "AttributeType": "N"})
    storage = _definition(url.storage_table, {"uaid": "HASH", "chid": "RANGE"})
    return [router, storage, own, message_definition(message_table)]


def with_units(definition: dict[str, Any], read: int, write: int) -> dict[str, Any]:
    """0: paid by the request."""
    if not read:
        return definition | {"BillingMode": "PAY_PER_REQUEST"}
    units = {"ReadCapacityUnits": read, "WriteCapacityUnits": write}
    indexes = [
        index | {"ProvisionedThroughput": units}
        for index in definition.get("GlobalSecondaryIndexes", ())
    ]
    more = {"GlobalSecondaryIndexes": indexes} if indexes else {}
    return definition | more | {"ProvisionedThroughput": units}


async def make_table(dynamo: Dynamo, definition: dict[str, Any]) -> bool:
    """Make a table, wait until it can be used, and let DynamoDB remove what has expired.
    Whether it is new; two who make it at once are both content."""
    name = definition["TableName"]
    new = name not in await list_tables(dynamo)
    if new:
        try:
            await dynamo.write("CreateTable", **definition)
        except StoreUnavailableError:
            if name not in await list_tables(dynamo):
                raise
    await _wait_until_active(dynamo, name)
    await _let_expire(dynamo, name)
    return new


async def _wait_until_active(dynamo: Dynamo, name: str) -> None:
    async with asyncio.timeout(MADE_WITHIN_S):
        while True:
            table = (await dynamo.read("DescribeTable", TableName=name))["Table"]
            if table["TableStatus"] in ("ACTIVE", "UPDATING"):
                return
            await asyncio.sleep(_POLL_S)


async def _let_expire(dynamo: Dynamo, name: str) -> None:
    if await _expires(dynamo, name):
        return
    try:
        await dynamo.write(
            "UpdateTimeToLive",
            TableName=name,
            TimeToLiveSpecification={"Enabled": True, "AttributeName": "expiry"},
        )
    except StoreUnavailableError:
        if not await _expires(dynamo, name):  # another server may have been quicker
            raise


async def _expires(dynamo: Dynamo, name: str) -> bool:
    answer = await dynamo.read("DescribeTimeToLive", TableName=name)
    return answer["TimeToLiveDescription"]["TimeToLiveStatus"] in ("ENABLED", "ENABLING")
