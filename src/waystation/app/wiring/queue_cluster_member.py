"""Runs a queue server as member of a cluster: opens the slot map store and the link port.

A data directory with a membership makes the queue role a storage server. Clients reach it through
edges only, so the client port stays closed. It answers no command before it has read the slot map
and holds its lease.
"""

from pathlib import Path

from waystation.app.addresses import listen
from waystation.base.clock import Clock
from waystation.base.settings import SettingsError
from waystation.base.tasks import Tasks
from waystation.net.loop import NetLoop
from waystation.queue.cluster.cluster_store import ClusterStore
from waystation.queue.cluster.link_connection import Links
from waystation.queue.cluster.membership import Membership, link_context
from waystation.queue.server.reference_writing import Lines
from waystation.queue.settings import Queue as QueueSettings
from waystation.queue.store import QueueStore
from waystation.storage.embedded.queue import EmbeddedQueueStore
from waystation.storage.open import open_cluster_store
from waystation.storage.settings import Store

from .queue_cluster_links import QueueClusterLinks
from .queue_service import QueueService


class QueueClusterMember:
    """Created within a running loop; started before the queue service."""

    def __init__(
        self,
        membership: Membership,
        *,
        part: QueueService,
        cluster_store: ClusterStore,
        tasks: Tasks,
        clock: Clock,
        lines: Lines,
        net: NetLoop,
    ) -> None:
        self._membership = membership
        self._cluster_store = cluster_store
        self._links = links = Links(net)
        self._end = QueueClusterLinks(
            membership.member.node_id,
            part.cores,
            rows=rows_of(part.store),
            maps=cluster_store,
            links=links,
            context=link_context(membership, server_side=False),
            handshake=part.handshake,
            tasks=tasks,
            clock=clock,
            lines=lines,
        )
        part.only = self._end.ownership.serves

    async def start(self, host: str, settings: QueueSettings) -> None:
        await self._end.start()
        self._links.listen(
            listen(host, settings.link_port, "queue.link_port"),
            self._end.server,
            link_context(self._membership, server_side=True),
        )

    async def drain(self) -> None:
        self._links.stop_accepting()
        self._end.server.close()

    async def stop(self) -> None:
        await self.drain()
        self._end.stop()
        await self._cluster_store.close()


async def open_cluster_member(
    membership: Membership,
    *,
    part: QueueService,
    data_dir: Path,
    settings: Store,
    tasks: Tasks,
    clock: Clock,
    lines: Lines,
    net: NetLoop,
) -> QueueClusterMember:
    url = membership.member.store_url
    cluster_store = await open_cluster_store(url, data_dir=data_dir, settings=settings)
    return QueueClusterMember(
        membership,
        part=part,
        cluster_store=cluster_store,
        tasks=tasks,
        clock=clock,
        lines=lines,
        net=net,
    )


def rows_of(store: QueueStore) -> EmbeddedQueueStore:
    """The embedded store: slots move between servers as its rows. Raises for other stores."""
    if not isinstance(store, EmbeddedQueueStore):
        raise SettingsError(
            ["queue.store: a storage server of a cluster keeps its queues in the embedded store"]
        )
    return store
