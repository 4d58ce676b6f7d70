"""Versions that all user agents learn of: scenarios C-131 to C-138, and publishing them here."""

import asyncio

import pytest

from tests.e2e.megaphone import Megaphone
from tests.e2e.platform import Serve, until
from tests.e2e.scrape import sample
from tests.e2e.wire_clients import UserAgent, http, user_agent

pytestmark = pytest.mark.e2e

TICK_S = 0.4  # `impatient_server` pings that often


async def announce(megaphone: Megaphone, **versions: str) -> None:
    """Until the server has read them: it asks every 0.1 s. Meanwhile user agents answer pings."""
    megaphone.broadcasts |= {f"test/{name}": version for name, version in versions.items()}
    asked = megaphone.asked
    await asyncio.to_thread(until, lambda: megaphone.asked >= asked + 2)


async def test_an_outdated_version_is_corrected_at_hello(
    impatient_server: Serve, megaphone: Megaphone
) -> None:
    """C-131"""
    await announce(megaphone, one="v2")
    async with UserAgent(impatient_server.ws_url) as agent:
        reply = await agent.connect(broadcasts={"test/one": "v1"})

        assert reply["broadcasts"] == {"test/one": "v2"}
    async with UserAgent(impatient_server.ws_url) as agent:
        reply = await agent.connect(broadcasts={"test/one": "v2"})

        assert reply["broadcasts"] == {}


async def test_an_unknown_broadcast_is_an_error_beside_the_others(
    impatient_server: Serve, megaphone: Megaphone
) -> None:
    """C-132"""
    await announce(megaphone, one="v3")
    async with UserAgent(impatient_server.ws_url) as agent:
        reply = await agent.connect(broadcasts={"test/one": "old", "test/none": "v1"})

        assert reply["broadcasts"] == {
            "test/one": "v3",
            "errors": {"test/none": "Broadcast not found"},
        }


async def test_a_change_is_told_at_the_next_tick_to_those_who_subscribed(
    impatient_server: Serve, megaphone: Megaphone
) -> None:
    """C-133, C-138"""
    await announce(megaphone, one="v4", two="v4")
    async with (
        user_agent(impatient_server.ws_url, broadcasts={"test/one": "v4"}) as first,
        user_agent(impatient_server.ws_url, broadcasts={"test/two": "v4"}) as second,
        user_agent(impatient_server.ws_url) as nobody,
    ):
        await announce(megaphone, one="v5")
        message = await first.expect("broadcast")

        assert message == {"messageType": "broadcast", "broadcasts": {"test/one": "v5"}}
        await second.expect_silence(2 * TICK_S)
        await nobody.expect_silence(0.05)
        await first.expect_silence(0.05)  # told once


async def test_nothing_is_told_while_nothing_changes(
    impatient_server: Serve, megaphone: Megaphone
) -> None:
    """C-136: over two ticks"""
    await announce(megaphone, one="v6")
    async with user_agent(impatient_server.ws_url, broadcasts={"test/one": "v6"}) as agent:
        await agent.expect_silence(2.5 * TICK_S)


async def test_subscribing_later_is_answered_only_if_there_is_news(
    impatient_server: Serve, megaphone: Megaphone
) -> None:
    """C-134"""
    await announce(megaphone, one="v7", two="v7")
    async with user_agent(impatient_server.ws_url) as agent:
        await agent.send(
            {"messageType": "broadcast_subscribe", "broadcasts": {"test/one": "older"}}
        )
        message = await agent.expect("broadcast")
        await agent.send({"messageType": "broadcast_subscribe", "broadcasts": {"test/two": "v7"}})

        assert message["broadcasts"] == {"test/one": "v7"}
        await agent.expect_silence(0.2)
        await announce(megaphone, two="v8")
        assert (await agent.expect("broadcast"))["broadcasts"] == {"test/two": "v8"}


async def test_subscribing_later_to_what_does_not_exist_is_an_error(
    impatient_server: Serve, megaphone: Megaphone
) -> None:
    """C-135"""
    async with user_agent(impatient_server.ws_url) as agent:
        await agent.send({"messageType": "broadcast_subscribe", "broadcasts": {"x/y": "v1"}})
        message = await agent.expect("broadcast")

        assert message["broadcasts"] == {"errors": {"x/y": "Broadcast not found"}}


async def test_a_source_that_fails_later_leaves_the_last_versions(
    impatient_server: Serve, megaphone: Megaphone
) -> None:
    """C-137"""

    def errors() -> float:
        return sample(impatient_server, "waystation_megaphone_updater", result="error")

    await announce(megaphone, one="v9")
    before = await asyncio.to_thread(errors)
    megaphone.down = True
    try:
        await announce(megaphone, one="unread")
        async with UserAgent(impatient_server.ws_url) as agent:
            reply = await agent.connect(broadcasts={"test/one": "v1"})

            assert reply["broadcasts"] == {"test/one": "v9"}
        await asyncio.to_thread(until, lambda: errors() > before)
    finally:
        megaphone.down = False


async def test_what_is_published_here_reaches_user_agents(strict_server: Serve) -> None:
    """§2.9: the publisher's side is built in"""
    url = f"{strict_server.console_url}/v1/broadcasts/house/weather"
    bearer = {"Authorization": f"Bearer {strict_server.publisher_token}"}
    created = await http("PUT", url, bearer, b"sunny")
    updated = await http("PUT", url, bearer, b"rain")
    refused = await http("PUT", url, {"Authorization": "Bearer nonsense"}, b"snow")

    assert (created.status, created.json) == (201, {"code": 201})
    assert (updated.status, updated.json) == (200, {"code": 200})
    assert refused.status == 401
    async with asyncio.timeout(30):
        while True:
            async with UserAgent(strict_server.ws_url) as agent:
                reply = await agent.connect(broadcasts={"house/weather": "old"})
            if reply["broadcasts"] == {"house/weather": "rain"}:
                break
            await asyncio.sleep(0.05)
