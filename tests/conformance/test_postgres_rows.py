"""Rows of Autopush are read by us, ours can be read by Autopush, and neither harms the other's.

The SQL here repeats what Autopush does with its tables (docs/guides/stores/postgres.md).
"""

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import asyncpg
import pytest

from tests.servers.postgres import PostgresServer, autopush_url, postgres_server, postgres_url
from waystation.base.clock import ManualClock
from waystation.base.errors import StoreUnavailableError
from waystation.base.ids import dashed, new_uuid4
from waystation.push.model import (
    USER_AGENT_LIFETIME_S,
    ChannelId,
    MessageId,
    Milestone,
    Notification,
    Replaced,
    SortKey,
    Uaid,
    Update,
    Urgency,
    UserAgent,
)
from waystation.storage.postgres.push import PostgresPushStore
from waystation.storage.postgres.schema import init_store
from waystation.storage.postgres.url import parse_postgres_url
from waystation.storage.settings import Store
from waystation.testing.conformance.push_store import (
    fetch_all,
    new_channel,
    sweep_all,
    timed_notification,
    topic_notification,
)

__all__ = ["autopush_url", "postgres_server", "postgres_url"]

pytestmark = pytest.mark.postgres

NODE = "http://node.example:8081"


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
async def autopush(autopush_url: str) -> AsyncIterator[Any]:
    """A connection as one of Autopush's nodes has it, to a database that was taken over."""
    await init_store(autopush_url, Store())
    connection = await asyncpg.connect(autopush_url)
    yield connection
    await connection.close()


@pytest.fixture
async def store(
    autopush: Any, autopush_url: str, clock: ManualClock
) -> AsyncIterator[PostgresPushStore]:
    url = parse_postgres_url(autopush_url)
    store = await PostgresPushStore.open(url, settings=Store(), clock=clock)
    yield store
    await store.close()


async def autopush_adds_user(
    autopush: Any, uaid: Uaid, *channels: ChannelId, clock: ManualClock, **columns: Any
) -> None:
    row: dict[str, Any] = {
        "uaid": uaid.hex(),
        "connected_at": clock.now_ms(),
        "router_type": "webpush",
        "router_data": "null",
        "node_id": NODE,
        "record_version": 1,
        "version": new_uuid4().hex(),
        "last_update": None,
        "expiry": clock.now_ms() // 1000 + USER_AGENT_LIFETIME_S,
        "priv_channels": [],
    } | columns
    names = ", ".join(row)
    places = ", ".join(f"${n}" for n in range(1, len(row) + 1))
    await autopush.execute(f"INSERT INTO router ({names}) VALUES ({places})", *row.values())
    for channel_id in channels:
        await autopush.execute(
            "INSERT INTO meta (uaid, channel_id) VALUES ($1, $2) ON CONFLICT DO NOTHING",
            uaid.hex(),
            channel_id.hex(),
        )


async def autopush_saves(
    autopush: Any,
    uaid: Uaid,
    channel_id: ChannelId,
    version: str,
    *,
    at_ms: int,
    topic: str | None = None,
    ttl_s: int = 600,
    headers: dict[str, str] | None = None,
    data: str = "",
) -> None:
    """An upsert by the sort key alone, which is what needs its unique index."""
    key = f"01:{dashed(channel_id)}:{topic}" if topic else f"02:{at_ms}:{dashed(channel_id)}"
    await autopush.execute(
        "INSERT INTO message (uaid, channel_id, chid_message_id, version, ttl, expiry, topic,"
        ' "timestamp", data, sortkey_timestamp, headers)'
        " VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11)"
        " ON CONFLICT (chid_message_id) DO UPDATE SET uaid = EXCLUDED.uaid,"
        " channel_id = EXCLUDED.channel_id, version = EXCLUDED.version, ttl = EXCLUDED.ttl,"
        ' expiry = EXCLUDED.expiry, topic = EXCLUDED.topic, "timestamp" = EXCLUDED."timestamp",'
        " data = EXCLUDED.data, sortkey_timestamp = EXCLUDED.sortkey_timestamp,"
        " headers = EXCLUDED.headers",
        uaid.hex(),
        channel_id.hex(),
        key,
        version,
        ttl_s,
        at_ms // 1000 + ttl_s,
        topic,
        at_ms // 1000,
        data,
        None if topic else at_ms,
        json.dumps(headers),
    )


class TestReadingAutopush:
    async def test_a_user_agent_of_autopush_is_known_with_its_channels(
        self, store: PostgresPushStore, autopush: Any, clock: ManualClock
    ) -> None:
        uaid, channel_id = Uaid(new_uuid4()), new_channel()
        await autopush_adds_user(
            autopush,
            uaid,
            channel_id,
            clock=clock,
            router_type="fcm",
            router_data='{"app_id": "a", "token": "t"}',
            last_update=clock.now_ms(),
            version="0123456789abcdef0123456789abcdef",
        )

        recipient = await store.look_up(uaid, channel_id)
        assert recipient is not None
        assert recipient.subscribed
        assert recipient.user_agent == UserAgent(
            uaid=uaid,
            connected_at_ms=clock.now_ms(),
            router_type="fcm",
            router_data={"app_id": "a", "token": "t"},
            node_id=NODE,
            record_version=1,
            current_timestamp_ms=clock.now_ms(),
            row_version=bytes.fromhex("0123456789abcdef0123456789abcdef"),
        )
        assert await store.get_channels(uaid) == {channel_id}

    async def test_its_messages_come_topics_first_and_then_by_time(
        self, store: PostgresPushStore, autopush: Any, clock: ManualClock
    ) -> None:
        """T-10: whatever its cursor says, in one order, with nothing in between."""
        uaid, channel_id = Uaid(new_uuid4()), new_channel()
        now_ms = clock.now_ms() + 7
        await autopush_adds_user(
            autopush, uaid, channel_id, clock=clock, last_update=now_ms + 1_000_000
        )
        aes128gcm = {"encoding": "aes128gcm"}
        await autopush_saves(
            autopush, uaid, channel_id, "late", at_ms=now_ms + 1, headers=aes128gcm, data="QUJD"
        )
        await autopush_saves(autopush, uaid, channel_id, "topical", at_ms=now_ms, topic="t")
        await autopush_saves(autopush, uaid, channel_id, "early", at_ms=now_ms, ttl_s=60)

        found = await fetch_all(store, uaid, now_ms=now_ms, limit=1)
        chid = dashed(channel_id)
        assert found == [
            Notification(
                channel_id,
                MessageId("topical"),
                SortKey(f"01:{chid}:t"),
                now_ms // 1000 * 1000,  # Autopush keeps no milliseconds of a topic
                600,
                topic="t",
            ),
            Notification(
                channel_id, MessageId("early"), SortKey(f"02:{now_ms}:{chid}"), now_ms, 60
            ),
            Notification(
                channel_id,
                MessageId("late"),
                SortKey(f"02:{now_ms + 1}:{chid}"),
                now_ms + 1,
                600,
                data="QUJD",
                headers=aes128gcm,
            ),
        ]
        acked = [(row.sort_key, row.message_id) for row in found]
        assert await store.forget(uaid, acked) == 3

    async def test_what_it_puts_in_the_place_of_our_topic_inherits_nothing_of_ours(
        self, store: PostgresPushStore, autopush: Any, clock: ManualClock
    ) -> None:
        """Its upsert leaves our two columns as they were."""
        uaid, channel_id = Uaid(new_uuid4()), new_channel()
        await autopush_adds_user(autopush, uaid, channel_id, clock=clock)
        ours = topic_notification(
            channel_id,
            "t",
            accepted_at_ms=clock.now_ms(),
            urgency=Urgency.HIGH,
            sender=bytes(32),
            reliable_state="stored",
        )
        await store.save(uaid, ours)
        later_ms = clock.now_ms() + 5000
        await autopush_saves(autopush, uaid, channel_id, "theirs", at_ms=later_ms, topic="t")

        found = await fetch_all(store, uaid, now_ms=later_ms)
        assert found == [
            Notification(channel_id, MessageId("theirs"), ours.sort_key, later_ms, 600, topic="t")
        ]
        older = topic_notification(channel_id, "t", accepted_at_ms=later_ms - 1000)
        assert (await store.save_if_newer(uaid, [older])).written == 0
        newest = topic_notification(channel_id, "t", accepted_at_ms=later_ms + 2000)
        replaced = Replaced(MessageId("theirs"), later_ms, found[0].expires_at_ms)
        assert await store.save(uaid, newest) == replaced, "theirs, at its own time"
        await autopush_saves(autopush, uaid, channel_id, "theirs", at_ms=later_ms, topic="t")
        newer = topic_notification(channel_id, "t", accepted_at_ms=later_ms + 1000)
        assert (await store.save_if_newer(uaid, [newer])).written == 1

    async def test_a_record_without_an_end_lives_from_its_last_connection(
        self, store: PostgresPushStore, autopush: Any, clock: ManualClock
    ) -> None:
        uaid, channel_id = Uaid(new_uuid4()), new_channel()
        await autopush_adds_user(autopush, uaid, channel_id, clock=clock, expiry=None)

        assert await store.get_user_agent(uaid) is not None
        clock.advance(USER_AGENT_LIFETIME_S)
        assert await store.get_user_agent(uaid) is None

    async def test_rows_without_an_end_are_given_one_when_they_are_taken_over(
        self, autopush_url: str, clock: ManualClock
    ) -> None:
        uaid, channel_id = Uaid(new_uuid4()), new_channel()
        connection = await asyncpg.connect(autopush_url)
        await autopush_adds_user(connection, uaid, channel_id, clock=clock, expiry=None)
        await autopush_saves(connection, uaid, channel_id, "v", at_ms=clock.now_ms(), ttl_s=60)
        await connection.execute("UPDATE message SET expiry = NULL")
        await init_store(autopush_url, Store())
        url = parse_postgres_url(autopush_url)
        store = await PostgresPushStore.open(url, settings=Store(), clock=clock)

        assert len(await fetch_all(store, uaid, now_ms=clock.now_ms())) == 1
        assert await sweep_all(store, now_ms=clock.now_ms() + 60_000) == 1
        clock.advance(USER_AGENT_LIFETIME_S)
        assert await sweep_all(store, now_ms=clock.now_ms()) == 1
        assert await connection.fetchval("SELECT count(*) FROM meta") == 0
        await store.close()
        await connection.close()

    async def test_when_autopush_drops_a_user_agent_our_rows_go_too(
        self, store: PostgresPushStore, autopush: Any, clock: ManualClock
    ) -> None:
        uaid, channel_id = Uaid(new_uuid4()), new_channel()
        assert await store.add_user_agent(UserAgent(uaid=uaid, connected_at_ms=clock.now_ms()))
        assert await store.add_channel(uaid, channel_id, channels_max=9)
        assert (await store.save_update(uaid, Update(channel_id, 3))).applied
        await store.save(uaid, timed_notification(channel_id, accepted_at_ms=clock.now_ms()))

        await autopush.execute("DELETE FROM router WHERE uaid = $1", uaid.hex())
        for table in ("meta", "message", "waystation_update"):
            assert await autopush.fetchval(f"SELECT count(*) FROM {table}") == 0


class TestAutopushReadingUs:
    async def test_our_record_has_what_its_nodes_ask_for(
        self, store: PostgresPushStore, autopush: Any, clock: ManualClock
    ) -> None:
        """They refuse a record whose router_data is null, and need a version to clear a route."""
        uaid, channel_id = Uaid(new_uuid4()), new_channel()
        await store.claim_route(UserAgent(uaid=uaid, connected_at_ms=clock.now_ms(), node_id=NODE))
        await store.add_channel(uaid, channel_id, channels_max=9)

        row = await autopush.fetchrow("SELECT * FROM router WHERE uaid = $1", uaid.hex())
        assert row["router_type"] == "webpush"
        assert json.loads(row["router_data"]) is None
        assert row["record_version"] == 1
        assert row["priv_channels"] == []
        assert row["expiry"] == clock.now_ms() // 1000 + USER_AGENT_LIFETIME_S
        assert len(bytes.fromhex(row["version"])) == 16
        meta = await autopush.fetch("SELECT channel_id FROM meta WHERE uaid = $1", uaid.hex())
        assert [found["channel_id"] for found in meta] == [channel_id.hex()]

        cleared = await autopush.execute(
            "UPDATE router SET node_id = null"
            " WHERE uaid = $1 AND node_id = $2 AND connected_at = $3 AND version = $4",
            uaid.hex(),
            NODE,
            clock.now_ms(),
            row["version"],
        )
        assert cleared == "UPDATE 1"
        record = await store.get_user_agent(uaid)
        assert record is not None
        assert record.node_id is None

    async def test_each_claim_changes_the_version_that_fences_a_clearing(
        self, store: PostgresPushStore, autopush: Any, clock: ManualClock
    ) -> None:
        uaid = Uaid(new_uuid4())
        claim = UserAgent(uaid=uaid, connected_at_ms=clock.now_ms(), node_id=NODE)
        assert await store.claim_route(claim)
        first = await store.get_user_agent(uaid)
        assert first is not None
        assert first.route is not None
        assert await store.clear_route(uaid, first.route)
        assert await store.claim_route(claim), "the same node in the same millisecond"

        assert not await store.clear_route(uaid, first.route)

    @pytest.mark.parametrize("topic", [None, "news"])
    async def test_our_message_has_what_its_nodes_ask_for(
        self, store: PostgresPushStore, autopush: Any, clock: ManualClock, topic: str | None
    ) -> None:
        """They build the sort key anew from topic or sortkey_timestamp, to delete the row."""
        uaid, channel_id = Uaid(new_uuid4()), new_channel()
        await autopush_adds_user(autopush, uaid, channel_id, clock=clock)
        now_ms = clock.now_ms() + 3
        key = f"01:{dashed(channel_id)}:{topic}" if topic else f"02:{now_ms}:{dashed(channel_id)}"
        await store.save(
            uaid,
            Notification(
                channel_id,
                MessageId("gAAAA"),
                SortKey(key),
                now_ms,
                60,
                topic=topic,
                headers={"encoding": "aes128gcm"},
                reliability_id="r-1",
            ),
        )

        row = await autopush.fetchrow(
            "SELECT * FROM message WHERE uaid = $1 AND expiry >= $2", uaid.hex(), now_ms // 1000
        )
        assert row["channel_id"] == channel_id.hex()
        assert row["version"] == "gAAAA"
        assert (row["timestamp"], row["ttl"]) == (now_ms // 1000, 60)
        assert row["expiry"] == now_ms // 1000 + 60
        assert row["data"] == ""
        assert json.loads(row["headers"]) == {"encoding": "aes128gcm"}
        assert row["topic"] == topic
        assert row["sortkey_timestamp"] == (None if topic else now_ms)
        assert row["reliability_id"] == "r-1"
        assert row["chid_message_id"] == key

    async def test_the_log_of_a_tracked_message_grows_by_its_states(
        self, store: PostgresPushStore, autopush: Any, clock: ManualClock
    ) -> None:
        now_ms = clock.now_ms()
        for later_ms, milestone in enumerate((Milestone.RECEIVED, Milestone.STORED)):
            at_ms = now_ms + later_ms
            await store.track("r-9", milestone, at_ms=at_ms, expires_at_ms=now_ms + 60_000)
        await store.track(
            "r-9", Milestone.RECEIVED, at_ms=now_ms + 9, expires_at_ms=now_ms + 60_000
        )

        row = await autopush.fetchrow("SELECT * FROM reliability WHERE id = 'r-9'")
        assert json.loads(row["states"]) == {"received": now_ms, "stored": now_ms + 1}
        assert row["last_update_timestamp"] == now_ms // 1000 + 60 * 86_400
        await sweep_all(store, now_ms=now_ms + 61 * 86_400_000)
        assert await autopush.fetchval("SELECT count(*) FROM reliability") == 0


class TestTheSharedIndex:
    async def test_keys_of_one_millisecond_and_different_channels_do_not_collide(
        self, store: PostgresPushStore, autopush: Any, clock: ManualClock
    ) -> None:
        now_ms = clock.now_ms()
        rows: dict[Uaid, list[Notification]] = {}
        for _ in range(20):
            uaid, channel_id = Uaid(new_uuid4()), new_channel()
            await autopush_adds_user(autopush, uaid, channel_id, clock=clock)
            rows[uaid] = [
                topic_notification(channel_id, "t", accepted_at_ms=now_ms),
                *(timed_notification(channel_id, accepted_at_ms=now_ms, n=n) for n in range(5)),
            ]
        await asyncio.gather(
            *(store.save(uaid, row) for uaid, mine in rows.items() for row in mine)
        )

        for uaid, mine in rows.items():
            assert await fetch_all(store, uaid, now_ms=now_ms) == mine

    async def test_who_chose_the_channel_of_another_is_refused_and_nobody_else_suffers(
        self, store: PostgresPushStore, autopush: Any, clock: ManualClock
    ) -> None:
        """Autopush would give the row of the one to the other."""
        first, second, third = (Uaid(new_uuid4()) for _ in range(3))
        shared, other = new_channel(), new_channel()
        for uaid in (first, second, third):
            await autopush_adds_user(autopush, uaid, shared, other, clock=clock)
        now_ms = clock.now_ms()
        held = topic_notification(shared, "t", accepted_at_ms=now_ms)
        await store.save(first, held)
        beside = timed_notification(other, accepted_at_ms=now_ms)

        refused, saved = await asyncio.gather(
            store.save(second, topic_notification(shared, "t", accepted_at_ms=now_ms)),
            store.save(third, beside),
            return_exceptions=True,
        )
        assert isinstance(refused, StoreUnavailableError)
        assert saved is None
        assert await fetch_all(store, first, now_ms=now_ms) == [held]
        assert await fetch_all(store, second, now_ms=now_ms) == []
        assert await fetch_all(store, third, now_ms=now_ms) == [beside]

    async def test_a_person_is_told_when_to_drop_it(
        self, store: PostgresPushStore, autopush: Any
    ) -> None:
        assert any("chid_message_idx" in warning for warning in await store.warnings())
        await autopush.execute("DROP INDEX chid_message_idx")

        assert not any("unique index" in warning for warning in await store.warnings())


async def test_the_order_is_that_of_bytes_in_any_language(
    store: PostgresPushStore, autopush: Any, clock: ManualClock, postgres_server: PostgresServer
) -> None:
    """The database speaks English, whose order has `_` before digits and `a` before `B`."""
    uaid, channel_id = Uaid(new_uuid4()), new_channel()
    await autopush_adds_user(autopush, uaid, channel_id, clock=clock)
    now_ms = clock.now_ms()
    topics = ["a", "B", "_", "-x", "aB", "Ab", "0", "z", "Z"]
    rows = [topic_notification(channel_id, topic, accepted_at_ms=now_ms) for topic in topics]
    for row in rows:
        await store.save(uaid, row)

    found = await fetch_all(store, uaid, now_ms=now_ms, limit=2)
    assert [row.topic for row in found] == sorted(topics)
    in_english = await autopush.fetch(
        "SELECT topic FROM message WHERE uaid = $1 ORDER BY topic", uaid.hex()
    )
    assert [row["topic"] for row in in_english] != sorted(topics)
