"""User agents that are moved to a new month while endpoints write: nothing is lost or doubled."""

import asyncio
import random
from collections.abc import AsyncIterator

import msgspec
import pytest

from tests.servers.dynamodb import PATIENT, DynamoServer, dynamodb_server
from waystation.base.clock import ManualClock, SystemClock
from waystation.base.errors import StoreUnavailableError
from waystation.base.ids import dashed, new_uuid4
from waystation.push.model import ChannelId, Notification, SortKey, Uaid, UserAgent
from waystation.push.store import RotatingStore
from waystation.storage.dynamodb.init import init_store
from waystation.storage.dynamodb.months import month_at
from waystation.storage.dynamodb.push import DynamoPushStore
from waystation.storage.dynamodb.rotate import rotate_store
from waystation.storage.dynamodb.session import Dynamo
from waystation.storage.dynamodb.url import parse_dynamodb_url
from waystation.testing.conformance.push_store import (
    fetch_all,
    new_channel,
    timed_notification,
    topic_notification,
)

__all__ = ["dynamodb_server"]

pytestmark = pytest.mark.dynamodb

NODE = "http://a.example:8081"
DAY_S = 86_400


class Nodes:
    """A connection node and an endpoint node on one store, each with its own memory."""

    def __init__(self, url: str, node: DynamoPushStore, endpoint: DynamoPushStore) -> None:
        self.url = url
        self.node = node
        self.endpoint = endpoint
        self.clock = ManualClock()

    async def subscribe(self) -> tuple[Uaid, ChannelId]:
        uaid, channel = Uaid(new_uuid4()), new_channel()
        agent = UserAgent(uaid=uaid, connected_at_ms=self.clock.now_ms(), node_id=NODE)
        assert await self.node.add_user_agent(agent)
        assert await self.node.add_channel(uaid, channel, channels_max=10)
        assert await self.endpoint.look_up(uaid, channel), "it remembers the month from here on"
        return uaid, channel

    def to_next_month(self) -> None:
        month = month_at(self.clock.now_ms())
        while month_at(self.clock.now_ms()) == month:
            self.clock.advance(DAY_S)

    def notification(self, channel: ChannelId, n: int) -> Notification:
        return timed_notification(channel, accepted_at_ms=self.clock.now_ms(), n=f"{n:04}")

    async def stored(self, uaid: Uaid) -> list[Notification]:
        return await fetch_all(self.node, uaid, now_ms=self.clock.now_ms())

    async def switch(self, uaid: Uaid) -> bool:
        return await self.node.switch_month(uaid, connected_at_ms=self.clock.now_ms())


@pytest.fixture
async def nodes(dynamodb_server: DynamoServer) -> AsyncIterator[Nodes]:
    url = dynamodb_server.new_url("rotation=monthly")
    clock = ManualClock(now_ms=SystemClock().now_ms())
    await init_store(url, PATIENT)
    await rotate_store(url, PATIENT, clock, dry_run=False)
    node, endpoint = [
        await DynamoPushStore.open(parse_dynamodb_url(url), settings=PATIENT, clock=clock)
        for _ in range(2)
    ]
    both = Nodes(url, node, endpoint)
    both.clock = clock
    yield both
    await node.close()
    await endpoint.close()


def test_the_store_is_one_that_rotates() -> None:
    assert issubclass(DynamoPushStore, RotatingStore)


async def test_who_is_of_this_month_is_not_behind(nodes: Nodes) -> None:
    uaid, _ = await nodes.subscribe()
    record = await nodes.node.get_user_agent(uaid)
    assert record is not None
    assert not record.behind
    nodes.to_next_month()

    record = await nodes.node.get_user_agent(uaid)
    assert record is not None
    assert record.behind
    assert await nodes.switch(uaid)
    record = await nodes.node.get_user_agent(uaid)
    assert record is not None
    assert not record.behind
    assert await nodes.switch(uaid), "once more does no harm"


async def test_a_look_up_of_last_month_takes_two_round_trips(nodes: Nodes) -> None:
    uaid, channel = await nodes.subscribe()
    nodes.to_next_month()
    stranger = await DynamoPushStore.open(
        parse_dynamodb_url(nodes.url), settings=PATIENT, clock=nodes.clock
    )
    before = stranger.stats().round_trips
    recipient = await stranger.look_up(uaid, channel)
    used = stranger.stats().round_trips - before
    await stranger.close()

    assert recipient is not None
    assert recipient.subscribed
    assert used == 2


async def test_a_later_claim_keeps_an_older_connection_from_moving_it(nodes: Nodes) -> None:
    """§6.3"""
    uaid, _ = await nodes.subscribe()
    nodes.to_next_month()
    claim = UserAgent(uaid=uaid, connected_at_ms=nodes.clock.now_ms() + 1, node_id=NODE)
    assert await nodes.node.claim_route(claim)

    assert not await nodes.switch(uaid)
    record = await nodes.node.get_user_agent(uaid)
    assert record is not None
    assert record.behind


async def test_nobody_is_moved_back_by_a_clock_that_is_slow(nodes: Nodes) -> None:
    uaid, channel = await nodes.subscribe()
    now_ms = nodes.clock.now_ms()
    nodes.to_next_month()
    assert await nodes.switch(uaid)
    nodes.clock.set_wall_ms(now_ms)

    record = await nodes.node.get_user_agent(uaid)
    assert record is not None
    assert not record.behind
    recipient = await nodes.endpoint.look_up(uaid, channel)
    assert recipient is not None
    assert recipient.subscribed


async def test_unregistering_before_a_move_is_not_undone_by_its_merge(nodes: Nodes) -> None:
    """A switch that was cut off after the copy has put the channel into the new month."""
    uaid, channel = await nodes.subscribe()
    nodes.to_next_month()
    moves = nodes.node._moves
    await moves._copy_channels(uaid, *sorted(nodes.node._context.tables.names)[:2])
    assert await nodes.node.remove_channel(uaid, channel)

    assert await nodes.switch(uaid)
    assert await nodes.node.get_channels(uaid) == frozenset()


async def test_withdrawing_finds_a_message_that_has_moved(nodes: Nodes) -> None:
    uaid, channel = await nodes.subscribe()
    nodes.to_next_month()
    row = nodes.notification(channel, 1)
    await nodes.endpoint.save(uaid, row)
    assert await nodes.switch(uaid)

    assert await nodes.endpoint.forget(uaid, [(row.sort_key, row.message_id)]) == 1
    assert await nodes.stored(uaid) == []


async def test_a_newer_topic_in_the_new_month_is_not_overwritten(nodes: Nodes) -> None:
    uaid, channel = await nodes.subscribe()
    nodes.to_next_month()
    now_ms = nodes.clock.now_ms()
    older = topic_notification(channel, "t", accepted_at_ms=now_ms)
    newer = topic_notification(channel, "t", accepted_at_ms=now_ms + 1)
    await nodes.endpoint.save(uaid, older)
    notifications = nodes.node._notifications
    await notifications._put((await nodes.node._context.tables.current()), uaid, newer)

    assert await nodes.switch(uaid)
    assert await nodes.stored(uaid) == [newer]


async def test_a_key_of_three_parts_that_is_taken_in_the_new_month_is_moved_on(
    nodes: Nodes,
) -> None:
    """`push.sort_keys = "autopush"`: two messages of one channel and one millisecond"""
    uaid, channel = await nodes.subscribe()
    nodes.to_next_month()
    now_ms = nodes.clock.now_ms()
    key = SortKey(f"02:{now_ms}:{dashed(channel)}")
    first, second = (
        msgspec.structs.replace(nodes.notification(channel, n), sort_key=key) for n in range(2)
    )
    assert await nodes.endpoint.save_new(uaid, first)
    assert not await nodes.endpoint.save_new(uaid, second)
    await nodes.node._notifications._put(await nodes.node._context.tables.current(), uaid, second)

    assert await nodes.switch(uaid)
    stored = await nodes.stored(uaid)
    assert [row.message_id for row in stored] == [second.message_id, first.message_id]
    assert not await nodes.endpoint.save_new(
        uaid, msgspec.structs.replace(nodes.notification(channel, 3), sort_key=key)
    ), "its memory of the month is old"


async def test_what_is_written_while_user_agents_move_is_neither_lost_nor_doubled(
    nodes: Nodes,
) -> None:
    """Endpoints whose memory of the month is old, handing back, and moves, all at once."""
    chance = random.Random(5)
    agents = [await nodes.subscribe() for _ in range(6)]
    nodes.to_next_month()

    async def soon() -> None:
        await asyncio.sleep(chance.random() * 0.05)

    async def save(uaid: Uaid, row: Notification) -> None:
        await soon()
        await nodes.endpoint.save(uaid, row)

    async def hand_back(uaid: Uaid, rows: list[Notification]) -> None:
        await soon()
        await nodes.endpoint.save_if_newer(uaid, rows)

    async def move(uaid: Uaid) -> None:
        await soon()
        assert await nodes.switch(uaid)

    written: dict[Uaid, list[Notification]] = {}
    work: list[asyncio.Task[None]] = []
    for uaid, channel in agents:
        rows = [nodes.notification(channel, n) for n in range(12)]
        written[uaid] = rows
        work += [asyncio.create_task(save(uaid, row)) for row in rows[:8]]
        work += [asyncio.create_task(hand_back(uaid, rows[8:]))]
        work += [asyncio.create_task(move(uaid))]
    await asyncio.gather(*work)

    for uaid, rows in written.items():
        assert await nodes.stored(uaid) == rows


async def test_a_move_that_fails_anywhere_is_finished_by_another(
    nodes: Nodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The n-th call fails, for every n, until a move needs no more calls than that."""
    write = Dynamo.write
    agents = [await nodes.subscribe() for _ in range(10)]
    nodes.to_next_month()
    for nth, (uaid, channel) in enumerate(agents, start=1):
        row = nodes.notification(channel, nth)
        await nodes.endpoint.save(uaid, row)
        left = nth

        async def sometimes(self: Dynamo, operation: str, **request: object) -> object:
            nonlocal left
            left -= 1
            if left == 0:
                raise StoreUnavailableError("throttled")
            return await write(self, operation, **request)

        monkeypatch.setattr(Dynamo, "write", sometimes)
        try:
            finished = await nodes.switch(uaid)
        except StoreUnavailableError:
            finished = False
        monkeypatch.setattr(Dynamo, "write", write)
        record = await nodes.node.get_user_agent(uaid)
        assert record is not None
        assert record.behind is not finished, f"call {nth}"
        assert await nodes.switch(uaid)

        assert await nodes.stored(uaid) == [row], f"call {nth}"
        assert await nodes.node.get_channels(uaid) == {channel}
        if finished:
            assert nth == 4, "copy, point, finish; what is carried over is a transaction"
            return
    raise AssertionError("it never finished")
