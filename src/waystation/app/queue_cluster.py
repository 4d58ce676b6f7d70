"""A queue server as one of many: its part in the cluster, and the links that lead to it.

Rule 1: a data directory with a membership makes a storage server of the cluster: clients come
        through edges only, so the port for clients stays closed.
Rule 2: nothing is answered before the map is known and the lease is ours.
"""

import asyncio
from functools import partial
from pathlib import Path

from waystation.base.clock import Clock
from waystation.base.settings import SettingsError
from waystation.base.tasks import Tasks
from waystation.queue.cluster.asking import Asking
from waystation.queue.cluster.cluster_store import ClusterStore
from waystation.queue.cluster.keeping import Keeping
from waystation.queue.cluster.membership import Membership, link_context
from waystation.queue.cluster.peers import Peers
from waystation.queue.server.drafts import Drafts
from waystation.queue.server.driver import Driver, NoForwarder
from waystation.queue.server.link_server import KeptOwnership, LinkServer
from waystation.queue.server.ownership import OwnedDispatch
from waystation.queue.server.reference_sweep import ReferenceSweep
from waystation.queue.settings import Queue as QueueSettings
from waystation.queue.store import QueueStore
from waystation.storage.embedded.queue import EmbeddedQueueStore
from waystation.storage.open_cluster import open_cluster_store
from waystation.storage.settings import Store

from .addresses import listen
from .queue_part import QueuePart


class ClusterPart:
    """Made within a running loop; `start` before the queues' own."""

    def __init__(
        self,
        membership: Membership,
        *,
        part: QueuePart,
        cluster_store: ClusterStore,
        tasks: Tasks,
        clock: Clock,
    ) -> None:
        self._membership = membership
        self._part = part
        self._cluster_store = cluster_store
        self._server: asyncio.Server | None = None
        store = rows_of(part.store)
        self._peers = Peers(
            context=link_context(membership, server_side=False),
            slot_map=lambda: self.keeping.slot_map,
            tasks=tasks,
        )
        self.keeping = Keeping(
            membership.member.node_id,
            store=cluster_store,
            rows=store,
            links=self._peers,
            clock=clock,
            tasks=tasks,
            sync=part.settings.followers == "sync",
        )
        self._peers.receiver = self.keeping
        ownership = KeptOwnership(self.keeping, clock)
        part.only = ownership.serves
        settings = part.settings
        driver = Driver(
            dispatch=OwnedDispatch(part.dispatch, ownership, store),
            delivery=part.delivery,
            subscribers=part.subscribers,
            checks=part.checks,
            forwarder=NoForwarder(),  # edges pass commands on themselves
            handshake=part.handshake,
            settings=settings,
            tasks=tasks,
            clock=clock,
        )
        drafts = Drafts(
            store=store,
            grants=store,
            dispatch=part.dispatch,
            subscribers=part.subscribers,
            ownership=ownership,
            mono=clock.mono,
            hybrid=settings.id_mode == "hybrid",
        )
        self._asking = Asking(
            context=link_context(membership, server_side=False),
            slot_map=lambda: self.keeping.slot_map,
        )
        self._tasks = tasks
        self._sweep_interval_s = settings.refs_sweep_interval_s
        self.links = LinkServer(
            store=store,
            refs=store,
            grants=store,
            driver=driver,
            delivery=part.delivery,
            subscribers=part.subscribers,
            drafts=drafts,
            moderation=part.moderation,
            keeping=self.keeping,
            ownership=ownership,
            peers=self._peers,
            settings=settings,
            tasks=tasks,
            clock=clock,
        )
        self.sweep = ReferenceSweep(
            store,
            ownership,
            knows=partial(self.links.known_anywhere, self._asking),
            mono=clock.mono,
            lost_after_s=settings.refs_lost_after_s,
        )

    async def start(self, host: str, settings: QueueSettings) -> None:
        await self.keeping.start()
        self._server = await asyncio.get_running_loop().create_server(
            self.links.line,
            sock=listen(host, settings.link_port, "queue.link_port"),
            ssl=link_context(self._membership, server_side=True),
        )

        self._tasks.spawn("references", self.sweep.run(self._sweep_interval_s, self._asking.close))

    async def drain(self) -> None:
        if self._server is not None:
            self._server.close()
        self.links.close()

    async def stop(self) -> None:
        await self.drain()
        self._asking.close()
        self._peers.close()
        self.keeping.stop()
        await self._cluster_store.close()


async def open_cluster_part(
    membership: Membership,
    *,
    part: QueuePart,
    data_dir: Path,
    settings: Store,
    tasks: Tasks,
    clock: Clock,
) -> ClusterPart:
    url = membership.member.store_url
    cluster_store = await open_cluster_store(url, data_dir=data_dir, settings=settings)
    return ClusterPart(membership, part=part, cluster_store=cluster_store, tasks=tasks, clock=clock)


def rows_of(store: QueueStore) -> EmbeddedQueueStore:
    """Slots travel as rows of the embedded store; a shared database has no need of that yet."""
    if not isinstance(store, EmbeddedQueueStore):
        raise SettingsError(
            ["queue.store: a storage server of a cluster keeps its queues in the embedded store"]
        )
    return store
