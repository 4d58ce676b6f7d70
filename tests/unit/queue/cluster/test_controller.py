"""The leading controller's changes of moves and followers, round after round."""

from collections import Counter

import msgspec
import pytest

from waystation.queue.cluster.controller import FOLLOWERS_SHIFT_MAX, Controller, Terms
from waystation.queue.cluster.plan import UNEVEN, asked_for
from waystation.queue.cluster.slot_map import NOBODY, Move, Node, NodeId, SlotMap

SLOTS_USED = 400


def nodes(count: int) -> dict[NodeId, Node]:
    return {
        NodeId(number): Node(
            node_id=NodeId(number), host="127.0.0.1", port=5225, fingerprint=bytes(32)
        )
        for number in range(1, count + 1)
    }


def shared(count: int) -> SlotMap:
    slot_map = SlotMap(nodes=nodes(count))
    for number in range(1, count + 1):
        slot_map = slot_map.claimed(range(number - 1, SLOTS_USED, count), NodeId(number))
    return slot_map


def all_in_step(slot_map: SlotMap) -> SlotMap:
    """As if every copy was made between two looks."""
    return msgspec.structs.replace(
        slot_map,
        slots=tuple(
            msgspec.structs.replace(one, in_step=one.follower != NOBODY) for one in slot_map.slots
        ),
    )


def settled(controller: Controller, slot_map: SlotMap, up: set[int]) -> tuple[SlotMap, list[int]]:
    """After as many looks as change something; how many followers each look changed."""
    ages = {NodeId(number): 1.0 for number in up}
    changed: list[int] = []
    for look in range(200):
        proposal = controller.decide(slot_map, ages, float(look))
        if proposal is None:
            return slot_map, changed
        before, slot_map = slot_map, proposal.slot_map
        pairs = zip(before.slots, slot_map.slots, strict=True)
        changed.append(sum(one.follower != other.follower for one, other in pairs))
        slot_map = all_in_step(slot_map)
    pytest.fail("it goes on for ever")


def follows(slot_map: SlotMap) -> Counter[NodeId]:
    return Counter(one.follower for _, one in slot_map.owned)


def test_a_server_that_came_first_gives_what_it_follows_to_those_that_came_later() -> None:
    controller = Controller(Terms(replicas=1))
    first, _ = settled(controller, shared(4), {1, 2})
    assert follows(first)[NodeId(3)] == follows(first)[NodeId(4)] == 0

    after, changed = settled(controller, first, {1, 2, 3, 4})

    share = SLOTS_USED / 4
    assert all(share / UNEVEN**3 <= count <= share * UNEVEN for count in follows(after).values())
    assert len(follows(after)) == 4
    assert max(changed) <= FOLLOWERS_SHIFT_MAX
    assert all(one.follower != one.owner for _, one in after.owned)


def test_a_server_that_leaves_follows_nothing_in_the_end() -> None:
    controller = Controller(Terms(replicas=1))
    slot_map, _ = settled(controller, shared(3), {1, 2, 3})
    leaving = msgspec.structs.replace(slot_map.nodes[NodeId(3)], status="drain")

    after, _ = settled(controller, slot_map.with_node(leaving), {1, 2, 3})

    assert follows(after)[NodeId(3)] == 0
    # Of two servers, each follows what the other has; what node 3 owns waits for its moves.
    assert all(one.follower not in (one.owner, NOBODY) for _, one in after.owned)


def test_a_follower_that_left_before_it_was_replaced_is_not_waited_for() -> None:
    controller = Controller(Terms(replicas=1))
    slot_map, _ = settled(controller, shared(3), {1, 2, 3})
    left = msgspec.structs.replace(slot_map.nodes[NodeId(3)], status="drain")
    slot_map = slot_map.with_node(left)
    for slot in slot_map.followed_by(NodeId(3)):
        slot_map = slot_map.in_step(slot, False)  # their owners took their word back

    proposal = controller.decide(slot_map, {NodeId(1): 1.0, NodeId(2): 1.0}, 0.0)

    assert proposal is not None
    assert follows(proposal.slot_map)[NodeId(3)] == 0


def test_followers_stay_where_they_are_while_something_moves() -> None:
    controller = Controller(Terms(replicas=1))
    first, _ = settled(controller, shared(4), {1, 2})
    ages = {NodeId(number): 1.0 for number in (1, 2, 3, 4)}
    at_rest = first
    for number in (3, 4):
        node = first.nodes[NodeId(number)]
        at_rest = at_rest.with_node(msgspec.structs.replace(node, status="up"))
    moving = at_rest.preparing(0, NodeId(2))

    def changed_followers(slot_map: SlotMap) -> list[str]:
        proposal = controller.decide(slot_map, ages, 0.0)
        reasons = [] if proposal is None else proposal.reasons
        return [reason for reason in reasons if "another follower" in reason]

    assert changed_followers(at_rest)
    assert not changed_followers(moving)


def test_a_cluster_moves_so_many_slots_at_a_time_however_many_servers_there_are() -> None:
    """Every step is a commit over the whole map; who loses it waits with a frozen slot."""
    slot_map = shared(40)
    plan = [Move(slot, NodeId(1 + (slot + 1) % 40)) for slot in range(100)]
    ages = dict.fromkeys(slot_map.nodes, 1.0)

    proposal = Controller(Terms(moves_max=6)).decide(slot_map.planning(plan), ages, 0.0)

    assert proposal is not None
    assert len(list(proposal.slot_map.moving())) == 6
    assert len(proposal.slot_map.planned) == 94


def test_moves_wait_for_the_references_of_their_source_and_others_do_not() -> None:
    slot_map = shared(3)
    writing = msgspec.structs.replace(slot_map.nodes[NodeId(1)], references_left=100)
    plan = [Move(0, NodeId(2)), Move(1, NodeId(3))]  # of nodes 1 and 2
    controller, ages = Controller(Terms()), dict.fromkeys(slot_map.nodes, 1.0)

    proposal = controller.decide(slot_map.with_node(writing).planning(plan), ages, 0.0)

    assert proposal is not None
    after = proposal.slot_map
    assert [slot for slot, _ in after.moving()] == [1]
    assert after.planned == (Move(0, NodeId(2)),)
    assert controller.decide(after, ages, 0.1) is None
    written = after.with_node(slot_map.nodes[NodeId(1)])
    later = controller.decide(written, ages, 0.2)
    assert later is not None
    assert [slot for slot, _ in later.slot_map.moving()] == [0, 1]


def test_slots_are_followed_once_their_references_are_written() -> None:
    slot_map = shared(2)
    writing = msgspec.structs.replace(slot_map.nodes[NodeId(1)], references_left=1)
    ages = dict.fromkeys(slot_map.nodes, 1.0)

    proposal = Controller(Terms(replicas=1)).decide(slot_map.with_node(writing), ages, 0.0)

    assert proposal is not None
    owners = {one.owner for _, one in proposal.slot_map.owned if one.follower != NOBODY}
    assert owners == {NodeId(2)}


def test_a_move_by_hand_begins_though_a_plan_takes_every_place_that_gets_free() -> None:
    slot_map = shared(3)
    plan = [Move(slot, NodeId(2)) for slot in range(0, 90, 3)]
    controller, ages = Controller(Terms(moves_per_node_max=2)), dict.fromkeys(slot_map.nodes, 1.0)
    proposal = controller.decide(slot_map.planning(plan), ages, 0.0)
    assert proposal is not None
    running = proposal.slot_map

    asked = running.planning(asked_for(running, Move(99, NodeId(3))))
    freed = asked.returned(0)  # a place is free
    later = controller.decide(freed, ages, 1.0)

    assert later is not None
    assert 99 in dict(later.slot_map.moving())
