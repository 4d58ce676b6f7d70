"""Builds the queue service from store, identity and cores, and runs its periodic tasks.

A stop closes the port, answers commands in progress, closes the connections, saves waiting
notifications, and then closes the store.
"""

import asyncio
import contextlib
import socket
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

from structlog.typing import FilteringBoundLogger

from waystation.base.clock import Clock
from waystation.base.errors import WaystationError
from waystation.base.failures import Failures
from waystation.base.memory_trim import QuietTrim
from waystation.base.tasks import Tasks
from waystation.net.loop import NetLoop
from waystation.queue.address import IDENTITY_FOLDER, own_hosts
from waystation.queue.identity import Identity, ensure_identity
from waystation.queue.model import (
    DAY_S,
    VERSION_LEGACY,
    VERSION_MAX,
    SessionId,
    Slot,
    VersionRange,
)
from waystation.queue.server.checks import Checks
from waystation.queue.server.driver import Driver
from waystation.queue.server.ids import IdMaker
from waystation.queue.server.observer import NoObserver, Observer
from waystation.queue.server.operations import ServerOperations
from waystation.queue.server.proxying import NoProxyObserver, Proxying, ProxyObserver
from waystation.queue.server.relay_link import Connector
from waystation.queue.server.relays import Relays
from waystation.queue.server.server import BlockServer
from waystation.queue.server.services import Registry
from waystation.queue.server.tls import queue_tls
from waystation.queue.settings import Queue as QueueSettings
from waystation.queue.store import QueueStore
from waystation.queue.wire.handshake import ServerHandshake

from .queue_cores import QueueCores

EXPIRE_PORTION = 5000  # messages examined per call
TOUCH_INTERVAL_S = 5.0
NTF_EXPIRY_INTERVAL_S = 3600.0
RESTORE_AGAIN_S = 5.0  # retry, if the store gave out no notifications at the start
TRIM_INTERVAL_S = 0.4  # quiet time before unused memory is returned to the system
TRIM_BURST_BLOCKS = 500  # blocks that must have passed before


class QueueService:
    """One queue server; created within a running loop, started once."""

    def __init__(
        self,
        *,
        settings: QueueSettings,
        store: QueueStore,
        identity: Identity,
        net: NetLoop,
        tasks: Tasks,
        clock: Clock,
        log: FilteringBoundLogger,
        observer: Observer | None = None,
        proxy_observer: ProxyObserver | None = None,
    ) -> None:
        self.settings = settings
        self.store = store
        self.identity = identity
        self._tasks = tasks
        self._clock = clock
        self._log = log
        self._failures = Failures(clock.mono)
        self._observer = observer = NoObserver() if observer is None else observer
        self.only: Callable[[Slot], bool] | None = None  # in a cluster: the slots that are ours
        self.cores = cores = QueueCores(
            settings=settings,
            store=store,
            checks=Checks(threads=settings.check_threads, loop=asyncio.get_running_loop()),
            ids=IdMaker(hybrid=settings.id_mode == "hybrid"),
            observer=observer,
            clock=clock,
        )
        self._relays = Relays(
            Connector(
                net,
                clock=clock,
                connect_timeout_s=settings.proxy_connect_timeout_s,
                request_timeout_s=settings.proxy_request_timeout_s,
                private_hosts=settings.proxy_private_hosts,
            ),
            tasks=tasks,
            clock=clock,
            links_max=settings.proxy_relays_max,
            failure_memory_s=settings.proxy_failure_memory_s,
        )
        proxying = Proxying(
            relays=self._relays,
            dispatch=cores.dispatch,
            settings=settings,
            observer=NoProxyObserver() if proxy_observer is None else proxy_observer,
        )
        self.driver = Driver(
            dispatch=cores.dispatch,
            delivery=cores.delivery,
            subscribers=cores.subscribers,
            checks=cores.checks,
            forwarder=proxying,
            handshake=self.handshake,
            settings=settings,
            tasks=tasks,
            clock=clock,
            observer=observer,
            registry=Registry(store, services_max=settings.services_max)
            if settings.service_certificates
            else None,
        )
        self.server = BlockServer(
            net,
            self.driver,
            tls=queue_tls(identity, asks=settings.service_certificates),
            versions=VersionRange(settings.min_version, VERSION_MAX),
            without_alpn=VersionRange(VERSION_LEGACY, VERSION_LEGACY)
            if settings.min_version == VERSION_LEGACY
            else None,
            settings=settings,
            observer=observer,
            clock=clock,
        )

        self._trim = QuietTrim(
            lambda: self.server.blocks, burst=TRIM_BURST_BLOCKS, interval_s=TRIM_INTERVAL_S
        )

    async def start(self, listener: socket.socket | None) -> None:
        """Start; without a listener (in a cluster), clients connect through edges only."""
        restored = await self._tolerantly("restore", self.cores.notifiers.restore)
        await self._tolerantly("expiry", self._expire_messages)
        if not restored:
            self._tasks.keep("queue restore", self._run_restore)
        if listener is not None:
            self.server.listen(listener)
        for name, duty in (
            ("queue expiry", self._run_expiry),
            ("queue touches", self._run_touches),
            ("queue notifications", self._run_notifications),
            ("queue notification expiry", self._run_notification_expiry),
            ("queue memory", self._trim.run),
        ):
            self._tasks.keep(name, duty)

    @property
    def relay_links(self) -> int:
        return len(self._relays)

    async def drain(self, over_s: float) -> None:
        await self.server.drain(over_s)

    async def stop(self) -> None:
        self.server.close()
        self._relays.close()
        with contextlib.suppress(WaystationError):
            await self.cores.dispatch.write_touches()
            await self.cores.notifiers.save()
        self.cores.checks.close()

    def reload(self) -> None:
        """Reload the certificates: a new leaf of the same identity may exist."""
        identity = ensure_identity(
            self.identity.key_file.parent, host="", algorithm=self.settings.identity_algorithm
        )
        self.server.use_certificate(queue_tls(identity, asks=self.settings.service_certificates))
        self.identity = identity

    def operations(
        self, stats: Callable[[], Sequence[str]], about: Callable[[], Sequence[str]]
    ) -> ServerOperations:
        """The operations that the control port offers."""
        return ServerOperations(
            moderation=self.cores.moderation,
            subscribers=self.cores.subscribers,
            notifications=self.cores.notifications,
            notifiers=self.cores.notifiers,
            port=self.server.port,
            stats=stats,
            about=about,
        )

    def handshake(self, session_id: SessionId, versions: VersionRange) -> ServerHandshake:
        identity = self.identity
        return ServerHandshake(
            versions=versions,
            session_id=session_id,
            chain=identity.chain,
            leaf_key=identity.leaf_key,
            services_at_s=self._clock.now_ms() // 1000
            if self.settings.service_certificates
            else None,
        )

    # Upkeep

    async def _expire_messages(self) -> None:
        days = self.settings.expire_messages_days
        if not days:
            return
        before_s = self._clock.now_ms() // 1000 - int(days * DAY_S)
        after = None
        while True:
            expired = await self.store.expire(
                before_s=before_s, after=after, limit=EXPIRE_PORTION, only=self.only
            )
            for slot, count in expired.by_slot.items():
                self._observer.expired(slot, count)
            after = expired.after
            if after is None:
                return
            await asyncio.sleep(0.01)  # lets commands through

    async def _run_expiry(self) -> None:
        while True:
            await asyncio.sleep(self.settings.expire_interval_s)
            await self._tolerantly("expiry", self._expire_messages)

    async def _run_restore(self) -> None:
        """Retry to restore saved notifications: a store on a full disk gives out none."""
        while not await self._tolerantly(  # noqa: ASYNC110 no event tells of free room
            "restore", self.cores.notifiers.restore
        ):
            await asyncio.sleep(RESTORE_AGAIN_S)

    async def _run_touches(self) -> None:
        while True:
            await asyncio.sleep(TOUCH_INTERVAL_S)
            await self._tolerantly("touches", self.cores.dispatch.write_touches)

    async def _run_notifications(self) -> None:
        while True:
            await asyncio.sleep(self.settings.ntf_interval_s)
            self.cores.notifiers.hand_over()

    async def _run_notification_expiry(self) -> None:
        interval_s = min(NTF_EXPIRY_INTERVAL_S, self.settings.expire_ntfs_hours * 3600)
        while True:
            self.cores.notifiers.expire(self.settings.expire_ntfs_hours)
            await asyncio.sleep(interval_s)

    async def _tolerantly(self, what: str, step: Callable[[], Awaitable[None]]) -> bool:
        """Whether `step` succeeded; a store error is logged once."""
        try:
            await step()
        except WaystationError as exc:
            if self._failures.is_new(what, exc):
                self._log.warning("queue.upkeep_failed", what=what, reason=str(exc) or exc.label)
            return False
        return True


def own_identity(keys: Path, settings: QueueSettings, host: str) -> Identity:
    """The server's identity in keys/; created at the first start."""
    hosts = own_hosts(settings.hosts, host)
    return ensure_identity(
        keys / IDENTITY_FOLDER, host=hosts[0], algorithm=settings.identity_algorithm
    )
