"""Creates missing DynamoDB tables, and checks our permissions at the start (`preflight`)."""

import secrets

from waystation.base.clock import Clock, SystemClock
from waystation.push.model import Uaid
from waystation.storage.dynamodb.context import StoreContext
from waystation.storage.dynamodb.layout import number, string
from waystation.storage.dynamodb.months import month_at, month_of_table, table_name
from waystation.storage.dynamodb.session import Dynamo
from waystation.storage.dynamodb.tables import definitions, list_tables, make_table, with_units
from waystation.storage.dynamodb.url import DynamoUrl, parse_dynamodb_url
from waystation.storage.settings import Store

PREFLIGHT_UAID = Uaid(bytes.fromhex("deadbeef00000000deadbeef00000000"))
_PREFLIGHT_KEPT_S = 3600  # should we be cut off before we delete it


async def init_store(url: str, settings: Store) -> list[str]:
    """Make what is missing; what was done, in sentences."""
    parsed = parse_dynamodb_url(url, settings.db_settings)
    dynamo = await Dynamo.open(parsed, settings)
    try:
        return await make_tables(dynamo, parsed, SystemClock(), units=settings.table_units)
    finally:
        await dynamo.close()


async def make_tables(dynamo: Dynamo, url: DynamoUrl, clock: Clock, *, units: int) -> list[str]:
    """`units` is what a table is made with if the URL does not say it; 0: paid by the request."""
    message_table = await _wanted_message_table(dynamo, url, clock)
    read, write = url.read_units or units, url.write_units or units
    return [
        f"made the table {definition['TableName']}"
        for definition in definitions(url, message_table)
        if await make_table(dynamo, with_units(definition, read, write))
    ]


async def make_missing_tables(
    dynamo: Dynamo, url: DynamoUrl, clock: Clock, *, units: int
) -> list[str]:
    """As `make_tables`. Asks for no more rights than a server needs if all tables are there."""
    there = set(await list_tables(dynamo))
    wanted = definitions(url, await _wanted_message_table(dynamo, url, clock))
    if all(definition["TableName"] in there for definition in wanted):
        return []
    return await make_tables(dynamo, url, clock, units=units)


async def _wanted_message_table(dynamo: Dynamo, url: DynamoUrl, clock: Clock) -> str:
    """This month's; without rotation, the newest that there is."""
    this_month = table_name(url.message_table, month_at(clock.now_ms()))
    if url.rotation == "monthly":
        return this_month
    months = {
        name: month
        for name in await list_tables(dynamo)
        if (month := month_of_table(url.message_table, name)) is not None
    }
    return max(months, key=months.__getitem__) if months else this_month


async def preflight(context: StoreContext) -> None:
    """Write, read and delete a record and a row that nobody has: may we, and do tables exist?
    Several processes may do so at once, so what is read is not compared."""
    expiry = number(context.now_s() + _PREFLIGHT_KEPT_S)
    router_key = context.keys.router(PREFLIGHT_UAID)
    row_key = context.keys.message(PREFLIGHT_UAID, f"01:preflight:{secrets.token_hex(8)}")
    places = ((context.url.router_table, router_key), (await context.tables.current(), row_key))
    for table, key in places:
        item = key | {"expiry": expiry, "node_id": string("preflight")}
        await context.dynamo.write("PutItem", TableName=table, Item=item)
        await context.dynamo.get(table, key)
        await context.dynamo.write("DeleteItem", TableName=table, Key=key)
