"""Scenarios of the cluster benchmarks on a small scale: correct counts, nothing left behind."""

import pytest

from benchmarks.cluster_scale import Costs, story
from benchmarks.cluster_target import CLUSTER_SMOKE, own_cluster
from benchmarks.scenarios import cluster
from waystation.queue.cluster.controller import Terms

pytestmark = pytest.mark.e2e


def test_messages_and_moves_are_counted() -> None:
    with own_cluster(2, crowds=CLUSTER_SMOKE.crowds) as target:
        messages = cluster.messages(target, CLUSTER_SMOKE, "cluster: messages")
        moves = cluster.moves(target, CLUSTER_SMOKE, 0)

    assert messages.operations > 0
    assert messages.lost == 0
    assert "at the edge" in messages.notes
    assert moves.operations == CLUSTER_SMOKE.moves
    assert moves.lost == 0
    assert moves.p50_ms


def test_a_cluster_of_hundreds_freezes_its_slots_for_a_moment() -> None:
    """Simulated: what it asks of the map's store is bounded by how many slots move at a time."""
    costs = Costs(
        commit_s=0.004, read_s=0.004, copy_s=0.2, map_bytes=80_000, decode_s=0.003, decide_s=0.005
    )
    outcome, _ = story(200, Terms(), lambda _slot_map: costs)

    assert len(outcome.freezes_s) == outcome.moves > 300
    assert outcome.lost < outcome.commits
    assert max(outcome.freezes_s) < 0.3
