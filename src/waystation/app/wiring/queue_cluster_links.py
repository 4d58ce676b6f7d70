"""Builds the cluster side of a storage server: slots, replication, links of peers and edges.

Clients reach it through edges only; edges forward commands to other relays themselves. TLS context,
slot map store and client handshake are passed in, so that tests replace them.
"""

import random
from collections.abc import Callable
from functools import partial

from waystation.base.clock import Clock
from waystation.base.tasks import Tasks
from waystation.net.tls import Tls
from waystation.queue.cluster.cluster_store import ClusterStore
from waystation.queue.cluster.link_connection import Links
from waystation.queue.cluster.peer_requests import PeerRequests
from waystation.queue.cluster.peers import Peers
from waystation.queue.cluster.replication_driver import ReplicationDriver
from waystation.queue.cluster.slot_map import NodeId, SlotMap
from waystation.queue.model import SessionId, VersionRange
from waystation.queue.server.driver import Driver, NoForwarder
from waystation.queue.server.link_server import KeptOwnership, LinkServer
from waystation.queue.server.ownership import OwnedDispatch
from waystation.queue.server.reference_sweep import ReferenceSweep
from waystation.queue.server.reference_writing import Lines, ReferenceWriting
from waystation.queue.server.uncommitted_queues import UncommittedQueues
from waystation.queue.wire.handshake import ServerHandshake
from waystation.storage.embedded.queue import EmbeddedQueueStore

from .queue_cores import QueueCores


class QueueClusterLinks:
    """Created within a running loop; accepts links once `start` has returned."""

    def __init__(
        self,
        node_id: NodeId,
        cores: QueueCores,
        *,
        rows: EmbeddedQueueStore,
        maps: ClusterStore,
        links: Links,
        context: Tls,
        handshake: Callable[[SessionId, VersionRange], ServerHandshake],
        tasks: Tasks,
        clock: Clock,
        lines: Lines,
        rng: random.Random | None = None,
    ) -> None:
        settings = cores.settings
        self._tasks = tasks
        self._sweep_interval_s = settings.refs_sweep_interval_s
        self._peers = Peers(links=links, context=context, slot_map=self._slot_map, tasks=tasks)
        self.replication_driver = ReplicationDriver(
            node_id,
            store=maps,
            rows=rows,
            links=self._peers,
            clock=clock,
            tasks=tasks,
            rng=rng,
            sync=settings.followers == "sync",
        )
        self._peers.receiver = self.replication_driver
        self.ownership = ownership = KeptOwnership(self.replication_driver, clock)
        driver = Driver(
            dispatch=OwnedDispatch(cores.dispatch, ownership, rows),
            delivery=cores.delivery,
            subscribers=cores.subscribers,
            checks=cores.checks,
            forwarder=NoForwarder(),
            handshake=handshake,
            settings=settings,
            tasks=tasks,
            clock=clock,
        )
        uncommitted = UncommittedQueues(
            store=rows,
            grants=rows,
            dispatch=cores.dispatch,
            subscribers=cores.subscribers,
            ownership=ownership,
            mono=clock.mono,
            hybrid=settings.id_mode == "hybrid",
        )
        self._peer_requests = PeerRequests(links=links, context=context, slot_map=self._slot_map)
        self.server = LinkServer(
            store=rows,
            refs=rows,
            grants=rows,
            driver=driver,
            delivery=cores.delivery,
            subscribers=cores.subscribers,
            uncommitted=uncommitted,
            moderation=cores.moderation,
            replication_driver=self.replication_driver,
            ownership=ownership,
            peers=self._peers,
            settings=settings,
            tasks=tasks,
            clock=clock,
        )
        self._writing = ReferenceWriting(
            node_id,
            refs=rows,
            rows=rows,
            maps=maps,
            known=self._slot_map,
            mono=clock.mono,
            lines=lines,
        )
        self.sweep = ReferenceSweep(
            rows,
            ownership,
            knows=partial(self.server.known_anywhere, self._peer_requests),
            mono=clock.mono,
            lost_after_s=settings.refs_lost_after_s,
        )

    async def start(self) -> None:
        """Returns when the slot map is read and this server holds its lease."""
        await self.replication_driver.start()
        self._tasks.spawn("references of older queues", self._writing.run())
        self._tasks.keep(
            "references", partial(self.sweep.run, self._sweep_interval_s, self._peer_requests.close)
        )

    def stop(self) -> None:
        self.server.close()
        self._peer_requests.close()
        self._peers.close()
        self.replication_driver.stop()

    def _slot_map(self) -> SlotMap:
        return self.replication_driver.slot_map
