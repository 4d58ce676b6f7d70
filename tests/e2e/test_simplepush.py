"""Version numbers without content, in both dialects: scenarios C-147 to C-152.

`server` speaks the dialect of the last Python generation, `strict_server` that of the first design.
"""

import asyncio
import time
from pathlib import Path

import pytest

from tests.e2e.platform import Serve
from tests.e2e.simplepush import OldAgent, ends_of_three, put
from tests.e2e.wire_clients import (
    Vapid,
    http,
    new_channel,
    post,
    user_agent,
)
from waystation.telemetry import contract

pytestmark = pytest.mark.e2e


async def test_a_version_reaches_a_connected_user_agent(server: Serve) -> None:
    """C-147: dialect p"""
    channel_id = new_channel()
    async with OldAgent(server.ws_url) as agent:
        reply = await agent.connect()
        endpoint = await agent.subscribe(channel_id)
        answer = await put(endpoint, "version=5")

        assert "use_webpush" not in reply
        assert endpoint.startswith(f"{server.endpoint_url}/spush/v1/")
        assert (answer.status, answer.body) == (200, b"Delivered")
        assert "location" not in answer.headers
        assert await agent.updates() == [{"channelID": channel_id, "version": 5}]


async def test_the_first_design_has_other_paths_and_answers(strict_server: Serve) -> None:
    """C-147: dialect s"""
    channel_id = new_channel()
    async with OldAgent(strict_server.ws_url) as agent:
        await agent.connect()
        endpoint = await agent.subscribe(channel_id)
        answer = await put(endpoint, "version=5")

        assert endpoint.startswith(f"{strict_server.endpoint_url}/push/")
        assert (answer.status, answer.body) == (200, b"Success")
        assert await agent.updates() == [{"channelID": channel_id, "version": 5}]
        await agent.leave()
        stored = await put(endpoint, "version=6")
        assert (stored.status, stored.body) == (200, b"Success")


@pytest.mark.parametrize("path", ["/spush/v1/", "/update/", "/push/"])
async def test_every_generation_of_paths_works(server: Serve, path: str) -> None:
    """C-147: and the version may stand in the query"""
    async with OldAgent(server.ws_url) as agent:
        await agent.connect()
        endpoint = (await agent.subscribe()).replace("/spush/v1/", path)
        answer = await http("PUT", f"{endpoint}?version=9")
        [update] = await agent.updates()

        assert answer.status == 200
        assert update["version"] == 9


async def test_only_the_newest_version_waits(server: Serve) -> None:
    """C-148"""
    channel_id = new_channel()
    async with OldAgent(server.ws_url) as agent:
        await agent.connect()
        endpoint = await agent.subscribe(channel_id)
        await agent.leave()
        answers = [await put(endpoint, f"version={version}") for version in (5, 7, 6)]
        await agent.connect()
        updates = await agent.updates()

        assert [(one.status, one.body) for one in answers] == [(202, b"Notification Stored")] * 3
        assert updates == [{"channelID": channel_id, "version": 7}]
        await agent.expect_silence(0.1)
        await agent.ack_updates(*updates)
        await agent.settled()
        await agent.reconnect()
        await agent.expect_silence()


async def test_an_older_ack_leaves_the_newer_version(server: Serve) -> None:
    """C-149"""
    channel_id = new_channel()
    async with OldAgent(server.ws_url) as agent:
        await agent.connect()
        endpoint = await agent.subscribe(channel_id)
        await put(endpoint, "version=5")
        first = await agent.updates()
        busy = await put(endpoint, "version=7")
        await agent.expect_silence(0.1)
        await agent.ack_updates(*first)
        second = await agent.updates()

        assert first == [{"channelID": channel_id, "version": 5}]
        assert busy.status == 202
        assert second == [{"channelID": channel_id, "version": 7}]
        await agent.reconnect()
        assert await agent.updates() == second
        await agent.ack_updates(*second)
        await agent.settled()
        await agent.reconnect()
        await agent.expect_silence()


async def test_an_ack_settles_all_versions_up_to_it(server: Serve) -> None:
    """C-149: a late copy that is not news is taken in silence"""
    async with OldAgent(server.ws_url) as agent:
        await agent.connect()
        endpoint = await agent.subscribe()
        await put(endpoint, "version=5")
        [update] = await agent.updates()
        older = await put(endpoint, "version=4")

        assert older.status == 200
        await agent.expect_silence(0.1)
        await agent.ack_updates({**update, "version": 6})
        await agent.settled()
        await agent.reconnect()
        await agent.expect_silence()


async def test_without_a_version_the_time_counts(server: Serve) -> None:
    """C-150: dialect p"""
    async with OldAgent(server.ws_url) as agent:
        await agent.connect()
        endpoint = await agent.subscribe()
        for body in ("", "version=", "data=x"):
            before = int(time.time())
            assert (await put(endpoint, body)).status == 200
            [update] = await agent.updates()
            await agent.ack_updates(update)

            assert before <= update["version"] <= time.time()
            await asyncio.sleep(1.01 - time.time() % 1)  # the next version is another second


async def test_without_a_version_the_first_design_refuses(strict_server: Serve) -> None:
    """C-150: dialect s"""
    async with OldAgent(strict_server.ws_url) as agent:
        await agent.connect()
        endpoint = await agent.subscribe()
        answer = await put(endpoint)

        assert answer.status == 401
        assert b"No version present" in answer.body
        await agent.expect_silence(0.1)


@pytest.mark.parametrize("version", ["-1", "abc", "1.5", "9" * 30, "5 6"])
async def test_what_is_no_version_is_refused(
    server: Serve, strict_server: Serve, version: str
) -> None:
    """C-150: in both dialects"""
    for one in (server, strict_server):
        async with OldAgent(one.ws_url) as agent:
            await agent.connect()
            endpoint = await agent.subscribe()

            assert (await put(endpoint, f"version={version}")).status == 400
            await agent.expect_silence(0.05)


async def test_data_is_for_those_who_are_there(server: Serve) -> None:
    """C-151"""
    channel_id = new_channel()
    async with OldAgent(server.ws_url) as agent:
        await agent.connect()
        endpoint = await agent.subscribe(channel_id)
        await put(endpoint, "version=1&data=hello%20world")
        direct = await agent.updates()
        await agent.ack_updates(*direct)
        await agent.leave()
        await put(endpoint, "version=2&data=lost")
        await agent.connect()
        stored = await agent.updates()

        assert direct == [{"channelID": channel_id, "version": 1, "data": "hello world"}]
        assert stored == [{"channelID": channel_id, "version": 2}]


async def test_what_was_not_acked_waits_without_its_data(server: Serve) -> None:
    """C-151: §9, rule 5"""
    channel_id = new_channel()
    async with OldAgent(server.ws_url) as agent:
        await agent.connect()
        endpoint = await agent.subscribe(channel_id)
        await put(endpoint, "version=3&data=small")
        await agent.updates()
        await agent.reconnect()

        assert await agent.updates() == [{"channelID": channel_id, "version": 3}]


async def test_data_has_a_limit(server: Serve) -> None:
    async with OldAgent(server.ws_url) as agent:
        await agent.connect()
        endpoint = await agent.subscribe()
        fits = await put(endpoint, f"version=1&data={'x' * 4096}")
        [update] = await agent.updates()
        too_large = await put(endpoint, f"version=2&data={'x' * 4097}")

        assert fits.status == 200
        assert len(update["data"]) == 4096
        assert too_large.error == (413, 104)


async def test_all_that_waits_comes_in_one_message(server: Serve) -> None:
    """§9, rule 6"""
    async with OldAgent(server.ws_url) as agent:
        await agent.connect()
        channels = [new_channel() for _ in range(15)]
        endpoints = [await agent.subscribe(channel_id) for channel_id in channels]
        await agent.leave()
        for version, endpoint in enumerate(endpoints):
            await put(endpoint, f"version={version}")
        await agent.connect()
        updates = await agent.updates()

        assert {(one["channelID"], one["version"]) for one in updates} == {
            (channel_id, version) for version, channel_id in enumerate(channels)
        }


async def test_the_two_kinds_of_endpoints_do_not_mix(server: Serve) -> None:
    """C-152"""
    async with OldAgent(server.ws_url) as old, user_agent(server.ws_url) as new:
        await old.connect()
        old_endpoint = await old.subscribe()
        new_endpoint = await new.subscribe()
        bound_endpoint = await new.subscribe(key=Vapid().key)
        posted = await post(old_endpoint.replace("/spush/v1/", "/wpush/v1/"))
        put_there = await put(new_endpoint.replace("/wpush/v1/", "/spush/v1/"), "version=1")
        put_bound = await put(bound_endpoint.replace("/wpush/v2/", "/spush/v1/"), "version=1")

        refusals = {(400, 108), (404, 102)}
        assert {posted.error, put_there.error, put_bound.error} <= refusals
        await old.expect_silence(0.1)
        await new.expect_silence(0.1)


async def test_a_bad_token_or_an_unknown_uaid_is_refused(
    server: Serve, strict_server: Serve
) -> None:
    """§9: each dialect in its own way"""
    garbage_p = await put(f"{server.endpoint_url}/spush/v1/nonsense", "version=1")
    garbage_s = await put(f"{strict_server.endpoint_url}/push/nonsense", "version=1")
    gone: list[int] = []
    for one in (server, strict_server):
        async with OldAgent(one.ws_url) as agent:
            await agent.connect()
            channel_id = new_channel()
            endpoint = await agent.subscribe(channel_id)
            await agent.unregister(channel_id)
            gone.append((await put(endpoint, "version=1")).status)

    assert garbage_p.error == (404, 102)
    assert garbage_s.status == 401
    assert gone == [410, 404]


async def test_direct_and_stored_updates_end_as_delivered_in_the_funnel(tmp_path: Path) -> None:
    """And one that a newer version replaced while it waited, as superseded"""
    assert await ends_of_three(tmp_path) == [
        contract.DELIVERED,
        contract.SUPERSEDED,
        contract.DELIVERED,
    ]
