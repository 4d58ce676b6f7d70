"""Redis behind a proxy that delays, stalls and cuts, restarts, full memory and lost scripts."""

import asyncio
import time
from collections.abc import AsyncIterator

import pytest

from tests.faults.subscriber import CHANNEL, UAID, notification, subscribe
from tests.servers.redis import (
    RedisServer,
    redis_cluster,
    redis_server,
    redis_url,
    running_redis,
)
from waystation.base.clock import ManualClock, SystemClock
from waystation.base.errors import StoreFullError, StoreUnavailableError
from waystation.storage.redis.push import RedisPushStore
from waystation.storage.redis.session import OneServer
from waystation.storage.redis.url import parse_redis_url
from waystation.storage.settings import Store
from waystation.testing.conformance.push_faults import PushStoreFaults, patiently, recovered
from waystation.testing.conformance.push_store import fetch_all
from waystation.testing.faults import FaultyProxy

__all__ = ["redis_cluster", "redis_server", "redis_url"]

pytestmark = pytest.mark.redis

QUICK = Store(connect_timeout_s=1.0, operation_timeout_s=0.5, queue_max=64)  # where we wait for it
PATIENT = Store(connect_timeout_s=10.0, operation_timeout_s=20.0, queue_max=64)
SOON_S = 20.0  # generous: the machine may be busy


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(now_ms=SystemClock().now_ms())


@pytest.fixture
async def proxy(redis_server: RedisServer) -> AsyncIterator[FaultyProxy]:
    async with FaultyProxy("127.0.0.1", redis_server.port) as proxy:
        yield proxy


@pytest.fixture
async def store(
    clock: ManualClock, proxy: FaultyProxy, redis_url: str
) -> AsyncIterator[RedisPushStore]:
    url = f"redis://127.0.0.1:{proxy.port}/{redis_url.rpartition('/')[2]}"
    patient = await open_store(url, clock)
    await subscribe(patient, clock)
    await patient.close()
    store = await patiently(
        lambda: RedisPushStore.open(parse_redis_url(url), settings=QUICK, clock=clock)
    )
    await recovered(store)  # and connected
    yield store
    proxy.resume()
    await store.close()


async def open_store(url: str, clock: ManualClock) -> RedisPushStore:
    return await RedisPushStore.open(parse_redis_url(url), settings=PATIENT, clock=clock)


class TestBehindAProxy(PushStoreFaults):
    waiting_max = QUICK.queue_max
    refused_within_s = 5.0  # they must not wait for a connection each

    async def test_a_change_under_way_is_not_repeated(
        self, store: RedisPushStore, proxy: FaultyProxy, clock: ManualClock
    ) -> None:
        """It may have taken effect; only its caller can decide."""
        proxy.stall()
        waiting = [asyncio.create_task(store.save(UAID, notification(clock, n))) for n in range(5)]
        await asyncio.sleep(0.05)
        proxy.cut()
        proxy.resume()

        results = await asyncio.gather(*waiting, return_exceptions=True)
        assert all(isinstance(result, StoreUnavailableError) for result in results)
        assert store.stats().failures >= 1

    async def test_the_patience_is_the_settings(
        self, store: RedisPushStore, proxy: FaultyProxy
    ) -> None:
        proxy.stall()

        with pytest.raises(StoreUnavailableError, match=r"no answer within 0\.5 s"):
            await store.get_channels(UAID)
        proxy.resume()


async def until_it_is_noticed(store: RedisPushStore) -> None:
    for _ in range(100):
        await store.get_user_agent(UAID)
        await asyncio.sleep(0.01)


@pytest.mark.parametrize("argument", [None, True, "\ud800"], ids=["none", "bool", "surrogate"])
async def test_what_cannot_be_packed_is_told_to_whoever_sent_it(
    redis_url: str, argument: object
) -> None:
    """And nobody else waits for it: what is sent beside it is answered."""
    server = OneServer(parse_redis_url(redis_url), PATIENT)
    try:
        async with asyncio.timeout(SOON_S):
            wrong = server.run("k", (("SET", "k", argument),))  # pyright: ignore[reportArgumentType]
            right = server.run("k", (("ECHO", "still here"),))
            answers = await asyncio.gather(wrong, right, return_exceptions=True)
    finally:
        await server.close()

    assert isinstance(answers[0], TypeError | UnicodeEncodeError)
    assert answers[1] == [b"still here"]


async def test_a_restart_with_appendonly_loses_nothing_confirmed(clock: ManualClock) -> None:
    with running_redis("--appendonly", "yes", "--appendfsync", "always") as server:
        store = await open_store(server.new_url(), clock)
        await subscribe(store, clock)
        rows = [notification(clock, n) for n in range(20)]
        for row in rows:
            await store.save(UAID, row)
        server.stop()
        with pytest.raises(StoreUnavailableError):
            await until_it_is_noticed(store)
        server.start()
        await recovered(store)

        assert await fetch_all(store, UAID, now_ms=clock.now_ms()) == rows
        await store.close()


async def test_scripts_that_the_server_forgot_are_sent_again(
    redis_url: str, redis_server: RedisServer, clock: ManualClock
) -> None:
    store = await open_store(redis_url, clock)
    await subscribe(store, clock)
    await store.save(UAID, notification(clock, 1))
    redis_server.command("SCRIPT", "FLUSH")

    await asyncio.gather(*(store.save(UAID, notification(clock, n)) for n in range(2, 6)))
    assert len(await fetch_all(store, UAID, now_ms=clock.now_ms())) == 5
    await store.close()


async def test_a_full_redis_refuses_rows_and_still_deletes(clock: ManualClock) -> None:
    with running_redis("--maxmemory-policy", "noeviction") as server:
        store = await open_store(server.new_url(), clock)
        await subscribe(store, clock)
        row = notification(clock, 1)
        await store.save(UAID, row)
        server.command("CONFIG", "SET", "maxmemory", "1")

        with pytest.raises(StoreFullError):
            await store.save(UAID, notification(clock, 2))
        assert await store.forget(UAID, [(row.sort_key, row.message_id)]) == 1
        server.command("CONFIG", "SET", "maxmemory", "0")
        assert not await fetch_all(store, UAID, now_ms=clock.now_ms()), "nothing is left half done"
        await store.close()


async def test_a_wrong_password_is_said_without_the_password(
    redis_server: RedisServer, clock: ManualClock
) -> None:
    store = await open_store(f"redis://:hunter2@127.0.0.1:{redis_server.port}/0", clock)

    with pytest.raises(StoreUnavailableError) as caught:
        await store.check()
    assert "hunter2" not in str(caught.value)
    await store.close()


async def test_a_slot_that_moves_is_followed(
    redis_cluster: list[RedisServer], clock: ManualClock
) -> None:
    """The map is read anew after MOVED; while the slot is under way, ASK leads to each key."""
    first, second = redis_cluster
    store = await open_store(f"redis+cluster://127.0.0.1:{first.port}", clock)
    await store.remove_user_agent(UAID)
    await subscribe(store, clock)
    key = store.keys.user(store.keys.agent(UAID))
    slot = first.command("CLUSTER", "KEYSLOT", key)
    source, target = (first, second) if int(slot) <= 8191 else (second, first)
    source_id, target_id = (server.command("CLUSTER", "MYID") for server in (source, target))
    target.command("CLUSTER", "SETSLOT", slot, "IMPORTING", source_id)
    source.command("CLUSTER", "SETSLOT", slot, "MIGRATING", target_id)
    source.command("MIGRATE", "127.0.0.1", str(target.port), key, "0", "5000")

    under_way = await store.look_up(UAID, CHANNEL)
    keys = source.command("CLUSTER", "GETKEYSINSLOT", slot, "1000").splitlines()
    source.command("MIGRATE", "127.0.0.1", str(target.port), "", "0", "5000", "KEYS", *keys)
    for server in (target, source):
        server.command("CLUSTER", "SETSLOT", slot, "NODE", target_id)
    arrived = await store.look_up(UAID, CHANNEL)
    await store.save(UAID, notification(clock, 1))
    await store.close()
    for server in (source, target):  # as it was, for the next test
        server.command("FLUSHALL")
    for server in (source, target):
        server.command("CLUSTER", "SETSLOT", slot, "NODE", source_id)

    assert under_way is not None
    assert under_way.subscribed
    assert arrived == under_way


async def test_a_node_of_the_url_that_is_gone_is_passed_over(clock: ManualClock) -> None:
    options = ("--appendonly", "no", "--cluster-enabled", "yes")
    with running_redis(*options) as server:
        server.command("CLUSTER", "ADDSLOTSRANGE", "0", "16383")
        deadline = time.monotonic() + SOON_S
        while "cluster_state:ok" not in server.command("CLUSTER", "INFO"):
            assert time.monotonic() < deadline
            await asyncio.sleep(0.05)
        url = f"redis+cluster://127.0.0.1:1,127.0.0.1:{server.port}"
        store = await open_store(url, clock)

        await subscribe(store, clock)
        assert await store.get_channels(UAID) == {CHANNEL}
        await store.close()
