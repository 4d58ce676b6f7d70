"""One push worker: the roles connect and endpoint, their store, sockets and tasks.

Rule 1: a worker has an index K that a successor takes over, and with it the journal K.log.
Rule 2: what the one before left in that journal is handed back before anything new comes in.
Rule 3: one worker of the node sweeps: whoever holds run/sweeper.lock. The first hands back the
        journals of workers that no longer exist.
Rule 4: a stop closes doors first, then conversations, then tasks, then the store.
"""

import asyncio
import socket
import ssl
import time

from structlog.typing import FilteringBoundLogger

from waystation.base.clock import SystemClock
from waystation.base.errors import WaystationError
from waystation.base.settings import SettingsError
from waystation.base.tasks import Tasks
from waystation.push.connect.handback import HandBack, replay
from waystation.push.endpoint.relay_client import RelayClient
from waystation.push.milestones import MilestoneWriter
from waystation.push.node_names import NodeNames
from waystation.push.store import PushStore
from waystation.push.token import InvalidKeyError, Keys
from waystation.storage.open import open_push_store, store_warnings
from waystation.telemetry import events, logs
from waystation.telemetry.eventlog import EventLog
from waystation.telemetry.hashes import EventHashes
from waystation.telemetry.metrics import Metrics
from waystation.telemetry.segments import folder_bytes, remove_old, seal_abandoned

from . import addresses
from .connect_part import ConnectPart, link_name
from .data_dir import DataDir, Lock
from .descriptors import Shares, raise_limit
from .endpoint_part import EndpointPart
from .health import Health, StoreProbe
from .keys import Secrets
from .parts import Base
from .process import LoopLag, Reports, event_node, rss_bytes
from .roles import Role
from .settings import Settings
from .store_metrics import count_moves
from .tls import load_tls
from .version import build

SWEEP_ROWS_MAX = 1000  # rows removed in one go, so that others get their turn
SWEEPER_LOOK_S = 5.0
OLD_EVENTS_LOOK_S = 3600.0
NODE_STATS_INTERVAL_S = 10.0

# For the status page: event codes of the contract, by the name of what they count.
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
    ) -> None:
        self._settings = settings
        self._secrets = secrets
        self._log = log
        self._roles = roles
        self._index = index
        self._count = count
        self._service = service
        self._name = f"push.{index}" if service == "serve" else f"{service}.{index}"
        self._data = DataDir(settings.data_dir)
        self._clock = SystemClock()
        self._metrics = Metrics()
        self._lag = LoopLag(self._clock)
        self._store: PushStore | None = None
        self._tasks: Tasks | None = None
        self._events: EventLog | None = None
        self._milestones: MilestoneWriter | None = None
        self._relay: RelayClient | None = None
        self._connect: ConnectPart | None = None
        self._endpoint: EndpointPart | None = None
        self._sweeper: Lock | None = None
        self._tls: ssl.SSLContext | None = None
        self.doors: dict[str, socket.socket] = {}  # that listen already, by setting

    async def start(self) -> None:
        settings, clock, loop = self._settings, self._clock, asyncio.get_running_loop()
        self._tls = tls = load_tls(settings.tls)
        try:
            keys = Keys.parse(self._secrets.crypto_keys, clock)
        except InvalidKeyError as exc:
            raise SettingsError([f"push.crypto_keys: {exc}"]) from exc
        self._tasks = tasks = Tasks(self._task_failed)
        self._store = store = await open_push_store(
            settings.store.url, data_dir=self._data.root, settings=settings.store, clock=clock
        )
        node = event_node(settings.cluster.node, self._name)
        self._events = log = EventLog(
            self._data.events,
            node,
            clock.now_us(),
            clock,
            spool_bytes_max=settings.events.max_bytes,
        )
        log.start(loop)
        log.emit(events.NodeStart(attrs=events.NodeStartAttrs(version=build().version)))
        self._count_lines(log)
        count_moves(store, self._metrics)
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
            loop=loop,
            tls=ssl.create_default_context() if settings.connect.relay_tls else None,
        )
        hand_back = HandBack(
            store,
            relay,
            clock,
            concurrency=settings.connect.save_concurrency,
            fresh_keys=settings.push.sort_keys == "autopush",
        )
        hashes = EventHashes(self._secrets.event_key)
        names = NodeNames(
            hashes,
            own=node if "connect" in self._roles else "",
            relay_url=settings.connect.relay_url,
            told=relay.name_of,
        )
        base = Base(
            settings=settings,
            secrets=self._secrets,
            data=self._data,
            index=self._index,
            count=self._count,
            node_id=node_id,
            shares=Shares.of(raise_limit(), self._roles),
            clock=clock,
            tasks=tasks,
            store=store,
            keys=keys,
            relay=relay,
            hand_back=hand_back,
            milestones=milestones,
            events=log,
            hashes=hashes,
            names=names,
            metrics=self._metrics,
            health=self._health(probe),
            log=self._log,
            doors=self.doors,
        )
        if "connect" in self._roles:
            await self._replay(self._index, hand_back)
            self._connect = ConnectPart(base, tls)
            relay.node = self._connect.driver
            await self._connect.start()
        if "endpoint" in self._roles:
            self._endpoint = EndpointPart(base, tls)
            await self._endpoint.start()
        reports = Reports(
            self._data.reports(self._service),
            self._name,
            self._roles,
            metrics=self._metrics,
            lag=self._lag,
            clock=clock,
            connections=self._connections,
            counts=self._counts,
        )
        for name, coro in (
            ("store probe", probe.run()),
            ("loop lag", self._lag.run()),
            ("reports", reports.run()),
            ("node stats", self._tell_stats(log)),
            ("sweeper", self._sweep(store)),
        ):
            tasks.spawn(name, coro)
        if self._index == 0:
            tasks.spawn("tidy up", self._tidy_up(hand_back))
            tasks.spawn("store warnings", self._warn_of(store))

    def _health(self, probe: StoreProbe) -> Health:
        return Health(
            build=build(),
            probe=probe,
            lines=self._log,
            metrics=self._exposition,
            metrics_public=self._settings.metrics.public,
            connections=self._connections,
            requests=lambda: 0 if self._endpoint is None else self._endpoint.server.requests,
        )

    def _exposition(self) -> bytes:
        from waystation.telemetry.exposition import render  # noqa: PLC0415 slow to load

        return render(self._data.reports(self._service), self._clock.now_ms()).body

    def _connections(self) -> int:
        return 0 if self._connect is None else self._connect.connections

    def _counts(self) -> dict[str, int]:
        """What the status page makes rates of; by the codes of the event contract."""
        assert self._events is not None
        counts = self._events.counts
        return {name: sum(counts.get(code, 0) for code in codes) for name, codes in COUNTED.items()}

    def _count_lines(self, log: EventLog) -> None:
        """Losses of the two logs are numbers too: their own lines are what was lost."""
        written = self._metrics.counter("events_written")
        lost = self._metrics.counter("events_lost")
        dropped = self._metrics.counter("log_lines_dropped")
        under_way = self._metrics.gauge("request_in_flight")

        def fill() -> None:
            written.value = sum(log.counts.values())
            lost.value = log.lost_total
            dropped.value = logs.dropped_total()
            if self._endpoint is not None:
                under_way.value = self._endpoint.server.under_way

        self._metrics.on_read(fill)

    # What a worker does beside its requests

    async def _replay(self, index: int, hand_back: HandBack, *, remove: bool = False) -> None:
        path = self._data.journal(index)
        if path.exists() and (count := await replay(path, hand_back, remove=remove)):
            self._log.info("journal.replayed", index=index, notifications=count)

    async def _tidy_up(self, hand_back: HandBack) -> None:
        """What workers left behind that no longer exist: journals, and events of a daemon. Then,
        now and then, events that are older than they may be."""
        if "connect" in self._roles:
            for index in self._data.journals():
                if index >= self._count:
                    await self._replay(index, hand_back, remove=True)
        if self._service != "serve":  # there the supervisor does it
            await asyncio.to_thread(seal_abandoned, self._data.events)
        while True:
            removed = await asyncio.to_thread(self._remove_old_events)
            if removed:
                self._log.info("events.removed", segments=removed)
            await asyncio.sleep(OLD_EVENTS_LOOK_S)

    def _remove_old_events(self) -> int:
        """Without a pipeline nobody reads them, and a disk must not fill with what nobody reads."""
        return len(
            remove_old(
                self._data.events,
                self._clock.now_ms(),
                keep_s=self._settings.events.keep_s,
                covered=lambda _segment: True,
            )
        )

    async def _sweep(self, store: PushStore) -> None:
        while (lock := Lock.take(self._data.run / "sweeper.lock")) is None:  # noqa: ASYNC110 a file
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

    async def _tell_stats(self, log: EventLog) -> None:
        while True:
            await asyncio.sleep(NODE_STATS_INTERVAL_S)
            # Made when its turn in the log comes, so that its counters tell of exactly the lines
            # before it, and the pipeline can compare them with what it holds.
            log.defer(self._stats_event, log)

    def _stats_event(self, log: EventLog) -> events.NodeStats:
        return events.NodeStats(
            attrs=events.NodeStatsAttrs(
                connections=self._connections(),
                rss=rss_bytes(),
                cpu=time.process_time(),
                loop_lag=self._lag.worst_recent_s,
                spool_bytes=folder_bytes(self._data.events),
                counters={str(code): count for code, count in log.counts.items()},
            )
        )

    def _task_failed(self, name: str, error: BaseException) -> None:
        self._log.error("task.failed", task=name, exc_info=error)

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
        if self._milestones is not None:
            await self._milestones.close()
        if self._events is not None:
            self._events.emit(events.NodeStop(code=0))
            await self._events.close()
        if self._store is not None:
            await self._store.close()
        if self._sweeper is not None:
            self._sweeper.release()

    def reload(self) -> None:
        try:
            tls = load_tls(self._settings.tls)  # a pair that does not fit replaces nothing
        except SettingsError as exc:
            self._log.error("tls.not_reloaded", reason=str(exc))
            return
        if tls is not None and self._tls is not None:
            # The context that listeners have: connections from now on get the new certificate.
            self._tls.load_cert_chain(self._settings.tls.cert, self._settings.tls.key)
            self._log.info("tls.reloaded")
