"""Two connection nodes and two endpoint nodes on PostgreSQL."""

import asyncio
import time

import pytest

from tests.e2e.store_walk import SOON_S, Cluster, SharedStore, StoreWalk, stored
from tests.e2e.wire_clients import user_agent
from tests.servers.postgres import PostgresServer, postgres_server

__all__ = ["postgres_server"]

pytestmark = [pytest.mark.e2e, pytest.mark.postgres]


@pytest.fixture(scope="module")
def shared_store(postgres_server: PostgresServer) -> SharedStore:
    return SharedStore(postgres_server.new_url(), postgres_server.port)


class TestOnPostgres(StoreWalk):
    async def test_rows_are_as_autopushs_nodes_want_them(
        self, cluster: Cluster, postgres_server: PostgresServer
    ) -> None:
        """Keys of three parts, and the cursor behind what was acked: the daemons' default here."""
        database = cluster.store.url.rpartition("/")[2]

        def asked(sql: str) -> str:
            return postgres_server.command(sql, database)

        async with user_agent(cluster.a.ws_url) as agent:
            endpoint = await agent.subscribe()
            await agent.leave()
            await stored(cluster, endpoint, 2)
            where = f"WHERE uaid = '{agent.uaid}'"
            keys = asked(f"SELECT chid_message_id FROM message {where} ORDER BY 1").split()
            before = asked(f"SELECT last_update FROM router {where}")
            await agent.connect()
            await agent.notifications(2, ack=True)
            deadline = time.monotonic() + SOON_S
            while not (cursor := asked(f"SELECT last_update FROM router {where}")):
                assert time.monotonic() < deadline, "the cursor was not moved"
                await asyncio.sleep(0.1)

            assert [key.count(":") for key in keys] == [2, 2]
            assert before == ""
            assert cursor == keys[-1].split(":")[1]
