"""A node as operators see it: health, reflection, TLS, tokens, load; over real gRPC."""

import asyncio
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc import aio
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2

from tests.certificates import self_signed
from tests.conformance.presence.conftest import NodeSetup
from tests.conformance.presence.kit import Node, TlsFiles, kinds, until
from tests.unit.presence.tokens import AUTH, Signer, key_set
from waystation.base.clock import SystemClock
from waystation.presence.auth import JwtAuthority
from waystation.presence.cluster import directory, peer_clients
from waystation.presence.jwk_set import JwkSet
from waystation.presence.model import MessageType, Status
from waystation.presence.session.session import State
from waystation.presence.transport import admin, health

SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING
Code = grpc.StatusCode
BESIDE = {
    health.SERVICE,
    "grpc.reflection.v1.ServerReflection",
    "grpc.reflection.v1alpha.ServerReflection",
}
EVENTS_OF_A_VISIT = {200, 201, 211, 212}


async def health_of(node: Node, service: str = "") -> int:
    async with aio.insecure_channel(node.target) as channel:
        stub: Any = health_pb2_grpc.HealthStub(channel)
        answer = await stub.Check(health_pb2.HealthCheckRequest(service=service))
        return answer.status


async def test_health_and_reflection_answer(node_setup: NodeSetup) -> None:
    """P-128"""
    node = await node_setup.node()

    assert await health_of(node) == SERVING
    assert await health_of(node, "ClientMessagingEndpoint") == SERVING
    for version in ("v1", "v1alpha"):
        names = await listed_services(node.target, version)
        assert names == {"ClientMessagingEndpoint", directory.SERVICE, *BESIDE}


async def listed_services(target: str, version: str) -> set[str]:
    """What reflection lists; each service can be described, too."""
    async with aio.insecure_channel(target) as channel:
        call = channel.stream_stream(
            f"/grpc.reflection.{version}.ServerReflection/ServerReflectionInfo",
            request_serializer=reflection_pb2.ServerReflectionRequest.SerializeToString,
            response_deserializer=reflection_pb2.ServerReflectionResponse.FromString,
        )()
        await call.write(reflection_pb2.ServerReflectionRequest(list_services=""))
        answer: Any = await call.read()
        names = {one.name for one in answer.list_services_response.service}
        for name in names:
            await call.write(reflection_pb2.ServerReflectionRequest(file_containing_symbol=name))
            described: Any = await call.read()
            assert described.file_descriptor_response.file_descriptor_proto, name
        call.cancel()
    return names


async def test_reflection_lists_what_its_port_serves(node_setup: NodeSetup) -> None:
    """The services of nodes and operators are on the peer port, and only there."""
    node = await node_setup.node()

    assert await listed_services(node.peer_target, "v1") == {
        peer_clients.SERVICE,
        admin.SERVICE,
        directory.SERVICE,
        *BESIDE,
    }


async def test_health_is_watched(node_setup: NodeSetup) -> None:
    node = await node_setup.node()
    async with aio.insecure_channel(node.target) as channel:
        stub: Any = health_pb2_grpc.HealthStub(channel)
        heard = stub.Watch(health_pb2.HealthCheckRequest())
        unknown = stub.Watch(health_pb2.HealthCheckRequest(service="another"))
        assert (await heard.read()).status == SERVING
        node.server.health.set_serving(serving=False)
        assert (await heard.read()).status == NOT_SERVING
        answer = await unknown.read()
        assert answer.status == health_pb2.HealthCheckResponse.SERVICE_UNKNOWN
        with pytest.raises(aio.AioRpcError) as refused:
            await stub.Check(health_pb2.HealthCheckRequest(service="another"))
        assert refused.value.code() is Code.NOT_FOUND


async def test_a_full_node_says_so_and_recovers(node_setup: NodeSetup) -> None:
    """P-090"""
    node = await node_setup.node(node_sessions_max=20)
    channel = aio.insecure_channel(node.target)
    crowd = [node_setup.presence_client(node, client) for client in range(1, 21)]
    for one in crowd:
        await one.join(channel=channel)
        await one.get_many(2)
    late = node_setup.presence_client(node, 99)
    await late.join(channel=channel)
    await late.expect_end(Status.OVERLOADED, Code.UNAVAILABLE)
    await node.server.look()
    assert await health_of(node) == NOT_SERVING

    await crowd[0].leave()
    await crowd[0].status()
    await node.server.look()
    assert await health_of(node) == NOT_SERVING, "19 of 20 are 95 %: not yet below"
    await crowd[1].leave()
    await crowd[1].status()
    await node.server.look()
    assert await health_of(node) == SERVING
    for one in [*crowd, late]:
        await one.disconnect()
    await channel.close()


async def test_a_draining_node_takes_nobody(node_setup: NodeSetup) -> None:
    node = await node_setup.node()
    a = await node_setup.member(node, 1)
    await node.server.drain(0)
    b = node_setup.presence_client(node, 2)
    await b.join()

    await b.expect_end(Status.DRAINING, Code.UNAVAILABLE)
    assert await health_of(node) == NOT_SERVING
    drain = await a.expect_kind(MessageType.DRAIN)
    assert drain.handoff.deadline_ms
    await a.ping()
    await a.expect_kind(MessageType.ACK)
    await node.server.undo_drain()
    assert await health_of(node) == SERVING


async def test_streams_of_one_connection_have_a_limit(node_setup: NodeSetup) -> None:
    """P-091: one more waits at the client until another has ended; the others are unaffected."""
    node = await node_setup.node(connection_streams_max=5)
    channel = aio.insecure_channel(node.target)
    crowd = [node_setup.presence_client(node, client) for client in range(1, 6)]
    for one in crowd:
        await one.join(channel=channel)
        await one.get_many(2)
    await crowd[0].get_many(4)
    late = node_setup.presence_client(node, 9)
    joining = asyncio.create_task(late.join(channel=channel))
    await crowd[0].expect_nothing()

    await crowd[4].leave()
    await crowd[4].status()
    await asyncio.wait_for(joining, 10)
    assert kinds(await late.get_many(2)) == ["ACK", "LIST"]
    for one in [*crowd, late]:
        await one.disconnect()
    await channel.close()


async def test_two_hundred_sessions_over_one_connection(node_setup: NodeSetup) -> None:
    """P-091"""
    node = await node_setup.node()
    channel = aio.insecure_channel(node.target)
    crowd = [node_setup.presence_client(node, client) for client in range(1, 201)]
    for one in crowd:
        await one.join(channel=channel, flags=8)
    for one in crowd:
        await one.get_many(2)

    await until(lambda: len(node.broker.registry.sessions) == 200)
    assert {one.state for one in node.broker.registry.sessions.values()} == {State.ACTIVE}
    for one in crowd:
        await one.disconnect()
    await channel.close()


async def test_a_process_that_comes_back_finds_everybody(node_setup: NodeSetup) -> None:
    """P-122: killed and started again within the TTL, nobody has left."""
    if node_setup.store_kind != "embedded":
        return
    node = await node_setup.node()
    a = await node_setup.member(node, 1)
    b = await node_setup.member(node, 2)
    told = await a.expect_kind(MessageType.JOIN)
    await node.kill()
    node_setup.nodes.remove(node)
    await node_setup.stores.pop().close()
    for one in (a, b):
        await one.disconnect()

    again = await node_setup.node()
    for one in (a, b):
        one.target = again.target
    await a.resume()
    ack, welcome, *rest = await a.get_many(4)

    assert ack.status_code == Status.SESSION_RESUMED
    assert [one.client_id for one in welcome.participant_client_ids] == [2]
    assert rest[0].message_id == told.message_id
    await b.resume()
    assert (await b.expect_kind(MessageType.ACK)).status_code == Status.SESSION_RESUMED
    await a.expect_nothing()


async def test_those_who_do_not_come_back_after_a_restart_leave(node_setup: NodeSetup) -> None:
    """P-122"""
    if node_setup.store_kind != "embedded":
        return
    times = {"session_ttl_s": 1.0, "session_ttl_min_s": 0.5, "restart_ttl_min_s": 0.3}
    node = await node_setup.node(**times, tick_s=0.02)
    a = await node_setup.member(node, 1, session_ttl_ms=2000)
    b = await node_setup.member(node, 2, session_ttl_ms=60_000)
    await node.kill()
    node_setup.nodes.remove(node)
    await node_setup.stores.pop().close()
    again = await node_setup.node(**times, tick_s=0.02)
    for one in (a, b):
        await one.disconnect()
        one.target = again.target
    await b.resume()
    await b.get_many(2)

    left = await b.expect_kind(MessageType.LEAVE)
    assert (left.client_id, left.status_code) == (1, Status.CLIENT_TIMEOUT)


# --- tokens and TLS -------------------------------------------------------------------------------


async def test_tokens_in_the_metadata(node_setup: NodeSetup) -> None:
    """P-094 P-096 over the wire"""
    signer, clock = Signer("one"), SystemClock()

    async def fetch() -> bytes:
        return key_set(signer)

    judge = JwtAuthority(AUTH, clock, JwkSet(AUTH, clock, fetch))
    node = await node_setup.node(auth=AUTH, authority=judge)
    now_s = clock.now_ms() / 1000

    nobody = node_setup.presence_client(node, 1)
    await nobody.join()
    assert await nobody.status() is Code.UNAUTHENTICATED
    assert nobody.seen == []
    other = node_setup.presence_client(node, 1)
    await other.join(metadata=[("authorization", "Bearer " + signer.token(now_s, client=2))])
    await other.expect_end(Status.PERMISSION_DENIED, Code.PERMISSION_DENIED)
    right = node_setup.presence_client(node, 1)
    await right.join(metadata=[("authorization", "Bearer " + signer.token(now_s, client=1))])
    assert kinds(await right.get_many(2)) == ["ACK", "LIST"]


def certificate(folder: Path, name: str) -> TlsFiles:
    cert, key = self_signed(folder, name)
    return TlsFiles(str(cert), str(key))


def tls_channel(node: Node, tls: TlsFiles) -> aio.Channel:
    return aio.secure_channel(
        node.target,
        grpc.ssl_channel_credentials(Path(tls.cert).read_bytes()),
        options=[
            ("grpc.ssl_target_name_override", "localhost"),
            ("grpc.use_local_subchannel_pool", 1),
        ],
    )


async def test_tls_and_a_certificate_that_changes(node_setup: NodeSetup, tmp_path: Path) -> None:
    """P-128: plain text fails cleanly, and streams outlive the change."""
    tls = certificate(tmp_path / "tls", "first")
    node = await node_setup.node(tls=tls.context())
    plain = node_setup.presence_client(node, 1)
    await plain.join()
    assert await plain.status() is Code.UNAVAILABLE
    before = tls_channel(node, tls)
    a = node_setup.presence_client(node, 1)
    await a.join(channel=before)
    await a.get_many(2)

    changed = certificate(tmp_path / "tls", "second")
    node.server.transport.use_certificate(changed.context())
    after = tls_channel(node, changed)
    b = node_setup.presence_client(node, 2)
    await b.join(channel=after)
    assert kinds(await b.get_many(2)) == ["ACK", "LIST"]
    await a.ping()
    assert MessageType.ACK in {(await a.get()).message_type, (await a.get()).message_type}
    for one, channel in ((a, before), (b, after)):
        await one.disconnect()
        await channel.close()


async def test_clients_may_need_a_certificate(node_setup: NodeSetup, tmp_path: Path) -> None:
    """Mutual TLS."""
    tls = certificate(tmp_path / "mtls", "both")
    strict = TlsFiles(tls.cert, tls.key, client_ca=tls.cert)
    node = await node_setup.node(tls=strict.context())
    without = node_setup.presence_client(node, 1)
    channel = tls_channel(node, tls)
    await without.join(channel=channel)
    assert await without.status() is Code.UNAVAILABLE
    await without.disconnect()
    await channel.close()


# --- numbers and events ---------------------------------------------------------------------------


async def test_every_session_starts_and_leaves_once_and_everything_adds_up(
    node_setup: NodeSetup,
) -> None:
    """P-131 P-134"""
    node = await node_setup.node(ack_sample=1.0)
    members = [await node_setup.member(node, client, auto=True) for client in range(1, 8)]
    await members[0].cut()
    await members[0].resume()
    for one in members[1:]:
        await one.leave()
        await one.status()
    await members[0].leave()
    await members[0].status()
    await until(lambda: not node.broker.registry.sessions)
    node.server.broker.reports.totals()

    events: list[Any] = list(node.events.events)
    started = [one for one in events if one.k == 200]
    left = {one.sess: one for one in events if one.k == 201}
    assert len(started) == len(left) == 7
    for one in started:
        end = left[one.sess]
        assert end.attrs.seq > one.attrs.seq
        attrs = end.attrs
        assert attrs.out >= attrs.acked + attrs.dropped + attrs.superseded
    totals = [one for one in events if one.k == 208][-1].attrs
    assert totals.out == totals.acked + totals.dropped + totals.superseded + totals.outstanding
    acked = [
        weight for one, weight in zip(events, node.events.weights, strict=True) if one.k == 207
    ]
    assert sum(acked) == totals.acked
    families = {one.spec.name: one for one in node.metrics.snapshot("w", 0).families}
    new = next(s.value for s in families["presence_acks"].samples if s.labels == ("new",))
    assert new == totals.acked


async def test_no_raw_id_is_written(node_setup: NodeSetup) -> None:
    """P-132: what an id looks like is nowhere among the events."""
    node = await node_setup.node()
    party, client, session = 0x1234567890ABCDEF, 0x2234567890ABCDEF, 0x3234567890ABCDEF
    a = await node_setup.member(node, client, session=session, party=party)
    await a.leave()
    await a.status()

    told = repr(node.events.events)
    for raw in (party, client, session):
        assert str(raw) not in told
        assert f"{raw:x}" not in told
    assert {one.k for one in node.events.events} >= EVENTS_OF_A_VISIT
