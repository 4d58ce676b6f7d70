"""The slot map as text for operators."""

from waystation.queue.cluster.slot_map import Move, Node, NodeId, SlotMap
from waystation.queue.cluster.slot_map_text import grid, summary, table
from waystation.queue.model import SLOTS

A, B = NodeId(1), NodeId(7)


def cluster() -> SlotMap:
    slot_map = SlotMap()
    for node_id, host in ((A, "east"), (B, "west")):
        slot_map = slot_map.with_node(
            Node(node_id=node_id, host=host, port=5225, fingerprint=bytes(32))
        )
    return slot_map.claimed(range(SLOTS - 64), A).claimed(range(SLOTS - 64, SLOTS), B)


def test_a_server_has_a_line_with_what_it_holds() -> None:
    lines = list(table(cluster().followed(5, B).in_step(5, True), {A: 1.25}))

    assert "4032" in lines[1]
    assert "1.2 s ago" in lines[1]
    assert "never" in lines[2]
    assert "west:5225" in lines[2]


def test_the_grid_shows_owners_moves_and_slots_without_owner() -> None:
    lines = list(grid(cluster().preparing(0, B).preparing(1, B).frozen(1)))

    assert len(lines) == 64
    assert lines[0] == "  A  *!" + "1" * 62
    assert lines[63] == "  _  " + "2" * 64
    assert next(grid(SlotMap())) == "  A  " + "." * 64


def test_the_summary_says_what_is_under_way() -> None:
    slot_map = cluster().preparing(0, B).planning([Move(9, B)])

    assert summary(slot_map) == (
        f"epoch {slot_map.epoch}, 2 servers, 1 slots move, 0 are frozen, 1 moves are planned"
    )
