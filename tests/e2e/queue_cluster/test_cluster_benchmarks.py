"""The scenarios of the cluster on a small scale: they count right and leave nothing behind."""

import pytest

from benchmarks.cluster_target import CLUSTER_SMOKE, own_cluster
from benchmarks.scenarios import cluster

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
