"""Health and diagnostic routes, the same on every HTTP port (webpush §8.1).

An answer never waits for the store: a background task checks the store every `PROBE_INTERVAL_S`,
and heartbeats report its last result. `/__lbheartbeat__` tells only that the process answers.
`/metrics` is served on the relay and console ports; on other ports only with `metrics.public`.
"""

import asyncio
from collections.abc import Callable, Mapping
from typing import Any, Protocol

import msgspec

from waystation.app.roles import Role
from waystation.app.version import Build
from waystation.base.clock import Clock
from waystation.base.errors import WaystationError
from waystation.net.http1.message import Request, Response
from waystation.push.milestone_writer import reliability_lines

PROBE_INTERVAL_S = 2.0
PROBE_TIMEOUT_S = 5.0
MILESTONES_INTERVAL_S = 10.0

JSON = "application/json"
METRICS_TYPE = "text/plain; version=0.0.4; charset=utf-8"
NO_BRIDGES: Mapping[str, bool] = {"apns": False, "fcm": False}
LOG_CHECK = {"code": 418, "errno": 999, "error": "LogCheck"}
LOG_CHECK_NOTE = "test line, requested over HTTP to try out alerts"


class HealthAnswer(msgspec.Struct, frozen=True):
    """The answer of a health route."""

    status: int
    content_type: str
    body: bytes


class ProbedStore(Protocol):
    """The part of `PushStore` that health needs."""

    async def check(self) -> None: ...

    async def count_milestones(self, *, now_ms: int) -> Mapping[str, int]: ...


class CriticalLines(Protocol):
    """The log of the error routes, with which operators test their alerts."""

    def critical(self, event: str, /, **fields: object) -> object: ...


class StoreProbe:
    """Checks the store periodically and keeps the last result."""

    def __init__(self, store: ProbedStore, clock: Clock) -> None:
        self._store = store
        self._clock = clock
        self._milestones_at = float("-inf")
        self.trouble: str | None = None
        self.milestones: dict[str, int] = {}

    async def look(self) -> None:
        try:
            async with asyncio.timeout(PROBE_TIMEOUT_S):
                await self._store.check()
                if self._clock.mono() - self._milestones_at >= MILESTONES_INTERVAL_S:
                    counts = await self._store.count_milestones(now_ms=self._clock.now_ms())
                    self.milestones = dict(counts)
                    self._milestones_at = self._clock.mono()
        except TimeoutError:
            self.trouble = f"no answer within {PROBE_TIMEOUT_S:.0f} s"
        except WaystationError as exc:
            self.trouble = str(exc) or exc.label
        else:
            self.trouble = None

    def tracked(self) -> bytes:
        """Lines for `/metrics` that describe the whole store, not one worker."""
        return reliability_lines(self.milestones).encode()

    async def run(self) -> None:
        while True:
            await self.look()
            await asyncio.sleep(PROBE_INTERVAL_S)


class Health:
    """Health routes of one worker."""

    def __init__(
        self,
        *,
        build: Build,
        probe: StoreProbe,
        lines: CriticalLines,
        metrics: Callable[[], bytes],
        metrics_public: bool,
        connections: Callable[[], int] = lambda: 0,
        requests: Callable[[], int] = lambda: 0,
        routers: Callable[[], Mapping[str, bool]] = lambda: NO_BRIDGES,
    ) -> None:
        self._build = build
        self._probe = probe
        self._lines = lines
        self._metrics = metrics
        self._metrics_public = metrics_public
        self._connections = connections
        self._requests = requests
        self._routers = routers

    def answer(
        self, role: Role, method: str, path: str, *, internal: bool = False
    ) -> HealthAnswer | None:
        """None for an unknown path. `internal`: a port that is never public."""
        if method not in ("GET", "HEAD"):
            return None
        match path:
            case "/__lbheartbeat__":
                return HealthAnswer(200, "", b"")
            case "/__heartbeat__" | "/health":
                return self._heartbeat(role)
            case "/status":
                return self._status()
            case "/__version__":
                return _json(200, msgspec.to_builtins(self._build))
            case "/__error__":
                return self._error(role)
            case "/v1/err/crit" if role == "connect":
                return self._error(role)
            case "/v1/err" if role == "endpoint":
                return self._error(role)
            case "/__milestones__" if role == "endpoint" or internal:
                return _json(200, self._probe.milestones)
            case "/metrics" if internal or self._metrics_public:
                return HealthAnswer(200, METRICS_TYPE, self._metrics() + self._probe.tracked())
            case _:
                return None

    def _heartbeat(self, role: Role) -> HealthAnswer:
        trouble = self._probe.trouble
        body: dict[str, Any] = {
            "status": "OK" if trouble is None else "ERROR",
            "version": self._build.version,
        }
        if role == "endpoint":
            table = {"status": "OK"} if trouble is None else {"status": "NOT OK", "cause": trouble}
            body |= {
                "router_table": table,
                "message_table": table,
                "routers": dict(self._routers()),
                "request_count": self._requests(),
                "reliability": {"status": "OK" if trouble is None else "NOT OK"},
            }
        else:
            body |= {
                "connections": self._connections(),
                "reliability": "OK" if trouble is None else "ERROR",
            }
        return _json(200 if trouble is None else 503, body)

    def _status(self) -> HealthAnswer:
        trouble = self._probe.trouble
        body = {"status": "OK" if trouble is None else "ERROR", "version": self._build.version}
        if trouble is not None:
            body["error"] = trouble
        return _json(200 if trouble is None else 503, body)

    def _error(self, role: Role) -> HealthAnswer:
        self._lines.critical("log_check", role=role, note=LOG_CHECK_NOTE)
        if role == "endpoint":
            return _json(
                418,
                {"code": 418, "errno": 999, "error": "I'm a teapot", "message": "ERROR:Success"},
            )
        return _json(418, LOG_CHECK)


def _json(status: int, body: object) -> HealthAnswer:
    return HealthAnswer(status, JSON, msgspec.json.encode(body))


def health_response(
    health: Health, role: Role, request: Request, *, internal: bool = False
) -> Response | None:
    """For a `HttpServer`."""
    # latin-1 decodes any byte; our paths are ASCII.
    method, path = request.method.decode("latin-1"), request.path.decode("latin-1")
    answer = health.answer(role, method, path, internal=internal)
    if answer is None:
        return None
    return Response.of(answer.status, answer.body, content_type=answer.content_type.encode())
