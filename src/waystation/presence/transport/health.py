"""`grpc.health.v1.Health` of a node, for load balancers."""

import asyncio
from collections.abc import AsyncIterator
from typing import Final

from grpc_health.v1.health_pb2 import HealthCheckRequest, HealthCheckResponse

from waystation.net.http2.methods import Caller, GrpcError, Service
from waystation.net.http2.port import GrpcStatus

from .rpc import CLIENT_SERVICE, method

SERVICE: Final = "grpc.health.v1.Health"
_KNOWN: Final = ("", CLIENT_SERVICE)


class Health:
    """Serves "" and the service of clients; NOT_SERVING until `set_serving`."""

    def __init__(self) -> None:
        self.serving = False
        self._changed = asyncio.Event()
        self.service = Service(
            SERVICE,
            {
                "Check": method(self._check, HealthCheckRequest, HealthCheckResponse),
                "Watch": method(
                    self._watch, HealthCheckRequest, HealthCheckResponse, many_out=True
                ),
            },
        )

    def set_serving(self, *, serving: bool) -> None:
        self.serving = serving
        self._changed.set()
        self._changed = asyncio.Event()

    async def _check(self, request: HealthCheckRequest, _caller: Caller) -> HealthCheckResponse:
        if request.service not in _KNOWN:
            raise GrpcError(GrpcStatus.NOT_FOUND, "unknown service")
        return self._answer(request)

    async def _watch(
        self, request: HealthCheckRequest, _caller: Caller
    ) -> AsyncIterator[HealthCheckResponse]:
        said: HealthCheckResponse | None = None
        while True:
            changed = self._changed
            answer = self._answer(request)
            if answer != said:
                said = answer
                yield answer
            await changed.wait()

    def _answer(self, request: HealthCheckRequest) -> HealthCheckResponse:
        if request.service not in _KNOWN:
            return HealthCheckResponse(status=HealthCheckResponse.SERVICE_UNKNOWN)
        return HealthCheckResponse(
            status=HealthCheckResponse.SERVING if self.serving else HealthCheckResponse.NOT_SERVING
        )
