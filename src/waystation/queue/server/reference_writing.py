"""Writes the references of queues that are older than the cluster their server is in.

On a single server every id leads to its queue. In a cluster an id that does not begin with its
queue's slot (a client chose it) needs a reference, which is written with the queue. Queues from
before have none, and their addresses would be lost after the first move.

Rule 1: one slot after the other. The slot map has the number of slots left (`references_left`), so
        work continues after a restart, and operators can watch it.
Rule 2: the map lets no slot leave this server before all are written, so every reference is here.
        Each page is one store transaction, which keeps it apart from commands of clients.
"""

import asyncio
from collections.abc import Callable
from typing import Final, Protocol

import msgspec

from waystation.base.errors import UnavailableError
from waystation.queue.cluster.cluster_store import ClusterStore
from waystation.queue.cluster.slot_map import NodeId, SlotMap
from waystation.queue.model import SLOTS, RecipientId, Slot
from waystation.queue.store import RefStore, SlotRows

PAGE: Final = 500  # queues in one transaction
REPORT_S: Final = 2.0  # interval of commits of the progress
AGAIN_S: Final = 0.5


class Lines(Protocol):
    """The log for operators."""

    def info(self, event: str, /, **fields: object) -> object: ...

    def warning(self, event: str, /, **fields: object) -> object: ...


class ReferenceWriting:
    def __init__(
        self,
        node_id: NodeId,
        *,
        refs: RefStore,
        rows: SlotRows,
        maps: ClusterStore,
        known: Callable[[], SlotMap],
        mono: Callable[[], float],
        lines: Lines,
    ) -> None:
        self._node_id = node_id
        self._refs = refs
        self._rows = rows
        self._maps = maps
        self._known = known
        self._mono = mono
        self._lines = lines
        self.written = 0  # since this start

    async def run(self) -> None:
        """Returns when all references are written."""
        reported = ""
        while True:
            try:
                await self._write_all()
                return
            except UnavailableError as exc:  # written pages stay; the map has the progress
                reason = str(exc) or exc.label
                if reason != reported:
                    self._lines.warning("cluster.references_wait", reason=reason)
                    reported = reason
                await asyncio.sleep(AGAIN_S)

    async def _write_all(self) -> None:
        left = self._left()
        if not left:
            return
        held, reported_at = set(await self._rows.held_slots()), self._mono()
        while left:
            slot = Slot(SLOTS - left)
            if slot in held:
                await self._write(slot)
            left -= 1
            if not left or self._mono() - reported_at >= REPORT_S:
                await self._report(left)
                reported_at = self._mono()

    def _left(self) -> int:
        """By this server's map; an older map repeats some slots."""
        node = self._known().nodes.get(self._node_id)
        return 0 if node is None else node.references_left

    async def _write(self, slot: Slot) -> None:
        after: RecipientId | None = None
        while True:
            page = await self._refs.write_refs(slot, after=after, limit=PAGE)
            self.written += page.written
            after = page.after
            if after is None:
                return

    async def _report(self, left: int) -> None:
        while True:
            slot_map = await self._maps.read()
            node = slot_map.nodes.get(self._node_id)
            if node is None:
                return
            reported = msgspec.structs.replace(node, references_left=left)
            if await self._maps.commit(slot_map.with_node(reported)):
                break
        self._lines.info(
            "cluster.references", slots_done=SLOTS - left, slots=SLOTS, written=self.written
        )
