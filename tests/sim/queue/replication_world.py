"""A queue cluster in one thread, from one seed, with all the bad luck there is.

Servers die, links break, the store forgets to answer, slots move and followers take over. What
runs is the cluster's own core (`Replication`, `SlotLease`, `Controller`); what is simulated is the
shell around it: disks with group commit, links, the store of the map, clients. The checkers know
what every client was told:

1. no slot is ever served by two servers at a time;
2. every message whose sender was told `OK` is delivered, in the order of the answers;
3. a message whose ACK was answered is never delivered again;
4. when the bad luck ends, every slot is served and nothing is left under way.

With `sync = False` no answer waits for a follower. Then 2 and 3 forgive what was answered in the
last moments of a server that a follower replaced, and count it.
"""

import heapq
import random
from collections import Counter
from collections.abc import Callable

from tests.sim.queue.replicating_server import Call, Rows, Server
from waystation.queue.cluster.controller import Controller, Terms
from waystation.queue.cluster.copies import CONFIRM_MAX_S
from waystation.queue.cluster.replication import Replication
from waystation.queue.cluster.slot_lease import FENCE_S
from waystation.queue.cluster.slot_map import Move, Node, NodeId, SlotMap
from waystation.queue.model import slot_letters
from waystation.queue.store import Row

QUEUES_OF_A_SLOT = 2
SLEEP_MAX_S = 4.0  # of a controller


class WorldError(AssertionError):
    """A checker's complaint, with the seed."""


class Queue:
    """What its sender and its recipient know."""

    def __init__(self, name: str, slot: int) -> None:
        self.name = name
        self.slot = slot
        self.sent = 0
        self.accepted: dict[int, float] = {}  # bodies whose OK arrived, in that order, and when
        self.delivered: list[int] = []  # as first seen
        self.acked: dict[int, float] = {}  # bodies whose ACK was answered, and when


class World:
    """Everything, and the clock."""

    replication_class: type[Replication] = Replication
    answers_early = False  # planted: a follower is not waited for
    applies_early = False  # planted: confirmed before it is on disk
    fence_s = FENCE_S  # planted: longer than it takes to be replaced
    sync = True

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.chance = random.Random(seed)
        self.now = 0.0
        self._calls: list[tuple[float, int, Call]] = []
        self._count = 0
        self.calm = False
        self.history: list[str] = []
        chance = self.chance
        ids = [NodeId(number) for number in range(1, chance.choice((4, 5)))]
        self.servers = {node_id: Server(self, node_id) for node_id in ids}
        self.slots = chance.sample(range(4096), chance.randint(2, 5))
        self.queues = [
            Queue(f"{slot_letters(slot)}{number}", slot)
            for slot in self.slots
            for number in range(QUEUES_OF_A_SLOT)
        ]
        self.leases: dict[NodeId, float] = {}
        self.hidden: dict[NodeId, float] = {}  # servers that do not reach the store, until when
        self._epochs: dict[tuple[NodeId, NodeId], int] = Counter()  # of links: breaks so far
        self._arrival: dict[tuple[NodeId, NodeId], float] = {}
        self._unnoticed: set[tuple[NodeId, int, NodeId]] = set()  # broken links: whose end, of whom
        self._map = self._first_map()
        self._terms = Terms(replicas=chance.choice((0, 1, 1)), follower_patience_s=20.0)
        self.promotions = self.moves = self.forgiven = 0
        self._replaced: dict[int, list[float]] = {}  # when a slot went to its follower

    def _first_map(self) -> SlotMap:
        slot_map = SlotMap()
        for node_id in self.servers:
            slot_map = slot_map.with_node(
                Node(node_id=node_id, host=f"n{node_id}", port=5225, fingerprint=bytes(32))
            )
        for slot in self.slots:
            slot_map = slot_map.claimed([slot], self.chance.choice([*self.servers]))
        return slot_map

    # Time

    def after(self, delay: float, call: Call) -> None:
        self._count += 1
        heapq.heappush(self._calls, (self.now + delay, self._count, call))

    def say(self, line: str) -> None:
        self.history.append(f"{self.now:9.3f} {line}")

    def live(self, troubled_s: float = 40.0, calm_s: float = 45.0) -> None:
        for server in self.servers.values():
            server.start()
        for number in range(self.chance.choice((1, 2))):
            self.after(number * 0.1, self._control(Controller(self._terms)))
        for queue in self.queues:
            self.after(self.chance.random(), lambda q=queue: self._send(q))
            self.after(self.chance.random(), lambda q=queue: self._receive(q))
        self.after(self.chance.uniform(0.5, 2), self._misfortune)
        self._run(troubled_s)
        self.calm = True
        self.hidden.clear()
        for server in self.servers.values():
            if not server.alive:
                server.start()
        self._run(troubled_s + calm_s)
        self._check_end()

    def _run(self, until: float) -> None:
        while self._calls and self._calls[0][0] <= until:
            self.now, _, call = heapq.heappop(self._calls)
            call()
        self.now = until

    # Misfortune

    def _misfortune(self) -> None:
        if self.calm:
            return
        chance = self.chance
        alive = [server for server in self.servers.values() if server.alive]
        match chance.choices(("kill", "hide", "cut", "move", "drain"), (4, 2, 4, 6, 1))[0]:
            case "kill" if len(alive) > 1:
                victim = chance.choice(alive)
                victim.kill()
                for other in self.servers.values():
                    self._cut(victim.node_id, other.node_id)
                self.after(chance.choice((0.2, 2.0, 14.0)), lambda: self._revive(victim))
            case "hide":
                # Whoever is about to take a slot has most to miss.
                taking = [one.target for _, one in self._map.moving()]
                victim = chance.choice(taking or [*self.servers])
                self.hidden[victim] = self.now + chance.choice((1.0, 5.0, 18.0))
                self.say(f"node {victim} does not reach the store")
            case "cut":
                self._cut(*chance.sample([*self.servers], 2))
            case "drain":
                self._plan([(slot, chance.choice([*self.servers])) for slot in self.slots])
            case _:
                self._plan([(chance.choice(self.slots), chance.choice([*self.servers]))])
        self.after(chance.expovariate(0.8), self._misfortune)

    def _revive(self, server: Server) -> None:
        if not server.alive:
            self.say(f"node {server.node_id} is back")
            server.start()

    def _plan(self, wanted: list[tuple[int, NodeId]]) -> None:
        before = self._map
        moves = {slot: Move(slot, target) for slot, target in wanted}
        self._map = before.planning(moves.values())

    def _cut(self, one: NodeId, other: NodeId) -> None:
        if one == other:
            return
        for pair in ((one, other), (other, one)):
            self._epochs[pair] += 1
        for left, right in ((one, other), (other, one)):
            lost = (left, self.servers[left].life, right)
            self._unnoticed.add(lost)
            self.after(self.chance.uniform(0.0, 0.3), lambda end=lost: self._notice(end))

    def _notice(self, lost: tuple[NodeId, int, NodeId]) -> None:
        if lost in self._unnoticed:
            self._unnoticed.discard(lost)
            server = self.servers[lost[0]]
            if server.life == lost[1]:
                server.link_lost(lost[2])

    def disk_s(self) -> float:
        """How long a commit takes: mostly a moment, at times long enough to be overtaken."""
        slow = not self.calm and self.chance.random() < 0.05
        return self.chance.uniform(0.1, 0.5) if slow else self.chance.uniform(0.001, 0.02)

    # Links

    def send(self, sender: Server, to: NodeId, deliver: Callable[[Server], None]) -> None:
        pair = (sender.node_id, to)
        epoch, life = self._epochs[pair], self.servers[to].life
        at = max(self._arrival.get(pair, 0.0), self.now + self.chance.uniform(0.0005, 0.01))
        self._arrival[pair] = at

        def arrive() -> None:
            receiver = self.servers[to]
            if self._epochs[pair] == epoch and receiver.alive and receiver.life == life:
                # What comes over a new link comes after the end of the old one.
                self._notice((to, life, sender.node_id))
                deliver(receiver)

        self.after(at - self.now, arrive)

    # The store of the map

    def store_hidden_from(self, server: Server) -> bool:
        return self.now < self.hidden.get(server.node_id, 0.0)

    def read_map(self, then: Callable[[SlotMap], None], server: Server) -> None:
        life = server.life

        def answer() -> None:
            if not server.alive or server.life != life:
                return
            if self.store_hidden_from(server):
                self.after(0.2, answer)
            else:
                then(self._map)

        self.after(self.chance.uniform(0.001, 0.01), answer)

    def commit_map(
        self, proposal: SlotMap, then: Callable[[SlotMap], None], server: Server
    ) -> None:
        """The answer may be lost; who asked reads the map then."""

        def arrive() -> None:
            if not self.store_hidden_from(server):
                self._commit(proposal)

        self.after(self.chance.uniform(0.001, 0.02), arrive)
        delay = 0.03 if self.chance.random() < 0.9 else 0.5
        self.after(delay, lambda: self.read_map(then, server))

    def _commit(self, proposal: SlotMap) -> None:
        if proposal.epoch != self._map.epoch + 1:
            return
        for slot in self.slots:
            was, now = self._map.slots[slot], proposal.slots[slot]
            if was != now:
                self.say(f"epoch {proposal.epoch}: slot {slot_letters(slot)} {was} → {now}")
                self.moves += was.state == "F" and now.owner != was.owner
                if was.state != "F" and now.owner != was.owner:
                    self.promotions += 1
                    self._replaced.setdefault(slot, []).append(self.now)
        self._map = proposal

    def _control(self, controller: Controller) -> Call:
        def look() -> None:
            ages = {node_id: self.now - at for node_id, at in self.leases.items()}
            proposal = controller.decide(self._map, ages, self.now)
            if proposal is not None:
                delay = self.chance.uniform(0.0, 0.05)
                self.after(delay, lambda: self._commit(proposal.slot_map))
            pause = 0.5 if self.calm or self.chance.random() < 0.9 else SLEEP_MAX_S
            self.after(pause, look)

        return look

    # Clients

    def may_serve(self, server: Server, slot: int) -> bool:
        replication = server.replication
        return replication is not None and replication.slot_lease.serves(slot, self.now)

    def _server_of(self, slot: int) -> Server | None:
        """Whoever says that it serves it; two of them is what must not be."""
        alive = (server for server in self.servers.values() if server.alive)
        serving = [server for server in alive if self.may_serve(server, slot)]
        if len(serving) > 1:
            names = " and ".join(str(server.node_id) for server in serving)
            self._complain(f"slot {slot_letters(slot)} is served by nodes {names}")
        return serving[0] if serving else None

    def _send(self, queue: Queue) -> None:
        if self.calm and self.now > 55.0:
            return
        queue.sent += 1
        body = queue.sent
        name = queue.name.encode()

        def append(rows: Rows) -> list[Row]:
            last = int(rows.get((0, name), b"0"))
            number = f"{last + 1}".encode()
            key = name + b"/" + number.rjust(8, b"0")
            return [Row(0, name, number), Row(1, key, f"{body}".encode())]

        answered = False

        def accepted() -> None:
            nonlocal answered
            answered = True
            queue.accepted[body] = self.now
            self.after(self.chance.expovariate(4.0), lambda: self._send(queue))

        server = self._server_of(queue.slot)
        if server is None or not server.command(queue.slot, append, accepted):
            self.after(0.2, lambda: self._send(queue))
            return

        def give_up() -> None:
            if not answered:
                self._send(queue)

        # Bodies go up by one with each try, so what was not answered is told from what was.
        self.after(4.0, give_up)

    def _receive(self, queue: Queue) -> None:
        server = self._server_of(queue.slot)
        self.after(self.chance.expovariate(6.0), lambda: self._receive(queue))
        if server is None:
            return
        waiting = self._waiting(queue)
        if not waiting:
            return
        key, value = waiting[0]
        body = int(value)
        if body in queue.acked and not self._forgives(queue, queue.acked[body]):
            self._complain(f"queue {queue.name}: message {body} came again after its ACK")
        if body not in queue.delivered:
            queue.delivered.append(body)

        def acked() -> None:
            queue.acked[body] = self.now

        server.command(queue.slot, lambda rows: [Row(1, key, None)], acked)

    def _forgives(self, queue: Queue, at: float) -> bool:
        """Whether what was answered then may be lost: its server was counted out of the cluster
        soon after, as late as a controller that is asleep finds out."""
        span_s = CONFIRM_MAX_S + self._terms.lease_s + SLEEP_MAX_S
        lost = not self.sync and any(
            0.0 <= then - at <= span_s for then in self._replaced.get(queue.slot, ())
        )
        self.forgiven += lost
        return lost

    def _waiting(self, queue: Queue) -> list[tuple[bytes, bytes]]:
        """What lies where the queue is served, in order."""
        server = self._server_of(queue.slot)
        if server is None:
            return []
        name = queue.name.encode() + b"/"
        return sorted(
            (key, value)
            for (table, key), value in server.disk.get(queue.slot, {}).items()
            if table == 1 and key.startswith(name)
        )

    # The end

    def _check_end(self) -> None:
        for slot in self.slots:
            one = self._map.slots[slot]
            if one.state != "S":
                self._complain(f"slot {slot_letters(slot)} is still under way: {one}")
            if self._server_of(slot) is None:
                self._complain(f"slot {slot_letters(slot)} is served by nobody: {one}")
        for queue in self.queues:
            left = [int(value) for _, value in self._waiting(queue)]
            known = [*queue.delivered, *(body for body in left if body not in queue.delivered)]
            missing = [body for body in queue.accepted if body not in known]
            lost = [one for one in missing if not self._forgives(queue, queue.accepted[one])]
            if lost:
                self._complain(f"queue {queue.name}: accepted and lost: {lost}")
            told = set(queue.accepted)
            order = [body for body in known if body in told]
            if order != sorted(order):
                self._complain(f"queue {queue.name}: out of order: {order}")

    def _complain(self, what: str) -> None:
        tail = "\n".join(self.history[-40:])
        raise WorldError(f"seed {self.seed}: {what}\n{tail}")
