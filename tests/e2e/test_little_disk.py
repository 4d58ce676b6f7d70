"""A push node whose disk or store is nearly full: it listens, refuses what it cannot store, and
keeps what it owes until there is room."""

import os
import signal
import time
from pathlib import Path

import pytest

from tests.e2e.platform import Serve
from tests.e2e.test_kills import listens, ready_again
from tests.e2e.wire_clients import UserAgent, from_b64url, post

pytestmark = pytest.mark.e2e

START_MAX_S = 15.0  # it takes less than one; a machine may be busy
STOP_MAX_S = 8.0
MORE_THAN_ANY_DISK_BYTES = 1 << 60
MAP_BYTES = 4 << 20
BODY_BYTES = 3900
POSTS_MAX = 2000  # until such a store is full


async def owing(server: Serve) -> tuple[UserAgent, str]:
    """A user agent that owes the ack of one direct notification, and its endpoint."""
    user_agent = UserAgent(server.ws_url)
    await user_agent.connect()
    endpoint = await user_agent.subscribe()
    assert (await post(endpoint, b"owed")).status == 201
    await user_agent.notification()
    return user_agent, endpoint


async def away(server: Serve) -> str:
    """The endpoint of a user agent that is not connected."""
    user_agent = UserAgent(server.ws_url)
    await user_agent.connect()
    endpoint = await user_agent.subscribe()
    await user_agent.leave()
    return endpoint


async def serves(user_agent: UserAgent, endpoint: str, endpoint_of_one_away: str) -> None:
    """It refuses what would have to be stored, and delivers what need not be."""
    refused = await post(endpoint_of_one_away, b"no room")
    await user_agent.connect()
    direct = await post(endpoint, b"direct")
    came = await user_agent.notification(ack=True)
    await user_agent.leave()

    assert (refused.status, refused.errno) == (503, 201)
    assert direct.status == 201
    assert from_b64url(came["data"]) == b"direct"


async def kill_worker(server: Serve) -> None:
    port = server.addresses["ports"]["connect.port"]
    [pid] = [pid for pid in server.worker_pids() if listens(pid, port)]
    os.kill(pid, signal.SIGKILL)
    await ready_again(server)


def said(server: Serve, *words: str) -> bool:
    return any(all(word in line for word in words) for line in server.err)


async def test_with_less_room_than_its_reserve_a_node_starts_and_replays_when_there_is_room(
    data_dir: Path,
) -> None:
    with Serve(data_dir) as server:
        user_agent, endpoint = await owing(server)
        other = await away(server)
        server.kill()
        await user_agent.vanish()
        server.change(store__disk_reserve_bytes=MORE_THAN_ANY_DISK_BYTES)
        began = time.monotonic()
        server.start()
        started_s = time.monotonic() - began
        await serves(user_agent, endpoint, other)
        await kill_worker(server)
        await serves(user_agent, endpoint, other)
        began = time.monotonic()
        code = server.stop()
        stopped_s = time.monotonic() - began
        server.change(store__disk_reserve_bytes=0)
        server.start()
        await user_agent.connect()
        came = await user_agent.notification(ack=True)

        assert started_s < START_MAX_S
        assert (code, stopped_s < STOP_MAX_S) == (0, True)
        assert said(server, "hand_back.waits", "store.disk_reserve_bytes")
        assert said(server, "journal.waits")
        assert said(server, "journal.replayed", '"notifications":1')
        assert from_b64url(came["data"]) == b"owed"
        await user_agent.expect_silence()
        assert [path.name for path in (data_dir / "inflight").iterdir()] == ["0.log"]


async def test_with_a_store_near_its_map_size_a_node_starts_and_replays_when_there_is_room(
    data_dir: Path,
) -> None:
    with Serve(data_dir, store__map_bytes=MAP_BYTES, store__disk_reserve_bytes=0) as server:
        user_agent, endpoint = await owing(server)
        reader = UserAgent(server.ws_url)
        await reader.connect()
        other = await reader.subscribe()
        await reader.leave()
        stored = 0
        while (await post(other, b"x" * BODY_BYTES)).status == 201:
            stored += 1
            assert stored < POSTS_MAX
        await kill_worker(server)
        await user_agent.vanish()
        await serves(user_agent, endpoint, other)
        await reader.connect()
        for _ in range(stored):
            await reader.notification(ack=True)
        await user_agent.connect()
        came = await user_agent.notification(ack=True)

        assert said(server, "hand_back.waits", "store.map_bytes")
        assert from_b64url(came["data"]) == b"owed"
