"""The port of a role that operators, load balancers and scrapers look at; plain HTTP.

Rule 1: every role answers the same questions at the same paths, and adds pages of its own.
Rule 2: `/__lbheartbeat__` says that the process answers, and nothing else; `/__heartbeat__` says
        503 when this process should get no work.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping

import msgspec
from structlog.typing import FilteringBoundLogger

from waystation.base.clock import Clock
from waystation.base.http_message import Request, Response
from waystation.base.http_server import HttpServer, no_body

from .health import JSON, LOG_CHECK, LOG_CHECK_NOTE, METRICS_TYPE
from .version import build

OK, DEGRADED, ERROR = "OK", "degraded", "ERROR"


class Condition(msgspec.Struct, frozen=True):
    """How a role is: it works, it works in part, or it should get no work; and its numbers."""

    status: str
    numbers: Mapping[str, int | str | bool]


Page = Callable[[], Awaitable[Response]]


class OpsPort:
    """Listens after `listen`, until `close`; both may be called of a start that failed half-way."""

    def __init__(
        self,
        *,
        condition: Callable[[], Condition],
        metrics: Callable[[], bytes],
        clock: Clock,
        log: FilteringBoundLogger,
        pages: Mapping[bytes, Page] | None = None,
    ) -> None:
        self._condition = condition
        self._metrics = metrics
        self._clock = clock
        self._log = log
        self._pages = pages or {}
        self._server: HttpServer | None = None

    async def listen(self, host: str, port: int) -> None:
        self._server = server = HttpServer(
            self.answer,
            loop=asyncio.get_running_loop(),
            clock=self._clock,
            body_limit=no_body,
            on_failure=self._failed,
        )
        await server.listen(host, port, reuse_port=True)

    async def close(self) -> None:
        if self._server is not None:
            await self._server.close()

    async def answer(self, request: Request) -> Response:
        if request.method not in (b"GET", b"HEAD"):
            return Response.of(405, headers=b"Allow: GET, HEAD\r\n")
        match request.path:
            case b"/__lbheartbeat__" | b"/healthz":
                return Response.of(200)
            case b"/__heartbeat__" | b"/health" | b"/status" | b"/readyz":
                return self._heartbeat()
            case b"/__error__":
                self._log.critical("log_check", note=LOG_CHECK_NOTE)
                return as_json(418, LOG_CHECK)
            case b"/__version__":
                return as_json(200, build())
            case b"/metrics":
                return Response.of(200, self._metrics(), content_type=METRICS_TYPE.encode())
            case path if path in self._pages:
                return await self._pages[path]()
            case _:
                return Response.of(404)

    def _heartbeat(self) -> Response:
        now = self._condition()
        body = {"status": now.status, "version": build().version, **now.numbers}
        return as_json(503 if now.status == ERROR else 200, body)

    def _failed(self, _request: Request, error: BaseException) -> Response:
        self._log.error("ops.failed", exc_info=error)
        return Response.of(500)


def as_json(status: int, body: object) -> Response:
    return Response.of(status, msgspec.json.encode(body), content_type=JSON.encode())
