"""A storage server's end of the cluster put together: its slots, its peers, and edges' links.

Rule 1: clients come through edges only; edges pass commands on to other relays themselves.

What connects is handed over: a TLS context, a store of maps, and the handshake of clients.
"""

import random
import ssl
from collections.abc import Callable
from functools import partial

from waystation.base.clock import Clock
from waystation.base.tasks import Tasks
from waystation.queue.cluster.asking import Asking
from waystation.queue.cluster.cluster_store import ClusterStore
from waystation.queue.cluster.keeping import Keeping
from waystation.queue.cluster.peers import Peers
from waystation.queue.cluster.slot_map import NodeId, SlotMap
from waystation.queue.model import SessionId, VersionRange
from waystation.queue.server.drafts import Drafts
from waystation.queue.server.driver import Driver, NoForwarder
from waystation.queue.server.link_server import KeptOwnership, LinkServer
from waystation.queue.server.ownership import OwnedDispatch
from waystation.queue.server.reference_sweep import ReferenceSweep
from waystation.queue.wire.handshake import ServerHandshake
from waystation.storage.embedded.queue import EmbeddedQueueStore

from .queue_cores import QueueCores


class StorageEnd:
    """Made within a running loop; links are let in once `start` has returned."""

    def __init__(
        self,
        node_id: NodeId,
        cores: QueueCores,
        *,
        rows: EmbeddedQueueStore,
        maps: ClusterStore,
        context: ssl.SSLContext,
        handshake: Callable[[SessionId, VersionRange], ServerHandshake],
        tasks: Tasks,
        clock: Clock,
        rng: random.Random | None = None,
    ) -> None:
        settings = cores.settings
        self._tasks = tasks
        self._sweep_interval_s = settings.refs_sweep_interval_s
        self._peers = Peers(context=context, slot_map=self._slot_map, tasks=tasks)
        self.keeping = Keeping(
            node_id,
            store=maps,
            rows=rows,
            links=self._peers,
            clock=clock,
            tasks=tasks,
            rng=rng,
            sync=settings.followers == "sync",
        )
        self._peers.receiver = self.keeping
        self.ownership = ownership = KeptOwnership(self.keeping, clock)
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
        drafts = Drafts(
            store=rows,
            grants=rows,
            dispatch=cores.dispatch,
            subscribers=cores.subscribers,
            ownership=ownership,
            mono=clock.mono,
            hybrid=settings.id_mode == "hybrid",
        )
        self._asking = Asking(context=context, slot_map=self._slot_map)
        self.links = LinkServer(
            store=rows,
            refs=rows,
            grants=rows,
            driver=driver,
            delivery=cores.delivery,
            subscribers=cores.subscribers,
            drafts=drafts,
            moderation=cores.moderation,
            keeping=self.keeping,
            ownership=ownership,
            peers=self._peers,
            settings=settings,
            tasks=tasks,
            clock=clock,
        )
        self.sweep = ReferenceSweep(
            rows,
            ownership,
            knows=partial(self.links.known_anywhere, self._asking),
            mono=clock.mono,
            lost_after_s=settings.refs_lost_after_s,
        )

    async def start(self) -> None:
        """Returns when the map is known and the lease is ours."""
        await self.keeping.start()
        self._tasks.spawn("references", self.sweep.run(self._sweep_interval_s, self._asking.close))

    def stop(self) -> None:
        self.links.close()
        self._asking.close()
        self._peers.close()
        self.keeping.stop()

    def _slot_map(self) -> SlotMap:
        return self.keeping.slot_map
