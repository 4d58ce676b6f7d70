"""The process of the role `queue`: one queue server, its ops port and its control port.

It logs its own failures, never connections or commands (design, *Queue privacy*).
"""

import secrets
from collections.abc import Mapping
from typing import TYPE_CHECKING

import msgspec
from structlog.typing import FilteringBoundLogger

from waystation.app.addresses import listen
from waystation.app.data_dir import DataDir
from waystation.app.descriptor_limits import Shares, raise_limit
from waystation.app.settings import Settings
from waystation.app.version import build
from waystation.base.clock import SystemClock
from waystation.base.tasks import Tasks
from waystation.net.loop import NetLoop
from waystation.ops.health import StoreProbe
from waystation.ops.ops_port import ERROR, OK, Condition, OpsPort
from waystation.ops.queue_information_page import InformationPage
from waystation.ops.queue_statistics import FOLDER, QueueStatistics
from waystation.queue.address import own_address
from waystation.queue.cluster.membership import load_membership
from waystation.queue.control import ControlConversation
from waystation.queue.model import VERSION_MAX
from waystation.queue.server.control_port import LOOPBACK, ControlPort
from waystation.queue.store import QueueStore
from waystation.storage.open import open_queue_store, queue_store_url
from waystation.telemetry.hashes import EventHashes

from .process_telemetry import ProcessTelemetry
from .queue_service import QueueService, own_identity
from .worker_tasks import worker_tasks

if TYPE_CHECKING:
    from .queue_cluster_member import QueueClusterMember


class QueueWorker:
    """A `Runtime`."""

    def __init__(self, settings: Settings, log: FilteringBoundLogger) -> None:
        self._settings = settings
        self._log = log
        self._data = DataDir(settings.data_dir)
        self._clock = SystemClock()
        self._telemetry = ProcessTelemetry(
            settings,
            self._data,
            self._clock,
            name="queue.0",
            roles=("queue",),
            connections=self._connections,
        )
        self._net: NetLoop | None = None
        self._store: QueueStore | None = None
        self._tasks: Tasks | None = None
        self._statistics: QueueStatistics | None = None
        self._part: QueueService | None = None
        self._ops: OpsPort | None = None
        self._control: ControlPort | None = None
        self._cluster: QueueClusterMember | None = None

    async def start(self) -> None:
        settings, queue, clock = self._settings, self._settings.queue, self._clock
        # Keep descriptors for the store, links and operators.
        room = Shares.of(raise_limit(), ("connect",)).user_agents
        queue = msgspec.structs.replace(
            queue, connections_max=min(queue.connections_max or room, room)
        )
        identity = own_identity(self._data.keys, queue, settings.host)
        self._tasks = tasks = worker_tasks(self._log)
        self._net = net = NetLoop(clock=clock)
        url = queue_store_url(queue.store, settings.store.url)
        self._store = store = await open_queue_store(
            url, data_dir=self._data.root, settings=settings.store
        )
        self._telemetry.start(tasks)
        self._statistics = statistics = QueueStatistics(
            self._data.root / FOLDER,
            metrics=self._telemetry.metrics,
            sink=self._telemetry.events,
            clock=clock,
            log=self._log,
            # A random key: traced hashes cannot be compared after this process ends.
            trace=EventHashes(secrets.token_bytes(32)) if queue.trace_events else None,
        )
        self._part = part = QueueService(
            settings=queue,
            store=store,
            identity=identity,
            net=net,
            tasks=tasks,
            clock=clock,
            log=self._log,
            observer=statistics.observer,
            proxy_observer=statistics.observer,
        )
        statistics.watch(
            connections=self._connections,
            subscriptions=lambda: (
                len(part.cores.subscribers),
                part.cores.subscribers.notifier_count,
            ),
            relay_links=lambda: part.relay_links,
        )
        probe = StoreProbe(_Probed(store), clock)
        await probe.look()
        await self._listen(part, probe, net)
        membership = load_membership(self._data.keys)
        if membership is None:
            await part.start(listen(settings.host, queue.port, "queue.port"))
        else:
            from .queue_cluster_member import open_cluster_member  # noqa: PLC0415 seldom needed

            self._cluster = cluster = await open_cluster_member(
                membership,
                part=part,
                data_dir=self._data.root,
                settings=settings.store,
                tasks=tasks,
                clock=clock,
                lines=self._log,
                net=net,
            )
            await cluster.start(settings.host, queue)
            await part.start(None)
        tasks.keep("store probe", probe.run)
        tasks.keep(
            "statistics", lambda: statistics.run(store, lambda: part.cores.notifications.count)
        )

    async def _listen(self, part: QueueService, probe: StoreProbe, net: NetLoop) -> None:
        """Open the ops port and the control port."""
        settings, queue = self._settings, self._settings.queue
        days = queue.expire_messages_days
        page = InformationPage(
            address=own_address(self._data.keys, queue, settings.host),
            lowest=queue.min_version,
            highest=VERSION_MAX,
            new_queues=_new_queues(queue.new_queues, bool(queue.create_password)),
            days=f"{days:g} days" if days else "an unlimited time",
            information=queue.information,
        )
        self._ops = ops = OpsPort(
            condition=lambda: self._condition(probe),
            metrics=self._telemetry.exposition,
            clock=self._clock,
            log=self._log,
            pages={b"/": page.answer},
        )
        await ops.listen(settings, queue.ops_port, net)
        if queue.control_port != "off":
            operations = part.operations(self._stats, lambda: _about(page))
            assert self._tasks is not None
            self._control = control = ControlPort(
                net,
                lambda: ControlConversation(
                    operations,
                    admin_password=queue.control_admin_password,
                    user_password=queue.control_user_password,
                ),
                self._tasks,
            )
            control.listen(listen(LOOPBACK, queue.control_port, "queue.control_port"))

    async def drain(self, over_s: float) -> None:
        if self._cluster is not None:
            await self._cluster.drain()
        if self._part is not None:
            await self._part.drain(over_s)

    async def stop(self) -> None:
        if self._control is not None:
            await self._control.close()
        if self._ops is not None:
            await self._ops.close()
        if self._cluster is not None:
            await self._cluster.stop()
        if self._tasks is not None:
            await self._tasks.close()
        if self._part is not None:
            await self._part.stop()
        if self._net is not None:
            self._net.close()
        if self._statistics is not None:
            self._statistics.close()
        if self._store is not None:
            await self._store.close()
        await self._telemetry.close()

    def reload(self) -> None:
        if self._part is not None:
            try:
                self._part.reload()
            except ValueError as exc:
                self._log.error("queue.certificates_not_reloaded", reason=str(exc))

    def _connections(self) -> int:
        return 0 if self._part is None else self._part.server.port.descriptors

    def _condition(self, probe: StoreProbe) -> Condition:
        status = OK if probe.trouble is None else ERROR
        return Condition(status, {"connections": self._connections()})

    def _stats(self) -> list[str]:
        return [] if self._statistics is None else self._statistics.lines()


class _Probed:
    """A queue store as `ProbedStore`: it has no milestones."""

    def __init__(self, store: QueueStore) -> None:
        self._store = store

    async def check(self) -> None:
        await self._store.check()

    async def count_milestones(self, *, now_ms: int) -> Mapping[str, int]:
        return {}


def _new_queues(allowed: bool, with_password: bool) -> str:
    if not allowed:
        return "disabled"
    return "with the password of this server" if with_password else "open to everyone"


def _about(page: InformationPage) -> list[str]:
    return [
        f"version: {build().version}",
        f"address: {page.address}",
        f"protocol: {page.lowest} to {page.highest}",
        f"new queues: {page.new_queues}",
    ]
