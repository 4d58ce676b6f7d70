"""Our user agent and app server against a server that is killed, replaced and stopped."""

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.platform import PUSH_ROLES
from waystation.client.appserver import AppServer, PostGoneError
from waystation.client.local_server import LocalServer
from waystation.client.push import UserAgent
from waystation.client.subscriptions import Subscription
from waystation.client.vapid import VapidKey

pytestmark = pytest.mark.e2e

VAPID = VapidKey.generate()


async def status_of(app_server: AppServer, location: str) -> dict[str, Any]:
    """Milestones are written after the answer, so that they never hold it up."""
    async with asyncio.timeout(20):
        while True:
            try:
                return await app_server.status(location)
            except PostGoneError:
                await asyncio.sleep(0.1)


async def test_a_user_agent_rides_out_a_kill_and_a_stop_of_the_server(tmp_path: Path) -> None:
    with LocalServer(tmp_path / "data", roles=PUSH_ROLES) as server:
        async with (
            UserAgent(server.ws_url, backoff_base_s=0.05, backoff_max_s=0.5) as agent,
            AppServer(VAPID, backoff_base_s=0.2) as app_server,
        ):
            subscription = await agent.subscribe(VAPID.public_text)
            uaid = agent.uaid
            for end in (server.kill, server.stop):
                await asyncio.to_thread(end)
                await asyncio.to_thread(server.start)
                await app_server.send(
                    subscription.endpoint,
                    subscription.public_keys,
                    f"after {end.__name__}",
                    ttl_s=60,
                    attempts=5,
                )
                async with asyncio.timeout(30):
                    received = await agent.receive()

                assert received.text == f"after {end.__name__}"
                assert agent.uaid == uaid
            assert agent.hellos >= 3


async def test_a_server_that_forgot_us_is_noticed_and_subscribed_to_again(tmp_path: Path) -> None:
    with LocalServer(tmp_path / "first", roles=PUSH_ROLES) as server:
        again: asyncio.Queue[tuple[Sequence[Subscription], Subscription]] = asyncio.Queue()

        async def on_lost(lost: Sequence[Subscription]) -> None:
            again.put_nowait((lost, await agent.subscribe(VAPID.public_text)))

        async with (
            UserAgent(
                server.ws_url, on_lost=on_lost, backoff_base_s=0.05, backoff_max_s=0.5
            ) as agent,
            AppServer(VAPID) as app_server,
        ):
            old = await agent.subscribe(VAPID.public_text)
            uaid = agent.uaid
            await asyncio.to_thread(server.kill)
            second = LocalServer(tmp_path / "second", roles=PUSH_ROLES, port_base=server.port_base)
            with second:
                lost, new = await asyncio.wait_for(again.get(), 30)
                with pytest.raises(PostGoneError):
                    await app_server.send(old.endpoint, old.public_keys, "x", ttl_s=60)
                await app_server.send(new.endpoint, new.public_keys, "hello again", ttl_s=60)
                received = await asyncio.wait_for(agent.receive(), 30)

                assert list(lost) == [old]
                assert agent.uaid != uaid
                assert received.text == "hello again"


async def test_a_message_can_be_withdrawn_and_its_status_asked(tmp_path: Path) -> None:
    with LocalServer(tmp_path / "data", roles=PUSH_ROLES) as server:
        async with AppServer(VAPID) as app_server:
            async with UserAgent(server.ws_url) as agent:
                subscription = await agent.subscribe(VAPID.public_text)
                state = agent.state
            keys = subscription.public_keys
            gone = await app_server.send(subscription.endpoint, keys, "withdrawn", ttl_s=60)
            await app_server.delete(gone.location)
            kept = await app_server.send(subscription.endpoint, keys, "kept", ttl_s=60)
            status = await status_of(app_server, kept.location)

            async with UserAgent(server.ws_url, state=state) as agent:
                received = await asyncio.wait_for(agent.receive(), 30)

            assert received.text == "kept"
            assert status["milestones"]
