"""Monthly tables on a real DynamoDB, with a clock that moves into the next month (§6.8)."""

import asyncio
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.wire_clients import (
    UserAgent,
    accepted,
    new_channel,
    post,
    user_agent,
    version_of,
)
from tests.e2e.worker_here import WorkerHere, fails, worker_here
from tests.servers.dynamodb import PATIENT, DynamoServer, dynamodb_server
from waystation.app.wiring import push_worker
from waystation.base.clock import SystemClock
from waystation.base.ids import parse_uuid
from waystation.push.model import Uaid
from waystation.storage.dynamodb.init import init_store
from waystation.storage.dynamodb.layout import Keys, number, string, string_set
from waystation.storage.dynamodb.months import month_at, table_name
from waystation.storage.dynamodb.push import DynamoPushStore
from waystation.storage.dynamodb.rotate import rotate_store
from waystation.storage.dynamodb.session import Dynamo
from waystation.storage.dynamodb.url import parse_dynamodb_url

__all__ = ["dynamodb_server"]

pytestmark = [pytest.mark.e2e, pytest.mark.dynamodb]

KEYS = Keys()
DAY_S = 86_400
RELAY_URL = "http://the-only-node.test:8081"  # never asked: its endpoint is in the same worker


class MovedClock(SystemClock):
    """The real one, some days ahead."""

    __slots__ = ("ahead_s",)

    def __init__(self) -> None:
        self.ahead_s = 0

    def now_ms(self) -> int:
        return super().now_ms() + self.ahead_s * 1000

    def to_next_month(self) -> None:
        month = month_at(self.now_ms())
        while month_at(self.now_ms()) == month:
            self.ahead_s += DAY_S


class Month:
    """A worker on monthly tables, and a look into its rows."""

    def __init__(self, url: str, worker: WorkerHere, clock: MovedClock, dynamo: Dynamo) -> None:
        self.url = url
        self.worker = worker
        self.clock = clock
        self.dynamo = dynamo
        names = parse_dynamodb_url(url)
        self.router = names.router_table
        self.before = table_name(names.message_table, month_at(clock.now_ms()))
        self.after = table_name(names.message_table, month_at(clock.now_ms()) + 1)
        assert isinstance(worker.store.inner, DynamoPushStore)

    def comes(self) -> None:
        self.clock.to_next_month()

    async def record(self, agent: UserAgent) -> dict[str, Any]:
        row = await self.dynamo.get(self.router, KEYS.router(uaid_of(agent)))
        assert row is not None
        return row

    async def month_of(self, agent: UserAgent) -> str:
        return (await self.record(agent))["current_month"]["S"]

    async def channels(self, table: str, agent: UserAgent) -> set[str]:
        row = await self.dynamo.get(table, KEYS.channels(uaid_of(agent)))
        return set() if row is None else set(row.get("chids", {}).get("SS", ()))

    async def messages(self, table: str, agent: UserAgent) -> list[str]:
        answer = await self.dynamo.read(
            "Query",
            TableName=table,
            KeyConditionExpression="uaid = :uaid AND chidmessageid > :blank",
            ExpressionAttributeValues={
                ":uaid": KEYS.uaid(uaid_of(agent)),
                ":blank": string(" "),
            },
        )
        return [row["updateid"]["S"] for row in answer["Items"]]

    async def moved(self, agent: UserAgent) -> None:
        async with asyncio.timeout(20):
            while await self.month_of(agent) != self.after:  # noqa: ASYNC110 - it is in DynamoDB
                await asyncio.sleep(0.02)


def uaid_of(agent: UserAgent) -> Uaid:
    raw = parse_uuid(agent.uaid or "")
    assert raw is not None
    return Uaid(raw)


@pytest.fixture
async def month(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    dynamodb_server: DynamoServer,
    request: pytest.FixtureRequest,
) -> AsyncIterator[Month]:
    rotation = getattr(request, "param", "monthly")
    url = dynamodb_server.new_url(f"rotation={rotation}")
    clock = MovedClock()
    await init_store(url, PATIENT)
    if rotation == "monthly":
        await rotate_store(url, PATIENT, clock, dry_run=False)
    monkeypatch.setattr(push_worker, "SystemClock", lambda: clock)
    dynamo = await Dynamo.open(parse_dynamodb_url(url), PATIENT)
    try:
        async with worker_here(
            tmp_path / "data",
            monkeypatch,
            store__url=url,
            store__operation_timeout_s=PATIENT.operation_timeout_s,
            connect__relay_url=RELAY_URL,
        ) as worker:
            yield Month(url, worker, clock, dynamo)
    finally:
        await dynamo.close()


async def test_who_is_on_last_month_is_served_there_and_moves_after_its_acks(month: Month) -> None:
    """C-139"""
    channel = new_channel()
    async with user_agent(month.worker.ws_url) as agent:
        endpoint = await agent.subscribe(channel)
        await agent.leave()
        month.comes()
        version = version_of(await accepted(endpoint))
        assert await month.messages(month.before, agent) == [version]
        assert await month.messages(month.after, agent) == []
        seen_before = int((await month.record(agent))["last_connect"]["N"])

        await agent.connect()
        notification = await agent.notification()
        assert notification["version"] == version
        assert await month.month_of(agent) == month.before
        await agent.ack(notification)
        await month.moved(agent)
        assert await month.channels(month.after, agent) == {channel}
        this_month = f"{datetime.fromtimestamp(month.clock.now_ms() / 1000, UTC):%Y%m}"
        seen = (await month.record(agent))["last_connect"]["N"]
        assert seen.startswith(this_month)
        assert int(seen) > seen_before
        await agent.settled()
        await agent.leave()
        stored = version_of(await accepted(endpoint))
        assert await month.messages(month.after, agent) == [stored]
        await agent.connect()
        assert (await agent.notification(ack=True))["version"] == stored


async def test_channels_that_are_in_the_new_month_already_are_merged(month: Month) -> None:
    """C-140"""
    channel, earlier = new_channel(), new_channel()
    async with user_agent(month.worker.ws_url) as agent:
        await agent.subscribe(channel)
        await agent.leave()
        month.comes()
        row = KEYS.channels(uaid_of(agent)) | {"chids": string_set([earlier])}
        await month.dynamo.write("PutItem", TableName=month.after, Item=row)
        await agent.connect()
        await month.moved(agent)

        assert await month.channels(month.after, agent) == {channel, earlier}


async def test_with_nothing_to_carry_the_move_follows_the_hello(month: Month) -> None:
    """C-141"""
    channel = new_channel()
    async with user_agent(month.worker.ws_url) as agent:
        await agent.subscribe(channel)
        await agent.unregister(channel)
        await agent.leave()
        month.comes()
        await agent.connect()
        await month.moved(agent)

        assert await month.channels(month.after, agent) == set()
        await accepted(await agent.subscribe())
        await agent.notification(ack=True)


async def test_unacked_notifications_of_last_month_postpone_the_move(month: Month) -> None:
    """C-142"""
    async with user_agent(month.worker.ws_url) as agent:
        endpoint = await agent.subscribe()
        await agent.leave()
        month.comes()
        versions = [version_of(await accepted(endpoint)) for _ in range(2)]
        await agent.connect()
        first, _ = await agent.notifications(2)
        await agent.ack(first)
        async with asyncio.timeout(20):
            while len(await month.messages(month.before, agent)) > 1:  # noqa: ASYNC110 - as above
                await asyncio.sleep(0.02)
        await agent.vanish()
        assert await month.month_of(agent) == month.before

        await agent.connect()
        again = await agent.notification(ack=True)
        assert {first["version"], again["version"]} == set(versions)
        await month.moved(agent)
        await agent.settled()
        await agent.expect_silence(0.2)


async def test_what_comes_to_the_old_table_during_the_move_is_delivered(month: Month) -> None:
    """C-143: from an endpoint that read the record before the move, and wrote during it."""
    late: list[str] = []
    async with user_agent(month.worker.ws_url) as agent:
        endpoint = await agent.subscribe()
        await agent.leave()
        month.comes()

        async def store_one(*_args: object, **_kwargs: object) -> None:
            month.worker.store.before.clear()
            # The route says nothing to this sender, so it stores: an endpoint that saw no node.
            await month.dynamo.write(
                "UpdateItem",
                TableName=month.router,
                Key=KEYS.router(uaid_of(agent)),
                UpdateExpression="REMOVE node_id",
            )
            late.append(version_of(await accepted(endpoint)))
            assert await month.messages(month.before, agent) == late

        month.worker.store.before["switch_month"] = store_one
        await agent.connect()

        assert (await agent.notification(ack=True))["version"] == late[0]
        await agent.settled()
        assert await month.month_of(agent) == month.after
        assert await month.messages(month.before, agent) == []
        assert "previous_month" not in await month.record(agent)


async def test_what_a_slow_endpoint_writes_to_the_old_table_after_the_move_is_delivered(
    month: Month,
) -> None:
    """Beyond C-143: the last look into the old table is over when the row is written."""
    looked_up, go_on = asyncio.Event(), asyncio.Event()

    async def hold(*_args: object, **_kwargs: object) -> None:
        looked_up.set()
        await go_on.wait()

    async with user_agent(month.worker.ws_url) as agent:
        endpoint = await agent.subscribe()
        await agent.leave()
        month.comes()
        month.worker.store.before["save"] = hold
        posting = asyncio.create_task(accepted(endpoint))
        await looked_up.wait()
        await agent.connect()
        await month.moved(agent)
        await agent.settled()
        month.worker.store.inner._agents.remember(uaid_of(agent), month.before)  # type: ignore[attr-defined]
        go_on.set()

        version = version_of(await posting)
        assert (await agent.notification(ack=True))["version"] == version
        await agent.settled()
        assert await month.messages(month.before, agent) == []


async def test_a_registration_during_the_move_lands_in_the_new_month(month: Month) -> None:
    """C-144"""
    first, second, third = (new_channel() for _ in range(3))
    async with user_agent(month.worker.ws_url) as agent:
        endpoint = await agent.subscribe(first)
        await agent.leave()
        month.comes()
        await accepted(endpoint)
        await agent.connect()
        notification = await agent.notification()
        await agent.send({"messageType": "register", "channelID": second})
        await agent.expect_silence(0.2)

        async def register_another(*_args: object, **_kwargs: object) -> None:
            await agent.send({"messageType": "register", "channelID": third})
            await asyncio.sleep(0.1)
            assert await month.month_of(agent) == month.before

        month.worker.store.before["switch_month"] = register_another
        await agent.ack(notification)
        replies = [await agent.expect("register") for _ in range(2)]
        assert [(reply["channelID"], reply["status"]) for reply in replies] == [
            (second, 200),
            (third, 200),
        ]
        assert await month.month_of(agent) == month.after
        assert await month.channels(month.after, agent) == {first, second, third}
        assert await month.channels(month.before, agent) == {first}
        await accepted(replies[1]["pushEndpoint"])
        await agent.notification(ack=True)


@pytest.mark.parametrize("pointer", [None, "message_2001_01"])
async def test_who_has_no_usable_month_is_dropped(month: Month, pointer: str | None) -> None:
    """C-145"""
    agents = [UserAgent(month.worker.ws_url) for _ in range(2)]
    endpoints: list[str] = []
    for agent in agents:
        await agent.connect()
        endpoints.append(await agent.subscribe())
        await agent.leave()
        change: dict[str, Any] = {"UpdateExpression": "REMOVE current_month"}
        if pointer is not None:
            change = {
                "UpdateExpression": "SET current_month = :table",
                "ExpressionAttributeValues": {":table": string(pointer)},
            }
        await month.dynamo.write(
            "UpdateItem", TableName=month.router, Key=KEYS.router(uaid_of(agent)), **change
        )
    posted, returning = agents
    uaid = returning.uaid

    assert (await post(endpoints[0])).error == (410, 106)
    assert await month.dynamo.get(month.router, KEYS.router(uaid_of(posted))) is None
    assert (await returning.connect())["uaid"] != uaid
    assert (await post(endpoints[1])).error == (410, 106)
    await returning.leave()


@pytest.mark.parametrize("month", ["off"], indirect=True)
async def test_without_rotation_the_last_table_stays_in_use(month: Month) -> None:
    """C-146"""
    async with user_agent(month.worker.ws_url) as agent:
        endpoint = await agent.subscribe()
        await agent.leave()
        month.comes()
        version = version_of(await accepted(endpoint))
        assert await month.messages(month.before, agent) == [version]
        await agent.connect()

        assert (await agent.notification(ack=True))["version"] == version
        await agent.settled()
        assert await month.month_of(agent) == month.before


async def test_a_move_that_is_throttled_is_made_later(
    month: Month, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Edge case c: meanwhile the user agent stays on its old month, and can do everything."""
    async with user_agent(month.worker.ws_url) as agent:
        await agent.subscribe()
        await agent.leave()
        month.comes()
        month.worker.store.before["switch_month"] = fails
        await agent.connect()
        channel = new_channel()
        endpoint = await agent.subscribe(channel)

        assert channel in await month.channels(month.before, agent)
        await accepted(endpoint)
        await agent.notification(ack=True)
        assert await month.month_of(agent) == month.before
        month.worker.store.before.clear()
        await agent.reconnect()
        await month.moved(agent)
        assert channel in await month.channels(month.after, agent)


async def test_a_move_that_was_cut_off_after_the_pointer_is_finished_by_the_next_connect(
    month: Month,
) -> None:
    """Edge case b"""
    async with user_agent(month.worker.ws_url) as agent:
        endpoint = await agent.subscribe()
        await agent.leave()
        month.comes()
        version = version_of(await accepted(endpoint))
        record = {":new": string(month.after), ":old": string(month.before)}
        await month.dynamo.write(
            "UpdateItem",
            TableName=month.router,
            Key=KEYS.router(uaid_of(agent)),
            UpdateExpression="SET current_month = :new, previous_month = :old",
            ExpressionAttributeValues=record,
        )
        left = await month.dynamo.get(month.before, KEYS.channels(uaid_of(agent)))
        assert left is not None
        await month.dynamo.write(
            "PutItem", TableName=month.after, Item=left | {"expiry": number(2**33)}
        )

        await agent.connect()
        assert (await agent.notification(ack=True))["version"] == version
        await agent.settled()
        assert "previous_month" not in await month.record(agent)
        assert await month.messages(month.before, agent) == []
