"""Rows in DynamoDB: Autopush's are read, ours are what it expects, and each call's round trips."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from tests.servers.dynamodb import PATIENT, DynamoServer, dynamodb_server
from waystation.base.clock import ManualClock, SystemClock
from waystation.base.errors import StoreUnavailableError
from waystation.base.ids import dashed, new_uuid4, simple
from waystation.cli.store import app as commands
from waystation.push.model import (
    USER_AGENT_LIFETIME_S,
    ChannelId,
    Milestone,
    SavedUpdate,
    Uaid,
    Update,
    UserAgent,
)
from waystation.storage.dynamodb.init import init_store
from waystation.storage.dynamodb.layout import Keys
from waystation.storage.dynamodb.months import month_at, table_name
from waystation.storage.dynamodb.push import DynamoPushStore
from waystation.storage.dynamodb.rotate import rotate_store
from waystation.storage.dynamodb.session import Dynamo
from waystation.storage.dynamodb.tables import list_tables
from waystation.storage.dynamodb.url import parse_dynamodb_url
from waystation.storage.settings import Store
from waystation.testing.conformance.push_store import (
    fetch_all,
    timed_notification,
    topic_notification,
)

__all__ = ["dynamodb_server"]

pytestmark = pytest.mark.dynamodb

NODE = "http://a.example:8081"
DAY_S = 86_400
KEYS = Keys()
PATIENT_ENV = {"WAYSTATION_STORE__OPERATION_TIMEOUT_S": str(PATIENT.operation_timeout_s)}


class Database:
    """A store, and the tables under it."""

    def __init__(self, url: str, store: DynamoPushStore, dynamo: Dynamo, clock: ManualClock):
        self.url = url
        self.names = parse_dynamodb_url(url)
        self.store = store
        self.dynamo = dynamo
        self.clock = clock
        self.messages = table_name(self.names.message_table, month_at(clock.now_ms()))
        self.uaid = Uaid(new_uuid4())
        self.channel = ChannelId(new_uuid4())

    async def put(self, table: str, **attributes: dict[str, Any]) -> None:
        await self.dynamo.write("PutItem", TableName=table, Item=attributes)

    async def router_row(self) -> dict[str, Any]:
        row = await self.dynamo.get(self.names.router_table, KEYS.router(self.uaid))
        assert row is not None
        return row

    async def subscribe(self) -> None:
        agent = UserAgent(uaid=self.uaid, connected_at_ms=self.clock.now_ms(), node_id=NODE)
        assert await self.store.add_user_agent(agent)
        assert await self.store.add_channel(self.uaid, self.channel, channels_max=10)

    async def round_trips(self, call: Any) -> int:
        before = self.store.stats().round_trips
        await call
        return self.store.stats().round_trips - before


@pytest.fixture
async def database(
    dynamodb_server: DynamoServer, request: pytest.FixtureRequest
) -> AsyncIterator[Database]:
    clock = ManualClock(now_ms=SystemClock().now_ms())
    url = dynamodb_server.new_url(*getattr(request, "param", ()))
    await init_store(url, PATIENT)
    store = await DynamoPushStore.open(parse_dynamodb_url(url), settings=PATIENT, clock=clock)
    dynamo = await Dynamo.open(parse_dynamodb_url(url), PATIENT)
    yield Database(url, store, dynamo, clock)
    await store.close()
    await dynamo.close()


both = pytest.mark.parametrize(
    "database", [("rotation=off",), ("rotation=monthly",)], indirect=True, ids=["off", "monthly"]
)


class TestAutopush:
    async def test_what_it_wrote_is_read(self, database: Database) -> None:
        uaid, channel = simple(database.uaid), dashed(database.channel)
        now_s = database.clock.now_ms() // 1000
        await database.put(
            database.names.router_table,
            uaid={"S": uaid},
            connected_at={"N": str(now_s * 1000)},
            router_type={"S": "webpush"},
            last_connect={"N": "2026110700003"},
            node_id={"S": NODE},
            record_version={"N": "1"},
            current_month={"S": database.messages},
        )
        await database.put(
            database.messages,
            uaid={"S": uaid},
            chidmessageid={"S": " "},
            chids={"SS": [channel]},
            current_timestamp={"N": "99999999999999"},
        )
        for key, version in (
            (f"01:{channel}:topic", "v-topic"),
            (f"02:{now_s * 1_000_000}:{channel}", "v-timed"),
        ):
            await database.put(
                database.messages,
                uaid={"S": uaid},
                chidmessageid={"S": key},
                updateid={"S": version},
                timestamp={"N": str(now_s)},
                ttl={"N": "600"},
                expiry={"N": str(now_s + 600)},
                data={"S": "AbC_"},
                headers={"M": {"encoding": {"S": "aesgcm"}}},
            )

        recipient = await database.store.look_up(database.uaid, database.channel)
        assert recipient is not None
        assert recipient.subscribed
        assert recipient.user_agent.node_id == NODE
        rows = await fetch_all(database.store, database.uaid, now_ms=now_s * 1000)
        assert [row.message_id for row in rows] == ["v-topic", "v-timed"], "no cursor hides rows"
        gone = [(row.sort_key, row.message_id) for row in rows]
        assert await database.store.forget(database.uaid, gone) == 2

    async def test_what_we_write_is_what_it_expects(self, database: Database) -> None:
        await database.subscribe()
        now_ms = database.clock.now_ms()
        row = timed_notification(database.channel, accepted_at_ms=now_ms, data="AbC_", headers={})
        await database.store.save(database.uaid, row)

        record = await database.router_row()
        assert record["uaid"] == {"S": simple(database.uaid)}
        assert record["connected_at"] == {"N": str(now_ms)}
        assert record["router_type"] == {"S": "webpush"}
        assert record["record_version"] == {"N": "1"}
        assert record["current_month"] == {"S": database.messages}
        assert 0 <= int(record["last_connect"]["N"]) % 10_000 <= 10
        channels = await database.dynamo.get(database.messages, KEYS.channels(database.uaid))
        assert channels is not None
        assert channels["chids"] == {"SS": [dashed(database.channel)]}
        key = KEYS.message(database.uaid, row.sort_key)
        stored = await database.dynamo.get(database.messages, key)
        assert stored is not None
        assert stored["updateid"] == {"S": row.message_id}
        assert stored["expiry"] == {"N": str(now_ms // 1000 + row.ttl_s)}

    async def test_a_topic_of_its_is_older_by_its_second(self, database: Database) -> None:
        await database.subscribe()
        now_ms = database.clock.now_ms()
        ours = topic_notification(database.channel, "t", accepted_at_ms=now_ms)
        await database.put(
            database.messages,
            **KEYS.message(database.uaid, ours.sort_key),
            updateid={"S": "theirs"},
            timestamp={"N": str(now_ms // 1000 - 1)},
            ttl={"N": "600"},
        )

        assert (await database.store.save_if_newer(database.uaid, [ours])).written == 1

    async def test_a_record_of_another_kind_is_not_claimed(self, database: Database) -> None:
        """§6.3: on DynamoDB also, the same kind of router or none"""
        bridge = UserAgent(uaid=database.uaid, connected_at_ms=1, router_type="fcm")
        assert await database.store.add_user_agent(bridge)

        claim = UserAgent(uaid=database.uaid, connected_at_ms=2, node_id=NODE)
        assert not await database.store.claim_route(claim)

    async def test_simplepush_may_come_back_as_webpush(self, database: Database) -> None:
        """§9 rule 7"""
        old = UserAgent(uaid=database.uaid, connected_at_ms=1, router_type="simplepush")
        assert await database.store.add_user_agent(old)

        claim = UserAgent(uaid=database.uaid, connected_at_ms=2, node_id=NODE)
        assert await database.store.claim_route(claim)


@both
class TestRoundTrips:
    async def test_a_post_reads_in_one_and_stores_in_one(self, database: Database) -> None:
        await database.subscribe()
        store, uaid, now_ms = database.store, database.uaid, database.clock.now_ms()
        row = timed_notification(database.channel, accepted_at_ms=now_ms)
        # Close to the end of a month a writer looks again whether its user agent has moved.
        may_move = month_at(now_ms + DAY_S * 1000) != month_at(now_ms)
        more = int(may_move and database.names.rotation == "monthly")

        assert await database.round_trips(store.look_up(uaid, database.channel)) == 1
        assert await database.round_trips(store.save(uaid, row)) == 1 + more
        assert await database.round_trips(store.save_new(uaid, row)) == 1 + more

    async def test_a_hello_reads_in_one_and_claims_in_one(self, database: Database) -> None:
        await database.subscribe()
        store, uaid, now_ms = database.store, database.uaid, database.clock.now_ms()
        claim = UserAgent(uaid=uaid, connected_at_ms=now_ms + 1, node_id=NODE)

        assert await database.round_trips(store.get_user_agent(uaid)) == 1
        assert await database.round_trips(store.claim_route(claim)) == 1
        assert (
            await database.round_trips(store.fetch(uaid, now_ms=now_ms, after=None, limit=10)) == 1
        )

    async def test_the_first_hello_of_a_day_renews_the_channels(self, database: Database) -> None:
        await database.subscribe()
        database.clock.advance(DAY_S)
        claim = UserAgent(uaid=database.uaid, connected_at_ms=database.clock.now_ms(), node_id=NODE)

        assert 2 <= await database.round_trips(database.store.claim_route(claim)) <= 3
        channels = await database.dynamo.get(database.messages, KEYS.channels(database.uaid))
        assert channels is not None
        lifetime_end_s = database.clock.now_ms() // 1000 + USER_AGENT_LIFETIME_S
        assert int(channels["expiry"]["N"]) > lifetime_end_s, "they never end before the record"

    async def test_registering_takes_one_transaction(self, database: Database) -> None:
        await database.subscribe()
        adding = database.store.add_channel(database.uaid, ChannelId(new_uuid4()), channels_max=10)

        assert await database.round_trips(adding) == 1


class TestTime:
    """DynamoDB removes rows up to two days late: until then we do not see them."""

    async def test_a_record_whose_time_is_over_is_none(self, database: Database) -> None:
        await database.subscribe()
        store, uaid = database.store, database.uaid
        record = await store.get_user_agent(uaid)
        assert record is not None
        assert record.route is not None
        database.clock.advance(USER_AGENT_LIFETIME_S)

        assert await store.get_user_agent(uaid) is None
        assert await store.look_up(uaid, database.channel) is None
        assert not await store.clear_route(uaid, record.route)
        assert not await store.add_channel(uaid, database.channel, channels_max=10)
        assert not await store.remove_user_agent(uaid)

    async def test_who_comes_back_after_that_begins_anew(self, database: Database) -> None:
        await database.subscribe()
        store, uaid = database.store, database.uaid
        await store.save_update(uaid, Update(database.channel, 3))
        database.clock.advance(USER_AGENT_LIFETIME_S)
        claim = UserAgent(uaid=uaid, connected_at_ms=5, node_id=NODE)

        assert await store.claim_route(claim)
        assert await store.get_channels(uaid) == frozenset()
        assert await store.add_channel(uaid, database.channel, channels_max=1)
        assert not await store.fetch_updates(uaid, limit=10)

    async def test_a_node_of_an_earlier_release_saves_versions_without_a_time(
        self, database: Database
    ) -> None:
        await database.subscribe()
        store, uaid, channel = database.store, database.uaid, database.channel
        now_ms = database.clock.now_ms()
        await store.save_update(uaid, Update(channel, 3, accepted_at_ms=now_ms))
        key = KEYS.update(uaid, channel)
        await database.put(database.names.storage_table, **key, version={"N": "4"})

        assert list(await store.fetch_updates(uaid, limit=10)) == [Update(channel, 4)]
        newer = Update(channel, 5, accepted_at_ms=now_ms)
        assert await store.save_update(uaid, newer) == SavedUpdate(True)
        assert list(await store.fetch_updates(uaid, limit=10)) == [newer]

    async def test_saving_an_update_takes_one_transaction_and_replacing_one_takes_two(
        self, database: Database
    ) -> None:
        await database.subscribe()
        store, uaid, channel = database.store, database.uaid, database.channel
        taken = [
            await database.round_trips(store.save_update(uaid, Update(channel, version)))
            for version in (3, 4, 4)
        ]

        assert taken == [1, 2, 1]

    async def test_the_first_hello_of_a_month_has_a_new_index_key(self, database: Database) -> None:
        await database.subscribe()
        before = (await database.router_row())["last_connect"]
        database.clock.advance(31 * DAY_S)
        claim = UserAgent(uaid=database.uaid, connected_at_ms=database.clock.now_ms(), node_id=NODE)
        await database.store.claim_route(claim)

        assert (await database.router_row())["last_connect"] != before

    async def test_many_tracked_messages_are_expired_by_portions(self, database: Database) -> None:
        now_ms = database.clock.now_ms()
        for n in range(7):
            await database.store.track(
                f"r{n}", Milestone.STORED, at_ms=now_ms, expires_at_ms=now_ms + 1000
            )

        assert await database.store.sweep(now_ms=now_ms, limit=5) == 0
        assert await database.store.sweep(now_ms=now_ms + 1000, limit=5) == 5
        assert await database.store.count_milestones(now_ms=now_ms + 1000) == {"expired": 7}


class TestUpkeep:
    async def test_making_a_store_again_changes_nothing(self, database: Database) -> None:
        assert await init_store(database.url, PATIENT) == []

    async def test_what_is_made_is_told(self, dynamodb_server: DynamoServer) -> None:
        url = dynamodb_server.new_url("read_units=3", "write_units=4")

        done = await init_store(url, PATIENT)
        assert len(done) == 4
        assert all(sentence.startswith("made the table ") for sentence in done)

    async def test_a_store_without_tables_says_what_to_do(
        self, dynamodb_server: DynamoServer
    ) -> None:
        """So it is for commands, which only look, and for servers that may make none."""
        for options, make_tables in (((), False), (("create_tables=off",), True)):
            url = parse_dynamodb_url(dynamodb_server.new_url(*options))
            with pytest.raises(StoreUnavailableError, match="waystation store init"):
                await DynamoPushStore.open(
                    url, settings=PATIENT, clock=SystemClock(), make_tables=make_tables
                )

    @pytest.mark.parametrize(
        "units, billing", [(0, "PAY_PER_REQUEST"), (1, "PROVISIONED")], ids=["serve", "daemons"]
    )
    async def test_a_server_makes_the_tables_that_are_missing(
        self, dynamodb_server: DynamoServer, units: int, billing: str
    ) -> None:
        """Two that start at once make them once."""
        url = parse_dynamodb_url(dynamodb_server.new_url("rotation=monthly"))
        settings = Store(operation_timeout_s=60.0, table_units=units)
        stores = await asyncio.gather(
            *(
                DynamoPushStore.open(url, settings=settings, clock=SystemClock(), make_tables=True)
                for _ in range(2)
            )
        )
        tables = [
            (await stores[0]._context.dynamo.read("DescribeTable", TableName=name))["Table"]
            for name in (url.router_table, await stores[0]._context.tables.current())
        ]
        for store in stores:
            await store.close()

        for table in tables:
            assert table.get("BillingModeSummary", {}).get("BillingMode", "PROVISIONED") == billing
            assert table["ProvisionedThroughput"]["ReadCapacityUnits"] == units
        assert [index["IndexName"] for index in tables[0]["GlobalSecondaryIndexes"]] == [
            "AccessIndex"
        ]

    async def test_rotation_is_done_once_and_can_be_only_told(
        self, dynamodb_server: DynamoServer
    ) -> None:
        url = dynamodb_server.new_url("rotation=monthly", "read_units=9", "write_units=9")
        names = parse_dynamodb_url(url)
        clock = ManualClock(now_ms=SystemClock().now_ms())
        dynamo = await Dynamo.open(names, PATIENT)
        await init_store(url, PATIENT)
        told = await rotate_store(url, PATIENT, clock, dry_run=True)
        assert await rotate_store(url, PATIENT, clock, dry_run=True) == told

        assert await rotate_store(url, PATIENT, clock, dry_run=False) == told
        assert await rotate_store(url, PATIENT, clock, dry_run=False) == []
        for _ in range(3):
            clock.advance(31 * DAY_S)
            await rotate_store(url, PATIENT, clock, dry_run=False)
        month = month_at(clock.now_ms())
        kept = {name for name in await list_tables(dynamo) if name.startswith(names.message_table)}
        assert kept == {table_name(names.message_table, month + ahead) for ahead in (-1, 0, 1)}
        await dynamo.close()

    async def test_without_rotation_nothing_is_rotated(self, dynamodb_server: DynamoServer) -> None:
        url = dynamodb_server.new_url()
        await init_store(url, PATIENT)

        assert await rotate_store(url, PATIENT, SystemClock(), dry_run=False) == []


class TestCommands:
    """As an operator types them."""

    def run(self, tmp_path: Path, url: str, *words: str) -> str:
        command = [*words, "--store", url, "--data-dir", str(tmp_path)]
        result = CliRunner().invoke(commands, command, env=PATIENT_ENV)
        assert result.exit_code == 0, result.output
        return result.output

    def test_a_store_is_made_and_rotated(
        self, dynamodb_server: DynamoServer, tmp_path: Path
    ) -> None:
        url = dynamodb_server.new_url("rotation=monthly")

        assert "made the table" in self.run(tmp_path, url, "init")
        assert "would make the table" in self.run(tmp_path, url, "rotate", "--dry-run")
        assert "would make the table" in self.run(tmp_path, url, "rotate", "--dry-run")
        assert "  make the table" in self.run(tmp_path, url, "rotate")
        assert "nothing to do" in self.run(tmp_path, url, "rotate")

    def test_a_store_without_months_has_nothing_to_rotate(
        self, dynamodb_server: DynamoServer, tmp_path: Path
    ) -> None:
        for url in (dynamodb_server.new_url(), "embedded"):
            assert "nothing to do" in self.run(tmp_path, url, "rotate")
