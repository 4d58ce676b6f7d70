"""What stands beside the streams on a gRPC port: health and reflection."""

from collections.abc import Callable
from typing import Any, Final, cast

import grpc
from grpc import aio
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection
from grpc_reflection.v1alpha import reflection_pb2 as alpha
from grpc_reflection.v1alpha._async import ReflectionServicer

from .wire import party_presence_pb2, presence_cluster_pb2

CLIENT_SERVICE: Final = "ClientMessagingEndpoint"
# The two versions differ in nothing but the package.
REFLECTION_V1: Final = "grpc.reflection.v1.ServerReflection"

Service = Callable[[aio.Server], None]


class Health:
    """`grpc.health.v1.Health` for "" and the client service; NOT_SERVING until told otherwise."""

    def __init__(self) -> None:
        self._servicer: Any = cast(Any, health).aio.HealthServicer()
        self.serving = False

    def add(self, server: aio.Server) -> None:
        health_pb2_grpc.add_HealthServicer_to_server(self._servicer, server)  # pyright: ignore[reportUnknownMemberType]

    async def tell(self, *, serving: bool) -> None:
        self.serving = serving
        states = health_pb2.HealthCheckResponse
        status = states.SERVING if serving else states.NOT_SERVING
        for name in ("", CLIENT_SERVICE):
            await self._servicer.set(name, status)


def add_reflection(server: aio.Server) -> None:
    assert party_presence_pb2.DESCRIPTOR
    assert presence_cluster_pb2.DESCRIPTOR
    cluster = presence_cluster_pb2.DESCRIPTOR.services_by_name.values()
    names = (
        CLIENT_SERVICE,
        *(service.full_name for service in cluster),
        health.SERVICE_NAME,
        reflection.SERVICE_NAME,
        REFLECTION_V1,
    )
    servicer: Any = ReflectionServicer(names)
    method = grpc.stream_stream_rpc_method_handler(
        servicer.ServerReflectionInfo,
        request_deserializer=alpha.ServerReflectionRequest.FromString,
        response_serializer=alpha.ServerReflectionResponse.SerializeToString,
    )
    for name in (reflection.SERVICE_NAME, REFLECTION_V1):
        server.add_generic_rpc_handlers(
            (grpc.method_handlers_generic_handler(name, {"ServerReflectionInfo": method}),)
        )
