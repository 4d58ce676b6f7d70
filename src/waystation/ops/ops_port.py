"""The ops port of a role: plain HTTP for operators, load balancers and metrics scrapers.

Every role serves the same paths and may add pages. `/__lbheartbeat__` tells that the process
answers; `/__heartbeat__` is 503 when the process should get no work. Loopback needs no token.
Elsewhere all paths need `metrics.token`, except `/__lbheartbeat__` and `/healthz`, and `/metrics`
with `metrics.public`.
"""

import hmac
from collections.abc import Awaitable, Callable, Mapping

import msgspec
from structlog.typing import FilteringBoundLogger

from waystation.app.addresses import listen
from waystation.app.data_dir import DataDir
from waystation.app.keys import ensure_secrets
from waystation.app.settings import Settings, is_loopback_host
from waystation.app.version import build
from waystation.base.clock import Clock
from waystation.net.http1.message import Request, Response
from waystation.net.http1.server import HttpServer, no_body
from waystation.net.loop import NetLoop

from .health import JSON, LOG_CHECK, LOG_CHECK_NOTE, METRICS_TYPE

OK, DEGRADED, ERROR = "OK", "degraded", "ERROR"


class Condition(msgspec.Struct, frozen=True):
    """Status of a role (OK, degraded, ERROR: send it no work), with numbers to show."""

    status: str
    numbers: Mapping[str, int | str | bool]


Page = Callable[[], Awaitable[Response]]


class OpsPort:
    """Listens from `listen` until `close`; `close` is allowed without `listen`."""

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
        self._token = ""
        self._metrics_public = False
        self._server: HttpServer | None = None
        self._net: NetLoop | None = None

    async def listen(self, settings: Settings, port: int, net: NetLoop | None = None) -> None:
        self._token = port_token(settings, settings.ops_host)
        self._metrics_public = settings.metrics.public
        self._net = NetLoop(clock=self._clock) if net is None else net
        self._server = server = HttpServer(
            self.answer,
            net=self._net,
            clock=self._clock,
            body_limit=no_body,
            on_failure=self._failed,
        )
        server.listen_on(listen(settings.ops_host, port, "ops_port"))

    async def close(self) -> None:
        if self._server is not None:
            await self._server.close()

    async def answer(self, request: Request) -> Response:
        if request.method not in (b"GET", b"HEAD"):
            return Response.of(405, headers=b"Allow: GET, HEAD\r\n")
        match request.path:
            case b"/__lbheartbeat__" | b"/healthz":
                return Response.of(200)
            case b"/metrics" if self._metrics_public:
                return self._numbers()
            case _ if self._token and not has_token(request, self._token):
                return unauthorized()
            case b"/__heartbeat__" | b"/health" | b"/status" | b"/readyz":
                return self._heartbeat()
            case b"/__error__":
                self._log.critical("log_check", note=LOG_CHECK_NOTE)
                return as_json(418, LOG_CHECK)
            case b"/__version__":
                return as_json(200, build())
            case b"/metrics":
                return self._numbers()
            case path if path in self._pages:
                return await self._pages[path]()
            case _:
                return Response.of(404)

    def _numbers(self) -> Response:
        return Response.of(200, self._metrics(), content_type=METRICS_TYPE.encode())

    def _heartbeat(self) -> Response:
        now = self._condition()
        body = {"status": now.status, "version": build().version, **now.numbers}
        return as_json(503 if now.status == ERROR else 200, body)

    def _failed(self, _request: Request, error: BaseException) -> Response:
        self._log.error("ops.failed", exc_info=error)
        return Response.of(500)


def port_token(settings: Settings, host: str) -> str:
    """The token that a metrics port on `host` asks for; empty on loopback."""
    if is_loopback_host(host):
        return ""
    data = DataDir(settings.data_dir)
    return ensure_secrets(data, metrics_token=settings.metrics.token)[0].metrics_token


def has_token(request: Request, token: str) -> bool:
    """Whether the request has this bearer token; compared in constant time."""
    scheme, _, given = request.headers.get(b"authorization", b"").partition(b" ")
    return scheme.lower() == b"bearer" and hmac.compare_digest(given.strip(), token.encode())


def unauthorized() -> Response:
    return Response.of(
        401,
        b"bearer token required: metrics.token, or keys/metrics_token in the data directory\n",
        content_type=b"text/plain",
        headers=b'WWW-Authenticate: Bearer realm="waystation metrics"\r\n',
    )


def as_json(status: int, body: object) -> Response:
    return Response.of(status, msgspec.json.encode(body), content_type=JSON.encode())
