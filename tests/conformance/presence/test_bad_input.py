"""What clients must not say: each gets a precise answer, and nobody else notices."""

import asyncio
import random
from typing import Any

import grpc
import pytest

from tests.conformance.presence.conftest import NodeSetup
from tests.conformance.presence.kit import PresenceClient, kinds, listed, until
from tests.e2e.presence.h2_client import H2Client
from waystation.net.http2.port import GrpcStatus
from waystation.presence.model import MessageType, Status
from waystation.presence.session.session import State
from waystation.presence.transport.rpc import RPC_PATH
from waystation.presence.wire.party_presence_pb2 import ClientMessage, ClientSessionIdEntry

ACK, JOIN, LEAVE, LIST = MessageType.ACK, MessageType.JOIN, MessageType.LEAVE, MessageType.LIST
PING, SIGNAL = MessageType.PING, MessageType.SIGNAL
Code = grpc.StatusCode


async def expect_refusal(
    presence_client: PresenceClient, status: Status, message_id: int
) -> ClientMessage:
    """An ERROR that names what it answers; the stream goes on."""
    message = await presence_client.expect_kind(MessageType.ERROR)
    assert Status(message.status_code) is status
    assert list(message.ack_message_ids) == ([message_id] if message_id else [])
    return message


async def expect_alive(presence_client: PresenceClient) -> None:
    asked = await presence_client.ping()
    assert list((await presence_client.expect_kind(ACK)).ack_message_ids) == [asked]


async def test_a_stream_begins_with_a_join(node_setup: NodeSetup) -> None:
    """P-018"""
    node = await node_setup.node()
    a = await node_setup.presence_client(node, 1).open()
    node_setup.presence_clients.append(a)

    asked = await a.ping()
    error = await a.expect_end(Status.JOIN_REQUIRED, Code.FAILED_PRECONDITION)

    assert list(error.ack_message_ids) == [asked]


async def test_a_stream_that_says_nothing_is_ended(node_setup: NodeSetup) -> None:
    """P-019"""
    node = await node_setup.node(join_timeout_s=0.2, tick_s=0.02)
    a = await node_setup.presence_client(node, 1).open()
    node_setup.presence_clients.append(a)

    await a.expect_end(Status.JOIN_REQUIRED, Code.FAILED_PRECONDITION)


@pytest.mark.parametrize("field", ["session_id", "client_id", "party_id"])
async def test_no_id_is_zero(node_setup: NodeSetup, field: str) -> None:
    """P-020"""
    node = await node_setup.node()
    a = node_setup.presence_client(node, 1)

    ids: dict[str, Any] = {field: 0}
    await a.join(**ids)

    await a.expect_end(Status.INVALID_IDENTIFIER, Code.INVALID_ARGUMENT)
    assert not node.broker.registry.sessions


async def test_a_join_without_an_id_may_be_repeated_with_one(node_setup: NodeSetup) -> None:
    """P-021"""
    node = await node_setup.node()
    a = node_setup.presence_client(node, 1)

    await a.join(message_id=0)
    await expect_refusal(a, Status.MISSING_MESSAGE_ID, 0)
    await a.say(JOIN, session_id=a.session, client_id=1, party_id=a.party)

    assert kinds(await a.get_many(2)) == ["ACK", "LIST"]


async def test_a_second_join_is_refused_and_the_session_goes_on(node_setup: NodeSetup) -> None:
    """P-022"""
    node = await node_setup.node()
    a = await node_setup.member(node, 1)

    again = await a.say(JOIN, session_id=a.session, client_id=1, party_id=a.party)

    await expect_refusal(a, Status.ALREADY_JOINED, again)
    await expect_alive(a)


@pytest.mark.parametrize("kind", [None, 99, MessageType.DRAIN])
async def test_types_that_clients_do_not_send(node_setup: NodeSetup, kind: int | None) -> None:
    """P-023"""
    node = await node_setup.node()
    a = await node_setup.member(node, 1)

    said = await a.say(kind)

    await expect_refusal(a, Status.BAD_MESSAGE_TYPE, said)
    await expect_alive(a)


async def test_a_leave_with_a_timestamp_is_no_leave(node_setup: NodeSetup) -> None:
    """P-024"""
    node = await node_setup.node()
    a, b = await node_setup.member(node, 1), await node_setup.member(node, 2)
    await a.expect_kind(JOIN)

    said = await a.say(LEAVE, timestamp=5)
    await expect_refusal(a, Status.INVALID_FIELD, said)
    said = await a.say(PING, participant_client_ids=[ClientSessionIdEntry(client_id=1)])
    await expect_refusal(a, Status.INVALID_FIELD, said)

    await expect_alive(a)
    await b.expect_nothing()


async def test_ids_of_another_session_are_refused_and_its_own_accepted(
    node_setup: NodeSetup,
) -> None:
    """P-025"""
    node = await node_setup.node()
    a = await node_setup.member(node, 1)

    said = await a.say(PING, party_id=a.party + 1)
    await expect_refusal(a, Status.INVALID_FIELD, said)
    said = await a.say(PING, party_id=a.party, client_id=1, session_id=a.session)

    assert list((await a.expect_kind(ACK)).ack_message_ids) == [said]


async def test_an_ack_has_at_most_1024_ids(node_setup: NodeSetup) -> None:
    """P-026"""
    node = await node_setup.node()
    a, b = await node_setup.member(node, 1), await node_setup.member(node, 2)
    told = await a.expect_kind(JOIN)
    delivery = next(iter(node.broker.registry.sessions.values())).delivery
    assert delivery.client_id == 1

    await a.ack(*range(1, 1025), told.message_id)
    await expect_refusal(a, Status.TOO_MANY_ACK_IDS, 0)
    assert told.message_id in delivery.inflight
    await a.ack(*range(1, 1024), told.message_id)

    await until(lambda: told.message_id not in delivery.inflight)
    await expect_alive(a)
    await expect_alive(b)


async def test_random_bytes_end_the_stream_and_nobody_else_notices(node_setup: NodeSetup) -> None:
    """P-027"""
    node = await node_setup.node()
    a, b = await node_setup.member(node, 1), await node_setup.member(node, 2)
    await a.expect_kind(JOIN)

    await b.say_bytes(b"\xff\xfe\xfd\x00garbage")

    await b.expect_end(Status.MALFORMED_MESSAGE, Code.INVALID_ARGUMENT)
    states = {key.client_id: one.state for key, one in node.broker.registry.sessions.items()}
    assert states == {1: State.ACTIVE, 2: State.DETACHED}
    await a.expect_nothing()


async def test_a_message_over_16_kib_ends_the_call(node_setup: NodeSetup) -> None:
    """P-028"""
    node = await node_setup.node()
    a = await node_setup.member(node, 1)

    await a.say(PING, payload=bytes(17 * 1024))

    assert await a.status() is Code.RESOURCE_EXHAUSTED
    await until(
        lambda: all(one.state is State.DETACHED for one in node.broker.registry.sessions.values())
    )


async def test_unknown_fields_are_ignored(node_setup: NodeSetup) -> None:
    """P-029: field 200, a varint."""
    node = await node_setup.node()
    a = await node_setup.member(node, 1)

    ping = ClientMessage(message_id=50, message_type=PING)  # pyright: ignore[reportArgumentType]
    await a.say_bytes(ping.SerializeToString() + b"\xc0\x0c\x07")

    assert list((await a.expect_kind(ACK)).ack_message_ids) == [50]


async def test_another_path_is_unimplemented(node_setup: NodeSetup) -> None:
    """P-030"""
    node = await node_setup.node()
    a = node_setup.presence_client(node, 1)

    await a.join(path="/ClientMessagingEndpoint/somethingElse")

    assert await a.status() is Code.UNIMPLEMENTED


async def test_compressed_messages_are_unimplemented(node_setup: NodeSetup) -> None:
    """P-030: read from the trailers themselves. gRPC's own client may say INTERNAL for them when
    they overtake what it still writes, and then tells nothing of what was answered."""
    node = await node_setup.node()
    a = node_setup.presence_client(node, 1)

    def refused() -> list[dict[str, str]]:
        with H2Client(node.server.port) as client:
            answers: list[dict[str, str]] = []
            for _ in range(10):
                stream = client.open(RPC_PATH, ("grpc-encoding", "gzip"))
                client.say_compressed(
                    stream,
                    session_id=a.session,
                    client_id=a.client,
                    party_id=a.party,
                    message_id=1,
                    message_type=JOIN,
                )
                answers.append(client.end_of(stream))
            return answers

    answers = await asyncio.to_thread(refused)

    assert {one["grpc-status"] for one in answers} == {str(GrpcStatus.UNIMPLEMENTED.value)}
    assert not node.broker.registry.sessions


async def test_an_alias_of_the_path_is_served(node_setup: NodeSetup) -> None:
    """Clients whose definition has a package."""
    node = await node_setup.node(rpc_path_aliases=("game.v1.ClientMessagingEndpoint",))
    a = node_setup.presence_client(node, 1)

    await a.join(path="/game.v1.ClientMessagingEndpoint/beginStream")

    assert kinds(await a.get_many(2)) == ["ACK", "LIST"]


async def test_a_repeated_message_is_answered_again_and_has_one_effect(
    node_setup: NodeSetup,
) -> None:
    """P-031"""
    node = await node_setup.node(signal_enabled=True)
    a, b = await node_setup.member(node, 1), await node_setup.member(node, 2)
    await a.expect_kind(JOIN)

    for _ in range(2):
        await a.say(PING, message_id=70)
        assert list((await a.expect_kind(ACK)).ack_message_ids) == [70]
    for _ in range(2):
        await a.say(SIGNAL, message_id=71, payload=b"hello")
        assert list((await a.expect_kind(ACK)).ack_message_ids) == [71]

    told = await b.expect_kind(SIGNAL)
    assert (told.payload, told.client_id, told.party_seq) == (b"hello", 1, 3)
    await b.expect_nothing()


async def test_twenty_soft_errors_end_the_stream(node_setup: NodeSetup) -> None:
    """P-032"""
    node = await node_setup.node()
    a, b = await node_setup.member(node, 1), await node_setup.member(node, 2)
    await a.expect_kind(JOIN)

    for _ in range(20):
        await b.say(PING, timestamp=1)
    for _ in range(20):
        assert (await b.expect_kind(MessageType.ERROR)).status_code == Status.INVALID_FIELD
    await b.expect_end(Status.PROTOCOL_VIOLATION, Code.FAILED_PRECONDITION)

    await a.expect_nothing()


async def test_what_is_out_of_place_or_switched_off(node_setup: NodeSetup) -> None:
    """P-034"""
    node = await node_setup.node()
    a = await node_setup.member(node, 1)

    await expect_refusal(a, Status.NOT_STANDBY, await a.say(MessageType.PROMOTE))
    await expect_refusal(a, Status.NOT_SUPPORTED, await a.say(SIGNAL, payload=b"x"))
    await expect_refusal(a, Status.NOT_SUPPORTED, await a.say(MessageType.AUTH, auth_token="x"))


async def test_a_signal_has_a_limit(node_setup: NodeSetup) -> None:
    """P-034"""
    node = await node_setup.node(signal_enabled=True)
    b = await node_setup.member(node, 2)

    said = await b.say(SIGNAL, payload=bytes(129))
    await expect_refusal(b, Status.PAYLOAD_TOO_LARGE, said)
    await b.say(SIGNAL, payload=bytes(128))

    assert (await b.expect_kind(ACK)).party_seq == 2


async def test_a_client_that_knows_only_the_first_fields(node_setup: NodeSetup) -> None:
    """P-035: its bytes are written by hand, as such a client would write them."""
    node = await node_setup.node(signal_enabled=True)
    old = node_setup.presence_client(node, 1)
    newer = await node_setup.member(node, 2, auto=True)

    def fixed(number: int, value: int) -> bytes:
        return bytes([number << 3 | 1]) + value.to_bytes(8, "little")

    def message(kind: int, message_id: int, acks: tuple[int, ...] = ()) -> bytes:
        packed = b"".join(one.to_bytes(8, "little") for one in acks)
        ack_field = b"\x72" + bytes([len(packed)]) + packed if packed else b""
        return fixed(4, message_id) + bytes([5 << 3, kind]) + ack_field

    join = fixed(1, old.session) + fixed(2, 1) + fixed(3, old.party) + message(JOIN, 1)
    await old.open()
    await old.say_bytes(join)
    ack, welcome = await old.get_many(2)
    assert (ack.status_code, listed(welcome)) == (Status.OK, [(2, [newer.session])])
    await old.say_bytes(message(ACK, 2, (welcome.message_id,)))

    third = await node_setup.member(node, 3, auto=True)
    told = await old.expect_kind(JOIN)
    await old.say_bytes(message(ACK, 3, (told.message_id,)))
    await third.say(SIGNAL, payload=b"not for old clients")
    await newer.expect_kind(JOIN)
    await newer.expect_kind(JOIN)
    await newer.expect_kind(SIGNAL)
    await old.say_bytes(message(PING, 4))
    assert list((await old.expect_kind(ACK)).ack_message_ids) == [4]

    await old.cut()
    registry = node.broker.registry
    await until(lambda: any(one.state is State.DETACHED for one in registry.sessions.values()))
    await third.leave()
    await old.open()
    await old.say_bytes(join[:-11] + message(JOIN, 5))
    resumed, snapshot, missed, closing = await old.get_many(4)
    assert resumed.status_code == Status.SESSION_RESUMED
    assert kinds([snapshot, missed, closing]) == ["LIST", "LEAVE", "LIST"]
    await old.say_bytes(message(LEAVE, 6))
    assert (await old.expect_kind(ACK)).message_type == ACK
    assert await old.status() is Code.OK
    assert all(one.message_type <= PING for one in old.seen)


async def test_mutated_messages_bring_nothing_down(node_setup: NodeSetup) -> None:
    """P-033: a few thousand here; the property suite feeds the cores far more."""
    node = await node_setup.node()
    healthy = await node_setup.member(node, 1)
    rng = random.Random(33)
    channel = grpc.aio.insecure_channel(node.target)
    valid = [
        ClientMessage(message_id=9, message_type=PING).SerializeToString(),  # pyright: ignore[reportArgumentType]
        ClientMessage(message_id=9, message_type=LIST).SerializeToString(),  # pyright: ignore[reportArgumentType]
        ClientMessage(message_type=ACK, ack_message_ids=[1, 2, 3]).SerializeToString(),  # pyright: ignore[reportArgumentType]
    ]
    for client in range(2, 22):
        bad = node_setup.presence_client(node, client, party=999)
        bad.auto = False
        await bad.join(channel=channel)
        await bad.get_many(2)
        for _ in range(60):
            data = bytearray(rng.choice(valid))
            for _ in range(rng.randint(1, 4)):
                data[rng.randrange(len(data))] = rng.randrange(256)
            await bad.say_bytes(bytes(data))
        await bad.disconnect()

    await expect_alive(healthy)
    assert not node.failures
    await channel.close()
