"""Conformance suite for stores of a queue cluster's slot map.

A backend's tests subclass `ClusterStoreConformance` and provide the fixtures `store` and `another`,
a second member's handle on the same store.
"""

import asyncio

from waystation.queue.cluster.cluster_store import ClusterStore
from waystation.queue.cluster.slot_map import Node, NodeId, SlotMap
from waystation.queue.model import SLOTS

A, B = NodeId(1), NodeId(2)


def _node(node_id: NodeId) -> Node:
    return Node(node_id=node_id, host="127.0.0.1", port=5225, fingerprint=bytes(32))


class ClusterStoreConformance:
    async def another(self, store: ClusterStore) -> ClusterStore:
        """A second member's handle on the same store; closed by the fixture or shared."""
        raise AssertionError("a backend's tests say how its store is opened again")

    async def test_before_a_cluster_is_made_the_map_is_empty(self, store: ClusterStore) -> None:
        assert await store.read() == SlotMap()
        assert await store.epoch() == 0

    async def test_a_commit_is_seen_by_everybody(self, store: ClusterStore) -> None:
        other = await self.another(store)
        made = SlotMap().with_node(_node(A))
        claimed = made.claimed(range(SLOTS), A).with_node(_node(B)).preparing(7, B)

        assert await store.commit(made)
        assert await store.commit(claimed.as_one_change(made))

        assert await other.read() == claimed.as_one_change(made)
        assert await other.epoch() == 2

    async def test_a_commit_counts_only_over_the_epoch_before_it(self, store: ClusterStore) -> None:
        first = SlotMap().with_node(_node(A))
        rival = SlotMap().with_node(_node(B))
        ahead = first.with_node(_node(B)).claimed([1], A)

        assert await store.commit(first)
        assert not await store.commit(rival)
        assert not await store.commit(ahead)
        assert not await store.commit(first)

        assert await store.read() == first

    async def test_of_many_that_commit_at_once_one_counts(self, store: ClusterStore) -> None:
        other = await self.another(store)
        base = SlotMap().with_node(_node(A)).claimed(range(SLOTS), A)
        base = base.as_one_change(SlotMap())
        assert await store.commit(base)
        rivals = [base.with_node(_node(NodeId(number))) for number in range(10, 20)]

        counted = await asyncio.gather(
            *((store if i % 2 else other).commit(rival) for i, rival in enumerate(rivals))
        )

        assert sum(counted) == 1
        assert await store.read() == rivals[counted.index(True)]

    async def test_the_age_of_a_lease_begins_anew_with_each_renewal(
        self, store: ClusterStore
    ) -> None:
        assert await store.ages() == {}
        await store.renew(A)
        await store.renew(B)
        await self.let_time_pass(0.4)
        await store.renew(A)

        ages = await (await self.another(store)).ages()

        assert ages[B] >= 0.35
        assert 0.0 <= ages[A] <= ages[B] - 0.3

    async def test_one_leads_until_it_resigns_or_lets_go(self, store: ClusterStore) -> None:
        other = await self.another(store)

        assert await store.lead("one", 30.0)
        assert not await other.lead("other", 30.0)
        assert await store.lead("one", 30.0)
        await other.resign("other")
        assert not await other.lead("other", 30.0)

        await store.resign("one")
        assert await other.lead("other", 0.2)
        await self.let_time_pass(0.4)
        assert await store.lead("one", 30.0)

    async def let_time_pass(self, seconds: float) -> None:
        await asyncio.sleep(seconds)
