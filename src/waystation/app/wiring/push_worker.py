"""One push worker: the roles connect and endpoint, their store, sockets and tasks.

A restarted worker has the same index K and replays the journal K.log of its predecessor before it
accepts connections. If the store refuses writes at that moment, the worker listens anyway and
replays later. One worker of the node sweeps the store: the holder of run/sweeper.lock. Worker 0
also replays journals of workers that no longer exist and of unused parts of the data directory. A
stop closes listening sockets first, then sessions, then tasks, then the store.
"""

import asyncio
import socket
import ssl
from functools import partial
from pathlib import Path

from structlog.typing import FilteringBoundLogger

from waystation.app import addresses
from waystation.app.data_dir import DataDir, Lock
from waystation.app.descriptor_limits import Shares, passing_max, raise_limit
from waystation.app.keys import Secrets
from waystation.app.machine_watch import MachineWatch, machine_id
from waystation.app.roles import Role
from waystation.app.settings import Settings, is_loopback
from waystation.app.tls import load_tls
from waystation.app.version import build
from waystation.base.clock import SystemClock
from waystation.base.errors import WaystationError
from waystation.base.settings import SettingsError
from waystation.base.tasks import Tasks
from waystation.net.loop import NetLimits, NetLoop
from waystation.ops.health import NO_BRIDGES, Health, StoreProbe
from waystation.ops.store_metrics import count_moves
from waystation.push.connect.journal_replay import replay, replayed_or_troubled
from waystation.push.connect.unacked_saver import UnackedSaver
from waystation.push.endpoint.relay_client import RelayClient
from waystation.push.milestone_writer import MilestoneWriter
from waystation.push.node_names import NodeNames
from waystation.push.store import PushStore
from waystation.push.token import InvalidKeyError, Keys
from waystation.storage.open import open_push_store, shared_by_machines, store_warnings
from waystation.telemetry import events
from waystation.telemetry.hashes import EventHashes
from waystation.telemetry.segments import remove_old, seal_abandoned

from .connect_role import ConnectRole, connect_reports, link_name, make_unacked_saver
from .endpoint_role import EndpointRole
from .process_telemetry import ProcessTelemetry
from .push_context import PushContext
from .worker_tasks import worker_tasks

SWEEP_ROWS_MAX = 1000  # rows removed per call, so that other work is not delayed
SWEEPER_LOOK_S = 5.0
OLD_EVENTS_LOOK_S = 3600.0

# Counters of the status page -> event codes of the contract.
COUNTED = {
    "received": (events.PushReceived.k,),
    "direct": (events.PushIntAccepted.k,),
    "stored": (events.PushStored.k,),
    "acked": (events.PushDelivered.k, events.PushDecryptionError.k, events.PushNotDelivered.k),
}


class PushWorker:
    """A `Runtime`."""

    def __init__(
        self,
        settings: Settings,
        secrets: Secrets,
        log: FilteringBoundLogger,
        *,
        roles: tuple[Role, ...],
        index: int,
        count: int,
        service: str = "serve",
        part: int = 1,
    ) -> None:
        self._settings = settings
        self._secrets = secrets
        self._log = log
        self._roles = roles
        self._index = index
        self._count = count
        self._service = service
        self._data = DataDir(settings.data_dir, part)
        kind = "push" if service == "serve" else service
        self._clock = SystemClock()
        self._telemetry = ProcessTelemetry(
            settings,
            self._data,
            self._clock,
            name=f"{kind}.{index}" if part == 1 else f"{kind}-{part}.{index}",
            roles=roles,
            service=service,
            connections=self._connections,
            counts=self._counts,
        )
        self._net: NetLoop | None = None
        self._store: PushStore | None = None
        self._tasks: Tasks | None = None
        self._milestones: MilestoneWriter | None = None
        self._relay: RelayClient | None = None
        self._connect: ConnectRole | None = None
        self._endpoint: EndpointRole | None = None
        self._sweeper: Lock | None = None
        self._tls: ssl.SSLContext | None = None
        self.listening_sockets: dict[str, socket.socket] = {}  # opened early, by setting

    async def start(self) -> None:
        settings, clock, loop = self._settings, self._clock, asyncio.get_running_loop()
        self._tls = tls = load_tls(settings.tls)
        try:
            keys = Keys.parse(self._secrets.crypto_keys, clock)
        except InvalidKeyError as exc:
            raise SettingsError([f"push.crypto_keys: {exc}"]) from exc
        self._tasks = tasks = worker_tasks(self._log)
        self._store = store = await open_push_store(
            settings.store.url,
            data_dir=self._data.root,
            settings=settings.store,
            clock=clock,
            serves=True,
        )
        shares = Shares.of(raise_limit(), self._roles)
        leaving = passing_max(shares.user_agents or shares.app_servers)
        self._net = net = NetLoop(clock=clock, limits=NetLimits(lingering_max=leaving))
        telemetry = self._telemetry
        telemetry.start(tasks)
        self._count_requests()
        count_moves(store, telemetry.metrics)
        self._milestones = milestones = MilestoneWriter(
            store, clock, loop, message_status=settings.push.message_status
        )
        probe = StoreProbe(store, clock)
        await probe.look()
        node_id = addresses.node_id(settings, self._index, self._count)
        self._relay = relay = RelayClient(
            settings.endpoint,
            own_node_id=node_id,
            relay_url=settings.connect.relay_url,
            sibling_socket=lambda index: self._data.socket(link_name(index)),
            secret=self._secrets.cluster_secret.encode(),
            clock=clock,
            net=net,
            tls=ssl.create_default_context() if settings.connect.relay_tls else None,
        )
        hashes = EventHashes(self._secrets.event_key)
        names = NodeNames(
            hashes,
            own=telemetry.node if "connect" in self._roles else "",
            relay_url=settings.connect.relay_url,
            told=relay.name_of,
        )
        context = PushContext(
            settings=settings,
            secrets=self._secrets,
            data=self._data,
            index=self._index,
            count=self._count,
            node_id=node_id,
            shares=shares,
            clock=clock,
            net=net,
            tasks=tasks,
            store=store,
            keys=keys,
            relay=relay,
            milestones=milestones,
            events=telemetry.events,
            hashes=hashes,
            names=names,
            metrics=telemetry.metrics,
            health=self._health(probe),
            log=self._log,
            listening_sockets=self.listening_sockets,
        )
        saver: UnackedSaver | None = None
        if "connect" in self._roles:
            reports = connect_reports(context)
            saver = make_unacked_saver(context, reports)
            replaying = tasks.keep(
                "replay", partial(self._replay, self._data.journal(self._index), saver)
            )
            if not await replayed_or_troubled(replaying, saver):
                self._log.warning("journal.waits", index=self._index)
            self._connect = ConnectRole(context, tls, reports, saver)
            relay.node = self._connect.driver
            await self._connect.start()
        if "endpoint" in self._roles:
            self._endpoint = EndpointRole(context, tls)
            await self._endpoint.start()
        tasks.keep("store probe", probe.run)
        tasks.keep("sweeper", partial(self._sweep, store))
        if self._index == 0:
            tasks.keep("tidy up", self._tidy_up)
            if saver is not None:
                tasks.keep("replay others", partial(self._replay_others, saver))
            tasks.spawn("store warnings", self._warn_of(store))
            if "connect" in self._roles and shared_by_machines(
                settings.store.url, settings.store.db_settings
            ):
                url = settings.connect.relay_url
                watch = MachineWatch(
                    store,
                    machine_id(),
                    clock,
                    self._log,
                    loopback_url=url if is_loopback(url) else "",
                )
                tasks.keep("machines", watch.run)

    def _health(self, probe: StoreProbe) -> Health:
        return Health(
            build=build(),
            probe=probe,
            lines=self._log,
            metrics=self._telemetry.exposition,
            metrics_public=self._settings.metrics.public,
            connections=self._connections,
            requests=lambda: 0 if self._endpoint is None else self._endpoint.server.requests,
            routers=lambda: (
                NO_BRIDGES if self._endpoint is None else self._endpoint.bridges.working()
            ),
        )

    def _connections(self) -> int:
        return 0 if self._connect is None else self._connect.connections

    def _counts(self) -> dict[str, int]:
        """Counters from which the status page computes rates."""
        counts = self._telemetry.events.counts
        return {name: sum(counts.get(code, 0) for code in codes) for name, codes in COUNTED.items()}

    def _count_requests(self) -> None:
        under_way = self._telemetry.metrics.gauge("request_in_flight")

        def fill() -> None:
            if self._endpoint is not None:
                under_way.value = self._endpoint.server.under_way

        self._telemetry.metrics.on_read(fill)

    # Background tasks

    async def _replay(self, path: Path, saver: UnackedSaver) -> None:
        try:
            count = await replay(path, saver)
        except OSError:
            saver.troubled.set()  # the start does not wait for the retry
            raise
        if count:
            self._log.info("journal.replayed", index=int(path.stem), notifications=count)

    async def _replay_others(self, saver: UnackedSaver) -> None:
        """Replay journals of workers that no longer exist and of other parts of the directory."""
        for index, path in self._data.journals().items():
            if index >= self._count:
                await self._replay(path, saver)
        for path in self._data.journals_of_other_parts():
            await self._replay(path, saver)

    async def _tidy_up(self) -> None:
        """Seal event segments of ended daemons, then remove old segments periodically."""
        if self._service != "serve":  # the supervisor of `serve` seals them
            await asyncio.to_thread(seal_abandoned, self._data.events)
        while True:
            removed = await asyncio.to_thread(self._remove_old_events)
            if removed:
                self._log.info("events.removed", segments=removed)
            await asyncio.sleep(OLD_EVENTS_LOOK_S)

    def _remove_old_events(self) -> int:
        """Remove segments older than `events.keep_s`, so that the disk does not fill if no pipeline
        reads them."""
        return len(
            remove_old(
                self._data.events,
                self._clock.now_ms(),
                keep_s=self._settings.events.keep_s,
                covered=lambda _segment: True,
            )
        )

    async def _sweep(self, store: PushStore) -> None:
        while (lock := Lock.take(self._data.sweeper_lock)) is None:  # noqa: ASYNC110 a file
            await asyncio.sleep(SWEEPER_LOOK_S)
        self._sweeper = lock
        while True:
            try:
                removed = await store.sweep(now_ms=self._clock.now_ms(), limit=SWEEP_ROWS_MAX)
            except WaystationError as exc:
                self._log.warning("sweep.failed", reason=str(exc) or exc.label)
                removed = 0
            more = removed >= SWEEP_ROWS_MAX
            await asyncio.sleep(0.05 if more else self._settings.push.sweep_interval_s)

    async def _warn_of(self, store: PushStore) -> None:
        try:
            for warning in await store_warnings(store):
                self._log.warning("store.warning", reason=warning)
        except WaystationError as exc:
            self._log.warning("store.not_asked", reason=str(exc) or exc.label)

    # Stop

    async def drain(self, over_s: float) -> None:
        for part in (self._connect, self._endpoint):
            if part is not None:
                part.stop_accepting()
        if self._endpoint is not None:
            await self._endpoint.close()
        if self._connect is not None:
            await self._connect.drain(over_s)

    async def stop(self) -> None:
        if self._endpoint is not None:
            await self._endpoint.close()
        if self._tasks is not None:
            await self._tasks.close()
        if self._connect is not None:
            await self._connect.close()
        if self._relay is not None:
            await self._relay.close()
        if self._net is not None:
            self._net.close()
        if self._milestones is not None:
            await self._milestones.close()
        await self._telemetry.close()
        if self._store is not None:
            await self._store.close()
        if self._sweeper is not None:
            self._sweeper.release()

    def reload(self) -> None:
        try:
            tls = load_tls(self._settings.tls)  # an invalid pair keeps the old one
        except SettingsError as exc:
            self._log.error("tls.not_reloaded", reason=str(exc))
            return
        if tls is not None and self._tls is not None:
            # Listeners hold this context: new connections get the new certificate.
            self._tls.load_cert_chain(self._settings.tls.cert, self._settings.tls.key)
            self._log.info("tls.reloaded")
