"""The port of nodes and operators is as safe as the port of clients."""

import asyncio
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2

from tests.conformance.presence.kit import PresenceClient
from tests.conformance.presence.test_operations import certificate
from tests.e2e.presence.node import Node
from waystation.presence.cluster import directory
from waystation.presence.transport import admin
from waystation.presence.wire.presence_cluster_pb2 import (
    ListNodesRequest,
    NodeList,
    PartyRequest,
    PartyView,
)

WAIT_S = 20.0


def check(channel: grpc.aio.Channel) -> Any:
    return channel.unary_unary(
        "/grpc.health.v1.Health/Check",
        request_serializer=health_pb2.HealthCheckRequest.SerializeToString,
        response_deserializer=health_pb2.HealthCheckResponse.FromString,
    )(health_pb2.HealthCheckRequest(), timeout=WAIT_S)


async def test_health_and_directory_are_under_the_same_tls(tmp_path: Path) -> None:
    """P-128: whoever speaks plain text there is refused cleanly."""
    tls = certificate(tmp_path / "tls", "first")
    node = Node(tmp_path / "node")
    node._env.update({"WAYSTATION_TLS__CERT": tls.cert, "WAYSTATION_TLS__KEY": tls.key})
    trusted = grpc.ssl_channel_credentials(Path(tls.cert).read_bytes())
    await asyncio.to_thread(node.start)
    try:
        target = f"localhost:{node.port + 1}"
        async with grpc.aio.secure_channel(target, trusted) as channel:
            answer = await check(channel)
            assert answer.status == health_pb2.HealthCheckResponse.SERVING
            listing: Any = await channel.unary_unary(
                f"/{directory.SERVICE}/ListNodes",
                request_serializer=ListNodesRequest.SerializeToString,
                response_deserializer=NodeList.FromString,
            )(ListNodesRequest(party_id=1), timeout=WAIT_S)
            assert [one.client_endpoint for one in listing.nodes] == [node.address]
            with pytest.raises(grpc.aio.AioRpcError) as stranger:
                await channel.unary_unary(
                    f"/{admin.SERVICE}/GetParty",
                    request_serializer=PartyRequest.SerializeToString,
                    response_deserializer=PartyView.FromString,
                )(PartyRequest(party_id=1), timeout=WAIT_S)
            assert stranger.value.code() is grpc.StatusCode.UNAUTHENTICATED
        async with grpc.aio.insecure_channel(target) as channel:
            with pytest.raises(grpc.aio.AioRpcError) as plain:
                await check(channel)
        assert plain.value.code() is grpc.StatusCode.UNAVAILABLE
        assert node.running
    finally:
        await asyncio.to_thread(node.close)


async def test_nobody_without_a_certificate_of_the_cluster_comes_to_the_peer_port(
    tmp_path: Path,
) -> None:
    """Clients of the other port need none."""
    tls = certificate(tmp_path / "tls", "first")  # its own authority
    node = Node(tmp_path / "node")
    node._env.update(
        {
            "WAYSTATION_TLS__CERT": tls.cert,
            "WAYSTATION_TLS__KEY": tls.key,
            "WAYSTATION_PRESENCE__PEER_CA": tls.cert,
        }
    )
    cert, key = (Path(path).read_bytes() for path in (tls.cert, tls.key))
    await asyncio.to_thread(node.start)
    try:
        target = f"localhost:{node.port + 1}"
        async with grpc.aio.secure_channel(
            target, grpc.ssl_channel_credentials(cert, key, cert)
        ) as channel:
            answer = await check(channel)
        assert answer.status == health_pb2.HealthCheckResponse.SERVING
        async with grpc.aio.secure_channel(target, grpc.ssl_channel_credentials(cert)) as channel:
            with pytest.raises(grpc.aio.AioRpcError) as bare:
                await check(channel)
        assert bare.value.code() is grpc.StatusCode.UNAVAILABLE
        async with grpc.aio.secure_channel(
            f"localhost:{node.port}", grpc.ssl_channel_credentials(cert)
        ) as channel:
            presence_client = await PresenceClient(node.address, 7).join(channel=channel)
            await presence_client.welcomed()
            await presence_client.disconnect()
    finally:
        await asyncio.to_thread(node.close)
