"""A server that ends, gracefully or not, and what must not be lost by it: C-089 and C-090."""

import asyncio
import os
import signal
import time
from pathlib import Path

import pytest

from tests.e2e.platform import KEY, Autoconnect, Autoendpoint, Serve, until
from tests.e2e.wire_clients import UserAgent, accepted, user_agent, version_of
from tests.ports import free_ports

pytestmark = pytest.mark.e2e

ROLES = ("connect", "endpoint")


async def until_offered(agent: UserAgent) -> None:
    """The user agent is connected again: a node that was killed may need a moment."""
    async with asyncio.timeout(15):
        while True:
            try:
                await agent.connect()
            except (OSError, EOFError):
                await asyncio.sleep(0.05)
            else:
                return


async def test_a_killed_node_costs_neither_a_post_nor_a_message(tmp_path: Path) -> None:
    """C-089: the next POST is answered 201 in time; what was in flight comes back as well."""
    port = free_ports(1)
    url = f"http://127.0.0.1:{port}"
    connect = Autoconnect(tmp_path / "data", endpoint_url=url, crypto_key=KEY)
    with Autoendpoint(tmp_path / "data", port=port, crypto_key=KEY), connect:
        async with user_agent(connect.ws_url) as agent:
            endpoint = await agent.subscribe()
            sent = [version_of(await accepted(endpoint, b"in flight"))]
            await agent.notification()
            connect.kill()
            began = time.monotonic()
            sent.append(version_of(await accepted(endpoint, b"nobody there")))
            took_s = time.monotonic() - began
            await agent.vanish()
            connect.start()
            await until_offered(agent)
            received = await agent.notifications(2, ack=True)

            assert took_s < 10.0
            assert sorted(one["version"] for one in received) == sorted(sent)
            later = await accepted(endpoint)
            assert (await agent.notification(ack=True))["version"] == version_of(later)


async def test_a_killed_worker_is_replaced_and_nothing_is_lost(tmp_path: Path) -> None:
    """C-089 within one node: its successor takes over the journal."""
    with Serve(tmp_path / "data", roles=ROLES, workers=2) as server:
        agents = [UserAgent(server.ws_url) for _ in range(6)]
        try:
            endpoints: list[str] = []
            sent: list[list[str]] = []
            for agent in agents:
                await agent.connect()
                endpoints.append(await agent.subscribe())
                sent.append([version_of(await accepted(endpoints[-1])) for _ in range(3)])
                await agent.notifications(3)
            for pid in server.worker_pids():
                os.kill(pid, signal.SIGKILL)
            # No moment without an answer that counts: what fails to connect is tried again.
            for index, endpoint in enumerate(endpoints):
                async with asyncio.timeout(15):
                    while True:
                        try:
                            answer = await accepted(endpoint)
                        except (OSError, EOFError):
                            await asyncio.sleep(0.05)
                        else:
                            break
                sent[index].append(version_of(answer))
            for index, agent in enumerate(agents):
                await agent.vanish()
                await until_offered(agent)
                received = await agent.notifications(4, ack=True)

                assert sorted(one["version"] for one in received) == sorted(sent[index])
        finally:
            for agent in agents:
                await agent.vanish()


async def test_everything_is_killed_and_nothing_is_lost(tmp_path: Path) -> None:
    """C-089: the whole server at once, again and again; acked messages stay away."""
    server = Serve(tmp_path / "data", roles=ROLES)
    with server:
        async with user_agent(server.ws_url) as agent:
            endpoint = await agent.subscribe()
            for turn in range(2):
                acked = await accepted(endpoint, b"acked %d" % turn)
                assert await agent.notification(ack=True)
                await agent.settled()
                direct = await accepted(endpoint, b"direct %d" % turn)
                await agent.notification()
                await agent.leave()
                stored = await accepted(endpoint, b"stored %d" % turn)
                server.kill()
                server.start()
                await until_offered(agent)
                received = [one["version"] for one in await agent.notifications(2, ack=True)]

                assert sorted(received) == sorted([version_of(direct), version_of(stored)])
                assert version_of(acked) not in received
                await agent.settled()


@pytest.mark.parametrize("workers", [1, 2])
async def test_a_graceful_end_saves_what_was_not_acked(tmp_path: Path, workers: int) -> None:
    """C-090: without a journal to fall back on; the clients are told to come back."""
    server = Serve(
        tmp_path / "data",
        roles=ROLES,
        workers=workers,
        connect__inflight_journal="off",
    )
    with server:
        async with user_agent(server.ws_url) as agent, user_agent(server.ws_url) as other:
            endpoint = await agent.subscribe()
            await other.subscribe()
            sent = [version_of(await accepted(endpoint, b"%d" % n)) for n in range(5)]
            messages = await agent.notifications(5)
            await agent.ack(messages[0])
            await agent.settled()
            stopping = asyncio.create_task(asyncio.to_thread(server.stop))
            codes = {await agent.closed(), await other.closed()}
            exit_code = await stopping
            await agent.vanish()
            server.start()
            await until_offered(agent)
            received = await agent.notifications(4, ack=True)

            assert exit_code == 0
            assert codes <= {1001, 1012}
            assert sorted(one["version"] for one in received) == sorted(sent[1:])
            await agent.expect_silence(0.1)


async def test_a_graceful_end_of_the_daemon_saves_what_was_not_acked(tmp_path: Path) -> None:
    """C-090: the daemons drain at once"""
    port = free_ports(1)
    connect = Autoconnect(
        tmp_path / "data",
        endpoint_url=f"http://127.0.0.1:{port}",
        crypto_key=KEY,
        inflight_journal="off",
    )
    with Autoendpoint(tmp_path / "data", port=port, crypto_key=KEY), connect:
        async with user_agent(connect.ws_url) as agent:
            endpoint = await agent.subscribe()
            answer = await accepted(endpoint)
            await agent.notification()
            code = await asyncio.to_thread(connect.stop)
            await agent.vanish()
            connect.start()
            await until_offered(agent)

            assert code == 0
            assert (await agent.notification(ack=True))["version"] == version_of(answer)


async def test_a_worker_that_died_alone_comes_back_with_its_index(tmp_path: Path) -> None:
    """Its clients find the node as it was, and it finds them."""
    with Serve(tmp_path / "data", roles=ROLES, workers=2) as server:
        pids = server.worker_pids()
        os.kill(pids[1], signal.SIGKILL)
        await asyncio.to_thread(until, lambda: len(set(server.worker_pids()) - set(pids)) == 1)
        await asyncio.to_thread(until, lambda: any("worker.ready" in line for line in server.err))
        for _ in range(6):  # on either worker
            async with user_agent(server.ws_url) as agent:
                endpoint = await agent.subscribe()
                await accepted(endpoint)

                assert await agent.notification(ack=True)


async def test_a_drain_spreads_its_closes(tmp_path: Path) -> None:
    """Firefox comes back without jitter: not all of them in the same moment."""
    with Serve(tmp_path / "data", roles=ROLES, connect__drain_s=3.0) as server:
        agents = [UserAgent(server.ws_url) for _ in range(8)]
        try:
            for agent in agents:
                await agent.connect()
            began = time.monotonic()
            stopping = asyncio.create_task(asyncio.to_thread(server.stop))

            async def closed_after(agent: UserAgent) -> float:
                assert await agent.closed(15) in (1001, 1012)
                return time.monotonic() - began

            moments = sorted(await asyncio.gather(*map(closed_after, agents)))

            assert await stopping == 0
            assert moments[-1] - moments[0] > 1.0
            assert moments[4] - moments[0] > 0.4
        finally:
            for agent in agents:
                await agent.vanish()


async def test_a_second_sigterm_does_not_wait_for_the_drain(tmp_path: Path) -> None:
    with Serve(tmp_path / "data", roles=ROLES, connect__drain_s=60.0) as server:
        async with user_agent(server.ws_url) as first, user_agent(server.ws_url) as second:
            began = time.monotonic()
            os.kill(server.pid, signal.SIGTERM)
            done, _ = await asyncio.wait(
                [asyncio.create_task(agent.closed(10)) for agent in (first, second)],
                return_when=asyncio.FIRST_COMPLETED,
            )
            await asyncio.sleep(0.4)  # two signals at once would count as one
            os.kill(server.pid, signal.SIGTERM)
            await asyncio.to_thread(until, lambda: not server.running)

            assert len(done) == 1
            assert time.monotonic() - began < 15
