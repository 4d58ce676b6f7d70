"""No message answered with OK is lost, whatever happens to the server."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from tests.e2e.queue.exchange import check_outcome, exchange
from tests.e2e.queue.process import QueueServer
from waystation.client.queue.address import ServerAddress


def killed(server: QueueServer) -> Callable[[], Awaitable[None]]:
    async def disturb() -> None:
        await asyncio.to_thread(server.kill)
        await asyncio.to_thread(server.start)

    return disturb


def restarted(server: QueueServer) -> Callable[[], Awaitable[None]]:
    async def disturb() -> None:
        await asyncio.to_thread(server.restart)

    return disturb


async def run(server: QueueServer, count: int, kills: int) -> None:
    address = ServerAddress(server.identity.fingerprint, ("127.0.0.1",), server.port)
    # Every sixth time it is asked to stop instead.
    disturbances = [
        restarted(server) if number % 6 == 5 else killed(server) for number in range(kills)
    ]
    outcomes = await exchange(address, count, disturbances)
    for outcome in outcomes:
        print(
            f"{count} messages: {len(outcome.numbers) - count} came twice (the answers to"
            f" {len(outcome.sent_again)} SENDs were lost), {outcome.unconfirmed} ACKs unconfirmed,"
            f" {outcome.given_again} given again"
        )
        check_outcome(outcome, count)


async def test_two_people_write_to_each_other_through_five_kills(data_dir: Path) -> None:
    with QueueServer(data_dir) as server:
        await run(server, 150, 5)

        assert server.running


@pytest.mark.soak
async def test_ten_thousand_messages_each_way_through_fifty_kills(data_dir: Path) -> None:
    with QueueServer(data_dir) as server:
        await run(server, 10_000, 60)

        assert server.running
