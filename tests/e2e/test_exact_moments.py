"""A store that fails, or answers late, at an exact moment: C-016, C-024, C-071, C-076 to C-078,
C-088, C-155 to C-158. The worker is real, its sockets are; only its store waits for the test."""

import asyncio
import re
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.e2e.wire_clients import (
    Answer,
    UserAgent,
    Vapid,
    accepted,
    http,
    post,
    user_agent,
    version_of,
)
from tests.e2e.worker_here import WorkerHere, fails, worker_here
from waystation.ops import health

pytestmark = pytest.mark.e2e

TRACKED = Vapid()


@pytest.fixture
async def worker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[WorkerHere]:
    monkeypatch.setattr(health, "PROBE_INTERVAL_S", 0.05)
    monkeypatch.setattr(health, "MILESTONES_INTERVAL_S", 0.05)
    async with worker_here(
        tmp_path / "data",
        monkeypatch,
        connect__delivery_window=1,
        push__tracking_keys=TRACKED.key,
    ) as here:
        yield here


async def test_a_hello_without_a_store_is_refused_without_a_new_uaid(worker: WorkerHere) -> None:
    """C-016: a new uaid would cost the user agent all its subscriptions."""
    for call in ("get_user_agent", "claim_route"):
        async with user_agent(worker.ws_url) as agent:
            await agent.subscribe()
            uaid = agent.uaid
            await agent.leave()
            worker.store.before[call] = fails
            await agent.open()
            await agent.send({"messageType": "hello", "use_webpush": True, "uaid": uaid})
            with pytest.raises(Exception, match="1011"):
                await agent.receive()
            worker.store.before.clear()

            assert (await agent.reconnect())["uaid"] == uaid


@pytest.mark.parametrize("call", ["add_user_agent", "add_channel"])
async def test_a_register_without_a_store_is_answered_500(worker: WorkerHere, call: str) -> None:
    """C-024: the socket stays open, and the next attempt succeeds."""
    async with user_agent(worker.ws_url) as agent:
        worker.store.before[call] = fails
        reply = await agent.register()
        worker.store.before.clear()

        assert (reply["status"], reply["pushEndpoint"]) == (500, "")
        endpoint = await agent.subscribe()
        await accepted(endpoint)
        assert await agent.notification(ack=True)


async def test_an_unregister_without_a_store_is_answered_500(worker: WorkerHere) -> None:
    """§2.5"""
    async with user_agent(worker.ws_url) as agent:
        channel = (await agent.register())["channelID"]
        worker.store.before["remove_channel"] = fails
        failed = await agent.unregister(channel)
        worker.store.before.clear()

        assert failed["status"] == 500
        assert (await agent.unregister(channel))["status"] == 200


async def test_a_notification_during_a_storage_read_is_taken(worker: WorkerHere) -> None:
    """C-071: with a window of one; the one permitted exception to one at a time"""
    reading, release = asyncio.Event(), asyncio.Event()

    async def hold(*_args: object, **_kwargs: object) -> None:
        reading.set()
        await release.wait()

    async with user_agent(worker.ws_url) as agent:
        endpoint = await agent.subscribe()
        await agent.leave()
        stored = version_of(await accepted(endpoint, b"stored"))
        worker.store.before["fetch"] = hold
        await agent.connect()
        await reading.wait()
        direct = version_of(await accepted(endpoint, b"direct"))
        first = await agent.notification()
        release.set()
        second = await agent.notification()
        await agent.ack(first, second)

        assert [first["version"], second["version"]] == [direct, stored]
        await agent.reconnect()
        await agent.expect_silence(0.2)


@pytest.mark.parametrize("call", ["save", "look_up"])
async def test_a_post_without_a_store_is_answered_503(worker: WorkerHere, call: str) -> None:
    """C-076"""
    async with user_agent(worker.ws_url) as agent:
        endpoint = await agent.subscribe()
        await agent.leave()
        worker.store.before[call] = fails
        answer = await post(endpoint)
        worker.store.before.clear()
        await agent.connect()

        assert answer.error == (503, 201)
        assert answer.headers["retry-after"] == "120"
        await agent.expect_silence(0.2)


async def test_who_disappears_while_a_message_is_stored_is_gone(worker: WorkerHere) -> None:
    """C-077"""
    async with user_agent(worker.ws_url) as agent:
        endpoint = await agent.subscribe()
        await agent.leave()

        async def remove(uaid: object, *_args: object) -> None:
            await worker.store.inner.remove_user_agent(uaid)  # pyright: ignore[reportArgumentType]

        worker.store.after["save"] = remove
        answer = await post(endpoint)

        assert answer.error == (410, 105)
        assert answer.headers["cache-control"] == "max-age=86400"


async def test_what_is_stored_is_accepted_though_nobody_can_be_told(worker: WorkerHere) -> None:
    """C-078"""
    async with user_agent(worker.ws_url) as agent:
        endpoint = await agent.subscribe()
        await agent.leave()
        worker.store.before["get_user_agent"] = fails
        answer = await accepted(endpoint)
        worker.store.before.clear()
        await agent.connect()

        assert (await agent.notification(ack=True))["version"] == version_of(answer)


async def test_a_post_between_the_claim_and_the_hello_keeps_the_route(worker: WorkerHere) -> None:
    """C-088b: a second POST arrives without a reconnect"""
    sent: list[Answer] = []
    async with user_agent(worker.ws_url) as agent:
        endpoint = await agent.subscribe()
        await agent.leave()

        async def send(*_args: object) -> None:
            worker.store.after.clear()
            sent.append(await accepted(endpoint))

        worker.store.after["claim_route"] = send
        await agent.connect()
        first = await agent.notification(ack=True)
        await agent.settled()
        later = await accepted(endpoint)
        second = await agent.notification(ack=True)

        assert [first["version"], second["version"]] == [version_of(sent[0]), version_of(later)]


async def test_a_post_before_the_first_storage_read_arrives(worker: WorkerHere) -> None:
    """C-088: once or twice, never not at all"""
    sent: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
    async with user_agent(worker.ws_url) as agent:
        endpoint = await agent.subscribe()
        await agent.leave()

        async def send(*_args: object, **_kwargs: object) -> None:
            worker.store.before.clear()
            sent.set_result(await accepted(endpoint))

        worker.store.before["fetch"] = send
        await agent.connect()
        message = await agent.notification(ack=True)

        assert message["version"] == version_of(await sent)
        await agent.settled()
        await agent.reconnect()
        await agent.expect_silence(0.2)


async def until_heartbeat(base: str, status: int) -> None:
    async with asyncio.timeout(30):
        while True:
            if (await http("GET", f"{base}/__heartbeat__")).status == status:
                return
            await asyncio.sleep(0.02)


async def test_health_tells_of_a_dead_store(worker: WorkerHere) -> None:
    """C-155: 503, so that a balancer passes on; `/__lbheartbeat__` never asks the store."""
    public = worker.ws_url.replace("ws://", "http://").rstrip("/")
    ports = (public, worker.relay_url, worker.endpoint_url)
    worker.store.before["check"] = fails
    await until_heartbeat(public, 503)
    for base in ports:
        for path in ("/__heartbeat__", "/health", "/status"):
            answer = await http("GET", base + path)

            assert answer.status == 503
            assert answer.json["status"] != "OK"
        assert (await http("GET", f"{base}/__lbheartbeat__")).status == 200
    endpoint = (await http("GET", f"{worker.endpoint_url}/__heartbeat__")).json
    assert endpoint["message_table"]["status"] == "NOT OK"
    assert endpoint["message_table"]["cause"]
    worker.store.before.clear()
    await until_heartbeat(public, 200)


async def tracked_states(worker: WorkerHere) -> dict[str, int]:
    """Tracked messages by state, as `/metrics` has them; states without a message left out."""
    answer = await http("GET", f"{worker.relay_url}/metrics")
    found = re.findall(
        r'^autopush_reliability\{state="(\w+)"\} (\d+)', answer.body.decode(), re.MULTILINE
    )
    return {state: int(count) for state, count in found if int(count)}


async def until_tracked(worker: WorkerHere, expected: dict[str, int]) -> None:
    """Milestones are written twice a second."""
    states: dict[str, int] = {}
    try:
        async with asyncio.timeout(30):
            while True:
                states = await tracked_states(worker)
                if states == expected:
                    return
                await asyncio.sleep(0.05)
    except TimeoutError:
        raise AssertionError(f"expected {expected}, there is {states}") from None


async def test_tracked_messages_are_counted_where_they_are(worker: WorkerHere) -> None:
    """C-156, C-158: each once; the codes of acks lead to three different ends."""
    async with user_agent(worker.ws_url) as agent:
        endpoint = await agent.subscribe(key=TRACKED.key)
        await agent.leave()
        for _ in range(3):
            await accepted(endpoint, vapid=TRACKED)
        await until_tracked(worker, {"stored": 3})
        milestones = await http("GET", f"{worker.endpoint_url}/__milestones__")
        await agent.connect()
        messages = await agent.notifications(3)
        for message, code in zip(messages, (100, 101, 102), strict=True):
            await agent.ack(message, code=code)

        assert {k: v for k, v in milestones.json.items() if v} == {"stored": 3}
        await until_tracked(worker, {"delivered": 1, "decryption_error": 1, "not_delivered": 1})
        await agent.settled()
        await accepted(endpoint, vapid=TRACKED)
        await agent.notification(ack=True)
        await until_tracked(worker, {"delivered": 2, "decryption_error": 1, "not_delivered": 1})


async def test_others_are_not_tracked(worker: WorkerHere) -> None:
    """C-156"""
    async with user_agent(worker.ws_url) as agent:
        endpoint = await agent.subscribe()
        await accepted(endpoint, vapid=Vapid())
        message = await agent.notification(ack=True)
        await asyncio.sleep(0.7)  # a write of milestones, had there been any

        assert "reliability_id" not in message
        assert await tracked_states(worker) == {}


async def test_a_tracked_sender_may_name_its_messages(worker: WorkerHere) -> None:
    """C-157: nobody else"""
    other = Vapid()
    async with user_agent(worker.ws_url) as agent:
        tracked = await agent.subscribe(key=TRACKED.key)
        untracked = await agent.subscribe(key=other.key)
        named = {"X-MessageId": "order-4711"}
        await accepted(tracked, vapid=TRACKED, headers=named)
        first = await agent.notification(ack=True)
        await agent.settled()
        await accepted(untracked, vapid=other, headers=named)
        second = await agent.notification(ack=True)
        await agent.settled()
        await accepted(tracked, vapid=TRACKED)
        third = await agent.notification(ack=True)

        assert first["reliability_id"] == "order-4711"
        assert "reliability_id" not in second
        assert third["reliability_id"] not in ("", "order-4711")


async def test_a_sender_may_ask_what_became_of_its_message(worker: WorkerHere) -> None:
    """Authorised by the key of the POST; its milestones in order"""
    sender = Vapid()
    async with user_agent(worker.ws_url) as agent:
        endpoint = await agent.subscribe(key=sender.key)
        answer = await accepted(endpoint, vapid=sender)
        await agent.notification(ack=True)
        url = f"{answer.headers['location']}/status"
        async with asyncio.timeout(30):
            while True:
                status = await http("GET", url, sender.vapid(url))
                if status.status == 200 and status.json["final"]:
                    break
                await asyncio.sleep(0.05)

        assert status.json["state"] == "delivered"
        assert status.json["milestones"][0]["state"] == "received"
        assert (await http("GET", url, Vapid().vapid(url))).status == 401
        assert (await http("GET", url)).status == 401


async def test_a_user_agent_that_was_cut_off_without_a_store_gets_it_later(
    worker: WorkerHere,
) -> None:
    """What cannot be handed back now is tried again until the store answers."""
    async with user_agent(worker.ws_url) as agent:
        endpoint = await agent.subscribe()
        answer = await accepted(endpoint)
        await agent.notification()
        worker.store.before["save_if_newer"] = fails
        await agent.vanish()
        again = UserAgent(worker.ws_url)
        again.uaid = agent.uaid
        async with again:
            await again.connect()
            await again.expect_silence(0.2)
            worker.store.before.clear()

            assert (await again.notification(ack=True))["version"] == version_of(answer)
