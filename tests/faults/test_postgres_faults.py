"""PostgreSQL behind a proxy that delays, stalls, cuts; restarts; statements in each other's way."""

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable

import asyncpg
import pytest

from tests.faults.subscriber import CHANNEL, UAID, notification, subscribe
from tests.servers.postgres import (
    PostgresServer,
    postgres_server,
    postgres_url,
    running_postgres,
)
from waystation.base.clock import ManualClock
from waystation.base.errors import BusyError, StoreUnavailableError
from waystation.base.ids import new_uuid4
from waystation.push.model import Uaid, UserAgent
from waystation.storage.postgres.push import PostgresPushStore
from waystation.storage.postgres.url import parse_postgres_url
from waystation.storage.settings import Store
from waystation.testing.conformance.push_faults import PushStoreFaults, patiently, recovered
from waystation.testing.conformance.push_store import (
    fetch_all,
    timed_notification,
    topic_notification,
)
from waystation.testing.faults import FaultyProxy

__all__ = ["postgres_server", "postgres_url"]

pytestmark = pytest.mark.postgres

# Where we wait for it; a statement that waits for others' locks needs more on a busy machine.
QUICK = Store(connect_timeout_s=1.0, operation_timeout_s=0.7, queue_max=64, connections_max=4)
PATIENT = Store(connect_timeout_s=10.0, operation_timeout_s=20.0, queue_max=64, connections_max=4)


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
async def proxy(postgres_server: PostgresServer) -> AsyncIterator[FaultyProxy]:
    async with FaultyProxy("127.0.0.1", postgres_server.port) as proxy:
        yield proxy


@pytest.fixture
def proxied_url(proxy: FaultyProxy, postgres_server: PostgresServer, postgres_url: str) -> str:
    return postgres_server.url(postgres_url.rpartition("/")[2], proxy.port)


@pytest.fixture
async def patient(
    clock: ManualClock, proxy: FaultyProxy, proxied_url: str
) -> AsyncIterator[PostgresPushStore]:
    store = await open_store(proxied_url, clock)
    await subscribe(store, clock)
    await on_all_connections(store)
    yield store
    proxy.resume()
    await store.close()


@pytest.fixture
async def store(
    clock: ManualClock, proxy: FaultyProxy, proxied_url: str
) -> AsyncIterator[PostgresPushStore]:
    """With little patience from its start; another one has made the tables and the rows."""
    patient = await open_store(proxied_url, clock)
    await subscribe(patient, clock)
    await patient.close()
    store = await patiently(lambda: open_store(proxied_url, clock, QUICK))
    await patiently(lambda: on_all_connections(store))
    yield store
    proxy.resume()
    await store.close()


async def open_store(url: str, clock: ManualClock, settings: Store = PATIENT) -> PostgresPushStore:
    return await PostgresPushStore.open(parse_postgres_url(url), settings=settings, clock=clock)


async def on_all_connections(store: PostgresPushStore) -> None:
    await asyncio.gather(*(store.get_channels(UAID) for _ in range(20)))


class TestBehindAProxy(PushStoreFaults):
    waiting_max = QUICK.queue_max + QUICK.connections_max
    refused_within_s = 5.0  # they must not wait for a connection each
    delay_s = 0.01  # a new connection takes many round trips

    async def test_a_change_under_way_is_not_repeated(
        self, store: PostgresPushStore, proxy: FaultyProxy, clock: ManualClock
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
        self, store: PostgresPushStore, proxy: FaultyProxy, clock: ManualClock
    ) -> None:
        proxy.stall()

        with pytest.raises(StoreUnavailableError, match=r"no answer within 0\.7 s"):
            await store.save(UAID, notification(clock, 1))
        proxy.resume()


async def test_a_read_whose_connection_is_cut_is_asked_again(
    patient: PostgresPushStore, proxy: FaultyProxy
) -> None:
    proxy.stall()
    reading = [asyncio.create_task(patient.look_up(UAID, CHANNEL)) for _ in range(3)]
    channels = asyncio.create_task(patient.get_channels(UAID))
    await asyncio.sleep(0.05)
    proxy.cut()
    proxy.resume()

    found = await asyncio.gather(*reading)
    assert all(recipient and recipient.subscribed for recipient in found)
    assert await channels == {CHANNEL}


async def test_connections_that_ended_while_idle_are_noticed(
    patient: PostgresPushStore, proxy: FaultyProxy, clock: ManualClock
) -> None:
    proxy.cut()
    idle = list(patient._session._idle)
    async with asyncio.timeout(30):
        while True:
            if all(connection.is_closed() for connection in idle):
                break
            await asyncio.sleep(0.01)

    await patient.save(UAID, notification(clock, 1))
    assert patient.stats().failures == 0


async def test_no_more_than_queue_max_operations_wait(
    store: PostgresPushStore, proxy: FaultyProxy
) -> None:
    proxy.stall()
    calls: list[Awaitable[object]] = [store.get_user_agent(UAID) for _ in range(100)]
    lookups: list[Awaitable[object]] = [store.look_up(UAID, CHANNEL) for _ in range(100)]

    results = await asyncio.gather(*calls, return_exceptions=True)
    taken = QUICK.queue_max + QUICK.connections_max
    assert sum(isinstance(result, BusyError) for result in results) == 100 - taken
    assert sum(isinstance(result, StoreUnavailableError) for result in results) == taken
    grouped = await asyncio.gather(*lookups, return_exceptions=True)
    assert sum(isinstance(result, BusyError) for result in grouped) == 100 - QUICK.queue_max
    proxy.resume()
    await recovered(store)


async def test_a_slow_statement_does_not_hold_up_the_others(
    patient: PostgresPushStore, postgres_url: str, clock: ManualClock
) -> None:
    """A row that somebody has locked: one save waits for it, everything else goes on."""
    held = topic_notification(CHANNEL, "t", accepted_at_ms=clock.now_ms())
    await patient.save(UAID, held)
    holder = await asyncpg.connect(postgres_url)
    transaction = holder.transaction()
    await transaction.start()
    await holder.execute("SELECT FROM message FOR UPDATE")
    waiting = asyncio.create_task(
        patient.save(UAID, topic_notification(CHANNEL, "t", accepted_at_ms=clock.now_ms() + 1))
    )
    await asyncio.sleep(0.05)

    await patient.save(UAID, notification(clock, 1))
    assert await patient.look_up(UAID, CHANNEL) is not None
    assert not waiting.done()
    await transaction.rollback()
    await holder.close()
    await waiting


async def test_a_crash_of_the_server_loses_nothing_confirmed(clock: ManualClock) -> None:
    with running_postgres() as server:
        store = await open_store(server.new_url(), clock)
        await subscribe(store, clock)
        rows = [notification(clock, n) for n in range(20)]
        for row in rows:
            await store.save(UAID, row)
        server.stop("immediate")
        with pytest.raises(StoreUnavailableError):
            await store.check()
        server.start()
        await recovered(store)

        assert await fetch_all(store, UAID, now_ms=clock.now_ms()) == rows
        await store.close()


async def test_many_who_save_and_forget_the_same_rows_do_not_lock_each_other_out(
    patient: PostgresPushStore, postgres_url: str, clock: ManualClock
) -> None:
    """Groups of several nodes hold many rows at once; they take them in one order."""
    nodes = [patient, *[await open_store(postgres_url, clock) for _ in range(2)]]
    chance = random.Random(7)
    agents = [Uaid(new_uuid4()) for _ in range(4)]
    for uaid in agents:
        await patient.add_user_agent(UserAgent(uaid=uaid, connected_at_ms=clock.now_ms()))
        await patient.add_channel(uaid, CHANNEL, channels_max=10)

    async def work(node: PostgresPushStore) -> None:
        for turn in range(15):
            rows = [
                topic_notification(CHANNEL, topic, accepted_at_ms=clock.now_ms() + turn)
                for topic in chance.sample("abcdefgh", 6)
            ]
            uaids = chance.sample(agents, 3)
            await asyncio.gather(*(node.save(uaid, row) for uaid in uaids for row in rows))
            acked = [(row.sort_key, row.message_id) for row in chance.sample(rows, 4)]
            await asyncio.gather(
                *(node.forget(uaid, acked) for uaid in uaids),
                node.save_if_newer(uaids[0], rows),
            )

    await asyncio.gather(*(work(node) for node in nodes))
    undone = [node.stats().undone for node in nodes]
    for node in nodes[1:]:
        await node.close()
    assert undone == [0, 0, 0]


async def test_several_nodes_sweep_at_once_and_each_row_is_counted_once(
    patient: PostgresPushStore, postgres_url: str, clock: ManualClock
) -> None:
    rows = [
        timed_notification(CHANNEL, accepted_at_ms=clock.now_ms(), n=n, ttl_s=5) for n in range(300)
    ]
    for start in range(0, len(rows), 50):
        await asyncio.gather(*(patient.save(UAID, row) for row in rows[start : start + 50]))
    nodes = [patient, *[await open_store(postgres_url, clock) for _ in range(2)]]
    later_ms = clock.now_ms() + 60_000

    swept = await asyncio.gather(*(node.sweep(now_ms=later_ms, limit=1000) for node in nodes))
    for node in nodes[1:]:
        await node.close()
    assert sum(swept) == 300


async def test_a_wrong_password_is_said_without_the_password(
    postgres_server: PostgresServer, clock: ManualClock
) -> None:
    url = f"postgres://nobody:hunter2@127.0.0.1:{postgres_server.port}/postgres"
    store = await open_store(url, clock)

    with pytest.raises(StoreUnavailableError) as caught:
        await store.check()
    assert "hunter2" not in str(caught.value)
    await store.close()
