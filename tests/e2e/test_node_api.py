"""The relay port and what a node does under it: C-070, C-071, C-081 to C-084, C-088."""

import asyncio
import json
import time
import uuid

import pytest
from cryptography.fernet import Fernet

from tests.e2e.platform import Serve
from tests.e2e.stores import opened
from tests.e2e.wire_clients import (
    Answer,
    UserAgent,
    accepted,
    b64url,
    http,
    new_channel,
    user_agent,
    version_of,
)
from waystation.push.model import Uaid

pytestmark = pytest.mark.e2e


def notification(server: Serve, agent: UserAgent, channel_id: str, **fields: object) -> bytes:
    """As an endpoint node of any make sends it."""
    text = f"02:{agent.uaid}:{channel_id.replace('-', '')}:{time.time_ns() // 1_000_000}"
    return json.dumps(
        {
            "channelID": channel_id,
            "version": Fernet(server.crypto_key).encrypt(text.encode()).decode(),
            "ttl": 60,
            "topic": None,
            "timestamp": int(time.time()),
            "data": b64url(b"relayed"),
            "headers": {"encoding": "aes128gcm"},
            **fields,
        }
    ).encode()


async def ask(server: Serve, method: str, path: str, body: bytes = b"") -> Answer:
    """The one worker that knows the client answers; the others say that it is not there."""
    answers = [await http(method, node_id + path, {}, body) for node_id in server.node_ids]
    here = [answer for answer in answers if answer.status != 404]
    assert len(here) <= 1
    return here[0] if here else answers[0]


@pytest.mark.parametrize("spelling", ["simple", "dashed"])
async def test_a_node_takes_a_notification_over_http(server: Serve, spelling: str) -> None:
    """§3: with the uaid in either spelling"""
    channel_id = new_channel()
    async with user_agent(server.ws_url) as agent:
        await agent.subscribe(channel_id)
        uaid = agent.uaid if spelling == "simple" else str(uuid.UUID(agent.uaid))
        body = notification(server, agent, channel_id)
        answer = await ask(server, "PUT", f"/push/{uaid}", body)
        message = await agent.notification(ack=True)

        assert answer.status == 200
        assert message == {
            "messageType": "notification",
            "channelID": channel_id,
            "version": json.loads(body)["version"],
            "data": b64url(b"relayed"),
            "headers": {"encoding": "aes128gcm"},
        }


async def test_one_at_a_time_with_a_window_of_one(strict_server: Serve) -> None:
    """C-070, C-071: 503 while one is un-acked; after the ack storage is looked at."""
    channel_id = new_channel()
    async with user_agent(strict_server.ws_url) as agent:
        endpoint = await agent.subscribe(channel_id)
        first = version_of(await accepted(endpoint, b"first"))
        message = await agent.notification()
        refused = await ask(
            strict_server,
            "PUT",
            f"/push/{agent.uaid}",
            notification(strict_server, agent, channel_id),
        )
        second = version_of(await accepted(endpoint, b"second"))

        assert message["version"] == first
        assert refused.status == 503
        await agent.expect_silence(0.2)
        await agent.ack(message)
        assert (await agent.notification(ack=True))["version"] == second
        await agent.settled()
        third = version_of(await accepted(endpoint, b"third"))
        assert (await agent.notification(ack=True))["version"] == third


async def test_a_stream_through_a_window_of_one_arrives_whole(strict_server: Serve) -> None:
    """C-070: every message, whether it was direct or stored"""
    async with user_agent(strict_server.ws_url) as agent:
        endpoint = await agent.subscribe()
        received: set[str] = set()

        async def receive() -> None:
            while len(received) < 15:
                received.add((await agent.notification(ack=True))["version"])

        reading = asyncio.create_task(receive())
        sent = {version_of(await accepted(endpoint, b"%d" % n)) for n in range(15)}
        await reading

        assert received == sent


@pytest.mark.parametrize("path", ["/push/{}", "/notif/{}"])
async def test_who_is_not_there_is_answered_404(server: Serve, path: str) -> None:
    """C-081"""
    unknown = uuid.uuid4().hex
    assert server.node_ids
    async with user_agent(server.ws_url) as agent:
        body = notification(server, agent, new_channel())
        for uaid in (unknown, str(uuid.UUID(unknown)), "nonsense", "", "0" * 31):
            for node_id in server.node_ids:
                answer = await http("PUT", node_id + path.format(uaid), {}, body)

                assert answer.status == 404


@pytest.mark.parametrize("body", [b"", b"{", b"[7]", b"7", b'{"channelID":"x"}', b"\xff\xfe"])
async def test_what_is_no_notification_is_answered_400(strict_server: Serve, body: bytes) -> None:
    """C-081"""
    async with user_agent(strict_server.ws_url) as agent:
        await agent.subscribe()
        answer = await ask(strict_server, "PUT", f"/push/{agent.uaid}", body)

        assert answer.status == 400
        await agent.expect_silence(0.1)


async def test_the_node_api_is_not_public(server: Serve) -> None:
    """C-082: neither where user agents connect nor where app servers post"""
    async with user_agent(server.ws_url) as agent:
        channel_id = new_channel()
        await agent.subscribe(channel_id)
        body = notification(server, agent, channel_id)
        base = server.ws_url.replace("ws://", "http://").rstrip("/")
        for method, path in (
            ("PUT", f"/push/{agent.uaid}"),
            ("PUT", f"/notif/{agent.uaid}"),
            ("DELETE", f"/notif/{agent.uaid}/1"),
            ("PUT", f"/w/0/push/{agent.uaid}"),
            ("PUT", f"/w/1/push/{agent.uaid}"),
        ):
            assert (await http(method, base + path, {}, body)).status == 404
        for path in (f"/push/{agent.uaid}", f"/notif/{agent.uaid}", f"/w/0/push/{agent.uaid}"):
            # `/push/{token}` is SimplePush's there, and a uaid is no token.
            assert (await http("PUT", server.endpoint_url + path, {}, body)).status == 404
        await agent.expect_silence(0.1)


async def test_a_busy_client_is_flagged_for_later(server: Serve) -> None:
    """C-083: 200 when it looks at once, 202 while something is un-acked"""
    async with user_agent(server.ws_url) as agent:
        endpoint = await agent.subscribe()
        idle = await ask(server, "PUT", f"/notif/{agent.uaid}")
        await accepted(endpoint)
        message = await agent.notification()
        busy = await ask(server, "PUT", f"/notif/{agent.uaid}")
        await agent.ack(message)
        await agent.settled()
        again = await ask(server, "PUT", f"/notif/{agent.uaid}")

        assert [one.status for one in (idle, busy, again)] == [200, 202, 200]


async def test_being_told_twice_delivers_once(server: Serve) -> None:
    """Trap T-7: what is already sent and un-acked is not sent again."""
    async with user_agent(server.ws_url) as agent:
        endpoint = await agent.subscribe()
        await agent.leave()
        await accepted(endpoint, topic="Inbox")
        await agent.connect()
        message = await agent.notification()
        await ask(server, "PUT", f"/notif/{agent.uaid}")

        await agent.expect_silence()
        await agent.ack(message)
        await agent.expect_silence(0.1)


async def test_a_client_is_closed_by_the_time_of_its_connection(server: Serve) -> None:
    """C-084"""
    async with user_agent(server.ws_url) as agent:
        await agent.subscribe()
        async with opened(server) as store:
            record = await store.get_user_agent(Uaid(bytes.fromhex(agent.uaid)))
        assert record is not None
        connected_at = record.connected_at_ms
        others = [
            (await http("DELETE", f"{node_id}/notif/{agent.uaid}/{connected_at - 1}")).status
            for node_id in server.node_ids
        ]
        await agent.settled()  # untouched
        matching = [
            (await http("DELETE", f"{node_id}/notif/{agent.uaid}/{connected_at}")).status
            for node_id in server.node_ids
        ]

        assert others == matching == [200, 200]
        assert await agent.closed() == 1011


async def test_posts_during_hello_always_arrive(server: Serve) -> None:
    """C-088: once or twice, never not at all; whatever moment of the hello they meet"""
    async with user_agent(server.ws_url) as agent:
        endpoint = await agent.subscribe()
        for _ in range(10):
            await agent.leave()
            sending = [asyncio.create_task(accepted(endpoint)) for _ in range(4)]
            await agent.connect()
            expected = {version_of(await one) for one in sending}
            received: list[str] = []
            while not expected <= set(received):
                received.append((await agent.notification(ack=True))["version"])

            assert max(map(received.count, expected)) <= 2
        await agent.settled()
        await agent.expect_silence(0.1)
        later = await accepted(endpoint)  # the route is still there: no reconnect is needed
        assert (await agent.notification(ack=True))["version"] == version_of(later)


async def test_what_an_old_worker_hands_back_is_delivered_by_the_new_one(server: Serve) -> None:
    """C-080 between workers of one node; without a reconnect"""
    for _ in range(5):  # the two connections meet on one worker, or on both
        async with user_agent(server.ws_url) as older, UserAgent(server.ws_url) as newer:
            endpoint = await older.subscribe()
            sent = [version_of(await accepted(endpoint)) for _ in range(3)]
            await older.notifications(3)
            newer.uaid = older.uaid
            await newer.connect()
            received = await newer.notifications(3, ack=True)

            assert sorted(one["version"] for one in received) == sorted(sent)
            assert await older.closed() == 1011


async def test_numbers_beyond_64_bits_are_refused(server: Serve) -> None:
    channel_id = new_channel()
    async with user_agent(server.ws_url) as agent:
        await agent.subscribe(channel_id)
        for fields in (
            {"timestamp": 10**30},
            {"ttl": 2**63},
            {"version": 2**64},
            {"sortkey_timestamp": 2**80},
        ):
            body = notification(server, agent, channel_id, **fields)
            answers = [
                await http("PUT", f"{node_id}/push/{agent.uaid}", {}, body)
                for node_id in server.node_ids
            ]

            assert {answer.status for answer in answers} == {400}, fields
        path = f"/notif/{agent.uaid}/{10**30}"
        far = [await http("DELETE", node_id + path, {}, b"") for node_id in server.node_ids]
        long = [
            await http("DELETE", f"{node_id}/w/{'9' * 5000}{path}", {}, b"")
            for node_id in server.node_ids
        ]

    assert {answer.status for answer in [*far, *long]} == {404}
