"""The process of the role `controller`: one of those who watch over a cluster's slot map."""

import asyncio
import os
import socket

import msgspec
from structlog.typing import FilteringBoundLogger

from waystation.base.clock import SystemClock
from waystation.base.errors import UnavailableError
from waystation.base.http_message import Request, Response
from waystation.base.http_server import HttpServer, no_body
from waystation.base.settings import SettingsError
from waystation.base.tasks import Tasks
from waystation.queue.cluster.cluster_store import ClusterStore
from waystation.queue.cluster.controller import Terms
from waystation.queue.cluster.controlling import Controlling
from waystation.queue.cluster.membership import load_membership
from waystation.queue.cluster.picture import summary
from waystation.storage.open_cluster import open_cluster_store

from .data_dir import DataDir
from .health import METRICS_TYPE
from .settings import Settings
from .version import build

JSON = b"application/json"


class ControllerWorker:
    """A `Runtime`."""

    def __init__(self, settings: Settings, log: FilteringBoundLogger) -> None:
        self._settings = settings
        self._log = log
        self._data = DataDir(settings.data_dir)
        self._clock = SystemClock()
        self._tasks: Tasks | None = None
        self._store: ClusterStore | None = None
        self._ops: HttpServer | None = None
        self.controlling: Controlling | None = None

    async def start(self) -> None:
        settings, chosen = self._settings, self._settings.controller
        membership = load_membership(self._data.keys)
        if membership is None:
            raise SettingsError(
                [
                    f"{self._data.root} is in no cluster: `waystation cluster init` makes one,"
                    " `waystation cluster join TOKEN` joins one"
                ]
            )
        self._tasks = tasks = Tasks(self._task_failed)
        self._store = store = await open_cluster_store(
            membership.member.store_url, data_dir=self._data.root, settings=settings.store
        )
        self.controlling = controlling = Controlling(
            store,
            Terms(
                replicas=chosen.replicas,
                moves_per_node_max=chosen.moves_per_node_max,
                follower_patience_s=chosen.follower_patience_s,
            ),
            holder=f"{membership.member.name}.{socket.gethostname()}.{os.getpid()}",
            clock=self._clock,
            lines=self._log,
        )
        tasks.spawn("controller", controlling.run())
        self._ops = ops = HttpServer(
            self._answer,
            loop=asyncio.get_running_loop(),
            clock=self._clock,
            body_limit=no_body,
            on_failure=self._ops_failed,
        )
        await ops.listen(settings.host, chosen.port, reuse_port=True)

    async def drain(self, over_s: float) -> None:
        """Nobody is connected; the lead is given up so that the next one need not wait."""
        if self.controlling is not None:
            try:
                await self.controlling.resign()
            except UnavailableError as exc:
                self._log.warning("controller.store", reason=str(exc) or exc.label)

    async def stop(self) -> None:
        if self._tasks is not None:
            await self._tasks.close()
        if self._ops is not None:
            await self._ops.close()
        if self._store is not None:
            await self._store.close()

    def reload(self) -> None:
        """It holds no certificate that changes."""

    # --- operations ------------------------------------------------------------------------------

    async def _answer(self, request: Request) -> Response:
        if request.method not in (b"GET", b"HEAD"):
            return Response.of(405)
        controlling, store = self.controlling, self._store
        assert controlling is not None
        assert store is not None
        match request.path:
            case b"/__lbheartbeat__":
                return Response.of(200, b'{"status":"OK"}', content_type=JSON)
            case b"/__heartbeat__":
                body = {"status": "OK", "leads": controlling.leads}
                return Response.of(200, msgspec.json.encode(body), content_type=JSON)
            case b"/__version__":
                body = msgspec.to_builtins(build())
                return Response.of(200, msgspec.json.encode(body), content_type=JSON)
            case b"/map":
                try:
                    text = summary(await store.read())
                except UnavailableError as exc:
                    return Response.of(503, (str(exc) or exc.label).encode())
                return Response.of(200, text.encode() + b"\n", content_type=b"text/plain")
            case b"/metrics":
                lines = (
                    f"waystation_controller_leads {int(controlling.leads)}\n"
                    f"waystation_controller_commits_total {controlling.commits}\n"
                    f"waystation_controller_lost_total {controlling.lost}\n"
                )
                return Response.of(200, lines.encode(), content_type=METRICS_TYPE.encode())
            case _:
                return Response.of(404)

    def _ops_failed(self, _request: Request, error: BaseException) -> Response:
        self._log.error("ops.failed", exc_info=error)
        return Response.of(500)

    def _task_failed(self, name: str, error: BaseException) -> None:
        self._log.error("task.failed", task=name, exc_info=error)
