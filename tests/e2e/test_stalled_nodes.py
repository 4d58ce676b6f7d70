"""A connection node that stands still for longer than endpoint nodes wait, and then goes on.

`SIGSTOP` holds all of a process at once, as a suspended machine or a debugger does: what other
nodes send meanwhile waits in its sockets, and is read when it goes on.
"""

import asyncio
import os
import signal
from pathlib import Path

import pytest

from tests.e2e.platform import KEY, Autoconnect, Autoendpoint, Serve, until
from tests.e2e.wire_clients import accepted, user_agent, version_of
from tests.ports import free_ports

pytestmark = pytest.mark.e2e

REQUEST_TIMEOUT_S = 0.5


@pytest.mark.parametrize("linked", [True, False], ids=["link", "http"])
async def test_what_a_stalled_node_acked_does_not_come_again(tmp_path: Path, linked: bool) -> None:
    """The endpoint node has stored it by then, so it comes from storage, and only from there."""
    store_url = f"embedded://{tmp_path / 'store'}"
    secret = "one for all" * 3
    with (
        Autoendpoint(
            tmp_path / "endpoint",
            port=free_ports(1),
            crypto_key=KEY,
            db_dsn=store_url,
            cluster__secret=secret,
            request_timeout_s=REQUEST_TIMEOUT_S,
        ) as endpoint,
        Autoconnect(
            tmp_path / "connect",
            endpoint_url=endpoint.endpoint_url,
            crypto_key=KEY,
            db_dsn=store_url,
            cluster__secret=secret if linked else "another" * 5,
        ) as connect,
    ):
        async with user_agent(connect.ws_url) as agent:
            url = await agent.subscribe()
            await accepted(url)  # the link stands, or HTTP is known to be the way
            await agent.notification(ack=True)
            os.kill(connect.pid, signal.SIGSTOP)
            try:
                sent = await asyncio.gather(*(accepted(url, b"%d" % n) for n in range(3)))
            finally:
                os.kill(connect.pid, signal.SIGCONT)
            got = await agent.notifications(3, ack=True)
            await agent.settled()
            await agent.expect_silence()
            await agent.reconnect()

            assert {one["version"] for one in got} == {version_of(answer) for answer in sent}
            await agent.expect_silence()


async def test_nobody_waits_long_for_a_worker_that_stands_still(tmp_path: Path) -> None:
    """The kernel gives it new connections all the same, until it is killed and started again."""
    with Serve(
        tmp_path / "data",
        roles=("connect", "endpoint"),
        worker_stall_s=1.0,
        endpoint__request_timeout_s=REQUEST_TIMEOUT_S,
    ) as server:
        (worker,) = server.worker_pids()
        async with user_agent(server.ws_url) as agent:
            url = await agent.subscribe()
            await accepted(url)
            unacked = await agent.notification()
            os.kill(worker, signal.SIGSTOP)
            until(lambda: any("worker.stalled" in line for line in server.err))
            until(lambda: any("worker.ready" in line for line in server.err))
            await agent.vanish()
            await agent.connect()

            assert (await agent.notification(ack=True))["version"] == unacked["version"]
            assert worker not in server.worker_pids()
