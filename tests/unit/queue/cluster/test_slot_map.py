"""The owners of slots, and the changes that a map allows."""

import base64
import random

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from waystation.queue.cluster.slot_map import (
    NOBODY,
    Assignment,
    Move,
    Node,
    NodeId,
    SlotMap,
    SlotMapError,
    decode_map,
    encode_map,
    runs_of,
    slot_number,
)
from waystation.queue.model import SLOTS, slot_letters, slot_of

A, B, C = NodeId(1), NodeId(2), NodeId(3)


def node(node_id: NodeId, **particulars: object) -> Node:
    made = {"node_id": node_id, "host": f"n{node_id}", "port": 5225, "fingerprint": b"f" * 32}
    return Node(**{**made, **particulars})


def cluster(*nodes: NodeId) -> SlotMap:
    slot_map = SlotMap()
    for one in nodes:
        slot_map = slot_map.with_node(node(one))
    return slot_map.claimed(range(SLOTS), nodes[0])


def test_a_slot_is_the_first_two_letters_of_an_id() -> None:
    """Q-113"""
    chance = random.Random(113)
    for _ in range(10_000):
        entity = chance.randbytes(24)
        letters = base64.urlsafe_b64encode(entity).decode()[:2]

        assert slot_letters(slot_of(entity)) == letters
        assert slot_number(letters) == slot_of(entity)
    assert slot_number("AA") == 0
    assert slot_number("__") == SLOTS - 1


@pytest.mark.parametrize("name", ["", "A", "AAA", "A+", "é!"])
def test_what_is_no_slot_is_refused(name: str) -> None:
    with pytest.raises(SlotMapError, match="is no slot"):
        slot_number(name)


def test_a_move_takes_three_epochs_and_a_frozen_slot_has_no_server() -> None:
    before = cluster(A, B)

    preparing = before.preparing(7, B)
    frozen = preparing.frozen(7)
    moved = frozen.moved(7)

    assert [one.epoch - before.epoch for one in (preparing, frozen, moved)] == [1, 2, 3]
    assert preparing.serves(A, 7)
    assert not frozen.serves(A, 7)
    assert not frozen.serves(B, 7)
    assert moved.serves(B, 7)
    assert not moved.serves(A, 7)
    assert moved.slots[7] == Assignment(B, turn=1)


def test_a_move_can_be_given_up_before_and_after_the_freeze() -> None:
    before = cluster(A, B)

    assert before.preparing(7, B).returned(7).slots[7] == before.slots[7]
    assert before.preparing(7, B).frozen(7).returned(7).serves(A, 7)
    assert before.preparing(7, B).returned(7, again=True).planned == (Move(7, B),)


def test_moves_that_make_no_sense_are_refused() -> None:
    slot_map = cluster(A, B)

    with pytest.raises(SlotMapError, match="already"):
        slot_map.preparing(7, A)
    with pytest.raises(SlotMapError, match="no node 9"):
        slot_map.preparing(7, NodeId(9))
    with pytest.raises(SlotMapError, match="stable, not preparing"):
        slot_map.frozen(7)
    with pytest.raises(SlotMapError, match="preparing, not frozen"):
        slot_map.preparing(7, B).moved(7)
    with pytest.raises(SlotMapError, match="preparing, not stable"):
        slot_map.preparing(7, B).preparing(7, B)
    with pytest.raises(SlotMapError, match="is drain"):
        slot_map.with_node(node(B, status="drain")).preparing(7, B)
    with pytest.raises(SlotMapError, match="does not move"):
        slot_map.returned(7)


def test_only_a_follower_in_step_is_promoted() -> None:
    followed = cluster(A, B, C).followed(7, B)

    with pytest.raises(SlotMapError, match="in step"):
        followed.promoted(7)
    assert followed.in_step(7, True).promoted(7).slots[7] == Assignment(B, turn=1)
    with pytest.raises(SlotMapError, match="in step"):
        followed.in_step(7, True).in_step(7, False).promoted(7)


def test_after_a_move_the_follower_has_to_catch_up_with_its_new_owner() -> None:
    in_step = cluster(A, B, C).followed(7, C).in_step(7, True)

    assert in_step.preparing(7, B).frozen(7).moved(7).slots[7] == Assignment(B, follower=C, turn=1)
    to_its_follower = in_step.preparing(7, C)
    assert to_its_follower.slots[7] == Assignment(A, C, "P", move=to_its_follower.epoch)
    assert in_step.preparing(7, C).frozen(7).moved(7).slots[7] == Assignment(C, turn=1)


def test_nothing_leaves_a_server_that_still_writes_references() -> None:
    """Ids that clients chose would lead nowhere after the move, or after a promotion."""
    slot_map = cluster(A, B)
    writing = slot_map.with_node(node(A, references_left=1))

    assert not writing.may_leave(7)
    with pytest.raises(SlotMapError, match="slot AH stays: node 1 still writes references"):
        writing.preparing(7, B)
    with pytest.raises(SlotMapError, match="still writes references"):
        writing.followed(7, B)
    done = writing.with_node(node(A))
    assert done.may_leave(7)
    assert done.preparing(7, B).slots[7].target == B


def test_a_server_is_removed_when_it_has_nothing_and_gets_nothing() -> None:
    slot_map = cluster(A, B, C)

    for busy in (
        slot_map.planning([Move(7, B)]),
        slot_map.preparing(7, B),
        slot_map.followed(7, B),
        slot_map.preparing(7, B).frozen(7).moved(7),
    ):
        with pytest.raises(SlotMapError, match="drain it first"):
            busy.without_node(B)
    with pytest.raises(SlotMapError, match="there is no node 9"):
        slot_map.without_node(NodeId(9))
    assert set(slot_map.without_node(B).nodes) == {A, C}


def test_the_number_of_a_removed_server_is_never_given_again() -> None:
    slot_map = cluster(A, B, C)

    removed = decode_map(encode_map(slot_map.without_node(C).without_node(B)))

    assert slot_map.next_node_id == 4
    assert removed.next_node_id == 4
    assert removed.with_node(node(NodeId(4))).planning([]).next_node_id == 5
    assert SlotMap().next_node_id == 1


def test_slots_are_claimed_once() -> None:
    with pytest.raises(SlotMapError, match="has an owner already"):
        cluster(A, B).claimed([7], B)


def test_several_changes_can_be_one_epoch() -> None:
    before = cluster(A, B)

    after = before.preparing(1, B).preparing(2, B).as_one_change(before)

    assert after.epoch == before.epoch + 1
    assert [(slot, one.move) for slot, one in after.moving()] == [
        (1, after.epoch),
        (2, after.epoch),
    ]


@given(st.lists(st.tuples(st.integers(0, SLOTS - 1), st.sampled_from([A, B, C])), max_size=20))
def test_a_map_survives_its_stored_form(changes: list[tuple[int, NodeId]]) -> None:
    slot_map = cluster(A, B, C).planning([Move(5, B)])
    for slot, target in changes:
        if slot_map.slots[slot].state == "S" and slot_map.slots[slot].owner != target:
            slot_map = slot_map.preparing(slot, target)
            if slot % 2:
                slot_map = slot_map.frozen(slot).moved(slot)

    assert decode_map(encode_map(slot_map)) == slot_map
    assert sum(count for _, count, _ in runs_of(slot_map.slots)) == SLOTS
    assert slot_map.slots[0].follower == NOBODY


def test_a_slot_that_moved_away_and_back_differs_from_one_that_stayed() -> None:
    before = cluster(A, B)
    there = before.preparing(7, B).frozen(7).moved(7)
    back = there.preparing(7, A).frozen(7).moved(7)

    assert back.slots[7].owner == before.slots[7].owner
    assert [one.slots[7].turn for one in (before, there, back)] == [0, 1, 2]


def test_a_map_that_was_stored_without_turns_is_read() -> None:
    runs = [[0, SLOTS, 0, 0, "S", 0, False, 0]]

    assert decode_map(msgspec.msgpack.encode([3, [], runs, []])) == SlotMap(epoch=3)


def test_a_map_that_was_stored_without_newer_fields_is_read() -> None:
    epoch, nodes, runs, planned, _ = msgspec.msgpack.decode(encode_map(cluster(A, B)))
    for one in nodes:
        assert one.pop("references_left") == 0

    older = decode_map(msgspec.msgpack.encode([epoch, nodes, runs, planned]))

    assert older == cluster(A, B)


def test_a_stored_map_with_a_hole_is_refused() -> None:
    with pytest.raises(SlotMapError, match="do not join"):
        decode_map(encode_map(SlotMap()).replace(b"\xcd\x10\x00", b"\xcd\x20\x00"))
