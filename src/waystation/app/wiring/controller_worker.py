"""The process of the role `controller`: one controller of a queue cluster's slot map."""

import os
import socket

from structlog.typing import FilteringBoundLogger

from waystation.app.data_dir import DataDir
from waystation.app.settings import Settings
from waystation.base.clock import SystemClock
from waystation.base.errors import UnavailableError
from waystation.base.tasks import Tasks
from waystation.net.http1.message import Response
from waystation.net.loop import NetLoop
from waystation.ops.ops_port import OK, Condition, OpsPort
from waystation.queue.cluster.cluster_store import ClusterStore
from waystation.queue.cluster.controller import Terms
from waystation.queue.cluster.controller_driver import ControllerDriver
from waystation.queue.cluster.membership import required_membership
from waystation.queue.cluster.slot_map_text import summary
from waystation.storage.open import open_cluster_store

from .process_telemetry import ProcessTelemetry
from .worker_tasks import worker_tasks


class ControllerWorker:
    """A `Runtime`."""

    def __init__(self, settings: Settings, log: FilteringBoundLogger) -> None:
        self._settings = settings
        self._log = log
        self._data = DataDir(settings.data_dir)
        self._clock = SystemClock()
        self._net: NetLoop | None = None
        self._tasks: Tasks | None = None
        self._store: ClusterStore | None = None
        self._telemetry = ProcessTelemetry(
            settings, self._data, self._clock, name="controller.0", roles=("controller",)
        )
        self._ops = OpsPort(
            condition=self._condition,
            metrics=self._telemetry.exposition,
            clock=self._clock,
            log=log,
            pages={b"/map": self._map},
        )
        self.controller_driver: ControllerDriver | None = None

    async def start(self) -> None:
        settings, chosen = self._settings, self._settings.controller
        membership = required_membership(self._data.keys)
        self._tasks = tasks = worker_tasks(self._log)
        self._telemetry.start(tasks)
        self._store = store = await open_cluster_store(
            membership.member.store_url, data_dir=self._data.root, settings=settings.store
        )
        self.controller_driver = controller_driver = ControllerDriver(
            store,
            Terms(
                replicas=chosen.replicas,
                moves_per_node_max=chosen.moves_per_node_max,
                moves_max=chosen.moves_max,
                follower_patience_s=chosen.follower_patience_s,
            ),
            holder=f"{membership.member.name}.{socket.gethostname()}.{os.getpid()}",
            clock=self._clock,
            lines=self._log,
        )
        tasks.keep("controller", controller_driver.run)
        self._count(controller_driver)
        self._net = net = NetLoop(clock=self._clock)
        await self._ops.listen(settings, chosen.port, net)

    async def drain(self, over_s: float) -> None:
        """Give up the lead, so that the next controller need not wait for the lease to end."""
        if self.controller_driver is not None:
            try:
                await self.controller_driver.resign()
            except UnavailableError as exc:
                self._log.warning("controller.store", reason=str(exc) or exc.label)

    async def stop(self) -> None:
        if self._tasks is not None:
            await self._tasks.close()
        await self._ops.close()
        if self._net is not None:
            self._net.close()
        if self._store is not None:
            await self._store.close()
        await self._telemetry.close()

    def reload(self) -> None:
        """A controller serves no certificate."""

    # --- operations ------------------------------------------------------------------------------

    def _condition(self) -> Condition:
        controller_driver = self.controller_driver
        return Condition(OK, {"leads": controller_driver is not None and controller_driver.leads})

    async def _map(self) -> Response:
        assert self._store is not None
        try:
            text = summary(await self._store.read())
        except UnavailableError as exc:
            return Response.of(503, (str(exc) or exc.label).encode())
        return Response.of(200, text.encode() + b"\n", content_type=b"text/plain")

    def _count(self, controller_driver: ControllerDriver) -> None:
        metrics = self._telemetry.metrics
        leads = metrics.gauge("controller_leads")
        commits, lost = metrics.counter("controller_commits"), metrics.counter("controller_lost")

        def fill() -> None:
            leads.value = int(controller_driver.leads)
            commits.value = controller_driver.commits
            lost.value = controller_driver.lost

        metrics.on_read(fill)
