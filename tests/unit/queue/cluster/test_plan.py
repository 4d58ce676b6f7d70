"""Plans: equal counts with as few moves as possible."""

import json
import random
from collections import Counter
from itertools import pairwise

import pytest

from waystation.queue.cluster.plan import drained, equalised, followers, read_plan
from waystation.queue.cluster.slot_map import Move, Node, NodeId, SlotMap, SlotMapError
from waystation.queue.model import SLOTS

A, B, C, D = (NodeId(number) for number in (1, 2, 3, 4))


def node(node_id: NodeId, host: str = "", status: str = "up") -> Node:
    return Node(
        node_id=node_id,
        host=host or f"n{node_id}",
        port=5225,
        fingerprint=bytes(32),
        status=status,  # pyright: ignore[reportArgumentType]
    )


def cluster(*nodes: NodeId) -> SlotMap:
    slot_map = SlotMap()
    for one in nodes:
        slot_map = slot_map.with_node(node(one))
    bounds = [SLOTS * place // len(nodes) for place in range(len(nodes) + 1)]
    for one, (first, beyond) in zip(nodes, pairwise(bounds), strict=True):
        slot_map = slot_map.claimed(range(first, beyond), one)
    return slot_map


def after(slot_map: SlotMap, moves: list[Move]) -> Counter[NodeId]:
    for move in moves:
        slot_map = slot_map.preparing(move.slot, move.target).frozen(move.slot).moved(move.slot)
    return Counter(one.owner for one in slot_map.slots)


def test_a_fourth_server_takes_a_quarter_and_nothing_else_moves() -> None:
    """Q-130"""
    slot_map = cluster(A, B, C).with_node(node(D))

    moves = equalised(slot_map)

    assert abs(len(moves) - 1024) <= 1
    assert {move.target for move in moves} == {D}
    assert max(after(slot_map, moves).values()) - min(after(slot_map, moves).values()) <= 1


def test_what_is_equal_stays() -> None:
    assert equalised(cluster(A, B, C)) == []


def test_any_map_becomes_equal_and_no_slot_moves_twice() -> None:
    for seed in range(30):
        chance = random.Random(seed)
        nodes = [NodeId(number) for number in range(1, chance.randint(2, 9))]
        slot_map = SlotMap()
        for one in nodes:
            slot_map = slot_map.with_node(node(one))
        shares: dict[NodeId, list[int]] = {one: [] for one in nodes}
        for slot in range(SLOTS):
            shares[chance.choice(nodes[: chance.randint(1, len(nodes))])].append(slot)
        for one, slots in shares.items():
            slot_map = slot_map.claimed(slots, one)

        moves = equalised(slot_map)
        counts = after(slot_map, moves)

        assert len({move.slot for move in moves}) == len(moves)
        assert max(counts.values()) - min(counts.values()) <= 1
        too_many = sum(max(0, len(shares[one]) - counts[one]) for one in nodes)
        assert len(moves) == too_many


def test_draining_moves_the_slots_of_that_server_only() -> None:
    slot_map = cluster(A, B, C)

    moves = drained(slot_map, B)
    counts = after(slot_map, moves)

    assert {slot_map.slots[move.slot].owner for move in moves} == {B}
    assert counts[B] == 0
    assert abs(counts[A] - counts[C]) <= 1


def test_the_last_server_cannot_be_drained() -> None:
    with pytest.raises(SlotMapError, match="the last that is up"):
        drained(cluster(A), A)


def test_followers_are_spread_and_on_another_machine_where_there_is_one() -> None:
    slot_map = SlotMap()
    for one, host in ((A, "east"), (B, "east"), (C, "west")):
        slot_map = slot_map.with_node(node(one, host))
    slot_map = slot_map.claimed(range(SLOTS), A)

    chosen = followers(slot_map)

    assert set(chosen.values()) == {C}
    assert len(chosen) == SLOTS


def test_a_plan_from_a_file_is_checked_against_the_map() -> None:
    slot_map = cluster(A, B).with_node(node(C, status="drain"))
    good = {"form": "waystation-plan/1", "moves": [{"slot": 1, "source": 1, "target": 2}]}

    assert read_plan(json.dumps(good).encode(), slot_map) == [Move(1, B)]

    bad = {
        "form": "waystation-plan/1",
        "moves": [
            {"slot": 1, "source": 2, "target": 2},
            {"slot": 2, "source": 1, "target": 9},
            {"slot": 2, "source": 1, "target": 3},
            {"slot": 9999, "source": 1, "target": 2},
        ],
    }
    with pytest.raises(SlotMapError) as refused:
        read_plan(json.dumps(bad).encode(), slot_map)
    text = str(refused.value)
    assert "AB is not at node 2 but at node 1" in text
    assert "node 9, which is not in the cluster" in text
    assert "AC is moved twice" in text
    assert "node 3, which is drain" in text
    assert "9999 is no slot" in text


@pytest.mark.parametrize("data", [b"", b"[]", b'{"form": "other", "moves": []}'])
def test_what_is_no_plan_is_refused(data: bytes) -> None:
    with pytest.raises(SlotMapError):
        read_plan(data, cluster(A, B))
