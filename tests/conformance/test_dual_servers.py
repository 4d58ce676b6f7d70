"""From DynamoDB to Bigtable, on real servers: what every store passes, and a move under load."""

import asyncio
import random
from collections.abc import AsyncIterator

import msgspec
import pytest

from tests.servers.bigtable import bigtable_emulator, bigtable_url
from tests.servers.dynamodb import PATIENT, DynamoServer, dynamodb_server
from waystation.base.clock import ManualClock, SystemClock
from waystation.base.ids import new_uuid4
from waystation.push.model import ChannelId, MessageId, Notification, SortKey, Uaid, UserAgent
from waystation.push.store import RotatingStore
from waystation.storage.bigtable.push import BigtablePushStore
from waystation.storage.bigtable.url import BigtableUrl
from waystation.storage.dual.push import DualPushStore, both_can
from waystation.storage.dual.url import parse_dual_url
from waystation.storage.dynamodb.init import init_store
from waystation.storage.dynamodb.months import month_at
from waystation.storage.dynamodb.push import DynamoPushStore
from waystation.storage.dynamodb.rotate import rotate_store
from waystation.storage.dynamodb.url import parse_dynamodb_url
from waystation.storage.memory.push import MemoryPushStore
from waystation.testing.conformance.push_samples import (
    NODE_A,
    fetch_all,
    new_channel,
    timed_notification,
    topic_notification,
)
from waystation.testing.conformance.push_store import PushStoreConformance

__all__ = ["bigtable_emulator", "bigtable_url", "dynamodb_server"]

pytestmark = [pytest.mark.bigtable, pytest.mark.dynamodb]

ANY_PAIR = "dual:?primary=memory:&secondary=memory:"  # only its options count here


@pytest.fixture
def clock() -> ManualClock:
    """Both servers let go of rows by their own clock."""
    return ManualClock(now_ms=SystemClock().now_ms())


@pytest.fixture
async def store(
    clock: ManualClock, bigtable_url: BigtableUrl, dynamodb_server: DynamoServer
) -> AsyncIterator[DualPushStore]:
    dynamodb = dynamodb_server.new_url("rotation=monthly")
    await init_store(dynamodb, PATIENT)
    secondary = await DynamoPushStore.open(
        parse_dynamodb_url(dynamodb), settings=PATIENT, clock=clock
    )
    primary = await BigtablePushStore.open(bigtable_url, settings=PATIENT, clock=clock)
    store = DualPushStore(primary, secondary, parse_dual_url(ANY_PAIR), clock)
    yield store
    await store.close()
    assert store.stats().errors == {}


class TestDualOfBigtableAndDynamoDb(PushStoreConformance):
    capabilities = both_can(BigtablePushStore.capabilities, DynamoPushStore.capabilities)

    @pytest.fixture
    def clock(self, clock: ManualClock) -> ManualClock:
        return clock

    @pytest.fixture
    def store(self, store: DualPushStore) -> DualPushStore:
        return store


async def test_user_agents_move_under_load_and_nothing_is_lost_or_doubled(
    store: DualPushStore, clock: ManualClock
) -> None:
    """Nodes with different medians, senders and user agents, all at once."""
    now_ms = clock.now_ms()
    primary, secondary = store.primary, store.secondary
    waiting = DualPushStore(primary, secondary, parse_dual_url(f"{ANY_PAIR}&median=none"), clock)
    chance = random.Random(6)
    agents = [Uaid(new_uuid4()) for _ in range(12)]
    channels = {uaid: [new_channel() for _ in range(3)] for uaid in agents}
    accepted: dict[Uaid, set[MessageId]] = {uaid: set() for uaid in agents}
    received: dict[Uaid, list[MessageId]] = {uaid: [] for uaid in agents}
    kept: dict[Uaid, set[ChannelId]] = {}

    for uaid in agents:
        record = UserAgent(uaid=uaid, connected_at_ms=now_ms - 1000, node_id=NODE_A)
        assert await secondary.add_user_agent(record)
        for channel_id in channels[uaid]:
            assert await secondary.add_channel(uaid, channel_id, channels_max=99)
        old = timed_notification(channels[uaid][0], accepted_at_ms=now_ms, n="old")
        await secondary.save(uaid, old)
        accepted[uaid].add(old.message_id)

    async def send(uaid: Uaid) -> None:
        for n in range(8):
            node = chance.choice((store, waiting))
            channel_id = chance.choice(channels[uaid][:2])
            recipient = await node.look_up(uaid, channel_id)
            assert recipient is not None
            assert recipient.subscribed, "a subscription is never out of sight"
            row = timed_notification(channel_id, accepted_at_ms=now_ms + n)
            await node.save(uaid, row)
            accepted[uaid].add(row.message_id)

    async def connect(uaid: Uaid) -> None:
        gone = channels[uaid][2]
        for n in range(3):
            node = (store, waiting, store)[n]
            record = await node.get_user_agent(uaid)
            assert record is not None
            claim = msgspec.structs.replace(
                record, connected_at_ms=now_ms + n, node_id=f"http://{n}"
            )
            await node.claim_route(claim)
            added = new_channel()
            assert await node.add_channel(uaid, added, channels_max=99)
            channels[uaid].append(added)
            await receive(node, uaid)
            if n == 1:
                assert await node.remove_channel(uaid, gone)
        kept[uaid] = {*channels[uaid]} - {gone}

    async def receive(node: DualPushStore, uaid: Uaid) -> None:
        rows: list[Notification] = await fetch_all(node, uaid, now_ms=now_ms)
        acks: list[tuple[SortKey, MessageId]] = [(row.sort_key, row.message_id) for row in rows]
        received[uaid] += [message_id for _, message_id in acks]
        assert await node.forget(uaid, acks) == len(acks)

    await asyncio.gather(*(send(uaid) for uaid in agents), *(connect(uaid) for uaid in agents))
    for uaid in agents:
        await receive(store, uaid)
        assert sorted(received[uaid]) == sorted(accepted[uaid])
        record = await primary.get_user_agent(uaid)
        assert record is not None
        assert record.node_id == "http://2"
        assert await primary.get_channels(uaid) == kept[uaid]
        assert not await fetch_all(secondary, uaid, now_ms=now_ms)
    assert store.stats().migrated + waiting.stats().migrated >= len(agents)
    assert waiting.stats().errors == {}


async def test_what_was_removed_or_replaced_stays_so(
    store: DualPushStore, clock: ManualClock
) -> None:
    now_ms = clock.now_ms()
    uaid, channel_id = Uaid(new_uuid4()), new_channel()
    await store.secondary.add_user_agent(UserAgent(uaid=uaid, connected_at_ms=now_ms - 1000))
    await store.secondary.add_channel(uaid, channel_id, channels_max=9)
    old = topic_notification(channel_id, "t", accepted_at_ms=now_ms - 1)
    await store.secondary.save(uaid, old)
    await store.get_user_agent(uaid)
    new = topic_notification(channel_id, "t", accepted_at_ms=now_ms)
    await store.save(uaid, new)

    assert await fetch_all(store, uaid, now_ms=now_ms) == [new]
    assert await store.forget(uaid, [(new.sort_key, new.message_id)]) == 1
    assert not await fetch_all(store, uaid, now_ms=now_ms)
    assert await store.remove_user_agent(uaid)
    # A node that came too late to hear of it.
    await store.secondary.add_user_agent(UserAgent(uaid=uaid, connected_at_ms=now_ms - 500))
    assert await store.get_user_agent(uaid) is None
    assert await store.secondary.get_user_agent(uaid) is None


@pytest.mark.parametrize("options", ["", "&median=none"], ids=["moved", "where it was"])
async def test_whose_home_has_months_is_moved_to_the_new_one(
    dynamodb_server: DynamoServer, clock: ManualClock, options: str
) -> None:
    """The driver asks the dual store, which asks the one where the user agent lives."""
    url = dynamodb_server.new_url("rotation=monthly")
    await init_store(url, PATIENT)
    monthly = await DynamoPushStore.open(parse_dynamodb_url(url), settings=PATIENT, clock=clock)
    stores = (monthly, MemoryPushStore(clock))
    primary, secondary = stores if not options else reversed(stores)
    store = DualPushStore(primary, secondary, parse_dual_url(ANY_PAIR + options), clock)
    uaid, channel_id = Uaid(new_uuid4()), new_channel()
    record = UserAgent(uaid=uaid, connected_at_ms=clock.now_ms(), node_id=NODE_A)
    assert await store.add_user_agent(record)
    assert await store.add_channel(uaid, channel_id, channels_max=9)
    month = month_at(clock.now_ms())
    while month_at(clock.now_ms()) == month:
        clock.advance(86_400)
    row = timed_notification(channel_id, accepted_at_ms=clock.now_ms())
    await store.save(uaid, row)
    await rotate_store(url, PATIENT, clock, dry_run=False)
    clock.advance(120)  # tables are looked for once a minute
    behind = await store.get_user_agent(uaid)
    switched = await store.switch_month(uaid, connected_at_ms=clock.now_ms())
    after = await store.get_user_agent(uaid)
    waiting = await fetch_all(store, uaid, now_ms=clock.now_ms())
    channels = await store.get_channels(uaid)
    await store.close()

    assert isinstance(store, RotatingStore)
    assert behind is not None
    assert behind.behind
    assert switched
    assert after is not None
    assert not after.behind
    assert waiting == [row]
    assert channels == {channel_id}
