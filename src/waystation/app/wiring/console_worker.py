"""The process of the role `console`: HTTP server, push store and status of the workers."""

from structlog.typing import FilteringBoundLogger

from waystation.app.addresses import listen
from waystation.app.data_dir import DataDir
from waystation.app.keys import ensure_secrets
from waystation.app.settings import Settings
from waystation.app.tls import load_tls
from waystation.app.version import build
from waystation.base.clock import SystemClock
from waystation.base.settings import SettingsError
from waystation.base.tasks import Tasks
from waystation.console.api import ConsoleServer, failure
from waystation.console.model import Sources, Tokens
from waystation.net.http1.limits import HttpLimits
from waystation.net.http1.message import Request, Response
from waystation.net.http1.server import HttpServer
from waystation.net.loop import NetLoop
from waystation.ops.health import Health, StoreProbe, health_response
from waystation.ops.status import ServerOverview
from waystation.push.store import PushStore
from waystation.storage.open import open_push_store, shown_url

from .process_telemetry import ProcessTelemetry
from .worker_tasks import worker_tasks

SHUTDOWN_TIMEOUT_S = 3.0
LIMITS = HttpLimits(connections_max=200, idle_timeout_s=20.0)


class ConsoleWorker:
    """A `Runtime`."""

    def __init__(self, settings: Settings, lines: FilteringBoundLogger) -> None:
        self._settings = settings
        self._lines = lines
        self._data = DataDir(settings.data_dir)
        self._clock = SystemClock()
        self._telemetry = ProcessTelemetry(
            settings, self._data, self._clock, name="console.0", roles=("console",)
        )
        self._store: PushStore | None = None
        self._net: NetLoop | None = None
        self._server: HttpServer | None = None
        self._tasks: Tasks | None = None

    async def start(self) -> None:
        settings, clock = self._settings, self._clock
        secrets, _ = ensure_secrets(self._data, operator_token=settings.console.operator_token)
        self._store = store = await open_push_store(
            settings.store.url,
            data_dir=settings.data_dir,
            settings=settings.store,
            clock=clock,
            serves=True,
        )
        self._tasks = tasks = worker_tasks(self._lines)
        self._telemetry.start(tasks)
        probe = StoreProbe(store, clock)
        await probe.look()
        tasks.keep("store probe", probe.run)
        overview = ServerOverview(
            self._data,
            shown_url(settings.store.url, settings.store.db_settings),
            store,
            probe,
            clock,
        )
        health = Health(
            build=build(),
            probe=probe,
            lines=self._lines,
            metrics=bytes,  # the console's own route has them
            metrics_public=False,
        )

        def answer(request: Request) -> Response | None:
            internal = request.path != b"/metrics"
            return health_response(health, "console", request, internal=internal)

        console = ConsoleServer(
            settings.console,
            Tokens(
                secrets.operator_token,
                secrets.broadcast_tokens.reader,
                secrets.broadcast_tokens.publishers,
            ),
            Sources(
                store=store,
                status=overview.status,
                metrics=self._telemetry.exposition,
                health=answer,
            ),
            metrics_public=settings.metrics.public,
        )
        self._net = net = NetLoop(clock=clock)
        self._server = HttpServer(
            console.handle,
            net=net,
            clock=clock,
            body_limit=console.body_limit,
            on_failure=self._failed,
            limits=LIMITS,
        )
        self._server.listen_on(
            listen(settings.console_host, settings.console.port, "console.port"),
            load_tls(settings.tls),
        )

    def _failed(self, _request: Request, error: BaseException) -> Response:
        self._lines.error("console.failed", exc_info=error)
        return failure()

    async def drain(self, over_s: float) -> None:
        """Requests are short: there are no closes to spread."""

    async def stop(self) -> None:
        if self._server is not None:
            await self._server.close(SHUTDOWN_TIMEOUT_S)
        if self._net is not None:
            self._net.close()
        if self._tasks is not None:
            await self._tasks.close()
        if self._store is not None:
            await self._store.close()
        await self._telemetry.close()

    def reload(self) -> None:
        try:
            tls = load_tls(self._settings.tls)  # an invalid pair keeps the old one
        except SettingsError as exc:
            self._lines.error("tls.not_reloaded", reason=str(exc))
            return
        if tls is not None and self._server is not None:
            self._server.use_certificate(tls)
            self._lines.info("tls.reloaded")
