"""Timeouts and retries in real time, with a TTL of seconds; virtual time has the exact figures.

Only what must not happen too early is measured closely: a busy machine may be late.
"""

import asyncio
from collections.abc import Callable
from typing import Any

import grpc

from tests.conformance.presence.conftest import NodeSetup
from tests.conformance.presence.kit import PresenceClient, answered, kinds, left, listed, until
from waystation.presence.model import MessageType, Status
from waystation.presence.wire.party_presence_pb2 import ClientMessage

ACK, JOIN, LEAVE, LIST = MessageType.ACK, MessageType.JOIN, MessageType.LEAVE, MessageType.LIST
PING = MessageType.PING
Code = grpc.StatusCode
QUICK: dict[str, Any] = {"tick_s": 0.02, "session_ttl_min_s": 0.5, "session_ttl_s": 120.0}
EARLY_S = 0.03  # clocks of two ends, read one after the other


def now() -> float:
    return asyncio.get_running_loop().time()


async def gone(watcher: PresenceClient, client: int) -> ClientMessage:
    """When the watcher has heard that the client left."""
    await until(
        lambda: any(m.client_id == client and m.message_type == LEAVE for m in watcher.seen)
    )
    return next(m for m in watcher.seen if m.client_id == client and m.message_type == LEAVE)


async def keep_pinging(
    presence_client: PresenceClient, every_s: float, enough: Callable[[], bool] = lambda: False
) -> None:
    while not enough():
        await presence_client.ping()
        await asyncio.sleep(every_s)


async def test_silent_sessions_time_out_and_active_ones_stay(node_setup: NodeSetup) -> None:
    """P-053 P-054 P-055 P-057 P-058 P-059 P-068 P-069, on one clock."""
    node = await node_setup.node(**QUICK)
    watcher = await node_setup.member(node, 1, auto=True)
    wishes = {100: 500, 1500: 1500, 10**6: 600_000}
    for number, (wish, given) in enumerate(wishes.items()):
        presence_client = node_setup.presence_client(node, 50 + number)
        await presence_client.join(session_ttl_ms=wish)
        assert (await presence_client.expect_kind(ACK)).session_ttl_ms == given
        await presence_client.leave()
    speaker = await node_setup.member(node, 2, auto=True, session_ttl_ms=1500)
    pinging = asyncio.create_task(keep_pinging(speaker, 0.3))
    acker = await node_setup.member(node, 3, auto=True, session_ttl_ms=3000)
    in_time = await node_setup.member(node, 6, auto=True, session_ttl_ms=10_000)
    began = now()
    silent = await node_setup.member(node, 4, session_ttl_ms=1500)
    wrong = await node_setup.member(node, 5, session_ttl_ms=1500)
    await in_time.cut()
    for _ in range(4):  # errors are no sign of life
        await wrong.say(PING, timestamp=1)
        await asyncio.sleep(0.2)
    reason = await gone(watcher, 4)
    silent_s = now() - began
    assert reason.status_code == Status.CLIENT_TIMEOUT
    assert silent_s >= 1.5 - EARLY_S
    while (end := await silent.get()).message_type != MessageType.ERROR:
        pass
    assert end.status_code == Status.CLIENT_TIMEOUT
    assert await silent.status() is Code.DEADLINE_EXCEEDED
    assert (await gone(watcher, 5)).status_code == Status.CLIENT_TIMEOUT
    lost = await node_setup.member(node, 7, auto=True, session_ttl_ms=1500)
    await asyncio.sleep(0.5)
    await lost.cut()
    cut = now()
    assert (await gone(watcher, 7)).status_code == Status.CLIENT_TIMEOUT
    assert now() - cut >= 1.5 - EARLY_S  # after the cut, not after its last message
    await lost.resume(resume_token=b"", session_ttl_ms=60_000)
    assert (await lost.expect_kind(ACK)).status_code == Status.OK
    await in_time.resume()
    assert (await in_time.expect_kind(ACK)).status_code == Status.SESSION_RESUMED
    pinging.cancel()

    leavers = [m.client_id for m in watcher.seen if m.message_type == LEAVE and m.client_id < 50]
    assert sorted(leavers) == [4, 5, 7]
    assert {one.call.done() for one in (speaker, acker)} == {False}
    await acker.leave()
    await watcher.leave()


async def test_unacknowledged_messages_are_sent_again_until_dropped(node_setup: NodeSetup) -> None:
    """P-043 P-044 P-045 P-052 P-056: the ladder of a TTL of 4 s is a thirtieth of the default's."""
    node = await node_setup.node(**QUICK)
    watcher = await node_setup.member(node, 1, auto=True)
    never = await node_setup.member(node, 2, session_ttl_ms=4000)
    later = await node_setup.member(node, 3, session_ttl_ms=4000)
    (first,) = await never.get_many(1)
    await never.ack(first.message_id)  # of `later`

    def deliveries(presence_client: PresenceClient) -> list[ClientMessage]:
        return [m for m in presence_client.seen if m.message_type == JOIN and m.client_id == 4]

    # A client that writes when the call ends may lose the status (see `PresenceClient.stop_acks`).
    pings = [
        asyncio.create_task(keep_pinging(never, 0.4, lambda: len(deliveries(never)) >= 5)),
        asyncio.create_task(keep_pinging(later, 0.4)),
    ]
    await node_setup.member(node, 4, auto=True)
    sent = now()
    await until(lambda: len(deliveries(later)) == 3)
    await later.ack(deliveries(later)[0].message_id)
    await answered(later, await later.ping())
    had = len(deliveries(later))
    again: list[float] = []
    for count in (2, 3, 4, 5):
        await until(lambda count=count: len(deliveries(never)) >= count)
        again.append(now() - sent)
    reason = await gone(watcher, 2)
    await until(never.call.done)  # the others may hear of it first
    for task in pings:
        task.cancel()

    assert reason.status_code == Status.ACK_TIMEOUT
    assert now() - sent >= 4.0 - EARLY_S
    due = (5 / 30, 15 / 30, 35 / 30, 75 / 30)
    assert all(at >= least - EARLY_S for at, least in zip(again, due, strict=True))
    copies = deliveries(never)
    assert [m.delivery_attempt for m in copies] == [0, 2, 3, 4, 5]
    assert len({(m.message_id, m.timestamp, m.party_seq) for m in copies}) == 1
    assert len(deliveries(later)) == had
    resyncs = [m for m in never.seen if m.status_code == Status.LIST_RESYNC]
    # Each wait begins when the one before has ended, so on a busy machine the timeout may be first.
    assert resyncs or again[-1] + 40 / 30 >= 4.0
    ends = [m for m in never.seen if m.message_type == MessageType.ERROR]
    assert [m.status_code for m in ends] == [Status.ACK_TIMEOUT]
    counters = node.broker.counters
    flying = sum(len(one.delivery.inflight) for one in node.broker.registry.sessions.values())
    assert (
        counters.out
        == counters.acked + counters.dropped + counters.superseded + counters.abandoned + flying
    )


async def test_a_retry_round_with_outdated_messages_is_followed_by_a_resync(
    node_setup: NodeSetup,
) -> None:
    """P-046: JOIN of X, LEAVE of X, JOIN of Y, of which the middle one is acknowledged."""
    node = await node_setup.node(**QUICK)
    naive = await node_setup.member(node, 1, session_ttl_ms=12_000)
    x = await node_setup.member(node, 8, auto=True)
    await x.leave()
    y = await node_setup.member(node, 9, auto=True)
    joined, parted, other = await naive.get_many(3)
    await naive.ack(parted.message_id)
    repeated = await naive.get_many(3)

    assert kinds([joined, parted, other]) == ["JOIN", "LEAVE", "JOIN"]
    assert [m.message_id for m in repeated[:2]] == [joined.message_id, other.message_id]
    assert repeated[2].status_code == Status.LIST_RESYNC
    assert listed(repeated[2]) == [(9, [y.session])]


async def test_all_clients_receive_one_sequence(node_setup: NodeSetup) -> None:
    """P-013 P-048 P-051: ten who watch others come and go; one of them never acknowledges."""
    node = await node_setup.node(**QUICK, join_rate_per_min=1e6, join_burst=1000)
    channel = grpc.aio.insecure_channel(node.target)
    watchers = [await node_setup.member(node, client, auto=client > 1) for client in range(1, 11)]
    for client in range(100, 150):
        visitor = await node_setup.member(node, client, auto=True, channel=channel)
        if client % 5:
            await left(visitor)

    def told(presence_client: PresenceClient) -> list[tuple[int, int]]:
        rows = [
            (m.party_seq, m.message_id)
            for m in presence_client.seen
            if m.message_type in (JOIN, LEAVE)
        ]
        return sorted(set(rows))

    await until(lambda: all(told(one) and told(one)[-1][0] == 100 for one in watchers))
    sequence = told(watchers[0])
    last = node_setup.presence_client(node, 200)
    await last.join(channel=channel)
    _, welcome = await last.get_many(2)

    assert [seq for seq, _ in sequence] == list(range(2, 101))
    assert [one for _, one in sequence] == sorted(one for _, one in sequence)
    for watcher in watchers[1:]:
        own = [row for row in told(watcher) if row[0] <= 100]
        assert own == sequence[-len(own) :]
    assert [client for client, _ in listed(welcome)] == [*range(1, 11), *range(100, 150, 5)]
    for presence_client in node_setup.presence_clients:
        await presence_client.disconnect()
    await channel.close()


async def test_a_session_detached_for_longer_than_the_log_gets_a_resync(
    node_setup: NodeSetup,
) -> None:
    """P-076: of 40 events the log keeps 32, and the LIST tells the truth."""
    node = await node_setup.node(**QUICK, party_log=32, max_lag=31, join_burst=1000)
    away = await node_setup.member(node, 1, auto=True)
    await away.cut()
    registry = node.broker.registry
    await until(lambda: registry.numbers()["detached"] == 1)
    channel = grpc.aio.insecure_channel(node.target)
    for _ in range(20):
        visitor = await node_setup.member(node, 2, auto=True, channel=channel)
        await left(visitor)
    stayer = await node_setup.member(node, 3, auto=True)
    await away.resume()
    resumed, resync = await away.get_many(2)

    assert resumed.status_code == Status.SESSION_RESUMED
    assert (resync.message_type, resync.status_code) == (LIST, Status.LIST_RESYNC)
    assert listed(resync) == [(3, [stayer.session])]
    await away.expect_nothing()
    for presence_client in node_setup.presence_clients:
        await presence_client.disconnect()
    await channel.close()
