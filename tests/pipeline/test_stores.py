"""Jobs over the push store: what does not fit together, and who is long gone."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

from tests.pipeline.frames import events_frame
from tests.pipeline.store_servers import MASTER, OPENER
from waystation.base.clock import ManualClock
from waystation.pipeline.delta_table import Lake, local_frame
from waystation.pipeline.job_context import Context
from waystation.pipeline.jobs import audit, purge
from waystation.pipeline.schema import EVENTS
from waystation.pipeline.sources.store import TABLES, StoreHandle
from waystation.pipeline.store_job_tables import STORE_AUDIT, STORE_PURGE
from waystation.push.model import ChannelId, MessageId, Notification, SortKey, Uaid, UserAgent
from waystation.push.store import PushStore
from waystation.storage.bulk import StoreConfig, write_store_config
from waystation.storage.open import open_bulk, open_push_store
from waystation.storage.settings import Store
from waystation.telemetry.events import RegChannelNew
from waystation.telemetry.hashes import EventHashes

DAY_MS = 86_400_000
SETTINGS = Store(map_bytes=1 << 28)
NODES = ["http://a:1", "http://a:1/w/0"]


def uaid(number: int) -> Uaid:
    return Uaid(bytes([number]) + bytes(15))


def channel(number: int) -> ChannelId:
    return ChannelId(bytes([255, number]) + bytes(14))


def message(of: int, accepted_at_ms: int, ttl_s: int) -> Notification:
    key = SortKey(f"02:{accepted_at_ms}:{channel(of).hex()}")
    return Notification(channel(of), MessageId(f"m{of}"), key, accepted_at_ms, ttl_s, data="AA")


class EmbeddedPlace:
    """An embedded store, written to by a server's own code."""

    def __init__(self, folder: Path, clock: ManualClock) -> None:
        self.folder = folder
        self.clock = clock
        (folder / "event_key").write_text(MASTER.hex())
        place = StoreConfig(url="embedded:./store", data_dir=str(folder), settings=SETTINGS)
        write_store_config(folder / "place.json", place)
        self.store = StoreHandle(OPENER, str(folder / "place.json"), folder / "event_key")

    def write(self, change: Callable[[PushStore], Awaitable[None]]) -> None:
        async def work() -> None:
            opened = await open_push_store(
                "embedded:./store", data_dir=self.folder, settings=SETTINGS, clock=self.clock
            )
            try:
                await change(opened)
            finally:
                await opened.close()

        asyncio.run(work())

    def uah(self, number: int) -> str:
        hashed = EventHashes(MASTER).uah(uaid(number), self.clock.now_ms())
        return f"{hashed & (1 << 64) - 1:016x}"


@pytest.fixture
def place(tmp_path: Path, clock: ManualClock) -> EmbeddedPlace:
    return EmbeddedPlace(tmp_path, clock)


@pytest.fixture
def ctx(lake: Lake) -> Context:
    return Context(lake.spark, lake, lake.clock)


def add_hello(ctx: Context, number: int, at_ms: int, *, kind: int = 21) -> None:
    """Or another sign of life, by its event code."""
    hashed = EventHashes(MASTER).uah(uaid(number), at_ms)
    row: dict[str, Any] = {"v": 1, "ts": at_ms * 1000, "node": "a.b.0", "boot": 1, "seq": number}
    row |= {"k": kind, "cid": 1, "uah": hashed, "flag": False, "attrs": "{}", "_in": 0}
    handle = ctx.lake.table(EVENTS).open()
    frame = events_frame(ctx.spark, [row]).selectExpr("*", "0L as _in")
    handle.append(handle.write(frame, f"hello{number}"), f"hello{number}", {})


def add_agents(place: EmbeddedPlace, ages_days: dict[int, int]) -> None:
    now_ms = place.clock.now_ms()

    async def change(store: PushStore) -> None:
        for number, days in ages_days.items():
            agent = UserAgent(uaid=uaid(number), connected_at_ms=now_ms - days * DAY_MS)
            assert await store.add_user_agent(agent)
            assert await store.add_channel(uaid(number), channel(number), channels_max=10)

    place.write(change)


def test_every_row_is_in_one_class_or_in_none(ctx: Context, place: EmbeddedPlace) -> None:
    now_ms = place.clock.now_ms()
    add_agents(place, {1: 0, 2: 31, 3: 61, 4: 1})

    async def change(store: PushStore) -> None:
        await store.save(uaid(1), message(1, now_ms - 5000, 3600))  # in order
        await store.save(uaid(9), message(9, now_ms - 5000, 3600))  # nobody's
        await store.save(uaid(1), message(7, now_ms - 5001, 3600))  # a channel that is gone
        await store.save(uaid(2), message(2, now_ms - 90_000, 60))  # expired
        await store.save(uaid(2), message(2, now_ms + 900_000, 60))  # from the future
        odd = UserAgent(
            uaid=uaid(5), connected_at_ms=now_ms, router_type="pigeon", node_id="http://a:1/w/1"
        )
        assert await store.add_user_agent(odd)

    place.write(change)
    add_hello(ctx, 4, now_ms - 1000)  # the store says: a day ago

    found = {one.kind: (one.rows, one.samples) for one in audit.run(ctx, place.store, nodes=NODES)}

    assert found == {
        "msg_no_router": (1, [place.uah(9)]),
        "channel_no_router": (0, []),
        "msg_no_channel": (1, [place.uah(1)]),
        "msg_expired": (1, [place.uah(2)]),
        "msg_future": (1, [place.uah(2)]),
        "router_stale_30": (2, sorted_as_numbers(place, 2, 3)),
        "router_stale_60": (1, [place.uah(3)]),
        "router_bad_type": (1, [place.uah(5)]),
        "stale_index": (1, [place.uah(4)]),
        "dup_topic": (0, []),
        "month_mismatch": (0, []),
        "router_dead_node": (1, [place.uah(5)]),
    }
    kept = ctx.lake.read(STORE_AUDIT).select("class", "rows").collect()
    assert {row["class"]: row["rows"] for row in kept} == {
        name: rows for name, (rows, _) in found.items()
    }


def test_a_topic_in_two_months_and_a_message_in_the_wrong_one_are_found(
    spark: SparkSession,
) -> None:
    """Number 1 is on June; one of its topics lies in May as well, one message in May alone."""

    def of(table: str, *rows: dict[str, Any]) -> DataFrame:
        schema = TABLES[table]
        return local_frame(
            spark, [[row.get(name) for name in schema.names] for row in rows], schema
        )

    places = [(5, "june"), (5, "may"), (6, "june"), (None, "june"), (None, "may")]
    waiting = [{"uah": 1, "chh": 1, "topic_key": key, "month": month} for key, month in places]
    tables = audit.Tables(
        of("router", {"uah": 1, "month": "june"}, {"uah": 2}),
        of("channels", {"uah": 1, "chh": 1}),
        of("messages", *waiting, {"uah": 2, "topic_key": 5}),
        spark.sql("select 0L as uah, 0L as last_ms"),
    )
    found = audit.classes(tables, 0)

    assert [row.uah for row in found["dup_topic"].collect()] == [1]
    assert [row.uah for row in found["month_mismatch"].collect()] == [1, 1]
    assert "router_dead_node" not in found


def sorted_as_numbers(place: EmbeddedPlace, *numbers: int) -> list[str]:
    hashes = EventHashes(MASTER)
    known = sorted(hashes.uah(uaid(number), place.clock.now_ms()) for number in numbers)
    return [f"{value & (1 << 64) - 1:016x}" for value in known]


def test_the_stale_are_removed_and_who_came_back_stays(ctx: Context, place: EmbeddedPlace) -> None:
    """Steps with a day between them: a client that connects in either pause survives, and so does
    one of whom an event tells; its messages go with the one that is removed."""
    now_ms = place.clock.now_ms()
    add_agents(place, {1: 0, 2: 61, 3: 70, 4: 80, 5: 90, 6: 75})
    add_hello(ctx, 2, now_ms - 5 * DAY_MS)
    add_hello(ctx, 6, now_ms - 5 * DAY_MS, kind=RegChannelNew.k)

    async def leave_messages(store: PushStore) -> None:
        for number in (3, 5):
            await store.save(uaid(number), message(number, now_ms, 86_400))

    place.write(leave_messages)
    assert purge.mark(ctx, place.store).candidates == 3  # 3, 4, 5
    assert purge.confirm(ctx, place.store).candidates == 0  # too soon
    come_back(place, 3)
    place.clock.advance(86_401)
    confirmed = purge.confirm(ctx, place.store)
    assert (confirmed.candidates, confirmed.unchanged) == (3, 2)  # 4, 5
    come_back(place, 4)

    dry = purge.delete(ctx, place.store, apply=False)
    assert (dry.candidates, dry.unchanged, dry.removed) == (2, 1, 0)
    assert purge.delete(ctx, place.store, apply=True).removed == 1
    assert purge.delete(ctx, place.store, apply=True).removed == 0  # a second run finds nothing

    async def look(store: PushStore) -> None:
        left = [n for n in range(1, 6) if await store.get_user_agent(uaid(n)) is not None]
        assert left == [1, 2, 3, 4]
        now = place.clock.now_ms() - 86_401_000
        assert len(await store.fetch(uaid(3), now_ms=now, after=None, limit=9)) == 1

    place.write(look)
    assert [row.removed for row in ctx.lake.read(STORE_PURGE).orderBy("at", "run").collect()]
    messages = place.store.read(ctx.spark, "messages", now_ms).select("uah").collect()
    assert [f"{row.uah & (1 << 64) - 1:016x}" for row in messages] == [place.uah(3)]


def come_back(place: EmbeddedPlace, number: int) -> None:
    async def change(store: PushStore) -> None:
        agent = UserAgent(uaid=uaid(number), connected_at_ms=place.clock.now_ms() + 1, node_id="n")
        assert await store.claim_route(agent)

    place.write(change)


def test_the_stale_are_read_by_the_index_of_a_store_that_has_one(
    ctx: Context, place: EmbeddedPlace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The index here leads to one of two; a pass over all user agents would find both."""
    add_agents(place, {1: 70, 2: 80})

    def read_away(store: StoreHandle, spark: SparkSession, now_ms: int) -> DataFrame:
        return store.read(spark, "router", now_ms).where(
            f"connected_at_ms < {now_ms - 75 * DAY_MS}"
        )

    monkeypatch.setattr(StoreHandle, "read_away", read_away)
    marked = purge.mark(ctx, place.store)

    assert marked.candidates == 1


def test_fewer_days_than_a_user_agent_may_be_away_are_refused(
    ctx: Context, place: EmbeddedPlace
) -> None:
    with pytest.raises(purge.TooSoonError, match="at least 30"):
        purge.mark(ctx, place.store, days=29)


def test_ranges_cover_every_key_once(place: EmbeddedPlace) -> None:
    add_agents(place, dict.fromkeys(range(1, 200, 7), 0))
    bulk = open_bulk(place.store.place)
    try:
        for count in (1, 3, 8):
            seen = [
                key
                for part in bulk.ranges("router", count)
                for batch in bulk.scan("router", part, now_ms=0, bounds={})
                for key in batch.column("uaid").to_pylist()
            ]
            assert seen == [bytes(uaid(number)) for number in range(1, 200, 7)]
    finally:
        bulk.close()
