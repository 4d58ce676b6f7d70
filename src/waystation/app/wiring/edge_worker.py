"""The process of the role `edge`: one edge of a queue cluster.

It logs its own failures, never connections or commands (design, *Queue privacy*). Any number of
edges run side by side: each presents a leaf certificate of the same identity, reads the same slot
map and stores nothing.
"""

import random
from functools import partial

from structlog.typing import FilteringBoundLogger

from waystation.app.addresses import listen
from waystation.app.data_dir import DataDir
from waystation.app.settings import Settings
from waystation.base.clock import SystemClock
from waystation.base.tasks import Tasks
from waystation.net.loop import NetLoop
from waystation.ops.ops_port import DEGRADED, ERROR, OK, Condition, OpsPort
from waystation.queue.cluster.cluster_store import ClusterStore
from waystation.queue.cluster.link_connection import Links
from waystation.queue.cluster.membership import link_context, required_membership
from waystation.queue.edge.driver import EdgeDriver
from waystation.queue.edge.refs import RefCache
from waystation.queue.edge.upstreams import Upstreams
from waystation.queue.errors import Code
from waystation.queue.identity import Identity
from waystation.queue.model import VERSION_LEGACY, VERSION_MAX, SessionId, VersionRange
from waystation.queue.server.dispatch import Caller
from waystation.queue.server.forwarded_order import Begun
from waystation.queue.server.observer import NoObserver
from waystation.queue.server.proxying import NoProxyObserver, Proxying
from waystation.queue.server.relay_link import Connector
from waystation.queue.server.relays import Relays
from waystation.queue.server.server import BlockServer
from waystation.queue.server.tls import tls_context
from waystation.queue.settings import Queue as QueueSettings
from waystation.queue.wire.handshake import ServerHandshake
from waystation.queue.wire.responses import Err, Response
from waystation.queue.wire.transmission import Transmission
from waystation.storage.open import open_cluster_store

from .edge_metrics import EdgeMetrics
from .process_telemetry import ProcessTelemetry
from .queue_service import own_identity
from .worker_tasks import worker_tasks

LINKS_S = 3.0


class EdgeWorker:
    """A `Runtime`."""

    def __init__(self, settings: Settings, log: FilteringBoundLogger) -> None:
        self._settings = settings
        self._log = log
        self._data = DataDir(settings.data_dir)
        self._clock = SystemClock()
        self._tasks: Tasks | None = None
        self._net: NetLoop | None = None
        self._maps: ClusterStore | None = None
        self._relays: Relays | None = None
        self._links: Upstreams | None = None
        self._driver: EdgeDriver | None = None
        self._server: BlockServer | None = None
        self._telemetry = ProcessTelemetry(
            settings,
            self._data,
            self._clock,
            name="edge.0",
            roles=("edge",),
            connections=self._connections,
        )
        self._ops = OpsPort(
            condition=self._condition,
            metrics=self._telemetry.exposition,
            clock=self._clock,
            log=log,
        )
        self._identity: Identity | None = None

    async def start(self) -> None:
        settings, queue, clock = self._settings, self._settings.queue, self._clock
        membership = required_membership(self._data.keys)
        self._identity = identity = own_identity(self._data.keys, queue, settings.host)
        self._tasks = tasks = worker_tasks(self._log)
        self._net = net = NetLoop(clock=clock)
        self._telemetry.start(tasks)
        self._maps = maps = await open_cluster_store(
            membership.member.store_url, data_dir=self._data.root, settings=settings.store
        )
        self._relays = relays = _relays(net, queue, tasks, clock)
        numbers, refs = EdgeMetrics(self._telemetry.metrics), RefCache(settings.edge.refs_max)
        self._driver = driver = EdgeDriver(
            slot_map=await maps.read(),
            maps=maps,
            handshake=self._handshake,
            proxies=Proxying(
                relays=relays, dispatch=_NoDispatch(), settings=queue, observer=NoProxyObserver()
            ),
            refs=refs,
            settings=queue,
            tasks=tasks,
            clock=clock,
            chance=random.Random(),
            asks_first=queue.id_mode == "refs",
            new_per_min=settings.edge.new_per_min,
            new_per_address_per_min=settings.edge.new_per_address_per_min,
            observer=numbers,
        )
        dedicated = settings.edge.upstream_mode == "dedicated"
        self._links = links = Upstreams(
            driver,
            links=Links(net),
            tls=lambda: link_context(membership, server_side=False),
            tasks=tasks,
            dedicated_max=settings.edge.upstream_links_max if dedicated else 0,
        )
        driver.use(links)
        numbers.watch(driver, links, refs, self._connections)
        # Wait for links first: commands without one are refused, as they are if a server is down.
        if not await links.settle(LINKS_S):
            self._log.warning("edge.links", up=len(links), of=len(driver.edge.slot_map.nodes))
        legacy = queue.min_version == VERSION_LEGACY
        self._server = server = BlockServer(
            net,
            driver,
            tls=tls_context(identity),
            versions=VersionRange(queue.min_version, VERSION_MAX),
            without_alpn=VersionRange(VERSION_LEGACY, VERSION_LEGACY) if legacy else None,
            settings=queue,
            observer=NoObserver(),
            clock=clock,
        )
        await self._ops.listen(settings, settings.edge.ops_port, net)
        server.listen(listen(settings.host, settings.edge.port, "edge.port"))
        tasks.keep("edge", partial(driver.run, settings.edge.map_interval_s))

    async def drain(self, over_s: float) -> None:
        if self._server is not None:
            await self._server.drain(over_s)

    async def stop(self) -> None:
        await self._ops.close()
        if self._server is not None:
            self._server.close()
        if self._links is not None:
            self._links.close()
        if self._relays is not None:
            self._relays.close()
        if self._tasks is not None:
            await self._tasks.close()
        if self._maps is not None:
            await self._maps.close()
        if self._net is not None:
            self._net.close()
        await self._telemetry.close()

    def reload(self) -> None:
        """Reload the certificate: a new leaf of the same identity may exist."""
        if self._server is None:
            return
        try:
            identity = own_identity(self._data.keys, self._settings.queue, self._settings.host)
            self._server.use_certificate(tls_context(identity))
            self._identity = identity
        except ValueError as exc:
            self._log.error("edge.certificates_not_reloaded", reason=str(exc))

    # --- inside ----------------------------------------------------------------------------------

    def _handshake(self, session_id: SessionId, versions: VersionRange) -> ServerHandshake:
        identity = self._identity
        assert identity is not None
        return ServerHandshake(
            versions=versions,
            session_id=session_id,
            chain=identity.chain,
            leaf_key=identity.leaf_key,
        )

    def _connections(self) -> int:
        return 0 if self._server is None else self._server.port.descriptors

    def _condition(self) -> Condition:
        driver, links = self._driver, self._links
        if driver is None or links is None:
            return Condition(ERROR, {})
        servers = len(driver.edge.slot_map.nodes)
        return Condition(
            OK if len(links) == servers else DEGRADED,
            {
                "epoch": driver.edge.epoch,
                "links": len(links),
                "servers": servers,
                "connections": self._connections(),
            },
        )


class _NoDispatch:
    """Refuses forwarded commands: an edge passes them to storage servers instead."""

    async def answer(
        self, caller: Caller, transmission: Transmission, begun: Begun | None = None
    ) -> Response:
        return Err(Code.CMD_PROHIBITED)


def _relays(net: NetLoop, settings: QueueSettings, tasks: Tasks, clock: SystemClock) -> Relays:
    connector = Connector(
        net,
        clock=clock,
        connect_timeout_s=settings.proxy_connect_timeout_s,
        request_timeout_s=settings.proxy_request_timeout_s,
        private_hosts=settings.proxy_private_hosts,
    )
    return Relays(
        connector,
        tasks=tasks,
        clock=clock,
        links_max=settings.proxy_relays_max,
        failure_memory_s=settings.proxy_failure_memory_s,
    )
