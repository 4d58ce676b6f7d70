"""`waystation store rotate`: the maintenance of monthly tables (§6.8).

Rule 1: this month's and next month's tables exist, and next month's has the units of this month's.
Rule 2: once LOWER_AFTER_DAYS of a month are over, last month's table needs little: its units are
        lowered. Whoever has not come back by then moves when they do.
Rule 3: tables older than last month's are dropped. Who is still on one has not been seen for a
        month at least, and subscribes anew.
Rule 4: it is safe to run at any time and as often as wanted: what is as it should be is left
        alone, and a plan is made from what is there.
"""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

import msgspec

from waystation.base.clock import Clock
from waystation.storage.dynamodb.months import DATELESS, month_at, month_of_table, table_name
from waystation.storage.dynamodb.session import Dynamo
from waystation.storage.dynamodb.tables import (
    list_tables,
    make_table,
    message_definition,
    with_units,
)
from waystation.storage.dynamodb.url import DynamoUrl, parse_dynamodb_url
from waystation.storage.settings import Store

LOWER_AFTER_DAYS = 7
LOWERED_UNITS = 5
KEPT_PAST_MONTHS = 1


class Units(msgspec.Struct, frozen=True):
    """What a table is paid for; 0: by the request."""

    read: int = 0
    write: int = 0

    def __str__(self) -> str:
        return f"{self.read} read and {self.write} write units" if self.read else "no fixed units"


class Make(msgspec.Struct, frozen=True):
    table: str
    units: Units

    def __str__(self) -> str:
        return f"make the table {self.table} with {self.units}"


class Change(msgspec.Struct, frozen=True):
    table: str
    units: Units

    def __str__(self) -> str:
        return f"give the table {self.table} {self.units}"


class Drop(msgspec.Struct, frozen=True):
    table: str

    def __str__(self) -> str:
        return f"drop the table {self.table}"


Step = Make | Change | Drop


def plan(url: DynamoUrl, tables: Mapping[str, Units], now_ms: int) -> list[Step]:
    """What is to be done, given the message tables that there are."""
    month = month_at(now_ms)
    prefix = url.message_table
    last, this, following = (table_name(prefix, month + ahead) for ahead in (-1, 0, 1))
    units = tables.get(this) or tables.get(last) or Units(url.read_units, url.write_units)
    steps: list[Step] = []
    if this not in tables:
        steps.append(Make(this, units))
    if following not in tables:
        steps.append(Make(following, units))
    elif tables[following] != units:
        steps.append(Change(following, units))
    held = tables.get(last)
    if held is not None and _day(now_ms) > LOWER_AFTER_DAYS and this in tables:
        lower = Units(min(held.read, LOWERED_UNITS), min(held.write, LOWERED_UNITS))
        if lower != held:
            steps.append(Change(last, lower))
    steps += [
        Drop(table) for table in sorted(tables) if _older(prefix, table, month - KEPT_PAST_MONTHS)
    ]
    return steps


def _older(prefix: str, table: str, month: int) -> bool:
    """A table that an operator gave a name without a month is left to the operator."""
    of_table = month_of_table(prefix, table)
    return of_table is not None and DATELESS < of_table < month


def _day(now_ms: int) -> int:
    return datetime.fromtimestamp(now_ms / 1000, UTC).day


async def rotate_store(url: str, settings: Store, clock: Clock, *, dry_run: bool) -> Sequence[Step]:
    """What is done, or with `dry_run` would be; nothing without rotation."""
    parsed = parse_dynamodb_url(url, settings.db_settings)
    if parsed.rotation != "monthly":
        return []
    dynamo = await Dynamo.open(parsed, settings)
    try:
        steps = plan(parsed, await _message_tables(dynamo, parsed), clock.now_ms())
        for step in () if dry_run else steps:
            await _take(dynamo, step)
        return steps
    finally:
        await dynamo.close()


async def _message_tables(dynamo: Dynamo, url: DynamoUrl) -> dict[str, Units]:
    tables: dict[str, Units] = {}
    for name in await list_tables(dynamo):
        if month_of_table(url.message_table, name) is not None:
            table: dict[str, Any] = (await dynamo.read("DescribeTable", TableName=name))["Table"]
            units = table.get("ProvisionedThroughput", {})
            tables[name] = Units(
                units.get("ReadCapacityUnits", 0), units.get("WriteCapacityUnits", 0)
            )
    return tables


async def _take(dynamo: Dynamo, step: Step) -> None:
    match step:
        case Make(table, units):
            await make_table(dynamo, with_units(message_definition(table), units.read, units.write))
        case Change(table, units):
            await dynamo.write(
                "UpdateTable", **with_units({"TableName": table}, units.read, units.write)
            )
        case Drop(table):
            await dynamo.write("DeleteTable", TableName=table)
