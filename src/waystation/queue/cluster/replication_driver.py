"""The driver of replication: performs the effects of `Replication`.

Rule 1: a command runs between `begin` and `end`. While a slot is being frozen, none begins and
        running ones are waited for, including those that wait for a follower.
Rule 2: rows are read without an await, so later commits are passed on later.
Rule 3: rows from other servers are applied in order, one slot after the other, and confirmed when
        they are on disk.
Rule 4: after a proposal the map is read, whatever the store answered: a lost answer must not leave
        this server with a map that no other has.
"""

import asyncio
import contextlib
import random
from collections import Counter, deque
from collections.abc import Awaitable, Sequence
from typing import Any, Protocol

from waystation.base.clock import Clock
from waystation.base.errors import UnavailableError
from waystation.base.tasks import Tasks
from waystation.queue.errors import QueueStoreUnavailableError
from waystation.queue.model import Slot
from waystation.queue.store import Row, SlotRows

from .cluster_store import ClusterStore
from .effects import (
    Apply,
    Effect,
    Erase,
    Freeze,
    Propose,
    ReadRows,
    Refresh,
    Refuse,
    Release,
    SendAck,
    SendFrame,
)
from .migration import Frame
from .replication import Replication
from .slot_lease import SlotLease
from .slot_map import NodeId, SlotMap

CHUNK_BYTES = 256 * 1024
APPLY_MAX = 256  # frames in one commit
TICK_S = 0.1
RENEW_S = 3.0
POLL_S = 0.25  # interval of reading the map if no other server reports a newer one
AGAIN_S = 0.2


class PeerLinks(Protocol):
    """Links to the other storage servers; what cannot be sent is reported by `link_lost`."""

    def send(self, peer: NodeId, message: SendFrame | SendAck) -> None: ...


class ReplicationDriver:
    def __init__(
        self,
        node_id: NodeId,
        *,
        store: ClusterStore,
        rows: SlotRows,
        links: PeerLinks,
        clock: Clock,
        tasks: Tasks,
        rng: random.Random | None = None,
        sync: bool = True,
    ) -> None:
        self._node_id = node_id
        self._store = store
        self._rows = rows
        self._links = links
        self._clock = clock
        self._tasks = tasks
        self._rng = rng or random.SystemRandom()
        self._sync = sync
        self._running: Counter[int] = Counter()
        self._freezing: set[int] = set()
        self._answers: dict[int, asyncio.Future[None]] = {}
        self._applies: deque[Apply | Erase] = deque()
        self._applies_wait = asyncio.Event()
        self._refreshing = False
        self._replication: Replication | None = None
        self.on_map: list[Any] = []  # called with every newer map

    # Life

    async def start(self) -> None:
        """Returns when the map is known and the lease is ours."""
        sent = self._clock.mono()
        await self._store.renew(self._node_id)
        slot_map = await self._store.read()
        slot_lease = SlotLease(self._node_id, slot_map)
        slot_lease.renewed(sent)
        self._replication = replication = Replication(
            slot_lease, new_copy_id=lambda: self._rng.getrandbits(63), sync=self._sync
        )
        self._rows.tap(self._tapped)
        self._perform(replication.started(await self._rows.held_slots(), self._clock.mono()))
        for name, duty in (
            ("cluster lease", self._renewing),
            ("cluster watch", self._watching),
            ("cluster tick", self._ticking),
            ("cluster copies", self._applying),
        ):
            self._tasks.keep(name, duty)

    def stop(self) -> None:
        self._rows.tap(None)
        for future in self._answers.values():
            if not future.done():
                future.set_exception(QueueStoreUnavailableError("this server stops"))
        self._answers.clear()

    @property
    def replication(self) -> Replication:
        assert self._replication is not None, "not started"
        return self._replication

    @property
    def slot_map(self) -> SlotMap:
        return self.replication.slot_lease.slot_map

    # Commands

    def serves(self, slot: int) -> bool:
        return self.replication.slot_lease.serves(slot, self._clock.mono())

    def frozen(self, slot: int) -> bool:
        return self.replication.slot_lease.frozen(slot)

    def begin(self, slot: int) -> bool:
        """Whether a command for this slot may run; if so, `end` must follow."""
        if not self.serves(slot):
            return False
        self._running[slot] += 1
        return True

    def end(self, slot: int) -> None:
        self._running[slot] -= 1
        if not self._running[slot]:
            del self._running[slot]
            if slot in self._freezing:
                self._freezing.discard(slot)
                self._perform(self.replication.drained(slot))

    def _tapped(self, slot: Slot, rows: Sequence[Row]) -> Awaitable[None] | None:
        ticket, effects = self.replication.committed(slot, rows, self._clock.mono())
        answer = None
        if ticket is not None:
            answer = asyncio.get_running_loop().create_future()
            self._answers[ticket] = answer
        self._perform(effects)
        return answer

    # From other servers, and from edges that know a newer map

    def frame_arrived(self, peer: NodeId, copy: int, slot: int, move: int, frame: Frame) -> None:
        self._perform(self.replication.frame(peer, copy, slot, move, frame))

    def ack_arrived(self, peer: NodeId, copy: int, seq: int, broken: bool) -> None:
        self._perform(self.replication.acked(peer, copy, seq, broken=broken))

    def link_lost(self, peer: NodeId) -> None:
        self._perform(self.replication.link_lost(peer, self._clock.mono()))

    def saw_epoch(self, epoch: int) -> None:
        if epoch > self.slot_map.epoch:
            self._refresh()

    # Effects

    def _perform(self, effects: list[Effect]) -> None:
        todo = list(reversed(effects))
        while todo:
            effect = todo.pop()
            match effect:
                case ReadRows(copy, slot, after):
                    behind = None if after is None else (after.table, after.key)
                    chunk = _at_once(
                        self._rows.read_rows(Slot(slot), after=behind, limit_bytes=CHUNK_BYTES)
                    )
                    todo.extend(reversed(self.replication.rows(copy, chunk)))
                case SendFrame(peer) | SendAck(peer):
                    self._links.send(peer, effect)
                case Apply() | Erase():
                    self._applies.append(effect)
                    self._applies_wait.set()
                case Freeze(slot):
                    self._freezing.add(slot)
                    self._running[slot] += 1  # so that `end` checks, also if nothing runs
                    asyncio.get_running_loop().call_soon(self.end, slot)
                case Propose(slot_map):
                    self._tasks.spawn("cluster proposal", self._propose(slot_map))
                case Refresh():
                    self._refresh()
                case Release(tickets):
                    for ticket in tickets:
                        self._answer(ticket, None)
                case Refuse(tickets):
                    for ticket in tickets:
                        self._answer(ticket, QueueStoreUnavailableError("the slot went elsewhere"))

    def _answer(self, ticket: int, error: Exception | None) -> None:
        future = self._answers.pop(ticket, None)
        if future is None or future.done():
            return
        if error is None:
            future.set_result(None)
        else:
            future.set_exception(error)

    async def _applying(self) -> None:
        while True:
            await self._applies_wait.wait()
            first = self._applies.popleft()
            if not self._applies:
                self._applies_wait.clear()
            if isinstance(first, Erase):
                with contextlib.suppress(UnavailableError):  # done again at the next start
                    await self._rows.erase_slot(Slot(first.slot))
                continue
            frames = [first]
            # One commit for all waiting frames: the source shares its commits among many senders,
            # so one commit per frame would never catch up.
            while self._applies and len(frames) < APPLY_MAX:
                following = self._applies[0]
                if not isinstance(following, Apply) or following.copy != first.copy:
                    break
                frames.append(following)
                self._applies.popleft()
            if not self._applies:
                self._applies_wait.clear()
            if not self.replication.awaits(first.slot, first.copy):
                continue
            rows = [row for frame in frames for row in frame.changes]
            try:
                await self._rows.apply_rows(Slot(first.slot), rows, erase=first.erase)
            except UnavailableError:
                self._perform(self.replication.not_applied(first.slot, first.copy))
                continue
            self._perform(self.replication.applied(first.slot, first.copy, frames[-1].seq))

    # The store of the map

    async def _propose(self, slot_map: SlotMap) -> None:
        with contextlib.suppress(UnavailableError):
            await self._store.commit(slot_map)
        while True:
            try:
                in_force = await self._store.read()
                break
            except UnavailableError:
                await asyncio.sleep(AGAIN_S)
        self._learn(in_force, proposed=True)

    def _refresh(self) -> None:
        if not self._refreshing:
            self._refreshing = True
            self._tasks.spawn("cluster map", self._refreshed())

    async def _refreshed(self) -> None:
        try:
            self._learn(await self._store.read())
        except UnavailableError:
            pass  # the peer with the newer map reports it again
        finally:
            self._refreshing = False

    def _learn(self, slot_map: SlotMap, *, proposed: bool = False) -> None:
        replication, mono = self.replication, self._clock.mono()
        newer = slot_map.epoch > self.slot_map.epoch
        step = replication.proposed if proposed else replication.learned
        self._perform(step(slot_map, mono))
        if newer:
            for callback in self.on_map:
                callback(slot_map)

    async def _renewing(self) -> None:
        while True:
            await asyncio.sleep(RENEW_S)
            sent = self._clock.mono()
            try:
                await self._store.renew(self._node_id)
                self.replication.slot_lease.renewed(sent)
            except UnavailableError:
                continue  # without a renewal `SlotLease` stops serving in time

    async def _watching(self) -> None:
        while True:
            await asyncio.sleep(POLL_S)
            try:
                self.saw_epoch(await self._store.epoch())
            except UnavailableError:
                continue

    async def _ticking(self) -> None:
        while True:
            await asyncio.sleep(TICK_S)
            self._perform(self.replication.tick(self._clock.mono()))


def _at_once(reading: Any) -> Sequence[Row]:
    """The result of a coroutine that never waits (rule 2)."""
    try:
        reading.send(None)
    except StopIteration as done:
        return done.value
    reading.close()
    raise AssertionError("rows of a slot are read without waiting")
