"""What the embedded store does beyond the contract of every store."""

import asyncio
from collections.abc import AsyncIterator, Coroutine
from pathlib import Path
from typing import Any

import pytest

from waystation.base.clock import ManualClock
from waystation.base.errors import StoreUnavailableError
from waystation.base.ids import new_uuid4
from waystation.push.model import (
    USER_AGENT_LIFETIME_S,
    ChannelId,
    MessageId,
    Uaid,
    UserAgent,
)
from waystation.storage.embedded import layout
from waystation.storage.embedded.check import check_store
from waystation.storage.embedded.push import EmbeddedPushStore
from waystation.storage.settings import Store
from waystation.testing.conformance.push_store import (
    new_channel,
    save_many,
    sweep_all,
    timed_notification,
)

NODE = "http://node:8081"


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
async def store(tmp_path: Path, clock: ManualClock) -> AsyncIterator[EmbeddedPushStore]:
    settings = Store(map_bytes=256 << 20, sync=False)
    store = await EmbeddedPushStore.open(tmp_path / "push", settings=settings, clock=clock)
    yield store
    await store.close()


async def add(store: EmbeddedPushStore, clock: ManualClock) -> tuple[Uaid, ChannelId]:
    uaid, channel_id = Uaid(new_uuid4()), new_channel()
    await store.add_user_agent(UserAgent(uaid=uaid, connected_at_ms=clock.now_ms(), node_id=NODE))
    await store.add_channel(uaid, channel_id, channels_max=10)
    return uaid, channel_id


async def test_reads_complete_without_suspending(
    store: EmbeddedPushStore, clock: ManualClock
) -> None:
    uaid, channel_id = await add(store, clock)
    await store.save(uaid, timed_notification(channel_id, accepted_at_ms=clock.now_ms()))
    reads: list[Coroutine[Any, Any, Any]] = [
        store.get_user_agent(uaid),
        store.look_up(uaid, channel_id),
        store.get_channels(uaid),
        store.fetch(uaid, now_ms=clock.now_ms(), after=None, limit=10),
        store.fetch_updates(uaid, limit=10),
        store.get_broadcasts(),
        store.get_status(MessageId("m"), now_ms=clock.now_ms()),
        store.check(),
    ]

    for read in reads:
        with pytest.raises(StopIteration):
            read.send(None)


async def test_what_is_saved_and_acked_for_ever_does_not_make_the_file_grow(
    store: EmbeddedPushStore, clock: ManualClock
) -> None:
    sizes = []
    for round_ in range(12):
        owners = [await add(store, clock) for _ in range(20)]
        for n, (uaid, channel_id) in enumerate(owners):
            rows = [
                timed_notification(channel_id, accepted_at_ms=clock.now_ms(), n=m, data="x" * 1500)
                for m in range(20)
            ]
            await save_many(store, uaid, rows)
            if n % 2:
                await store.forget(uaid, [(row.sort_key, row.message_id) for row in rows])
            else:
                await store.remove_user_agent(uaid)
        for uaid, _ in owners:
            await store.remove_user_agent(uaid)
        if round_ >= 3:
            sizes.append(store.env.file_bytes())

    assert max(sizes) <= sizes[0] * 1.1
    assert check_store(store.env).rows == dict.fromkeys(layout.TABLES, 0)


async def test_what_is_saved_and_expires_for_ever_does_not_make_the_file_grow(
    store: EmbeddedPushStore, clock: ManualClock
) -> None:
    owners = [await add(store, clock) for _ in range(50)]
    sizes = []
    for round_ in range(15):
        now_ms = clock.now_ms()
        await asyncio.gather(
            *(
                store.save(
                    uaid,
                    timed_notification(
                        channel_id,
                        accepted_at_ms=now_ms,
                        n=n,
                        ttl_s=(30, 60, 90)[n % 3],
                        data="x" * 1500,
                    ),
                )
                for uaid, channel_id in owners
                for n in range(12)
            )
        )
        clock.advance(30)
        await sweep_all(store, now_ms=clock.now_ms(), limit=100)
        if round_ >= 5:
            sizes.append(store.env.file_bytes())

    assert max(sizes) <= sizes[0] * 1.1
    assert check_store(store.env).problems == []


async def test_the_sweep_moves_the_entry_of_a_user_agent_who_came_back(
    store: EmbeddedPushStore, clock: ManualClock
) -> None:
    uaid, _ = await add(store, clock)
    clock.advance(USER_AGENT_LIFETIME_S - 10)
    await store.claim_route(UserAgent(uaid=uaid, connected_at_ms=clock.now_ms(), node_id=NODE))
    clock.advance(20)

    assert await sweep_all(store, now_ms=clock.now_ms(), limit=1) == 0
    assert check_store(store.env).problems == []
    clock.advance(USER_AGENT_LIFETIME_S)
    assert await sweep_all(store, now_ms=clock.now_ms(), limit=1) == 1
    assert check_store(store.env).rows["expiry"] == 0


async def test_a_lapsed_user_agent_with_many_rows_is_swept_in_portions(
    store: EmbeddedPushStore, clock: ManualClock
) -> None:
    uaid, channel_id = await add(store, clock)
    rows = [
        timed_notification(channel_id, accepted_at_ms=clock.now_ms(), n=n, ttl_s=90 * 86_400)
        for n in range(25)
    ]
    await save_many(store, uaid, rows)
    clock.advance(USER_AGENT_LIFETIME_S)

    counts = [await store.sweep(now_ms=clock.now_ms(), limit=10) for _ in range(4)]
    assert counts == [10, 10, 6, 0]
    assert check_store(store.env).rows == dict.fromkeys(layout.TABLES, 0)


async def test_a_row_that_does_not_decode_is_an_unavailable_store(
    store: EmbeddedPushStore, clock: ManualClock
) -> None:
    uaid, channel_id = await add(store, clock)
    for damage in (b"", b"\xff" * 24):
        with store.env.lmdb.begin(store.env.tables["agents"], write=True) as txn:
            txn.put(uaid, damage)

        with pytest.raises(StoreUnavailableError, match="cannot be decoded"):
            await store.look_up(uaid, channel_id)
        with pytest.raises(StoreUnavailableError, match="cannot be decoded"):
            await store.claim_route(UserAgent(uaid=uaid, connected_at_ms=clock.now_ms() + 1))


async def test_the_writer_counts_what_it_does(store: EmbeddedPushStore, clock: ManualClock) -> None:
    uaid, channel_id = await add(store, clock)
    before = store.stats().commits
    rows = [timed_notification(channel_id, accepted_at_ms=clock.now_ms(), n=n) for n in range(50)]
    await save_many(store, uaid, rows)

    stats = store.stats()
    assert stats.operations == 52
    assert stats.commits == before + 1
    assert stats.group_max == 50
    assert stats.commit_s > 0
    assert not stats.full


async def test_a_closed_store_says_so(tmp_path: Path, clock: ManualClock) -> None:
    settings = Store(map_bytes=1 << 24, sync=False)
    store = await EmbeddedPushStore.open(tmp_path / "other", settings=settings, clock=clock)
    uaid, channel_id = await add(store, clock)
    await store.close()
    await store.close()

    with pytest.raises(StoreUnavailableError):
        await store.check()
    with pytest.raises(StoreUnavailableError):
        await store.look_up(uaid, channel_id)
    with pytest.raises(StoreUnavailableError):
        await store.remove_user_agent(uaid)


async def test_what_was_begun_is_written_before_the_store_closes(
    tmp_path: Path, clock: ManualClock
) -> None:
    settings = Store(map_bytes=1 << 24, sync=False)
    store = await EmbeddedPushStore.open(tmp_path / "other", settings=settings, clock=clock)
    uaid, _ = await add(store, clock)
    channels = [new_channel() for _ in range(5)]
    begun = [
        asyncio.ensure_future(store.add_channel(uaid, channel_id, channels_max=10))
        for channel_id in channels
    ]
    await asyncio.sleep(0)
    await store.close()
    await asyncio.gather(*begun)
    store = await EmbeddedPushStore.open(tmp_path / "other", settings=settings, clock=clock)
    found = await store.get_channels(uaid)
    await store.close()

    assert found >= set(channels)
