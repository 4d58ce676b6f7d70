"""What an endpoint node does when a connection node says no, moves or dies: C-069 to C-080.

A scripted node stands before a real one: the routes of the user agents lead to it. Its answers
are the test's, and what it passes on is answered by the real node behind.
"""

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.e2e.platform import KEY, Autoconnect, Autoendpoint
from tests.e2e.scripted_node import (
    GARBAGE,
    HANG_UP,
    Request,
    always,
    listening_in,
    pass_on,
    scripted_node,
)
from tests.e2e.wire_clients import UserAgent, accepted, user_agent, version_of
from tests.ports import free_ports

pytestmark = pytest.mark.e2e


class Cluster(NamedTuple):
    """`connect` advertises `node_port`, where each test puts its scripted node."""

    node_port: int
    connect: Autoconnect
    other: Autoconnect  # a node that stands for itself
    endpoint: Autoendpoint
    store_url: str


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    root = tmp_path_factory.mktemp("cluster")
    store_url = f"embedded://{root / 'store'}"
    node_port, endpoint_port = free_ports(1), free_ports(1)
    url = f"http://127.0.0.1:{endpoint_port}"
    with (
        Autoendpoint(
            root / "endpoint",
            port=endpoint_port,
            crypto_key=KEY,
            db_dsn=store_url,
            cluster__secret="one for all" * 3,
        ) as endpoint,
        Autoconnect(
            root / "a",
            endpoint_url=url,
            crypto_key=KEY,
            db_dsn=store_url,
            relay_url=f"http://127.0.0.1:{node_port}",
        ) as connect,
        Autoconnect(root / "b", endpoint_url=url, crypto_key=KEY, db_dsn=store_url) as other,
    ):
        yield Cluster(node_port, connect, other, endpoint, store_url)


async def test_a_notification_travels_over_plain_http(cluster: Cluster) -> None:
    """The way of §14.3: one PUT, nothing is stored and nothing is asked after it."""
    async with (
        scripted_node(cluster.node_port, cluster.connect.relay_url) as node,
        user_agent(cluster.connect.ws_url) as agent,
    ):
        endpoint = await agent.subscribe()
        await accepted(endpoint)

        assert await agent.notification(ack=True)
        assert node.heard == ["push"]


@pytest.mark.parametrize("secret, linked", [("one for all" * 3, True), ("another" * 5, False)])
async def test_our_own_nodes_are_linked_if_they_share_a_secret(
    cluster: Cluster, tmp_path: Path, secret: str, linked: bool
) -> None:
    """A link for many notifications; whoever cannot prove to be one of us gets plain HTTP."""
    tapped_port = free_ports(1)
    node = Autoconnect(
        tmp_path / "node",
        endpoint_url=cluster.endpoint.endpoint_url,
        crypto_key=KEY,
        db_dsn=cluster.store_url,
        relay_url=f"http://127.0.0.1:{tapped_port}",
        cluster__secret=secret,
    )
    with node:
        async with (
            listening_in(tapped_port, node.relay_url) as heard,
            user_agent(node.ws_url) as agent,
        ):
            endpoint = await agent.subscribe()
            sent = [version_of(await accepted(endpoint, b"%d" % n)) for n in range(10)]
            received = await agent.notifications(10, ack=True)
            await agent.settled()

            assert [one["version"] for one in received] == sent
            assert b"waystation-link" in heard
            assert secret.encode() not in heard
            assert (b"PUT /push/" in heard) is not linked


async def test_a_busy_node_makes_the_endpoint_store_and_tell(cluster: Cluster) -> None:
    """C-069"""
    async with (
        scripted_node(cluster.node_port, cluster.connect.relay_url) as node,
        user_agent(cluster.connect.ws_url) as agent,
    ):
        endpoint = await agent.subscribe()
        await accepted(endpoint, b"direct")
        direct = await agent.notification()
        node.script = always(503)
        answer = await accepted(endpoint, b"stored")

        assert node.heard == ["push", "push", "notif"]
        await agent.expect_silence(0.2)
        await agent.ack(direct)
        assert (await agent.notification(ack=True))["version"] == version_of(answer)


async def test_a_busy_node_keeps_its_route(cluster: Cluster) -> None:
    """C-069: 503 does not touch node_id"""
    async with (
        scripted_node(cluster.node_port, cluster.connect.relay_url) as node,
        user_agent(cluster.connect.ws_url) as agent,
    ):
        endpoint = await agent.subscribe()
        node.script = always(503)
        await accepted(endpoint)
        await agent.notification(ack=True)
        node.script = pass_on
        node.heard.clear()
        await accepted(endpoint)

        assert node.heard == ["push"]
        assert await agent.notification(ack=True)


async def test_what_a_node_answers_otherwise_means_to_store(cluster: Cluster) -> None:
    """§1.2, 5e"""
    async with (
        scripted_node(cluster.node_port, cluster.connect.relay_url) as node,
        user_agent(cluster.connect.ws_url) as agent,
    ):
        endpoint = await agent.subscribe()
        for status in (202, 400, 500):
            node.script = always(status)
            node.heard.clear()
            answer = await accepted(endpoint)

            assert node.heard == ["push", "notif"]
            assert (await agent.notification(ack=True))["version"] == version_of(answer)


async def test_an_absent_client_loses_its_route(cluster: Cluster) -> None:
    """C-072, C-079: stored, and nobody is told; the next POST does not even ask."""
    async with scripted_node(cluster.node_port, cluster.connect.relay_url) as node:
        async with user_agent(cluster.connect.ws_url) as agent:
            endpoint = await agent.subscribe()
            node.script = always(404)
            first = await accepted(endpoint)
            heard, node.script = list(node.heard), pass_on
            second = await accepted(endpoint)

            assert heard == node.heard == ["push"]
            await agent.expect_silence()
            await agent.reconnect()
            received = await agent.notifications(2, ack=True)

        assert [one["version"] for one in received] == [version_of(first), version_of(second)]


@pytest.mark.parametrize("how", [HANG_UP, GARBAGE])
async def test_a_node_that_makes_no_sense_loses_the_route(cluster: Cluster, how: int) -> None:
    """C-073"""
    async with (
        scripted_node(cluster.node_port, cluster.connect.relay_url) as node,
        user_agent(cluster.connect.ws_url) as agent,
    ):
        endpoint = await agent.subscribe()
        node.script = always(how)
        answer = await accepted(endpoint)
        heard = set(node.heard)
        await agent.reconnect()

        assert heard == {"push"}  # perhaps twice: a kept connection may have gone stale
        assert (await agent.notification(ack=True))["version"] == version_of(answer)


async def test_a_node_that_is_not_there_loses_the_route(cluster: Cluster) -> None:
    """C-073"""
    async with user_agent(cluster.connect.ws_url) as agent:
        endpoint = await agent.subscribe()
        first = await accepted(endpoint)
        async with scripted_node(cluster.node_port, cluster.connect.relay_url) as node:
            second = await accepted(endpoint)

            assert node.heard == []  # the route is gone
            await agent.reconnect()
            received = await agent.notifications(2, ack=True)

        assert [one["version"] for one in received] == [version_of(first), version_of(second)]


async def test_a_node_that_does_not_answer_in_time_loses_the_route(cluster: Cluster) -> None:
    """C-073: the request timeout is three seconds"""
    never = asyncio.Event()

    async def stall(request: Request) -> int | None:
        if request.kind == "push":
            await never.wait()
        return None

    async with (
        scripted_node(cluster.node_port, cluster.connect.relay_url) as node,
        user_agent(cluster.connect.ws_url) as agent,
    ):
        endpoint = await agent.subscribe()
        node.script = stall
        answer = await accepted(endpoint)
        await agent.reconnect()

        assert (await agent.notification(ack=True))["version"] == version_of(answer)


async def test_who_moved_meanwhile_is_found_on_the_new_node(cluster: Cluster) -> None:
    """C-074: the clear is not applied, the new node is told and delivers, without a reconnect."""
    async with (
        scripted_node(cluster.node_port, cluster.connect.relay_url) as node,
        user_agent(cluster.connect.ws_url) as agent,
        UserAgent(cluster.other.ws_url) as moved,
    ):
        endpoint = await agent.subscribe()
        moved.uaid = agent.uaid

        async def move(request: Request) -> int | None:
            if request.kind != "push":
                return None
            await agent.leave()
            await moved.connect()
            await moved.expect_silence(0.1)  # it has looked in storage, and there was nothing
            return 404

        node.script = move
        answer = await accepted(endpoint)

        assert (await moved.notification(ack=True))["version"] == version_of(answer)
        await accepted(endpoint)
        assert await moved.notification(ack=True)


async def test_a_busy_node_and_no_lifetime_means_nothing_is_stored(cluster: Cluster) -> None:
    """C-075"""
    async with (
        scripted_node(cluster.node_port, cluster.connect.relay_url) as node,
        user_agent(cluster.connect.ws_url) as agent,
    ):
        endpoint = await agent.subscribe()
        node.script = always(503)
        answer = await accepted(endpoint, ttl=0)

        assert answer.headers["ttl"] == "0"
        assert "/m/" in answer.headers["location"]
        assert node.heard == ["push"]
        await agent.expect_silence(0.1)
        await agent.reconnect()
        await agent.expect_silence()


async def test_a_node_that_cannot_be_told_loses_the_route_and_the_message_waits(
    cluster: Cluster,
) -> None:
    """§1.2, step 11"""

    async def busy_then_gone(request: Request) -> int | None:
        return 503 if request.kind == "push" else HANG_UP

    async with (
        scripted_node(cluster.node_port, cluster.connect.relay_url) as node,
        user_agent(cluster.connect.ws_url) as agent,
    ):
        endpoint = await agent.subscribe()
        node.script = busy_then_gone
        first = await accepted(endpoint)
        node.heard.clear()
        second = await accepted(endpoint)
        heard, node.script = list(node.heard), pass_on
        await agent.reconnect()
        received = await agent.notifications(2, ack=True)

        assert heard == []
        assert [one["version"] for one in received] == [version_of(first), version_of(second)]


async def test_what_an_old_node_hands_back_is_delivered_by_the_new_one(
    two_nodes: tuple[Autoconnect, Autoconnect, Autoendpoint],
) -> None:
    """C-080: displaced with un-acked directs; the other node is told, without a reconnect."""
    first, second, _ = two_nodes
    async with user_agent(first.ws_url) as older, UserAgent(second.ws_url) as newer:
        endpoint = await older.subscribe()
        sent = [version_of(await accepted(endpoint, b"%d" % n)) for n in range(3)]
        await older.notifications(3)
        newer.uaid = older.uaid
        await newer.connect()
        received = await newer.notifications(3, ack=True)

        assert sorted(one["version"] for one in received) == sorted(sent)
        assert await older.closed() == 1011
        await newer.reconnect()
        await newer.expect_silence()


async def test_a_move_in_the_middle_of_a_stream_loses_nothing(
    two_nodes: tuple[Autoconnect, Autoconnect, Autoendpoint],
) -> None:
    """C-080, C-088: back and forth between two nodes while messages come in"""
    first, second, _ = two_nodes
    nodes = [first, second]
    sent: set[str] = set()
    received: set[str] = set()
    async with user_agent(first.ws_url) as agent:
        endpoint = await agent.subscribe()
        over = asyncio.Event()

        async def send() -> None:
            while not over.is_set():
                sent.add(version_of(await accepted(endpoint)))

        async with asyncio.TaskGroup() as group:
            sender = group.create_task(send())
            for turn in range(8):
                try:
                    for _ in range(4):
                        message = await agent.notification()
                        received.add(message["version"])
                        if turn % 2:
                            await agent.ack(message)
                finally:
                    await agent.vanish()
                    agent.url = nodes[turn % 2].ws_url
                    await agent.connect()
            over.set()
            await sender
        while not sent <= received:
            message = await agent.notification(ack=True)
            received.add(message["version"])

        assert received == sent
