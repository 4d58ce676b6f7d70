"""Bigtable behind a proxy that delays, stalls, cuts: we say so, lose nothing, come back alone."""

import asyncio
import threading
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from google.auth.credentials import AnonymousCredentials

from tests.servers.bigtable import BigtableEmulator, bigtable_emulator, bigtable_url
from waystation.base.breaker import FAILURES_MAX, OPEN_S
from waystation.base.clock import SystemClock
from waystation.base.errors import BusyError, StoreUnavailableError
from waystation.base.ids import new_uuid4
from waystation.push.model import Uaid
from waystation.push.store import PushStore
from waystation.storage.bigtable import session
from waystation.storage.bigtable.push import BigtablePushStore
from waystation.storage.bigtable.url import BigtableUrl
from waystation.storage.settings import Store
from waystation.testing.conformance.push_faults import (
    PushStoreFaults,
    Subscriber,
    recovered,
    subscribe,
)
from waystation.testing.conformance.push_store import (
    fetch_all,
    new_channel,
    timed_notification,
    topic_notification,
)
from waystation.testing.faults import FaultyProxy

__all__ = ["bigtable_emulator", "bigtable_url"]

pytestmark = pytest.mark.bigtable

PATIENCE_S = 0.5  # of one attempt
QUEUE_MAX, POOL_MAX = 64, 32


class SkippingClock(SystemClock):
    """The time of day, and as many seconds later as a test says."""

    __slots__ = ("skipped_s",)

    def __init__(self) -> None:
        self.skipped_s = 0.0

    def mono(self) -> float:
        return super().mono() + self.skipped_s


@pytest.fixture
def clock() -> SkippingClock:
    return SkippingClock()


@pytest.fixture
async def proxy(bigtable_emulator: BigtableEmulator) -> AsyncIterator[FaultyProxy]:
    async with FaultyProxy("127.0.0.1", bigtable_emulator.port) as proxy:
        yield proxy


def behind(proxy: FaultyProxy, url: BigtableUrl, **fields: int) -> BigtableUrl:
    return msgspec.structs.replace(url, emulator=f"127.0.0.1:{proxy.port}", **fields)


@pytest.fixture
async def store(
    bigtable_url: BigtableUrl, proxy: FaultyProxy, clock: SkippingClock
) -> AsyncIterator[BigtablePushStore]:
    settings = Store(operation_timeout_s=PATIENCE_S, queue_max=QUEUE_MAX)
    url = behind(proxy, bigtable_url, database_pool_max_size=POOL_MAX)
    store = await BigtablePushStore.open(url, settings=settings, clock=clock)
    yield store
    proxy.resume()
    await store.close()


@pytest.fixture
async def direct(
    bigtable_url: BigtableUrl, clock: SkippingClock
) -> AsyncIterator[BigtablePushStore]:
    """Another node, whose way to the same table is good."""
    store = await BigtablePushStore.open(bigtable_url, settings=Store(), clock=clock)
    yield store
    await store.close()


async def subscribed(store: BigtablePushStore, clock: SystemClock) -> Subscriber:
    subscriber = Uaid(new_uuid4()), new_channel()
    await subscribe(store, clock, subscriber)
    return subscriber


class TestBehindAProxy(PushStoreFaults):
    waiting_max = QUEUE_MAX + POOL_MAX

    @pytest.fixture(autouse=True)
    def its_clock(self, clock: SkippingClock) -> None:
        self._clock = clock

    async def recovered(self, store: PushStore) -> None:
        """And whoever was spared it for a while asks again."""
        await super().recovered(store)
        self._clock.skipped_s += OPEN_S


async def test_a_store_that_stalls_is_unavailable_in_bounded_time_and_comes_back(
    store: BigtablePushStore,
    direct: BigtablePushStore,
    proxy: FaultyProxy,
    clock: SkippingClock,
) -> None:
    uaid, channel_id = await subscribed(store, clock)
    proxy.stall()
    began = clock.mono()
    with pytest.raises(StoreUnavailableError):
        await store.look_up(uaid, channel_id)
    took_s = clock.mono() - began

    assert took_s < 3 * PATIENCE_S + 5, "three attempts, and a busy machine"
    assert store.stats().retries == 2
    assert await direct.look_up(uaid, channel_id) is not None, "others are served"
    proxy.resume()
    await recovered(store)
    assert await store.look_up(uaid, channel_id) is not None


async def test_time_that_ran_out_between_two_attempts_is_unavailable_too(
    store: BigtablePushStore,
    proxy: FaultyProxy,
    clock: SkippingClock,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A busy process wakes late; the driver would call that a mistake of ours."""
    uaid, channel_id = await subscribed(store, clock)

    class Busy:
        """`asyncio` where a pause takes a minute."""

        def __getattr__(self, name: str) -> Any:
            return getattr(asyncio, name)

        async def sleep(self, _pause_s: float) -> None:
            clock.skipped_s += 60

    monkeypatch.setattr(session, "asyncio", Busy())
    proxy.stall()
    before = store.stats().round_trips
    with pytest.raises(StoreUnavailableError):
        await store.look_up(uaid, channel_id)

    assert store.stats().round_trips == before + 1
    assert store.stats().retries == 0


async def test_a_write_under_a_condition_is_not_sent_twice(
    store: BigtablePushStore, proxy: FaultyProxy, clock: SkippingClock
) -> None:
    """Whether it was applied is not known, so only its caller can decide what to do."""
    uaid, _ = await subscribed(store, clock)
    before = store.stats().round_trips
    proxy.stall()
    with pytest.raises(StoreUnavailableError):
        await store.remove_user_agent(uaid)

    assert store.stats().round_trips == before + 1
    assert store.stats().retries == 0
    proxy.resume()


async def test_reads_and_saves_survive_cut_connections(
    store: BigtablePushStore, proxy: FaultyProxy, clock: SkippingClock
) -> None:
    uaid, channel_id = await subscribed(store, clock)
    accepted, refused = [], 0
    for n in range(60):
        if n % 6 == 3:
            proxy.cut()
        row = timed_notification(channel_id, accepted_at_ms=clock.now_ms(), n=n)
        try:
            await store.save(uaid, row)
        except StoreUnavailableError:
            refused += 1
            await recovered(store)
        else:
            accepted.append(row)

    await recovered(store)
    found = await fetch_all(store, uaid, now_ms=clock.now_ms())
    assert {row.sort_key for row in accepted} <= {row.sort_key for row in found}
    assert accepted
    assert len(found) <= len(accepted) + refused
    assert proxy.accepted > 1, "it did connect again"


async def test_what_was_not_acked_is_handed_back_again_and_again_until_it_is_taken(
    store: BigtablePushStore, proxy: FaultyProxy, clock: SkippingClock
) -> None:
    """A hand-back that was cut off is repeated whole, and changes nothing the second time."""
    uaid, channel_id = await subscribed(store, clock)
    now_ms = clock.now_ms()
    rows = [topic_notification(channel_id, "t", accepted_at_ms=now_ms)]
    rows += [timed_notification(channel_id, accepted_at_ms=now_ms, n=n) for n in range(30)]

    async def cutting() -> None:
        for _ in range(4):
            await asyncio.sleep(0.01)
            proxy.cut()

    cuts = asyncio.create_task(cutting())
    async with asyncio.timeout(60):
        while True:
            try:
                await store.save_if_newer(uaid, rows)
                break
            except StoreUnavailableError:
                await recovered(store)
                clock.skipped_s += OPEN_S  # it may be spared for a while: many rows, many failures
    await cuts
    await recovered(store)

    found = await fetch_all(store, uaid, now_ms=now_ms)
    assert {row.sort_key for row in found} == {row.sort_key for row in rows}
    assert (await store.save_if_newer(uaid, rows)).written == 0


async def test_five_failures_in_a_row_spare_a_bigtable_that_is_down_for_half_a_minute(
    store: BigtablePushStore, proxy: FaultyProxy, clock: SkippingClock
) -> None:
    uaid, channel_id = await subscribed(store, clock)
    proxy.refusing = True
    proxy.cut()
    for _ in range(FAILURES_MAX):
        with pytest.raises(StoreUnavailableError):
            await store.look_up(uaid, channel_id)
    asked = store.stats().round_trips
    with pytest.raises(StoreUnavailableError, match="too often"):
        await store.look_up(uaid, channel_id)
    assert store.stats().round_trips == asked, "it was not asked"
    assert store.stats().breaker_opened == 1
    with pytest.raises(StoreUnavailableError):
        await store.check()
    assert store.stats().round_trips > asked, "health is told as it is"

    proxy.refusing = False
    await recovered(store)
    with pytest.raises(StoreUnavailableError, match="too often"):
        await store.look_up(uaid, channel_id)
    clock.skipped_s += OPEN_S
    assert await store.look_up(uaid, channel_id) is not None


async def test_beyond_the_queue_operations_are_refused_as_busy(
    bigtable_url: BigtableUrl, proxy: FaultyProxy, clock: SkippingClock
) -> None:
    settings = Store(operation_timeout_s=5, queue_max=3)
    url = behind(proxy, bigtable_url, database_pool_max_size=2)
    store = await BigtablePushStore.open(url, settings=settings, clock=clock)
    uaid, channel_id = await subscribed(store, clock)
    proxy.stall()
    asked = [asyncio.create_task(store.look_up(uaid, channel_id)) for _ in range(5)]
    await asyncio.sleep(0)

    with pytest.raises(BusyError):
        await store.look_up(uaid, channel_id)
    asked[4].cancel()
    await asyncio.sleep(0)
    proxy.resume()
    assert all(await asyncio.gather(*asked[:4]))
    assert await store.look_up(uaid, channel_id) is not None, "nobody's place was lost"
    await store.close()


async def test_a_server_that_was_not_there_at_the_start_is_found_later(
    bigtable_url: BigtableUrl, proxy: FaultyProxy, clock: SkippingClock
) -> None:
    proxy.refusing = True
    settings = Store(operation_timeout_s=PATIENCE_S)
    url = behind(proxy, bigtable_url)
    store = await BigtablePushStore.open(url, settings=settings, clock=clock)
    with pytest.raises(StoreUnavailableError):
        await store.check()
    proxy.refusing = False
    await recovered(store)

    uaid, channel_id = await subscribed(store, clock)
    assert await store.look_up(uaid, channel_id) is not None
    await store.close()


async def test_a_table_that_was_not_made_is_named_with_the_remedy(
    bigtable_emulator: BigtableEmulator, clock: SkippingClock
) -> None:
    url = bigtable_emulator.unmade_table()
    store = await BigtablePushStore.open(url, settings=Store(), clock=clock)

    with pytest.raises(StoreUnavailableError, match="waystation store init"):
        await store.check()
    await store.close()


async def test_without_credentials_the_remedy_is_named(
    clock: SkippingClock, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv("BIGTABLE_EMULATOR_HOST", raising=False)
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(tmp_path / "none.json"))
    url = BigtableUrl(project="p", instance="i")

    with pytest.raises(StoreUnavailableError, match="GOOGLE_APPLICATION_CREDENTIALS"):
        await BigtablePushStore.open(url, settings=Store(), clock=clock)


async def test_the_service_itself_is_asked_with_tls_and_is_told_nothing_else(
    clock: SkippingClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not the emulator's way to connect; nobody answers there, and that is an error of ours."""
    monkeypatch.delenv("BIGTABLE_EMULATOR_HOST", raising=False)
    monkeypatch.setattr(session, "find_credentials", lambda _: AnonymousCredentials())
    url = BigtableUrl(project="p", instance="i", host="127.0.0.1:1", grpc_channel_count=2)
    store = await BigtablePushStore.open(url, settings=Store(), clock=clock)

    with pytest.raises(StoreUnavailableError):
        await store.check()
    assert not await store.warnings()
    assert not any("Metric" in thread.name for thread in threading.enumerate())
    await store.close()
