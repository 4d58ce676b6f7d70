"""Named limits of a running server, and the documented answer when one is reached (promise 3)."""

import asyncio
import json
import os
import resource
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from websockets.exceptions import InvalidStatus

from tests.e2e.platform import Serve, until
from tests.e2e.scrape import sample
from tests.e2e.wire_clients import (
    TEXT,
    RawSocket,
    UserAgent,
    Vapid,
    accepted,
    http,
    new_channel,
    post,
    user_agent,
    version_of,
)
from waystation.app.descriptor_limits import LIMIT_MAX

pytestmark = pytest.mark.e2e

SENDER = Vapid()
TO_START_A_PROCESS = 6  # descriptors that are open meanwhile


@pytest.fixture(scope="module")
def small_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serve]:
    """Little of everything."""
    with Serve(
        tmp_path_factory.mktemp("small"),
        roles=("connect", "endpoint"),
        connect__max_connections=4,
        connect__max_channels_per_uaid=3,
        connect__send_buffer_high_bytes=4096,
        connect__delivery_window=100_000,
        endpoint__rate_per_endpoint=50,
        endpoint__burst_per_endpoint=3000,
        endpoint__rate_per_key=0.01,
        endpoint__burst_per_key=2,
    ) as serve:
        yield serve


async def test_a_user_agent_has_so_many_subscriptions(small_server: Serve) -> None:
    async with user_agent(small_server.ws_url) as agent:
        channels = [new_channel() for _ in range(3)]
        for channel_id in channels:
            await agent.subscribe(channel_id)
        one_more = await agent.register()
        again = await agent.register(channels[0])
        await agent.unregister(channels[1])
        freed = await agent.register()

        assert (one_more["status"], one_more["pushEndpoint"]) == (500, "")
        assert again["status"] == freed["status"] == 200


async def test_a_worker_has_so_many_connections(small_server: Serve) -> None:
    agents = [UserAgent(small_server.ws_url) for _ in range(4)]
    try:
        for agent in agents:
            await agent.connect()
        with pytest.raises(InvalidStatus) as refused:
            await UserAgent(small_server.ws_url).open()
        await agents.pop().leave()
        async with UserAgent(small_server.ws_url) as late:
            assert (await late.connect())["status"] == 200

        assert refused.value.response.status_code == 503
    finally:
        for agent in agents:
            await agent.vanish()


async def test_an_app_server_posts_so_often(small_server: Serve) -> None:
    """429 with Retry-After, after the signature was checked and before anybody is asked"""
    async with user_agent(small_server.ws_url) as agent:
        endpoint = await agent.subscribe(key=SENDER.key)
        for _ in range(2):
            await accepted(endpoint, vapid=SENDER)
        limited = await post(endpoint, vapid=SENDER)
        forged = await post(endpoint, vapid=Vapid())
        await agent.notifications(2, ack=True)
        await accepted(await agent.subscribe())

        assert limited.status == 429
        assert int(limited.headers["retry-after"]) >= 1
        assert set(limited.json) == {"code", "errno", "error", "message", "more_info"}
        assert forged.error == (401, 109)
        assert await agent.notification(ack=True)


async def test_who_does_not_read_delays_nobody_and_loses_nothing(small_server: Serve) -> None:
    """What does not fit into its socket is stored, and comes when it reads again."""
    body = b"x" * 5000
    async with await RawSocket.open(small_server.ws_url) as raw:
        raw.say({"messageType": "hello", "use_webpush": True})
        assert (await raw.frame()).opcode == TEXT
        raw.say({"messageType": "register", "channelID": new_channel()})
        endpoint = json.loads((await raw.frame()).payload)["pushEndpoint"]
        raw.stop_reading()
        began = time.monotonic()
        sent: list[str] = []
        for _ in range(60):  # several megabytes
            answers = await asyncio.gather(*[accepted(endpoint, body) for _ in range(20)])
            sent += map(version_of, answers)
        took_s = time.monotonic() - began
        async with user_agent(small_server.ws_url) as quick:
            await accepted(await quick.subscribe())
            assert await quick.notification(ack=True)
        raw.start_reading()
        received: set[str] = set()
        async with asyncio.timeout(60):
            while len(received) < len(sent):
                message = json.loads((await raw.frame(20)).payload)
                received.add(message["version"])
                del message["data"]
                raw.say({"messageType": "ack", "updates": [message]})

        assert received == set(sent)
        assert took_s < 45
        # Workers hand over their numbers once a second.
        until(lambda: sample(small_server, "waystation_notification_message", event="stored") > 0)


def test_every_worker_may_have_as_many_descriptors_as_the_system_allows(data_dir: Path) -> None:
    """Whatever its parent was allowed: with a few only, a worker would not even start."""
    roles = ("connect", "endpoint", "queue", "presence", "console")
    with Serve(data_dir, roles=roles, queue__identity_algorithm="ed25519") as server:
        soft, hard = resource.prlimit(server.pid, resource.RLIMIT_NOFILE)
        few = max(map(int, os.listdir(f"/proc/{server.pid}/fd"))) + TO_START_A_PROCESS
        resource.prlimit(server.pid, resource.RLIMIT_NOFILE, (few, hard))
        try:
            for pid in server.worker_pids():
                ready = ready_lines(server)
                os.kill(pid, signal.SIGKILL)
                until(lambda before=ready: ready_lines(server) > before)
        finally:
            resource.prlimit(server.pid, resource.RLIMIT_NOFILE, (soft, hard))
        limits = [resource.prlimit(pid, resource.RLIMIT_NOFILE) for pid in server.worker_pids()]
        deaths = [line for line in server.err if '"worker.died"' in line]

    assert len(limits) == len(deaths) == 4
    assert {mine for mine, _ in limits} == {min(hard, LIMIT_MAX)}
    assert all("SIGKILL" in line for line in deaths)


def ready_lines(server: Serve) -> int:
    return sum('"worker.ready"' in line for line in server.err)


async def test_a_request_has_so_much_head(server: Serve) -> None:
    """Nobody's request grows without a limit."""
    async with user_agent(server.ws_url) as agent:
        endpoint = await agent.subscribe()
        answer = await http("POST", endpoint, {"TTL": "1", "X-Padding": "x" * 200_000})

        assert answer.status in (400, 413, 431)
        await agent.expect_silence(0.1)
