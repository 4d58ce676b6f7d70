"""How a cluster of thousands of servers would fare: `python -m benchmarks.cluster_scale`.

What decides is real: the map, its controller, the plans, the encoding. What is simulated is time:
a store that takes commits one after the other, servers that read, propose, lose and read again.
Costs that are CPU are measured here and now; those of a network are given (`--commit-ms`,
`--read-ms`, `--copy-s`).

The story is always the same: a tenth more servers join a cluster whose slots are equally shared,
and `cluster add` gives them theirs. A slot is frozen from the moment its source stops serving it to
the commit that gives it to its target; that is what a client can feel.
"""

import argparse
import heapq
import random
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial

import msgspec

from waystation.queue.cluster.controller import Controller, Terms
from waystation.queue.cluster.controller_driver import BUSY_POLL_S
from waystation.queue.cluster.plan import equalised
from waystation.queue.cluster.replication_driver import POLL_S, RENEW_S
from waystation.queue.cluster.slot_map import (
    Assignment,
    Node,
    NodeId,
    SlotMap,
    decode_map,
    encode_map,
)

from .measurement import percentile

Change = Callable[[SlotMap, int], SlotMap]
LIMIT_S = 3600.0


class Costs(msgspec.Struct, frozen=True, kw_only=True):
    commit_s: float
    read_s: float  # with the decoding
    copy_s: float  # of a slot, while it is served
    map_bytes: int
    decode_s: float
    decide_s: float


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    servers: int
    joined: int
    moves: int
    commits: int
    lost: int  # proposals that came too late
    lasted_s: float
    freezes_s: list[float]


class World:
    def __init__(self, slot_map: SlotMap, terms: Terms, costs: Costs, seed: int) -> None:
        self.slot_map = slot_map
        self._costs = costs
        self._chance = random.Random(seed)
        self._controller = Controller(terms)
        self._ages = dict.fromkeys(slot_map.nodes, 0.0)
        self.now = 0.0
        self._calls: list[tuple[float, int, Callable[[], None]]] = []
        self._count = 0
        self._store_free_at = 0.0
        self.commits = self.lost = 0
        self._map_changes: dict[NodeId, dict[int, Change]] = {}
        self._busy: set[NodeId] = set()
        self._copying: set[tuple[int, int]] = set()
        self._frozen_at: dict[int, float] = {}
        self.freezes_s: list[float] = []

    def live(self) -> None:
        self._look()
        while self._calls and self.now < LIMIT_S:
            self.now, _, call = heapq.heappop(self._calls)
            call()
            if not self.slot_map.planned and not any(self.slot_map.moving()):
                return

    def _after(self, delay_s: float, call: Callable[[], None]) -> None:
        self._count += 1
        heapq.heappush(self._calls, (self.now + delay_s, self._count, call))

    def _commit(self, proposal: SlotMap, then: Callable[[bool], None]) -> None:
        """The store takes one after the other; what was made from an older map is refused."""
        self._store_free_at = max(self._store_free_at, self.now) + self._costs.commit_s

        def arrive() -> None:
            counts = proposal.epoch == self.slot_map.epoch + 1
            if counts:
                before, self.slot_map = self.slot_map, proposal
                self.commits += 1
                self._changed(before)
            else:
                self.lost += 1
            then(counts)

        self._after(self._store_free_at - self.now, arrive)

    def _look(self) -> None:
        """The controller."""
        seen = self.slot_map

        def decide() -> None:
            proposal = self._controller.decide(seen, self._ages, self.now)
            if proposal is not None:
                self._commit(proposal.slot_map, lambda _counts: None)
            self._after(BUSY_POLL_S, self._look)

        self._after(self._costs.read_s + self._costs.decide_s, decide)

    def _changed(self, before: SlotMap) -> None:
        for slot, one in self.slot_map.moving():
            key = (slot, one.move)
            if one.state == "P" and key not in self._copying:
                self._copying.add(key)
                spread = self._chance.uniform(0.5, 1.5)
                self._after(self._costs.copy_s * spread, lambda s=slot, o=one: self._copied(s, o))
            elif one.state == "F" and before.slots[slot].state == "P":
                # The last changes and their digest: an exchange on the link, and a commit there.
                self._after(
                    2 * self._costs.read_s,
                    lambda s=slot, o=one: self._wish(o.target, s, SlotMap.moved),
                )

    def _copied(self, slot: int, one: Assignment) -> None:
        self._frozen_at[slot] = self.now
        self._wish(one.owner, slot, SlotMap.frozen)

    def _wish(self, node_id: NodeId, slot: int, change: Change) -> None:
        self._map_changes.setdefault(node_id, {})[slot] = change
        self._pursue(node_id)

    def _pursue(self, node_id: NodeId) -> None:
        """One proposal at a time, with everything that is wanted then."""
        if node_id in self._busy or not self._map_changes.get(node_id):
            return
        self._busy.add(node_id)
        self._after(self._costs.read_s, lambda: self._propose(node_id))

    def _propose(self, node_id: NodeId) -> None:
        map_changes = dict(self._map_changes[node_id])
        after = before = self.slot_map
        for slot, change in map_changes.items():
            after = change(after, slot)

        def answered(counts: bool) -> None:
            self._busy.discard(node_id)
            if counts:
                for slot, change in map_changes.items():
                    del self._map_changes[node_id][slot]
                    if change is SlotMap.moved:
                        self.freezes_s.append(self.now - self._frozen_at.pop(slot))
            self._pursue(node_id)

        self._commit(after.as_one_change(before), answered)


def shared(servers: int, joined: int) -> SlotMap:
    """Equal shares for all but those who joined; a follower for each slot."""
    nodes = {
        NodeId(number): Node(
            node_id=NodeId(number),
            host=f"10.0.{number >> 8}.{number & 255}",
            port=5225,
            fingerprint=bytes(32),
        )
        for number in range(1, servers + joined + 1)
    }
    slots = tuple(
        Assignment(
            NodeId(1 + slot % servers), follower=NodeId(1 + (slot * 7 + 1) % servers), in_step=True
        )
        for slot in range(4096)
    )
    return SlotMap(epoch=1, nodes=nodes, slots=slots)


class Network(msgspec.Struct, frozen=True, kw_only=True):
    """What is not measured."""

    commit_s: float = 0.002  # of the map's store
    trip_s: float = 0.001  # to it, and between servers
    copy_s: float = 0.5  # of a slot, while it is served


def measured(slot_map: SlotMap, network: Network) -> Costs:
    data = encode_map(slot_map)
    controller = Controller(Terms())
    ages = dict.fromkeys(slot_map.nodes, 0.0)
    decode_s = _cpu_s(lambda: decode_map(data))
    return Costs(
        commit_s=network.commit_s + _cpu_s(lambda: encode_map(slot_map)),
        read_s=network.trip_s + decode_s,
        copy_s=network.copy_s,
        map_bytes=len(data),
        decode_s=decode_s,
        decide_s=_cpu_s(lambda: controller.decide(decode_map(data), ages, 0.0)),
    )


def _cpu_s(work: Callable[[], object], times: int = 10) -> float:
    began = time.process_time()
    for _ in range(times):
        work()
    return (time.process_time() - began) / times


def story(
    servers: int, terms: Terms, costs_of: Callable[[SlotMap], Costs], *, seed: int = 1
) -> tuple[Outcome, Costs]:
    joined = max(1, servers // 10)
    slot_map = shared(servers, joined)
    costs = costs_of(slot_map)
    plan = equalised(slot_map)
    world = World(slot_map.planning(plan), terms, costs, seed)
    world.live()
    counts = Counter(one.owner for _, one in world.slot_map.owned)
    assert len(counts) == min(servers + joined, 4096), "somebody got no slot"
    outcome = Outcome(
        servers=servers,
        joined=joined,
        moves=len(plan),
        commits=world.commits,
        lost=world.lost,
        lasted_s=world.now,
        freezes_s=world.freezes_s,
    )
    return outcome, costs


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.cluster_scale")
    parser.add_argument("--servers", type=int, nargs="+", default=[4, 16, 64, 256, 1024, 3000])
    parser.add_argument("--commit-ms", type=float, default=2.0, help="of the map's store")
    parser.add_argument("--read-ms", type=float, default=1.0, help="a round trip to it")
    parser.add_argument("--copy-s", type=float, default=0.5, help="of a slot, while it is served")
    parser.add_argument("--moves-max", type=int, default=Terms().moves_max)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args(argv)
    terms = Terms(moves_max=options.moves_max)
    network = Network(
        commit_s=options.commit_ms / 1000, trip_s=options.read_ms / 1000, copy_s=options.copy_s
    )
    costs_of = partial(measured, network=network)
    print(
        "| servers | join | slots that move | it takes | commits (lost) | frozen: median, p99, most"
        " | the map | asked for each second | to read it | a controller's look |"
    )
    print("|---|---|---|---|---|---|---|---|---|---|")
    for servers in options.servers:
        outcome, costs = story(servers, terms, costs_of, seed=options.seed)
        members = outcome.servers + outcome.joined
        freezes = outcome.freezes_s
        asked = members / POLL_S + members / RENEW_S
        print(
            f"| {servers:,} | {outcome.joined} | {outcome.moves} | {outcome.lasted_s:.0f} s"
            f" | {outcome.commits:,} ({outcome.lost:,})"
            f" | {percentile(freezes, 0.5) or 0:.3f} s, {percentile(freezes, 0.99) or 0:.3f} s,"
            f" {max(freezes, default=0):.3f} s"
            f" | {costs.map_bytes / 1024:.0f} KiB | {asked:,.0f}"
            f" | {costs.decode_s * 1000:.1f} ms CPU"
            f" | {costs.decide_s * 1000:.1f} ms CPU |",
            flush=True,
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
