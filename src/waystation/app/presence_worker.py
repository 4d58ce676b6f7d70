"""The process of the role `presence`: one node with its store, its ports and its numbers."""

import asyncio
import ssl
from collections.abc import Sequence
from functools import partial

import msgspec
from grpc import aio
from structlog.typing import FilteringBoundLogger

from waystation.base.clock import SystemClock
from waystation.base.http_message import Request, Response
from waystation.base.http_server import HttpServer, no_body
from waystation.base.settings import SettingsError
from waystation.base.tasks import Tasks
from waystation.presence.auth import open_authority
from waystation.presence.reports import Reports
from waystation.presence.server import PresenceServer
from waystation.presence.services import Service
from waystation.presence.store import Owner, PresenceStore
from waystation.presence.transport.grpcio import GrpcioTransport, ServerTls
from waystation.presence.transport.port import StreamHandler, Transport, paths
from waystation.storage.open_presence import is_shared, open_presence_store
from waystation.telemetry import events
from waystation.telemetry.eventlog import EventLog
from waystation.telemetry.hashes import EventHashes
from waystation.telemetry.metrics import Metrics

from . import process
from .addresses import listen
from .data_dir import DataDir
from .health import METRICS_TYPE
from .keys import ensure_secrets
from .settings import Settings, is_loopback
from .tls import load_tls
from .version import build

JSON = b"application/json"


class PresenceWorker:
    """A `Runtime`."""

    def __init__(self, settings: Settings, log: FilteringBoundLogger, *, index: int = 0) -> None:
        self._settings = settings
        self._log = log
        self._name = f"presence.{index}"
        self._data = DataDir(settings.data_dir)
        self._clock = SystemClock()
        self._metrics = Metrics()
        self._lag = process.LoopLag(self._clock)
        self._tasks: Tasks | None = None
        self._store: PresenceStore | None = None
        self._events: EventLog | None = None
        self._ops: HttpServer | None = None
        self._services: aio.Server | None = None
        self.server: PresenceServer | None = None

    async def start(self) -> None:
        settings, presence, clock = self._settings, self._settings.presence, self._clock
        loop = asyncio.get_running_loop()
        self._refuse_open_doors()
        secrets, _ = ensure_secrets(self._data, cluster_secret=settings.cluster.secret)
        self._tasks = tasks = Tasks(self._task_failed)
        self._store = store = await open_presence_store(
            presence, data_dir=self._data.root, settings=settings.store, clock=clock
        )
        node = process.event_node(settings.cluster.node, self._name)
        boot_us = clock.now_us()
        self._events = log = EventLog(
            self._data.events, node, boot_us, clock, spool_bytes_max=settings.events.max_bytes
        )
        log.start(loop)
        log.emit(events.NodeStart(attrs=events.NodeStartAttrs(version=build().version)))
        reports = Reports(
            sink=log,
            hashes=EventHashes(secrets.event_key),
            metrics=self._metrics,
            clock=clock,
            log=self._log,
            ack_sample=presence.ack_sample,
        )
        authority = await open_authority(presence.auth, clock, tasks)
        reflection = presence.reflection == "on" or (
            presence.reflection == "auto" and not settings.tls.on
        )
        self.server = server = PresenceServer(
            presence,
            store,
            owner=Owner(presence.node_id or node, boot_us),
            clock=clock,
            reports=reports,
            tasks=tasks,
            make_transport=self._transport,
            authority=authority,
            reflection=reflection,
            shared=store if is_shared(store) else None,
            endpoints=(presence.endpoint, presence.peer_endpoint),
        )
        await server.start()
        await self._start_ops(loop)
        self._fill(server, log)
        told = process.Reports(
            self._data.reports("serve"),
            self._name,
            ("presence",),
            metrics=self._metrics,
            lag=self._lag,
            clock=clock,
            connections=lambda: len(server.broker.registry.conversations),
        )
        for name, coro in (("loop lag", self._lag.run()), ("reports", told.run())):
            tasks.spawn(name, coro)

    def _refuse_open_doors(self) -> None:
        """Plain text, or nobody at the door, is for loopback."""
        settings, presence = self._settings, self._settings.presence
        if presence.insecure or is_loopback(f"//{settings.presence_host}"):
            return
        problems: list[str] = []
        if not settings.tls.on:
            problems.append(
                f"presence listens on {settings.presence_host} without TLS: set tls.cert and"
                " tls.key, or presence.insecure = true behind a proxy"
            )
        if presence.auth.mode == "off":
            problems.append(
                f"presence.auth.mode is off on {settings.presence_host}: anybody could join any"
                " party; set it to jwt, or presence.insecure = true"
            )
        if problems:
            raise SettingsError(problems)

    def _transport(self, handler: StreamHandler, services: Sequence[Service]) -> Transport:
        settings, presence = self._settings, self._settings.presence
        host, tls = settings.presence_host, settings.tls
        if presence.transport == "grpcio":
            return GrpcioTransport(
                handler,
                presence,
                host=host,
                port=presence.port,
                paths=paths(presence.rpc_path_aliases),
                tls=ServerTls(cert=tls.cert, key=tls.key) if tls.on else None,
                services=services,
            )
        from waystation.presence.transport.native.limits import Limits  # noqa: PLC0415
        from waystation.presence.transport.native.server import NativeTransport  # noqa: PLC0415

        self._serve_beside(services)
        context = load_tls(tls)
        return NativeTransport(
            handler,
            paths(presence.rpc_path_aliases),
            listen(host, presence.port, "presence.port"),
            limits=Limits(
                streams_max=presence.connection_streams_max,
                message_bytes_max=presence.max_message_bytes,
                keepalive_s=presence.keepalive_s,
                keepalive_timeout_s=presence.keepalive_timeout_s,
            ),
            connections_max=presence.node_sessions_max,
            tls=context,
            load_certificate=partial(_load_pair, cert=tls.cert, key=tls.key),
            on_failure=lambda exc: self._log.error("stream.failed", exc_info=exc),
        )

    def _serve_beside(self, services: Sequence[Service]) -> None:
        """The lean transport carries streams only: the rest has a port of its own."""
        settings, presence = self._settings, self._settings.presence
        self._services = server = aio.server(options=[("grpc.so_reuseport", 1)])
        for add in services:
            add(server)
        server.add_insecure_port(f"{settings.presence_host}:{presence.peer_port}")

    # --- operations ------------------------------------------------------------------------------

    async def _start_ops(self, loop: asyncio.AbstractEventLoop) -> None:
        if self._services is not None:
            await self._services.start()
        settings = self._settings
        self._ops = ops = HttpServer(
            self._answer,
            loop=loop,
            clock=self._clock,
            body_limit=no_body,
            on_failure=self._ops_failed,
        )
        await ops.listen(settings.presence_host, settings.presence.ops_port, reuse_port=True)

    def _answer(self, request: Request) -> Response:
        if request.method not in (b"GET", b"HEAD"):
            return Response.of(405)
        server = self.server
        match request.path:
            case b"/healthz" | b"/__lbheartbeat__":
                return Response.of(200, b'{"status":"OK"}', content_type=JSON)
            case b"/readyz" | b"/__heartbeat__":
                ready = server is not None and server.health.serving
                state = "starting" if server is None else server.state
                body = {"status": "OK" if ready else "ERROR", "state": state}
                return Response.of(
                    200 if ready else 503, msgspec.json.encode(body), content_type=JSON
                )
            case b"/__version__":
                body = msgspec.to_builtins(build())
                return Response.of(200, msgspec.json.encode(body), content_type=JSON)
            case b"/metrics":
                return Response.of(200, self._exposition(), content_type=METRICS_TYPE.encode())
            case b"/debug/parties":
                numbers = {} if server is None else server.broker.registry.numbers()
                return Response.of(200, msgspec.json.encode(numbers), content_type=JSON)
            case _:
                return Response.of(404)

    def _exposition(self) -> bytes:
        from waystation.telemetry.exposition import expose  # noqa: PLC0415 slow to load

        return expose([self._metrics.snapshot(self._name, self._clock.now_ms())]).body

    def _ops_failed(self, _request: Request, error: BaseException) -> Response:
        self._log.error("ops.failed", exc_info=error)
        return Response.of(500)

    def _fill(self, server: PresenceServer, log: EventLog) -> None:
        metrics, registry = self._metrics, server.broker.registry
        states = {
            name: metrics.gauge("presence_sessions", state=name) for name in ("active", "detached")
        }
        parties, streams = (
            metrics.gauge("presence_parties"),
            {kind: metrics.gauge("presence_streams", kind=kind) for kind in ("open", "joined")},
        )
        wheel, lag = (
            metrics.gauge("presence_wheel_lag_seconds"),
            metrics.gauge("presence_loop_lag_seconds"),
        )
        lost = metrics.counter("presence_events_lost")

        def fill() -> None:
            numbers = registry.numbers()
            for name, cell in states.items():
                cell.value = numbers[name]
            parties.value = numbers["parties"]
            joined = sum(one.session is not None for one in registry.conversations)
            streams["joined"].value = joined
            streams["open"].value = len(registry.conversations) - joined
            wheel.value = server.lag_s
            lag.value = self._lag.worst_recent_s
            lost.value = log.lost_total

        metrics.on_read(fill)

    # --- the end ---------------------------------------------------------------------------------

    async def drain(self, over_s: float) -> None:
        if self.server is not None:
            await self.server.drain(over_s)

    async def stop(self) -> None:
        if self.server is not None:
            await self.server.close()
        if self._services is not None:
            await self._services.stop(0)
        if self._ops is not None:
            await self._ops.close()
        if self._tasks is not None:
            await self._tasks.close()
        if self._store is not None:
            await self._store.close()
        if self._events is not None:
            self._events.emit(events.NodeStop(code=0))
            await self._events.close()

    def reload(self) -> None:
        if self.server is None:
            return
        try:
            load_tls(self._settings.tls)  # a pair that does not fit must not replace one that works
            self.server.transport.reload_tls()
        except (ValueError, OSError) as exc:
            self._log.error("tls.not_reloaded", reason=str(exc))
            return
        self._log.info("tls.reloaded")

    def _task_failed(self, name: str, error: BaseException) -> None:
        self._log.error("task.failed", task=name, exc_info=error)


def _load_pair(context: ssl.SSLContext, *, cert: str, key: str) -> None:
    context.load_cert_chain(cert, key)
