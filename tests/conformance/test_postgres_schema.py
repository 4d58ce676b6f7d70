"""What `waystation store init` makes, what start-up makes by itself, and what it leaves alone."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import asyncpg
import pytest

from tests.servers.postgres import PostgresServer, autopush_url, postgres_server, postgres_url
from waystation.base.clock import ManualClock
from waystation.base.errors import StoreUnavailableError
from waystation.base.ids import new_uuid4
from waystation.push.model import ChannelId, SavedUpdate, Uaid, Update, UserAgent
from waystation.storage.open import init_push_store
from waystation.storage.postgres import schema, sweep
from waystation.storage.postgres.push import PostgresPushStore
from waystation.storage.postgres.schema import ForeignTablesError, init_store
from waystation.storage.postgres.statements import Statements
from waystation.storage.postgres.tables import Tables
from waystation.storage.postgres.url import parse_postgres_url
from waystation.storage.settings import Store
from waystation.testing.conformance.push_store import fetch_all, new_channel, timed_notification

__all__ = ["autopush_url", "postgres_server", "postgres_url"]

pytestmark = pytest.mark.postgres


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
async def connection(postgres_url: str) -> AsyncIterator[Any]:
    connection = await asyncpg.connect(postgres_url)
    yield connection
    await connection.close()


async def opened(url: str, clock: ManualClock, **settings: Any) -> PostgresPushStore:
    store = Store(**settings)
    parsed = parse_postgres_url(url, store.db_settings)
    return await PostgresPushStore.open(parsed, settings=store, clock=clock)


async def use(store: PostgresPushStore, clock: ManualClock) -> None:
    """A walk through the tables."""
    uaid, channel_id = Uaid(new_uuid4()), new_channel()
    assert await store.add_user_agent(UserAgent(uaid=uaid, connected_at_ms=clock.now_ms()))
    assert await store.add_channel(uaid, channel_id, channels_max=9)
    row = timed_notification(channel_id, accepted_at_ms=clock.now_ms(), reliability_id="r")
    await store.save(uaid, row)
    assert await fetch_all(store, uaid, now_ms=clock.now_ms()) == [row]


async def test_init_says_what_it_did_and_the_second_time_has_nothing_to_do(
    postgres_url: str, connection: Any
) -> None:
    first = await init_push_store(postgres_url, Store())
    second = await init_push_store(postgres_url, Store())

    assert first[0].startswith("PostgreSQL 1")
    assert first[1:] == [
        "made the tables of Autopush",
        "added the columns, indexes and tables of our own",
        "added the times of SimplePush updates",
    ]
    assert second[1:] == ["the tables are up to date"]
    steps = await connection.fetch("SELECT step FROM waystation_migration ORDER BY step")
    assert [row["step"] for row in steps] == [1, 2, 3]


async def test_nodes_that_start_together_on_an_empty_database_make_the_tables_once(
    postgres_url: str, clock: ManualClock, connection: Any
) -> None:
    stores = await asyncio.gather(*(opened(postgres_url, clock) for _ in range(4)))
    for store in stores:
        await use(store, clock)
        await store.close()

    assert await connection.fetchval("SELECT count(*) FROM waystation_migration") == 3
    assert await connection.fetchval("SELECT count(*) FROM message") == 4


async def test_a_database_of_an_earlier_release_works_on_after_init_beside_its_nodes(
    postgres_url: str, clock: ManualClock, connection: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its rows have no time, and its nodes write versions without one."""
    with monkeypatch.context() as earlier:
        earlier.setattr(schema, "_STEPS", {n: schema._STEPS[n] for n in (1, 2)})
        await init_store(postgres_url, Store())
    names = [new_uuid4() for _ in range(2)]
    uaid, channel_id = Uaid(names[0]), ChannelId(names[1])
    row = (uaid.hex(), channel_id.hex())
    await connection.execute(
        "INSERT INTO router (uaid, connected_at) VALUES ($1, $2)", uaid.hex(), clock.now_ms()
    )
    await connection.execute("INSERT INTO meta (uaid, channel_id) VALUES ($1, $2)", *row)
    older = (
        "INSERT INTO waystation_update (uaid, channel_id, version) VALUES ($1, $2, $3)"
        " ON CONFLICT (uaid, channel_id) DO UPDATE SET version = EXCLUDED.version"
    )
    await connection.execute(older, *row, 4)

    with pytest.raises(ForeignTablesError, match="earlier release: run `waystation store init`"):
        await opened(postgres_url, clock)
    assert (await init_store(postgres_url, Store()))[1:] == [
        "added the times of SimplePush updates"
    ]
    store = await opened(postgres_url, clock)
    assert await store.fetch_updates(uaid, limit=9) == [Update(channel_id, 4)]
    timed = Update(channel_id, 5, accepted_at_ms=clock.now_ms())
    assert await store.save_update(uaid, timed) == SavedUpdate(True)
    await connection.execute(older, *row, 6)
    assert await store.fetch_updates(uaid, limit=9) == [Update(channel_id, 6)]
    again = Update(channel_id, 7, accepted_at_ms=clock.now_ms())
    assert await store.save_update(uaid, again) == SavedUpdate(True), "of 6 no time is known"
    assert await store.fetch_updates(uaid, limit=9) == [again]
    await store.close()


async def test_tables_of_autopush_are_left_alone_until_a_person_says_so(
    autopush_url: str, clock: ManualClock
) -> None:
    with pytest.raises(ForeignTablesError, match="waystation store init"):
        await opened(autopush_url, clock)

    done = await init_store(autopush_url, Store())
    assert "took over the tables of Autopush" in done
    store = await opened(autopush_url, clock)
    await use(store, clock)
    await store.close()


async def test_a_schema_and_names_of_ones_own_are_kept_to(
    postgres_url: str, clock: ManualClock, connection: Any
) -> None:
    names = (
        '{"schema": "autopush", "router_table": "r1", "message_table": "m1",'
        ' "meta_table": "c1", "reliability_table": "l1"}'
    )
    store = await opened(postgres_url, clock, db_settings=names)
    await use(store, clock)
    await store.close()

    tables = await connection.fetch("SELECT schemaname, tablename FROM pg_tables"
                                    " WHERE tablename IN ('r1', 'm1', 'c1', 'l1')")  # fmt: skip
    assert sorted(map(tuple, tables)) == [("autopush", name) for name in ("c1", "l1", "m1", "r1")]
    assert await connection.fetchval("SELECT count(*) FROM autopush.m1") == 1
    assert not await connection.fetchval("SELECT to_regclass('public.waystation_status')")


async def test_one_who_may_not_make_tables_is_told(
    postgres_url: str, clock: ManualClock, connection: Any
) -> None:
    await connection.execute("DROP ROLE IF EXISTS guest")
    await connection.execute("CREATE ROLE guest LOGIN")
    url = postgres_url.replace("postgres@", "guest@")

    with pytest.raises(StoreUnavailableError, match="permission denied"):
        await init_store(url, Store())


async def test_a_node_that_started_before_the_server_makes_the_tables_when_it_is_there(
    postgres_server: PostgresServer, clock: ManualClock
) -> None:
    late = "waits_for_its_database"
    store = await opened(postgres_server.url(late), clock)
    with pytest.raises(StoreUnavailableError):
        await store.check()

    postgres_server.command(f"CREATE DATABASE {late}")
    for _ in range(100):
        try:
            await store.check()
            break
        except StoreUnavailableError:
            await asyncio.sleep(0.05)
    await use(store, clock)
    await store.close()


@pytest.mark.parametrize("taken_over", [False, True])
async def test_a_fetch_walks_an_index_and_sorts_nothing(
    request: pytest.FixtureRequest, taken_over: bool
) -> None:
    url = request.getfixturevalue("autopush_url" if taken_over else "postgres_url")
    await init_store(url, Store())
    connection = await asyncpg.connect(url)
    await connection.execute("SET enable_seqscan = off")
    await connection.execute("SET enable_bitmapscan = off")
    statement = Statements(Tables(parse_postgres_url(url))).fetch
    statement = statement.replace("$1", "'u'").replace("$2", "''")
    statement = statement.replace("$3", "10").replace("$4", "0")
    plan = "\n".join(row[0] for row in await connection.fetch(f"EXPLAIN (COSTS OFF) {statement}"))
    await connection.close()

    index = "waystation_message_order" if taken_over else "message_pkey"
    assert f"Index Scan using {index}" in plan
    assert "Sort" not in plan


async def test_a_sweep_that_finds_nothing_reads_no_table(
    postgres_url: str, connection: Any
) -> None:
    """Whatever plan the server settles for, it goes by the index of the ends."""
    await init_store(postgres_url, Store())
    await connection.execute(
        "INSERT INTO router (uaid, connected_at, expiry)"
        " SELECT md5(i::text), 1, 2000000000 + i FROM generate_series(1, 20000) AS i"
    )
    await connection.execute(
        "INSERT INTO message (uaid, chid_message_id, expiry)"
        " SELECT md5(i::text), '02:' || i, 2000000000 + i FROM generate_series(1, 20000) AS i"
    )
    await connection.execute("ANALYZE")
    await connection.execute("SET plan_cache_mode = force_generic_plan")
    tables = Tables(parse_postgres_url(postgres_url))

    for number, statement in enumerate(sweep.STATEMENTS[:3]):
        await connection.execute(f"PREPARE p{number} AS {tables.fill(statement)}")
        rows = await connection.fetch(f"EXPLAIN (COSTS OFF) EXECUTE p{number}(1, 1000)")
        plan = "\n".join(row[0] for row in rows)
        assert "Seq Scan" not in plan


async def test_the_durability_of_the_server_is_looked_at(
    postgres_url: str, clock: ManualClock
) -> None:
    """The server of these tests runs without fsync."""
    store = await opened(postgres_url, clock)

    warnings = await store.warnings()
    await store.close()
    assert len(warnings) == 1
    assert "fsync" in warnings[0]


class TestRoundTrips:
    """How often the server is asked, counted in the store."""

    async def test_each_step_of_a_post_and_a_hello_is_one(
        self, postgres_url: str, clock: ManualClock
    ) -> None:
        store = await opened(postgres_url, clock)
        uaid, channel_id = Uaid(new_uuid4()), new_channel()
        agent = UserAgent(uaid=uaid, connected_at_ms=clock.now_ms(), node_id="http://a:1")
        row = timed_notification(channel_id, accepted_at_ms=clock.now_ms())
        calls = {
            "claim_route": lambda: store.claim_route(agent),
            "add_channel": lambda: store.add_channel(uaid, channel_id, channels_max=9),
            "look_up": lambda: store.look_up(uaid, channel_id),
            "save": lambda: store.save(uaid, row),
            "get_user_agent": lambda: store.get_user_agent(uaid),
            "save_new": lambda: store.save_new(uaid, row),
            "save_if_newer": lambda: store.save_if_newer(uaid, [row]),
            "save_update": lambda: store.save_update(uaid, Update(channel_id, 1)),
            "advance_cursor": lambda: store.advance_cursor(uaid, clock.now_ms()),
            "fetch": lambda: store.fetch(uaid, now_ms=clock.now_ms(), after=None, limit=10),
            "forget": lambda: store.forget(uaid, [(row.sort_key, row.message_id)]),
            "get_channels": lambda: store.get_channels(uaid),
            "remove_channel": lambda: store.remove_channel(uaid, channel_id),
            "remove_user_agent": lambda: store.remove_user_agent(uaid),
        }
        counted: dict[str, int] = {}
        for name, call in calls.items():
            before = store.stats().round_trips
            await call()
            counted[name] = store.stats().round_trips - before
        await store.close()

        assert counted == dict.fromkeys(calls, 1)

    async def test_those_of_one_turn_share_one(self, postgres_url: str, clock: ManualClock) -> None:
        store = await opened(postgres_url, clock)
        uaid, channel_id = Uaid(new_uuid4()), new_channel()
        await store.add_user_agent(UserAgent(uaid=uaid, connected_at_ms=clock.now_ms()))
        await store.add_channel(uaid, channel_id, channels_max=9)
        rows = [
            timed_notification(channel_id, accepted_at_ms=clock.now_ms(), n=n) for n in range(200)
        ]
        before = store.stats().round_trips

        await asyncio.gather(*(store.save(uaid, row) for row in rows))
        found = await asyncio.gather(*(store.look_up(uaid, channel_id) for _ in range(200)))
        acked = [store.forget(uaid, [(row.sort_key, row.message_id)]) for row in rows]
        assert await asyncio.gather(*acked) == [1] * 200
        assert all(recipient and recipient.subscribed for recipient in found)
        assert store.stats().round_trips - before == 3
        twins = [timed_notification(channel_id, accepted_at_ms=1) for _ in range(20)]
        applied = await asyncio.gather(*(store.save_new(uaid, row) for row in [*rows, *twins]))
        assert store.stats().round_trips - before == 4
        assert (sum(applied[:200]), sum(applied[200:])) == (200, 1), "a key is given out once"
        await store.close()
