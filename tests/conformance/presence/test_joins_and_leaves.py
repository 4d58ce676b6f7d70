"""Joining, the welcome and leaving, over real gRPC."""

import asyncio
import random

import grpc

from tests.conformance.presence.conftest import NodeSetup
from tests.conformance.presence.kit import (
    PARTY,
    QUIET_S,
    PresenceClient,
    forgotten,
    kinds,
    left,
    listed,
    until,
)
from waystation.base.clock import ManualClock
from waystation.presence.model import Flags, MessageType, Status

ACK, JOIN, LEAVE, LIST = MessageType.ACK, MessageType.JOIN, MessageType.LEAVE, MessageType.LIST


async def test_the_first_to_join_is_welcomed_by_an_empty_list(node_setup: NodeSetup) -> None:
    """P-001 P-106: this and all the others run on every store, Redis too."""
    node = await node_setup.node()
    a = node_setup.presence_client(node, 1)

    await a.join(session_ttl_ms=120_000)
    ack, welcome = await a.get_many(2)

    assert kinds([ack, welcome]) == ["ACK", "LIST"]
    assert list(ack.ack_message_ids) == [1]
    assert ack.status_code == Status.OK
    assert len(ack.resume_token) == 16
    assert ack.session_ttl_ms == 120_000
    assert listed(welcome) == []
    assert welcome.party_seq == 1
    assert welcome.party_epoch == ack.party_epoch != 0
    await a.expect_nothing()


async def test_those_present_are_told_of_a_newcomer_who_is_told_of_them(
    node_setup: NodeSetup,
) -> None:
    """P-002 P-003"""
    node = await node_setup.node()
    a = await node_setup.member(node, 1)
    b = node_setup.presence_client(node, 2)

    await b.join()
    _, welcome = await b.get_many(2)
    told = await a.expect_kind(JOIN)

    assert listed(welcome) == [(1, [a.session])]
    assert (told.session_id, told.client_id, told.party_id) == (b.session, 2, PARTY)
    assert told.timestamp
    assert told.message_id >> 63 == 1
    assert told.message_id >> 62 & 1 == 0
    assert told.party_seq == 2
    assert told.client_session_count == 1
    await b.expect_nothing()


async def test_everybody_gets_the_same_bytes(node_setup: NodeSetup) -> None:
    """P-004"""
    node = await node_setup.node()
    a, b = await node_setup.member(node, 1), await node_setup.member(node, 2)
    await a.expect_kind(JOIN)

    await node_setup.member(node, 3)
    await a.expect_kind(JOIN)
    await b.expect_kind(JOIN)

    assert a.raw[-1] == b.raw[-1]


async def test_a_leave_is_told_at_once(node_setup: NodeSetup) -> None:
    """P-005 P-003: with a tick of a second, it cannot have waited for one."""
    node = await node_setup.node(tick_s=1.0)
    a, b = await node_setup.member(node, 1), await node_setup.member(node, 2)
    await a.expect_kind(JOIN)
    loop = asyncio.get_running_loop()
    before = loop.time()

    left_id = await a.leave()
    told = await b.expect_kind(LEAVE)
    took_s = loop.time() - before
    ack = await a.expect_kind(ACK)

    assert took_s < 0.9
    assert list(ack.ack_message_ids) == [left_id]
    assert ack.party_seq == told.party_seq == 3
    assert await a.status() is grpc.StatusCode.OK
    assert (told.status_code, told.client_session_count) == (Status.OK, 0)
    assert (told.client_id, told.session_id) == (1, a.session)


async def test_a_second_device_is_counted_and_its_leave_leaves_the_first_alone(
    node_setup: NodeSetup,
) -> None:
    """P-006 P-007"""
    node = await node_setup.node()
    a1, b = await node_setup.member(node, 1), await node_setup.member(node, 2)
    await a1.expect_kind(JOIN)
    a2 = node_setup.presence_client(node, 1, 777)

    await a2.join()
    _, welcome = await a2.get_many(2)
    told = await a1.expect_kind(JOIN)
    await b.expect_kind(JOIN)

    assert listed(welcome) == [(1, [a1.session]), (2, [b.session])]
    assert (told.session_id, told.client_session_count) == (777, 2)

    await a2.leave()
    for one in (a1, b):
        left = await one.expect_kind(LEAVE)
        assert (left.session_id, left.client_session_count) == (777, 1)
    await a1.ping()
    assert (await a1.get()).message_type == ACK


async def test_a_session_id_of_another_client_is_refused_where_ids_are_unique_in_the_party(
    node_setup: NodeSetup,
) -> None:
    """As the reference broker: an error, then the stream ends; whoever was first stays."""
    node = await node_setup.node(session_ids="per_party")
    a = await node_setup.member(node, 1)
    b = node_setup.presence_client(node, 2, a.session)

    await b.join()
    await b.expect_end(Status.SESSION_ID_IN_USE, grpc.StatusCode.ALREADY_EXISTS)
    c = await node_setup.member(node, 2)
    told = await a.expect_kind(JOIN)

    assert (told.client_id, told.session_id) == (2, c.session)


async def test_the_reference_brokers_clients_find_the_service_under_their_name(
    node_setup: NodeSetup,
) -> None:
    node = await node_setup.node()
    a = node_setup.presence_client(node, 1)

    await a.join(path="/ca.ozluminaire.partypresence.ClientMessagingEndpoint/beginStream")
    assert kinds(await a.get_many(2)) == ["ACK", "LIST"]


async def test_one_session_id_in_two_parties_and_of_two_clients_are_three_sessions(
    node_setup: NodeSetup,
) -> None:
    """P-008"""
    node = await node_setup.node()
    first = await node_setup.member(node, 1, session=5, party=10)
    other_party = await node_setup.member(node, 1, session=5, party=11)
    other_client = await node_setup.member(node, 2, session=5, party=10)

    assert (await first.expect_kind(JOIN)).client_id == 2
    assert len(node.broker.registry.sessions) == 3
    await other_client.leave()
    assert (await first.expect_kind(LEAVE)).client_id == 2
    await other_party.expect_nothing()


async def test_parties_do_not_hear_of_each_other(node_setup: NodeSetup) -> None:
    """P-009"""
    node = await node_setup.node()
    channel = grpc.aio.insecure_channel(node.target)
    rng = random.Random(9)
    members = [
        node_setup.presence_client(node, client, party=10 + client % 2) for client in range(1, 51)
    ]
    there: set[int] = set()
    for _ in range(120):
        presence_client = rng.choice(members)
        if presence_client.client in there:
            await left(presence_client)
            there.discard(presence_client.client)
        else:
            presence_client.auto = True
            await presence_client.join(channel=channel)
            there.add(presence_client.client)
    await until(lambda: len(node.broker.registry.sessions) == len(there))
    await asyncio.sleep(QUIET_S)

    for presence_client in members:
        told = [one for one in presence_client.seen if one.message_type in (JOIN, LEAVE)]
        assert all(one.party_id == presence_client.party for one in told)
        lists = [one for one in presence_client.seen if one.message_type == LIST]
        assert all(
            client % 2 == presence_client.client % 2 for one in lists for client, _ in listed(one)
        )
        await presence_client.disconnect()
    await channel.close()


async def test_an_id_that_left_names_a_new_session(node_setup: NodeSetup) -> None:
    """P-010"""
    node = await node_setup.node()
    a, b = await node_setup.member(node, 1), await node_setup.member(node, 2)
    await a.expect_kind(JOIN)
    await b.leave()
    await b.status()
    await a.expect_kind(LEAVE)

    await b.join()
    ack = await b.expect_kind(ACK)

    assert ack.status_code == Status.OK
    assert (await a.expect_kind(JOIN)).session_id == b.session


async def test_what_is_said_after_a_leave_is_ignored(node_setup: NodeSetup) -> None:
    """P-011"""
    node = await node_setup.node()
    a = await node_setup.member(node, 1)

    await a.leave()
    await a.ping()
    await a.ping()

    assert (await a.get()).message_type == ACK
    assert await a.status() is grpc.StatusCode.OK
    assert a.pending() <= 1  # the end itself


async def test_a_client_asks_for_the_list(node_setup: NodeSetup) -> None:
    """P-012"""
    node = await node_setup.node()
    a = await node_setup.member(node, 1)
    b = await node_setup.member(node, 2)
    await a.expect_kind(JOIN)

    asked = await a.say(LIST)
    ack, now = await a.get_many(2)

    assert kinds([ack, now]) == ["ACK", "LIST"]
    assert list(ack.ack_message_ids) == [asked]
    assert (listed(now), now.party_seq, now.status_code) == ([(2, [b.session])], 2, Status.OK)


async def test_a_session_without_delivery_is_announced_and_hears_of_nobody(
    node_setup: NodeSetup,
) -> None:
    """P-014"""
    node = await node_setup.node()
    a = await node_setup.member(node, 1)

    quiet = node_setup.presence_client(node, 2)
    await quiet.join(flags=Flags.NO_DELIVERY)
    _, welcome = await quiet.get_many(2)
    await quiet.ack(welcome.message_id)
    c = await node_setup.member(node, 3)

    assert listed(welcome) == [(1, [a.session])]
    assert [(await a.expect_kind(JOIN)).client_id for _ in range(2)] == [2, 3]
    await c.leave()
    await a.expect_kind(LEAVE)
    await quiet.expect_nothing()
    await quiet.say(LIST)
    assert kinds(await quiet.get_many(2)) == ["ACK", "LIST"]


async def test_numbers_go_on_while_an_empty_party_lingers_and_begin_anew_after(
    node_setup: NodeSetup,
) -> None:
    """P-015"""
    linger_s, loop = 0.6, asyncio.get_running_loop()
    node = await node_setup.node(party_linger_s=linger_s, sweep_s=0.05)
    a = node_setup.presence_client(node, 1)

    async def visit() -> tuple[int, int, int]:
        await a.join()
        ack, welcome = await a.get_many(2)
        await a.leave()
        await a.status()
        return ack.party_epoch, welcome.party_seq, ack.party_seq

    while True:
        began = loop.time()
        epoch, seq, _ = await visit()
        again_epoch, again_seq, _ = await visit()
        if loop.time() - began < linger_s:
            break  # else a busy machine has perhaps forgotten the party between them
    assert (again_epoch, again_seq) == (epoch, seq + 2)

    await forgotten(node.store)
    new_epoch, new_seq, _ = await visit()
    assert new_epoch != epoch
    assert new_seq == 1


async def test_ids_of_a_new_epoch_are_larger(node_setup: NodeSetup) -> None:
    """P-015: seen by somebody who was there in both."""
    node = await node_setup.node(party_linger_s=0.05, sweep_s=0.02)
    ids: list[int] = []
    for _ in range(2):
        a = await node_setup.member(node, 1)
        b = await node_setup.member(node, 2)
        ids.append((await a.expect_kind(JOIN)).message_id)
        for one in (a, b):
            await one.leave()
            await one.status()
        await forgotten(node.store)

    assert ids[0] < ids[1]


async def test_time_along_the_log_does_not_go_back_with_the_clock(node_setup: NodeSetup) -> None:
    """P-016"""
    clock = ManualClock(now_ms=1_800_000_000_000)
    node = await node_setup.node(clock=clock)
    a = await node_setup.member(node, 1)
    await node_setup.member(node, 2)
    clock.set_wall_ms(1_800_000_000_000 - 5_000)
    await node_setup.member(node, 3)

    told = [await a.expect_kind(JOIN) for _ in range(2)]

    assert told[0].timestamp <= told[1].timestamp
    assert told[0].message_id < told[1].message_id


async def test_a_list_and_what_follows_have_neither_gap_nor_overlap(node_setup: NodeSetup) -> None:
    """P-017"""
    node = await node_setup.node(rate_burst=1000)
    channel = grpc.aio.insecure_channel(node.target)
    members = [node_setup.presence_client(node, client) for client in range(1, 51)]
    for one in members:
        one.auto = True
    await asyncio.gather(*(one.join(channel=channel) for one in members))
    await until(lambda: all(_last_seq(one) == 50 for one in members))

    for one in members:
        welcome = next(seen for seen in one.seen if seen.message_type == LIST)
        told = [seen.party_seq for seen in one.seen if seen.message_type == JOIN]
        assert told == list(range(welcome.party_seq + 1, 51))
        names = {client for client, _ in listed(welcome)}
        names |= {seen.client_id for seen in one.seen if seen.message_type == JOIN}
        assert names == set(range(1, 51)) - {one.client}
        await one.disconnect()
    await channel.close()


def _last_seq(presence_client: PresenceClient) -> int:
    seqs = [one.party_seq for one in presence_client.seen if one.message_type in (JOIN, LIST)]
    return max(seqs, default=0)
