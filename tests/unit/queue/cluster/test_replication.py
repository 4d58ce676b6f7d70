"""Replication of one storage server: which copies begin, which answers wait for followers."""

from collections import deque

import msgspec
import pytest

from waystation.queue.cluster.copies import CONFIRM_MAX_S, COPIES_MAX, COPIES_PER_PEER_MAX
from waystation.queue.cluster.effects import (
    Effect,
    Freeze,
    Propose,
    ReadRows,
    Release,
    SendAck,
    SendFrame,
)
from waystation.queue.cluster.replication import AGAIN_S, SWEEP_S, Replication
from waystation.queue.cluster.slot_lease import SlotLease
from waystation.queue.cluster.slot_map import Assignment, Node, NodeId, SlotMap
from waystation.queue.store import Row

HERE = NodeId(1)
CHANGE = [Row(0, b"key", b"value")]


def map_of(slots: list[Assignment], *, epoch: int = 100) -> SlotMap:
    nodes = {
        NodeId(number): Node(
            node_id=NodeId(number), host=f"n{number}", port=5225, fingerprint=bytes(32)
        )
        for number in range(1, 10)
    }
    empty = SlotMap()
    return SlotMap(epoch=epoch, nodes=nodes, slots=(*slots, *empty.slots[len(slots) :]))


def followed(*followers: int, in_step: bool = False) -> list[Assignment]:
    return [Assignment(HERE, follower=NodeId(one), in_step=in_step) for one in followers]


class Bench:
    """A keeper whose peers confirm what they get, apart from those that are silent."""

    def __init__(self, slots: list[Assignment], *, sync: bool = True, silent: int = 0) -> None:
        slot_lease = SlotLease(HERE, map_of(slots))
        slot_lease.renewed(0.0)
        numbers = iter(range(1, 1_000_000))
        self.replication = Replication(slot_lease, new_copy_id=lambda: next(numbers), sync=sync)
        self.silent = silent
        self.most = 0
        self.began: list[tuple[NodeId, int]] = []
        self.released: list[int] = []
        self.frozen: list[int] = []
        self._awaits: deque[SendFrame] = deque()

    def start(self) -> None:
        self.do(self.replication.started([], 0.0))

    def do(self, effects: list[Effect]) -> None:
        todo = deque(effects)
        while todo:
            match todo.popleft():
                case ReadRows(copy, _, None):
                    rows = [Row(0, b"row", b"value")]
                    todo.extendleft(reversed(self.replication.rows(copy, rows)))
                case ReadRows(copy):
                    todo.extendleft(reversed(self.replication.rows(copy, [])))
                case SendFrame() as sent:
                    if sent.frame.seq == 1:
                        self.began.append((sent.peer, sent.slot))
                    self._awaits.append(sent)
                case Propose(slot_map):
                    todo.extend(self.replication.proposed(slot_map, 0.0))
                case Release(tickets):
                    self.released.extend(tickets)
                case Freeze(slot):
                    self.frozen.append(slot)
                case SendAck():
                    raise AssertionError("nothing is copied to here")
                case _:
                    pass
            self.most = max(self.most, self.replication.copies.catching_up)

    def confirm(self) -> None:
        """Everything that was sent, and what is sent because of it."""
        kept: list[SendFrame] = []
        while self._awaits:
            sent = self._awaits.popleft()
            if sent.peer == self.silent:
                kept.append(sent)
                continue
            self.do(self.replication.acked(sent.peer, sent.copy, sent.frame.seq))
        self._awaits.extend(kept)

    def in_step(self) -> int:
        return sum(one.in_step for one in self.replication.slot_lease.slot_map.slots)


def test_of_many_copies_to_followers_a_few_begin_at_once_and_all_in_the_end() -> None:
    bench = Bench(followed(*(2 + number % 8 for number in range(400))))

    bench.start()
    assert len(bench.began) == COPIES_MAX
    bench.confirm()

    assert bench.most == COPIES_MAX
    assert bench.in_step() == 400
    assert len(bench.began) == 400
    assert bench.replication.copies.catching_up == 0


def test_one_peer_gets_its_share_of_the_places_at_most() -> None:
    bench = Bench(followed(*[2] * 50))

    bench.start()
    assert len(bench.began) == COPIES_PER_PEER_MAX
    bench.confirm()

    assert bench.most == COPIES_PER_PEER_MAX
    assert bench.in_step() == 50


def test_a_peer_that_does_not_answer_leaves_places_for_the_others() -> None:
    bench = Bench(followed(*[2] * 100, *[3] * 100), silent=2)

    bench.start()
    bench.confirm()

    assert bench.in_step() == 100
    assert {peer for peer, _ in bench.began} == {2, 3}
    assert [peer for peer, _ in bench.began].count(NodeId(2)) == COPIES_PER_PEER_MAX


def test_a_copy_that_failed_gives_its_place_to_the_next() -> None:
    bench = Bench(followed(*[2] * 50), silent=2)
    bench.start()

    bench.do(bench.replication.link_lost(NodeId(2), 0.1))

    assert len({slot for _, slot in bench.began}) == 2 * COPIES_PER_PEER_MAX
    assert bench.replication.copies.catching_up == COPIES_PER_PEER_MAX


def test_a_move_does_not_wait_for_a_place() -> None:
    slots = followed(*[2] * 50)
    slots[49] = Assignment(HERE, NodeId(2), "P", move=100)
    bench = Bench(slots, silent=2)

    bench.start()

    assert (NodeId(2), 49) in bench.began


@pytest.mark.parametrize("sync", [True, False])
def test_an_answer_waits_for_a_follower_in_step_only_with_sync(sync: bool) -> None:
    bench = Bench(followed(2), sync=sync)
    bench.start()
    bench.confirm()
    assert bench.in_step() == 1

    ticket, effects = bench.replication.committed(0, CHANGE, 0.0)
    bench.do(effects)

    assert (ticket is not None) == sync
    bench.confirm()
    assert bench.released == ([ticket] if sync else [])


@pytest.mark.parametrize("sync", [True, False])
def test_a_follower_that_does_not_confirm_is_called_out_of_step(sync: bool) -> None:
    bench = Bench(followed(2), sync=sync)
    bench.start()
    bench.confirm()
    bench.silent = 2
    first, effects = bench.replication.committed(0, CHANGE, 0.0)
    bench.do(effects)
    bench.do(bench.replication.tick(CONFIRM_MAX_S - 0.1))
    assert bench.in_step() == 1
    assert bench.released == []

    bench.do(bench.replication.tick(CONFIRM_MAX_S + 0.1))

    assert bench.in_step() == 0
    assert bench.released == ([first] if sync else [])


def test_without_sync_answers_wait_while_a_follower_is_called_out_of_step() -> None:
    """Otherwise a server without the store would go on answering what its heir does not have."""
    bench = Bench(followed(2), sync=False)
    bench.start()
    bench.confirm()
    bench.do([one for one in bench.replication.link_lost(NodeId(2), 1.0) if not _proposes(one)])

    ticket, effects = bench.replication.committed(0, CHANGE, 1.0)

    assert ticket is not None
    assert not any(isinstance(one, Release) for one in effects)
    slot_map = bench.replication.slot_lease.slot_map
    out_of_step = msgspec.structs.replace(slot_map.in_step(0, False), epoch=slot_map.epoch + 1)
    bench.do(bench.replication.proposed(out_of_step, 1.1))
    assert bench.released == [ticket]


def _proposes(effect: Effect) -> bool:
    return isinstance(effect, Propose)


def test_a_commit_in_one_slot_costs_the_same_whether_ten_or_a_thousand_are_followed() -> None:
    """Counted in checks of slots, not in time."""

    class Counting(Replication):
        checks = 0

        def _check(self, slot: int) -> None:
            Counting.checks += 1
            super()._check(slot)

    bench = Bench(followed(*(2 + number % 8 for number in range(1000))))
    bench.start()
    bench.confirm()
    assert bench.in_step() == 1000
    bench.replication.__class__ = Counting

    _, effects = bench.replication.committed(0, CHANGE, 0.0)
    bench.do(effects)
    bench.confirm()

    assert Counting.checks <= 4


class Checks:
    """Records the slots that `Replication` checks."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.slots: list[int] = []
        check = Replication._check

        def counted(replication: Replication, slot: int) -> None:
            self.slots.append(slot)
            check(replication, slot)

        monkeypatch.setattr(Replication, "_check", counted)

    def take(self) -> set[int]:
        taken, self.slots = set(self.slots), []
        return taken


def test_an_idle_server_looks_at_nothing_for_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    looks = Checks(monkeypatch)
    bench = Bench([Assignment(HERE)] * 100 + followed(2, 3))
    bench.start()
    bench.confirm()
    assert bench.in_step() == 2
    bench.replication.tick(AGAIN_S)
    looks.take()

    bench.replication.tick(AGAIN_S + 0.1)
    assert looks.take() == set()
    bench.replication.tick(SWEEP_S)
    assert looks.take() == set(range(102))


def test_what_waits_for_time_is_looked_at_as_it_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    """A follower that is not in step yet, and a copy that failed and begins again."""
    looks = Checks(monkeypatch)
    bench = Bench([Assignment(HERE)] * 10 + followed(2, 3), silent=3)
    bench.start()
    bench.confirm()
    looks.take()

    bench.replication.tick(0.1)
    assert looks.take() == {11}
    bench.do(bench.replication.link_lost(NodeId(2), 0.2))
    bench.do(bench.replication.tick(0.3))
    began = len(bench.began)
    bench.do(bench.replication.tick(0.2 + AGAIN_S))

    assert bench.began[began:] == [(NodeId(2), 10)]
