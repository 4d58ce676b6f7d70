"""Clients of `PeerLink` on other nodes: one gRPC channel to the peer port of each.

Nodes authenticate with a token derived from the cluster's secret, and with certificates if mutual
TLS is configured.
"""

import hashlib
import hmac
from collections.abc import AsyncIterator, Iterable
from typing import Any, Final

import grpc
from grpc import aio

from waystation.presence.errors import PeerError
from waystation.presence.store import PresenceNode
from waystation.presence.wire.presence_cluster_pb2 import (
    HandoffReply,
    HandoffRequest,
    PartyChunk,
    ProbeReply,
    ProbeRequest,
    RelayFrame,
    TransferReply,
)

SERVICE: Final = "partypresence.cluster.v1.PeerLink"
ANSWER_S: Final = 5.0
TRANSFER_S: Final = 30.0
CHUNK_BYTES: Final = 256 * 1024
CHANNELS_MAX: Final = 256
_OPTIONS: Final = (
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.enable_retries", 0),
    ("grpc.max_receive_message_length", 4 << 20),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 2000),
)


def peer_token(secret: str) -> str:
    """The token with which nodes authenticate to each other."""
    return hmac.new(secret.encode(), b"waystation presence peer", hashlib.sha256).hexdigest()


class PeerClients:
    def __init__(self, token: str, credentials: grpc.ChannelCredentials | None = None) -> None:
        self._metadata = (("authorization", f"Bearer {token}"),)
        self._credentials = credentials
        self._channels: dict[str, aio.Channel] = {}

    async def prepare(self, node: PresenceNode, request: HandoffRequest) -> HandoffReply:
        """Asks `node` for tickets for sessions. Raises `PeerError`."""
        call: Any = self._channel(node).unary_unary(
            f"/{SERVICE}/PrepareHandoff",
            request_serializer=HandoffRequest.SerializeToString,
            response_deserializer=HandoffReply.FromString,
        )
        return await self._answer(call(request, metadata=self._metadata, timeout=ANSWER_S))

    async def transfer(self, node: PresenceNode, party_id: int, state: bytes) -> TransferReply:
        """Sends a whole party to `node`. Raises `PeerError`."""

        async def chunks() -> AsyncIterator[PartyChunk]:
            for at in range(0, len(state), CHUNK_BYTES):
                part = state[at : at + CHUNK_BYTES]
                last = at + CHUNK_BYTES >= len(state)
                yield PartyChunk(party_id=party_id, state=part, last=last)

        call: Any = self._channel(node).stream_unary(
            f"/{SERVICE}/TransferParty",
            request_serializer=PartyChunk.SerializeToString,
            response_deserializer=TransferReply.FromString,
        )
        return await self._answer(call(chunks(), metadata=self._metadata, timeout=TRANSFER_S))

    async def probe(self, node: PresenceNode, request: ProbeRequest) -> ProbeReply:
        """Asks whether a session has a live stream on `node`. Raises `PeerError`."""
        call: Any = self._channel(node).unary_unary(
            f"/{SERVICE}/ProbeSession",
            request_serializer=ProbeRequest.SerializeToString,
            response_deserializer=ProbeReply.FromString,
        )
        return await self._answer(call(request, metadata=self._metadata, timeout=ANSWER_S))

    def relay(self, node: PresenceNode) -> Any:
        """Opens a call that carries client streams as frames."""
        method: Any = self._channel(node).stream_stream(
            f"/{SERVICE}/Relay",
            request_serializer=RelayFrame.SerializeToString,
            response_deserializer=RelayFrame.FromString,
        )
        return method(metadata=self._metadata)

    async def _answer(self, call: Any) -> Any:
        try:
            return await call
        except aio.AioRpcError as exc:
            raise PeerError(f"{exc.code().name.lower()}: {exc.details()}") from exc

    def _channel(self, node: PresenceNode) -> aio.Channel:
        endpoint = node.peer_endpoint
        if not endpoint:
            raise PeerError(f"{node.node_id} has no peer port")
        channel = self._channels.get(endpoint)
        if channel is None:
            if len(self._channels) >= CHANNELS_MAX:
                raise PeerError(f"there are {CHANNELS_MAX} channels to other nodes already")
            if self._credentials is None:
                channel = aio.insecure_channel(endpoint, _OPTIONS)
            else:
                channel = aio.secure_channel(endpoint, self._credentials, _OPTIONS)
            self._channels[endpoint] = channel
        return channel

    async def keep(self, endpoints: Iterable[str]) -> None:
        """Closes the channels to all other endpoints."""
        wanted = set(endpoints)
        for endpoint in [one for one in self._channels if one not in wanted]:
            await self._channels.pop(endpoint).close()

    async def close(self) -> None:
        await self.keep(())
