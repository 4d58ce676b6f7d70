"""Two connection nodes and two endpoint nodes on one server store: what a cluster promises.

A store's file brings the fixture `shared_store`; the body is the same for all of them, as it is in
the conformance suites. The nodes share nothing but the store, the crypto key and the secret.
"""

import asyncio
import contextlib
import subprocess
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.e2e.platform import (
    BIN,
    KEY,
    Autoconnect,
    Autoendpoint,
    Process,
    clean_environment,
)
from tests.e2e.simplepush import ends_of_three
from tests.e2e.wire_clients import (
    BODY,
    Answer,
    Message,
    UserAgent,
    accepted,
    b64url,
    http,
    new_channel,
    post,
    user_agent,
    version_of,
)
from tests.ports import free_ports
from tests.servers.frozen import frozen
from waystation.telemetry import contract

MSG_LIMIT = 20  # no test leaves more behind for one user agent, but the one about it
# Loopback, written so that start-up takes it for an address that other machines may use: it
# rightly refuses one that it recognises.
THIS_MACHINE = "127.1"
STORE_TIMEOUT_S = "3"
SOON_S = 20.0  # generous: the machine may be busy


class SharedStore(NamedTuple):
    url: str
    port: int  # where its server listens


class Cluster(NamedTuple):
    a: Autoconnect
    b: Autoconnect
    endpoints: tuple[Autoendpoint, Autoendpoint]
    store: SharedStore

    def doors(self, endpoint: str) -> list[str]:
        """One subscription's endpoint, at each endpoint node."""
        path = endpoint.partition("//")[2].partition("/")[2]
        return [f"{node.endpoint_url}/{path}" for node in self.endpoints]


def init_store(url: str, data_dir: Path) -> None:
    """What an operator runs once, before the first node."""
    done = subprocess.run(
        [BIN / "waystation", "store", "init", "--store", url, "--data-dir", data_dir],
        env=clean_environment(),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


@contextlib.contextmanager
def running_cluster(
    root: Path, store: SharedStore, *, msg_limit: int = MSG_LIMIT
) -> Iterator[Cluster]:
    init_store(store.url, root / "operator")
    shared = {
        "db_dsn": store.url,
        "cluster__secret": "x" * 43,
        "store__operation_timeout_s": STORE_TIMEOUT_S,
        "store__connect_timeout_s": STORE_TIMEOUT_S,
        "store__connections_max": "4",
    }
    ports = free_ports(2)
    endpoints = (
        Autoendpoint(root / "endpoint-1", port=ports, crypto_key=KEY, **shared),
        Autoendpoint(root / "endpoint-2", port=ports + 1, crypto_key=KEY, **shared),
    )
    a, b = (
        Autoconnect(
            root / name,
            endpoint_url=endpoint.endpoint_url,
            crypto_key=KEY,
            router_hostname=THIS_MACHINE,
            msg_limit=msg_limit,
            connect__drain_s=0.1,
            **shared,
        )
        for name, endpoint in zip(("a", "b"), endpoints, strict=True)
    )
    nodes: list[Process] = [a, b, *endpoints]
    with contextlib.ExitStack() as stack:
        for node in nodes:
            stack.callback(node.close)
        with ThreadPoolExecutor(len(nodes)) as pool:
            list(pool.map(lambda node: node.start(), nodes))
        yield Cluster(a, b, endpoints, store)


def versions(messages: list[Message]) -> list[str]:
    return [message["version"] for message in messages]


async def move(agent: UserAgent, node: Autoconnect) -> None:
    """Leaves, and says hello at another node."""
    await agent.leave()
    agent.url = node.ws_url
    await agent.connect()


async def nothing_waits(agent: UserAgent, node: Autoconnect) -> None:
    """All acks are recorded: soon, because they are beside everything else, and for good."""
    uaid = agent.uaid
    deadline = time.monotonic() + SOON_S
    while True:
        await move(agent, node)
        assert agent.uaid == uaid
        try:
            return await agent.expect_silence()
        except AssertionError:
            if time.monotonic() > deadline:
                raise


async def stored(cluster: Cluster, endpoint: str, count: int) -> list[str]:
    """Posted one after the other, through both endpoint nodes in turn."""
    doors = cluster.doors(endpoint)
    sent: list[str] = []
    for number in range(count):
        await asyncio.sleep(0.002)  # within one millisecond two nodes know no order
        sent.append(version_of(await accepted(doors[number % 2], b"%d" % number)))
    return sent


async def accepted_soon(endpoint: str, body: bytes) -> Answer:
    """Posted as an app server does that is told to come again later."""
    deadline = time.monotonic() + SOON_S
    while (answer := await post(endpoint, body)).status == 503:
        assert time.monotonic() < deadline, "it did not recover"
        await asyncio.sleep(0.2)
    assert answer.status == 201, answer
    return answer


async def hello_soon(agent: UserAgent) -> None:
    """Connects as a user agent does that is sent away: again and again, under its own uaid."""
    uaid = agent.uaid
    deadline = time.monotonic() + SOON_S
    while True:
        try:
            await agent.connect()
        except Exception:
            assert time.monotonic() < deadline, "it did not recover"
            await agent.vanish()
            await asyncio.sleep(0.2)
        else:
            assert agent.uaid == uaid
            return


class StoreWalk:
    """A store's class brings `shared_store`."""

    @pytest.fixture(scope="class")
    @classmethod
    def cluster(
        cls, shared_store: SharedStore, tmp_path_factory: pytest.TempPathFactory
    ) -> Iterator[Cluster]:
        with running_cluster(tmp_path_factory.mktemp("cluster"), shared_store) as cluster:
            yield cluster

    async def test_directs_come_through_either_endpoint_node(self, cluster: Cluster) -> None:
        for node in (cluster.a, cluster.b):
            async with user_agent(node.ws_url) as agent:
                endpoint = await agent.subscribe()
                doors = list(cluster.doors(endpoint))
                assert len(doors) == 2
                for door in doors:
                    answer = await accepted(door, ttl=0)  # can only be direct
                    message = await agent.notification(ack=True)

                    assert message["version"] == version_of(answer)
                    assert message["data"] == b64url(BODY)

    async def test_what_was_stored_is_delivered_at_the_other_node(self, cluster: Cluster) -> None:
        """C-044, C-045: until it is acked, at whichever node"""
        async with user_agent(cluster.a.ws_url) as agent:
            channel_id = new_channel()
            endpoint = await agent.subscribe(channel_id)
            await agent.leave()
            sent = await stored(cluster, endpoint, 3)
            await move(agent, cluster.b)
            assert versions(await agent.notifications(3)) == sent
            await move(agent, cluster.a)
            first = await agent.notification(ack=True)
            await agent.notifications(2, ack=True)

            assert first == {
                "messageType": "notification",
                "channelID": channel_id,
                "version": sent[0],
                "data": b64url(b"0"),
                "headers": {"encoding": "aes128gcm"},
            }
            await nothing_waits(agent, cluster.b)

    async def test_many_at_once_through_both_endpoint_nodes_all_arrive(
        self, cluster: Cluster
    ) -> None:
        """C-085, C-067: many within one millisecond, and exactly as many as may wait"""
        async with user_agent(cluster.a.ws_url) as agent:
            doors = cluster.doors(await agent.subscribe())
            await agent.leave()
            answers = await asyncio.gather(
                *[accepted(doors[number % 2], b"%d" % number) for number in range(MSG_LIMIT)]
            )
            await move(agent, cluster.b)
            received = await agent.notifications(MSG_LIMIT, ack=True)

            assert sorted(versions(received)) == sorted(map(version_of, answers))
            await nothing_waits(agent, cluster.a)

    async def test_unacked_directs_are_there_after_a_reconnect_elsewhere(
        self, cluster: Cluster
    ) -> None:
        """C-079: handed back to the store when the user agent is gone"""
        async with user_agent(cluster.a.ws_url) as agent:
            sent = await stored(cluster, await agent.subscribe(), 3)
            assert versions(await agent.notifications(3)) == sent
            await move(agent, cluster.b)
            received = await agent.notifications(3, ack=True)

            assert sorted(versions(received)) == sorted(sent)
            await nothing_waits(agent, cluster.a)

    async def test_unacked_directs_follow_a_user_agent_that_is_displaced(
        self, cluster: Cluster
    ) -> None:
        """C-080: the other node is told, without a reconnect."""
        async with user_agent(cluster.a.ws_url) as older, UserAgent(cluster.b.ws_url) as newer:
            sent = await stored(cluster, await older.subscribe(), 3)
            await older.notifications(3)
            newer.uaid = older.uaid
            await newer.connect()
            received = await newer.notifications(3, ack=True)

            assert sorted(versions(received)) == sorted(sent)
            await nothing_waits(newer, cluster.b)

    async def test_moving_in_the_middle_of_a_stream_loses_nothing(self, cluster: Cluster) -> None:
        """C-080, C-088: back and forth between the nodes while messages come in"""
        nodes = (cluster.b, cluster.a)
        received: set[str] = set()
        async with user_agent(cluster.a.ws_url) as agent:
            endpoint = await agent.subscribe()
            async with asyncio.TaskGroup() as group:
                sending = group.create_task(stored(cluster, endpoint, MSG_LIMIT - 2))
                for turn in range(4):
                    message = await agent.notification()
                    received.add(message["version"])
                    if turn % 2:
                        await agent.ack(message)
                    await agent.vanish()
                    agent.url = nodes[turn % 2].ws_url
                    await agent.connect()
            while not set(sending.result()) <= received:
                received.add((await agent.notification(ack=True))["version"])

            assert received == set(sending.result())

    async def test_topics_replace_each_other_and_come_first(self, cluster: Cluster) -> None:
        """C-050, C-051, C-058: through different endpoint nodes"""
        async with user_agent(cluster.a.ws_url) as agent:
            first, second = cluster.doors(await agent.subscribe())
            await agent.leave()
            plain = version_of(await accepted(first, b"plain"))
            await accepted(first, b"old", topic="Inbox")
            newer = version_of(await accepted(second, b"new", topic="Inbox"))
            await move(agent, cluster.b)

            assert versions(await agent.notifications(2, ack=True)) == [newer, plain]
            await nothing_waits(agent, cluster.a)

    async def test_updates_of_simplepush_end_as_what_became_of_them(
        self, cluster: Cluster, tmp_path: Path
    ) -> None:
        """The store keeps when they were accepted: without that no event can name them."""
        assert await ends_of_three(tmp_path, store__url=cluster.store.url) == [
            contract.DELIVERED,
            contract.SUPERSEDED,
            contract.DELIVERED,
        ]

    async def test_what_has_expired_does_not_arrive(self, cluster: Cluster) -> None:
        """C-053, C-054, C-055"""
        async with user_agent(cluster.a.ws_url) as agent:
            endpoint = await agent.subscribe()
            await agent.leave()
            await accepted(endpoint, b"short", ttl=1)
            await accepted(endpoint, b"short", ttl=1, topic="Inbox")
            await accepted(endpoint, b"never", ttl=0)
            lasting = version_of(await accepted(endpoint, b"lasting"))
            await asyncio.sleep(1.1)
            await move(agent, cluster.b)

            assert versions([await agent.notification(ack=True)]) == [lasting]
            await agent.expect_silence()

    async def test_a_sender_takes_back_what_it_sent(self, cluster: Cluster) -> None:
        """C-063: by Location, at the endpoint node that did not take it in"""
        async with user_agent(cluster.a.ws_url) as agent:
            endpoint = await agent.subscribe()
            await agent.leave()
            kept = version_of(await accepted(endpoint, b"kept"))
            for topic in (None, "Inbox"):
                withdrawn = version_of(await accepted(endpoint, topic=topic))
                other = cluster.endpoints[1].endpoint_url
                assert (await http("DELETE", f"{other}/m/{withdrawn}")).status == 204
            await move(agent, cluster.b)

            assert versions([await agent.notification(ack=True)]) == [kept]
            await agent.expect_silence()

    async def test_an_ended_subscription_is_gone_at_both_endpoint_nodes(
        self, cluster: Cluster
    ) -> None:
        """C-029: and what waited for it with it, but not what waits for another"""
        async with user_agent(cluster.a.ws_url) as agent:
            ended = new_channel()
            endpoint, other = await agent.subscribe(ended), await agent.subscribe()
            await agent.leave()
            await accepted(endpoint)
            kept = version_of(await accepted(other))
            await move(agent, cluster.b)
            await agent.notifications(2)
            assert (await agent.unregister(ended))["status"] == 200

            for door in cluster.doors(endpoint):
                assert (await post(door)).error == (410, 106)
            await move(agent, cluster.a)
            assert versions([await agent.notification(ack=True)]) == [kept]

    async def test_whoever_has_missed_too_much_begins_anew(self, cluster: Cluster) -> None:
        """C-066, C-068: one more than `msg_limit`; the old endpoint is gone everywhere"""
        async with user_agent(cluster.a.ws_url) as agent:
            endpoint = await agent.subscribe()
            await agent.leave()
            sent = await stored(cluster, endpoint, MSG_LIMIT + 1)
            old_uaid = agent.uaid
            await move(agent, cluster.b)
            received = await agent.notifications(MSG_LIMIT, ack=True)

            assert versions(received) == sent[:MSG_LIMIT]
            assert await agent.closed() == 1000
            await agent.connect()
            assert agent.uaid != old_uaid
            for door in cluster.doors(endpoint):
                assert (await post(door)).error == (410, 106)

    async def test_a_killed_node_hands_back_its_unacked_directs(self, cluster: Cluster) -> None:
        """R7, promise 1: its journal is replayed into the store, and whoever is elsewhere by
        then is told without a reconnect."""
        async with user_agent(cluster.a.ws_url) as moved, user_agent(cluster.a.ws_url) as waits:
            endpoint = await moved.subscribe()
            sent = await stored(cluster, endpoint, 3)
            await moved.notifications(3)
            waiting = await stored(cluster, await waits.subscribe(), 2)
            await waits.notifications(2)
            await asyncio.to_thread(cluster.a.kill)
            # Its address is still in the record: found dead, and stored.
            sent += await stored(cluster, endpoint, 1)
            await moved.vanish()
            moved.url = cluster.b.ws_url
            await moved.connect()
            assert versions([await moved.notification(ack=True)]) == sent[3:]
            await asyncio.to_thread(cluster.a.start)
            handed_back = [await moved.notification(ack=True, timeout_s=SOON_S) for _ in range(3)]
            await waits.vanish()
            await waits.connect()

            assert sorted(versions(handed_back)) == sorted(sent[:3])
            assert sorted(versions(await waits.notifications(2, ack=True))) == sorted(waiting)

    async def test_a_store_that_stands_still_is_waited_for_and_nothing_is_lost(
        self, cluster: Cluster
    ) -> None:
        """503 with Retry-After meanwhile; connections stay, and acks of that time are no loss."""
        async with (
            user_agent(cluster.a.ws_url) as away,
            user_agent(cluster.a.ws_url) as leaves,
            user_agent(cluster.b.ws_url) as stays,
        ):
            away_at, leaves_at = await away.subscribe(), await leaves.subscribe()
            stays_at = await stays.subscribe()
            await away.leave()
            waiting = await stored(cluster, away_at, 2)
            unacked = await stored(cluster, leaves_at, 2)
            await leaves.notifications(2)
            with frozen(cluster.store.port):
                answers = await asyncio.gather(
                    *[post(door) for door in (*cluster.doors(stays_at), *cluster.doors(away_at))]
                )
                await leaves.vanish()  # what it has not acked cannot be handed back yet
                alive = [
                    await http("GET", f"{node.endpoint_url}/__lbheartbeat__")
                    for node in cluster.endpoints
                ]
                await stays.send({})
                assert await stays.receive() == {}

            assert [answer.status for answer in answers] == [503] * 4
            assert {answer.errno for answer in answers} == {201}
            assert all(int(answer.headers["retry-after"]) >= 1 for answer in answers)
            assert [answer.status for answer in alive] == [200, 200]
            # POSTs that were answered 503 are sent again, as app servers do.
            again = [
                version_of(await accepted_soon(door, b"again")) for door in cluster.doors(stays_at)
            ]
            assert versions(await stays.notifications(2, ack=True)) == again
            away.url = leaves.url = cluster.b.ws_url
            await hello_soon(away)
            await hello_soon(leaves)
            assert set(waiting) <= set(versions(await away.notifications(2, ack=True)))
            back = [await leaves.notification(ack=True, timeout_s=SOON_S) for _ in range(2)]
            assert sorted(versions(back)) == sorted(unacked)
