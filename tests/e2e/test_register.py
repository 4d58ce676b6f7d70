"""Subscribing, unsubscribing, pings, acks of nothing: scenarios C-019 to C-032."""

import asyncio
import time

import pytest

from tests.e2e.platform import Serve, until
from tests.e2e.scrape import sample
from tests.e2e.wire_clients import (
    CLOSE,
    PING,
    PONG,
    TEXT,
    RawSocket,
    Vapid,
    accepted,
    new_channel,
    post,
    user_agent,
)

pytestmark = pytest.mark.e2e


async def test_registering_gives_an_endpoint(server: Serve) -> None:
    """C-019"""
    channel_id = new_channel()
    async with user_agent(server.ws_url) as agent:
        reply = await agent.register(channel_id)

        endpoint = reply.pop("pushEndpoint")
        assert reply == {"messageType": "register", "channelID": channel_id, "status": 200}
        assert endpoint.startswith(f"{server.endpoint_url}/wpush/v1/")
        assert len(endpoint.rpartition("/")[2]) == 140


@pytest.mark.parametrize("padding", ["", "="])
async def test_registering_with_a_key_gives_an_endpoint_bound_to_it(
    server: Serve, padding: str
) -> None:
    """C-020: Firefox sends the key padded"""
    async with user_agent(server.ws_url) as agent:
        endpoint = await agent.subscribe(key=Vapid().key + padding)

        assert endpoint.startswith(f"{server.endpoint_url}/wpush/v2/")
        assert len(endpoint.rpartition("/")[2]) == 183


@pytest.mark.parametrize("key", ["!!!", "not base64 at all", "AAAA", "é", "BA" * 43])
async def test_a_key_that_is_none_is_answered_400(server: Serve, key: str) -> None:
    """C-021: no base64url, or no point of the curve; the socket stays open."""
    async with user_agent(server.ws_url) as agent:
        reply = await agent.register(key=key)

        assert reply["status"] == 400
        assert not reply["pushEndpoint"].startswith("http")
        assert await agent.subscribe()


async def test_a_key_may_be_null(server: Serve) -> None:
    """C-019: a page may subscribe without a key"""
    async with user_agent(server.ws_url) as agent:
        assert "/wpush/v1/" in await agent.subscribe(key=None)


BAD_CHANNELS = [
    pytest.param({"channelID": new_channel().upper()}, id="upper case"),
    pytest.param({"channelID": new_channel().replace("-", "")}, id="undashed"),
    pytest.param({"channelID": None}, id="null"),
    pytest.param({"channelID": ""}, id="empty"),
    pytest.param({"channelID": "nonsense"}, id="nonsense"),
    pytest.param({"channelID": 7}, id="number"),
    pytest.param({}, id="missing"),
]


@pytest.mark.parametrize("fields", BAD_CHANNELS)
async def test_a_bad_channel_id_is_refused(server: Serve, fields: dict[str, object]) -> None:
    """C-022"""
    async with user_agent(server.ws_url) as agent:
        await agent.send({"messageType": "register", **fields})

        assert await agent.closed() == 1011


@pytest.mark.parametrize("fields", BAD_CHANNELS)
async def test_a_bad_channel_id_is_refused_with_words_where_these_are_wanted(
    strict_server: Serve, fields: dict[str, object]
) -> None:
    """C-022 with ws_error_replies: the socket stays open."""
    async with user_agent(strict_server.ws_url) as agent:
        await agent.send({"messageType": "register", **fields})
        reply = await agent.expect("register")

        assert reply["status"] == 401
        assert reply["reason"]
        assert await agent.subscribe()


async def test_registering_twice_gives_two_endpoints_of_one_channel(server: Serve) -> None:
    """C-023"""
    channel_id = new_channel()
    async with user_agent(server.ws_url) as agent:
        endpoints = [await agent.subscribe(channel_id) for _ in range(2)]

        assert endpoints[0] != endpoints[1]
        for endpoint in endpoints:
            await accepted(endpoint)
            assert (await agent.notification(ack=True))["channelID"] == channel_id


async def test_unregistering_is_answered_200_however_often(server: Serve) -> None:
    """C-025"""
    channel_id = new_channel()
    async with user_agent(server.ws_url) as agent:
        await agent.subscribe(channel_id)
        for _ in range(2):
            reply = await agent.unregister(channel_id, code=200)

            assert reply == {"messageType": "unregister", "channelID": channel_id, "status": 200}


async def test_a_channel_that_never_was_is_unregistered_with_200(server: Serve) -> None:
    """C-025: also by one who has no subscription at all"""
    async with user_agent(server.ws_url) as agent:
        assert (await agent.unregister(new_channel(), code=202))["status"] == 200


@pytest.mark.parametrize("code", [200, 201, 202, 7, None])
async def test_whatever_the_reason_the_channel_id_is_echoed_as_it_was_sent(
    server: Serve, code: int | None
) -> None:
    """C-025: 201 quota used up, 202 permission withdrawn; any spelling of a UUID."""
    async with user_agent(server.ws_url) as agent:
        for channel_id in (new_channel(), new_channel().upper(), new_channel().replace("-", "")):
            reply = await agent.unregister(channel_id, code=code)

            assert (reply["channelID"], reply["status"]) == (channel_id, 200)


async def test_an_endpoint_is_gone_after_unregistering(server: Serve) -> None:
    """C-026"""
    channel_id = new_channel()
    async with user_agent(server.ws_url) as agent:
        endpoint = await agent.subscribe(channel_id)
        other = await agent.subscribe()
        await agent.unregister(channel_id)
        answer = await post(endpoint)

        assert answer.error == (410, 106)
        assert answer.headers["cache-control"] == "max-age=86400"
        await accepted(other)
        assert await agent.notification(ack=True)


async def test_what_was_stored_for_a_channel_goes_with_it(server: Serve) -> None:
    """Trap T-23: a subscription that is over delivers nothing any more."""
    channel_id = new_channel()
    async with user_agent(server.ws_url) as agent:
        endpoint, other = await agent.subscribe(channel_id), await agent.subscribe()
        await agent.leave()
        await accepted(endpoint)
        await accepted(other)
        await agent.connect()
        first = await agent.notification()
        second = await agent.notification()
        await agent.unregister(channel_id)
        await agent.reconnect()
        again = await agent.notification(ack=True)

        assert channel_id in (first["channelID"], second["channelID"])
        assert again["channelID"] != channel_id
        await agent.expect_silence()


@pytest.mark.parametrize("fields", [{}, {"channelID": None}, {"channelID": "nonsense"}])
async def test_unregistering_nothing_is_refused(server: Serve, fields: dict[str, object]) -> None:
    """C-027"""
    async with user_agent(server.ws_url) as agent:
        await agent.send({"messageType": "unregister", **fields})

        assert await agent.closed() == 1011


@pytest.mark.parametrize("fields", [{}, {"channelID": None}, {"channelID": "nonsense"}])
async def test_unregistering_nothing_is_refused_with_words_where_these_are_wanted(
    strict_server: Serve, fields: dict[str, object]
) -> None:
    """C-027 with ws_error_replies"""
    async with user_agent(strict_server.ws_url) as agent:
        await agent.send({"messageType": "unregister", **fields})
        reply = await agent.expect("unregister")

        assert reply["status"] == 401
        assert reply["reason"]


async def test_a_ping_is_answered_and_a_second_one_at_once_is_too_many(server: Serve) -> None:
    """C-028: the answer is the same two bytes"""
    async with user_agent(server.ws_url) as agent:
        await agent.send("{}")

        assert await agent.socket.recv() == "{}"
        await agent.send("{}")
        assert await agent.closed() == 1011


async def test_a_ping_may_have_a_name(server: Serve) -> None:
    """C-029"""
    async with user_agent(server.ws_url) as agent:
        await agent.send({"messageType": "ping"})

        assert await agent.socket.recv() == "{}"


async def test_a_websocket_ping_is_answered_with_its_payload(server: Serve) -> None:
    async with await RawSocket.open(server.ws_url) as raw:
        raw.say({"messageType": "hello", "use_webpush": True})
        assert (await raw.frame()).opcode == TEXT
        raw.send(PING, b"are you there")

        assert await raw.frame() == (PONG, b"are you there")


async def test_who_does_not_answer_a_ping_is_cut_off(impatient_server: Serve) -> None:
    """C-030"""
    async with await RawSocket.open(impatient_server.ws_url) as raw:
        began = time.monotonic()  # not when the ping came: we may be slow to hear it
        raw.say({"messageType": "hello", "use_webpush": True})
        assert (await raw.frame()).opcode == TEXT
        assert (await raw.frame()).opcode == PING
        opcode, payload = await raw.frame()

        assert opcode == CLOSE
        assert int.from_bytes(payload[:2], "big") == 1011
        assert time.monotonic() - began >= 1.3, "an interval and the time for an answer"
        await raw.ended()


async def test_who_answers_pings_stays_and_is_pinged_again(impatient_server: Serve) -> None:
    """C-030"""
    async with await RawSocket.open(impatient_server.ws_url) as raw:
        raw.say({"messageType": "hello", "use_webpush": True})
        assert (await raw.frame()).opcode == TEXT
        for _ in range(3):
            opcode, payload = await raw.frame()
            raw.send(PONG, payload)

            assert opcode == PING


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"updates": None},
        {"updates": []},
        {"updates": {}},
        {"updates": "all"},
        {"updates": [{}]},
        {"updates": [7]},
        {"updates": [{"channelID": new_channel(), "version": "unknown", "code": 100}]},
        {"updates": [{"channelID": "nonsense", "version": "x" * 5000}]},
    ],
)
async def test_an_ack_of_nothing_is_harmless(server: Serve, fields: dict[str, object]) -> None:
    """C-031: missing, empty or ill-typed updates; versions that nobody sent."""
    async with user_agent(server.ws_url) as agent:
        endpoint = await agent.subscribe()
        await agent.send({"messageType": "ack", **fields})
        await accepted(endpoint)

        assert await agent.notification(ack=True)


async def test_a_nack_is_counted_and_not_answered(strict_server: Serve) -> None:
    """C-032: sent after the ack, when the page's worker failed"""

    def nacks() -> float:
        return sample(strict_server, "waystation_ua_command", command="nack")

    async with user_agent(strict_server.ws_url) as agent:
        endpoint = await agent.subscribe()
        before = nacks()
        await accepted(endpoint)
        message = await agent.notification(ack=True)
        await agent.send({"messageType": "nack", "version": message["version"], "code": 301})
        await agent.settled()
        await agent.expect_silence(0.1)
        await agent.reconnect()
        await agent.expect_silence()  # it is not delivered again

        await asyncio.to_thread(until, lambda: nacks() > before)
        assert nacks() == before + 1


async def test_a_nack_without_a_version_ends_the_connection(server: Serve) -> None:
    """C-032"""
    async with user_agent(server.ws_url) as agent:
        await agent.send({"messageType": "nack", "code": 301})

        assert await agent.closed() == 1011


async def test_commands_may_be_sent_without_waiting(server: Serve) -> None:
    """Each is taken in turn, and answered in turn."""
    channels = [new_channel() for _ in range(40)]
    async with user_agent(server.ws_url) as agent:
        for channel_id in channels:
            await agent.send({"messageType": "register", "channelID": channel_id})

        assert [(await agent.expect("register"))["channelID"] for _ in channels] == channels
