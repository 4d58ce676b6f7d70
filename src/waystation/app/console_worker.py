"""The process of the role `console`: Starlette on uvicorn, and what it asks the workers."""

import asyncio
import contextlib
from collections.abc import Generator

import uvicorn
from structlog.typing import FilteringBoundLogger
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from waystation.base.clock import SystemClock
from waystation.base.tasks import Tasks
from waystation.console.api import build_console
from waystation.console.model import HealthAnswer, Sources, Tokens
from waystation.push.store import PushStore
from waystation.storage.open import open_push_store, shown_url

from .addresses import listen
from .background import background
from .data_dir import DataDir
from .health import Health, StoreProbe
from .keys import ensure_secrets
from .overview import Overview
from .settings import Settings
from .tls import load_tls
from .version import build

SHUTDOWN_TIMEOUT_S = 3
CONNECTIONS_MAX = 200
FIRST_REQUEST_S = 20.0
_BUSY = (
    b"HTTP/1.1 503 Service Unavailable\r\nRetry-After: 10\r\nContent-Length: 0\r\n"
    b"Connection: close\r\n\r\n"
)


class Connection(HttpToolsProtocol):
    """`limit_concurrency` counts connections only when a request comes, and a connection on which
    none has come yet has no end: one that says nothing would stay. Both are mended here."""

    _said = False

    def connection_made(self, transport: asyncio.Transport) -> None:
        full = len(self.connections) >= CONNECTIONS_MAX
        super().connection_made(transport)
        if full:
            transport.write(_BUSY)
            transport.close()
        else:
            self.loop.call_later(FIRST_REQUEST_S, self._check_said)

    def data_received(self, data: bytes) -> None:
        self._said = True
        super().data_received(data)

    def _check_said(self) -> None:
        if not self._said and not self.transport.is_closing():
            self.transport.close()


class Server(uvicorn.Server):
    """Signals belong to our own life cycle."""

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None]:
        yield


class ConsoleWorker:
    """A `Runtime` of one web application."""

    def __init__(self, settings: Settings, lines: FilteringBoundLogger) -> None:
        self._settings = settings
        self._lines = lines
        self._data = DataDir(settings.data_dir)
        self._store: PushStore | None = None
        self._server: Server | None = None
        self._serving: asyncio.Task[None] | None = None
        self._tasks: Tasks | None = None

    async def start(self) -> None:
        settings, clock = self._settings, SystemClock()
        secrets, _ = ensure_secrets(self._data, operator_token=settings.console.operator_token)
        self._store = store = await open_push_store(
            settings.store.url, data_dir=settings.data_dir, settings=settings.store, clock=clock
        )
        self._tasks = tasks = background(self._lines)
        probe = StoreProbe(store, clock)
        await probe.look()
        tasks.spawn("store probe", probe.run())
        overview = Overview(
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

        async def answer(method: str, path: str) -> HealthAnswer | None:
            return health.answer("console", method, path, internal=path != "/metrics")

        app = build_console(
            settings.console,
            Tokens(
                secrets.operator_token,
                secrets.broadcast_tokens.reader,
                secrets.broadcast_tokens.publishers,
            ),
            Sources(store=store, status=overview.status, metrics=overview.metrics, health=answer),
            metrics_public=settings.metrics.public,
        )
        config = uvicorn.Config(
            app,
            lifespan="off",
            log_config=None,
            log_level="warning",
            access_log=False,
            server_header=False,
            http=Connection,
            limit_concurrency=CONNECTIONS_MAX + 1,  # the last of them may ask as well
            timeout_graceful_shutdown=SHUTDOWN_TIMEOUT_S,
        )
        config.load()
        config.ssl = load_tls(settings.tls)
        sock = listen(settings.console_host, settings.console.port, "console.port")
        self._server = server = Server(config)
        self._serving = asyncio.create_task(server.serve(sockets=[sock]), name="console")
        while not server.started:
            if self._serving.done():
                await self._serving
                raise RuntimeError("the console ended while it started")
            await asyncio.sleep(0.005)

    async def drain(self, over_s: float) -> None:
        """Pages are short: nothing to spread."""

    async def stop(self) -> None:
        if self._server is not None and self._serving is not None:
            self._server.should_exit = True
            await asyncio.wait([self._serving], timeout=SHUTDOWN_TIMEOUT_S + 1)
        if self._tasks is not None:
            await self._tasks.close()
        if self._store is not None:
            await self._store.close()

    def reload(self) -> None:
        if self._server is not None and self._server.config.ssl is not None:
            tls = self._settings.tls
            try:
                load_tls(tls)  # a pair that does not fit must not replace one that works
            except ValueError as exc:
                self._lines.error("tls.not_reloaded", reason=str(exc))
                return
            self._server.config.ssl.load_cert_chain(tls.cert, tls.key)
            self._lines.info("tls.reloaded")
