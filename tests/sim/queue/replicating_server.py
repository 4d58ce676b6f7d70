"""A storage server of the replication world: its disk survives a kill, its `Replication` does not.

It performs the effects of `Replication`, commits in groups, and hands every commit over before it
answers.
"""

from collections import Counter, deque
from collections.abc import Callable
from typing import TYPE_CHECKING

from waystation.queue.cluster.effects import (
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
from waystation.queue.cluster.migration import Cursor
from waystation.queue.cluster.replication import Replication
from waystation.queue.cluster.slot_lease import SlotLease
from waystation.queue.cluster.slot_map import NodeId, SlotMap
from waystation.queue.store import Row

if TYPE_CHECKING:
    from tests.sim.queue.replication_world import World

CHUNK_ROWS = 4
TICK_S = 0.25
RENEW_S = 3.0
Call = Callable[[], None]
Rows = dict[tuple[int, bytes], bytes]


class Server:
    """One storage server: a disk that survives a kill, and a `Replication` that does not."""

    def __init__(self, world: "World", node_id: NodeId) -> None:
        self.world = world
        self.node_id = node_id
        self.disk: dict[int, Rows] = {}
        self.alive = False
        self.life = 0
        self.replication: Replication | None = None
        self._writes: deque[tuple[Callable[[], list[Row]], int, Callable[[], None]]] = deque()
        self._writing = False
        self.running: Counter[int] = Counter()
        self._freezing: set[int] = set()
        self._answers: dict[int, tuple[int, Call]] = {}  # ticket -> slot, answer
        self._last_changes: list[Row] = []

    # Life

    def start(self) -> None:
        self.alive = True
        self.life += 1
        self._writes.clear()
        self._writing = False
        self.running.clear()
        self._freezing.clear()
        self._answers.clear()
        self.replication = None
        self.world.read_map(self._booted, self)

    def _booted(self, slot_map: SlotMap) -> None:
        chance = self.world.chance
        slot_lease = SlotLease(self.node_id, slot_map, fence_s=self.world.fence_s)
        self.replication = self.world.replication_class(
            slot_lease, new_copy_id=lambda: chance.getrandbits(63), sync=self.world.sync
        )
        self._perform(self.replication.started([*self.disk], self.world.now))
        self._renew()
        self._tick()

    def kill(self) -> None:
        self.alive = False
        self.replication = None
        self.world.say(f"node {self.node_id} is killed")

    def _later(self, delay: float, call: Call) -> None:
        life = self.life
        self.world.after(delay, lambda: call() if self.alive and self.life == life else None)

    def _renew(self) -> None:
        sent = self.world.now
        life = self.life

        def renewed(slot_map: SlotMap) -> None:
            if self.life == life and self.replication is not None:
                self.replication.slot_lease.renewed(sent)
                self._perform(self.replication.learned(slot_map, self.world.now))

        if not self.world.store_hidden_from(self):
            self.world.leases[self.node_id] = self.world.now
            self.world.read_map(renewed, self)
        self._later(RENEW_S, self._renew)

    def _tick(self) -> None:
        if self.replication is not None:
            self._perform(self.replication.tick(self.world.now))
        self._later(TICK_S, self._tick)

    # Commands

    def command(self, slot: int, change: Callable[[Rows], list[Row]], done: Call) -> bool:
        """False: not ours to answer."""
        replication = self.replication
        if not self.alive or replication is None or not self.world.may_serve(self, slot):
            return False
        self.running[slot] += 1

        def answer() -> None:
            self.running[slot] -= 1
            done()
            self._drained(slot)

        def written() -> None:
            ticket, effects = replication.committed(slot, self._last_changes, self.world.now)
            if ticket is None or self.world.answers_early:
                answer()
            else:
                self._answers[ticket] = (slot, answer)
            self._perform(effects)

        self._write(lambda: change(self.disk.setdefault(slot, {})), slot, written)
        return True

    def _drained(self, slot: int) -> None:
        if slot in self._freezing and not self.running[slot] and self.replication is not None:
            self._freezing.discard(slot)
            self._perform(self.replication.drained(slot))

    # The disk: one commit at a time, everything that waits in one of them

    def _write(self, change: Callable[[], list[Row]], slot: int, done: Call) -> None:
        self._writes.append((change, slot, done))
        if not self._writing:
            self._writing = True
            self._later(self.world.disk_s(), self._commit)

    def _commit(self) -> None:
        group, self._writes = self._writes, deque()
        outcomes: list[tuple[list[Row], Call]] = []
        for change, slot, done in group:
            changes = change()
            rows = self.disk.setdefault(slot, {})
            for one in changes:
                if one.value is None:
                    rows.pop((one.table, one.key), None)
                else:
                    rows[one.table, one.key] = one.value
            outcomes.append((changes, done))
        self._writing = False
        life = self.life
        for changes, done in outcomes:
            if self.life != life or not self.alive:
                return
            self._last_changes = changes
            done()
        if self._writes and not self._writing:
            self._writing = True
            self._later(self.world.disk_s(), self._commit)

    # Effects

    def _perform(self, effects: list[Effect]) -> None:
        todo = deque(effects)
        while todo and self.replication is not None:
            effect = todo.popleft()
            match effect:
                case ReadRows(copy, slot, after):
                    todo.extendleft(reversed(self.replication.rows(copy, self._chunk(slot, after))))
                case SendFrame(peer):
                    self.world.send(self, peer, lambda s, e=effect: s.take_frame(self, e))
                case SendAck(peer):
                    self.world.send(self, peer, lambda s, e=effect: s.take_ack(self, e))
                case Apply():
                    self._apply(effect)
                case Freeze(slot):
                    self._freezing.add(slot)
                    self._later(0.0, lambda s=slot: self._drained(s))
                case Propose(slot_map):
                    self.world.commit_map(slot_map, self._proposed, self)
                case Refresh():
                    self.world.read_map(self._learned, self)
                case Release(tickets):
                    for ticket in tickets:
                        if found := self._answers.pop(ticket, None):
                            found[1]()
                case Refuse(tickets):
                    for ticket in tickets:
                        if found := self._answers.pop(ticket, None):
                            self.running[found[0]] -= 1
                case Erase(slot):
                    self.disk.pop(slot, None)

    def _chunk(self, slot: int, after: Cursor | None) -> list[Row]:
        rows = sorted(self.disk.get(slot, {}).items())
        if after is not None:
            rows = [row for row in rows if row[0] > (after.table, after.key)]
        return [Row(table, key, value) for (table, key), value in rows[:CHUNK_ROWS]]

    def _apply(self, effect: Apply) -> None:
        def change() -> list[Row]:
            if effect.erase:
                self.disk[effect.slot] = {}
            return list(effect.changes)

        def applied() -> None:
            if self.replication is not None:
                self._perform(self.replication.applied(effect.slot, effect.copy, effect.seq))

        self._write(change, effect.slot, applied)
        if self.world.applies_early:
            applied()

    def _learned(self, slot_map: SlotMap) -> None:
        if self.replication is not None:
            self._perform(self.replication.learned(slot_map, self.world.now))

    def _proposed(self, slot_map: SlotMap) -> None:
        if self.replication is not None:
            self._perform(self.replication.proposed(slot_map, self.world.now))

    # From other servers

    def take_frame(self, peer: "Server", sent: SendFrame) -> None:
        if self.replication is not None:
            arrived = (sent.copy, sent.slot, sent.move, sent.frame)
            self._perform(self.replication.frame(peer.node_id, *arrived))

    def take_ack(self, peer: "Server", sent: SendAck) -> None:
        if self.replication is not None:
            self._perform(
                self.replication.acked(peer.node_id, sent.copy, sent.seq, broken=sent.broken)
            )

    def link_lost(self, peer: NodeId) -> None:
        if self.replication is not None:
            self._perform(self.replication.link_lost(peer, self.world.now))
