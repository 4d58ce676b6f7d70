"""The sweep of outdated references on real servers."""

import asyncio
import secrets
from collections.abc import Iterator

import pytest

from tests.e2e.queue.peer import Peer
from tests.e2e.queue_cluster.scripted_edge import ScriptedEdge
from tests.e2e.queue_through.front import Front, Way
from waystation.queue.cluster.membership import load_membership
from waystation.queue.model import RefKind, Slot, slot_of
from waystation.queue.wire.link_messages import Cok, GetRef, NotFound, RefIs, SetRef

SWEPT_S = 60.0  # at the latest; a quiet machine needs five


@pytest.fixture
def front(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Front]:
    with Front(
        tmp_path_factory.mktemp("swept"),
        Way("refs", "shared"),
        refs_sweep_interval_s=0.2,
        refs_lost_after_s=3.0,
    ) as front:
        yield front


async def test_what_an_edge_left_behind_is_swept(front: Front) -> None:
    """Q-118: whether the home is the same server or another one; what leads somewhere stays."""
    box = await asyncio.to_thread(made, front)
    membership = load_membership(front.edges[0].data_dir / "keys")
    assert membership is not None
    edges = [await ScriptedEdge.connected(membership, one.link_port) for one in front.servers]
    try:
        lost = [an_id(Slot(8)), an_id(Slot(8))]
        homes = [Slot(10), Slot(11)]  # of the first server, which has Slot 8, and of the second
        for entity_id, home in zip(lost, homes, strict=True):
            ref = SetRef(RefKind.LINK, entity_id, home, secrets.token_bytes(16))
            assert isinstance(await edges[0].request(ref), Cok)
            assert await edges[0].request(GetRef(RefKind.LINK, entity_id)) == RefIs(home)

        async with asyncio.timeout(SWEPT_S):
            for entity_id in lost:
                question = GetRef(RefKind.LINK, entity_id)
                while not isinstance(await edges[0].request(question), NotFound):  # noqa: ASYNC110
                    await asyncio.sleep(0.1)

        keeper = edges[slot_of(box) % 2]
        assert await keeper.request(GetRef(RefKind.SENDER, box)) != NotFound()
    finally:
        for edge in edges:
            edge.close()


def made(front: Front) -> bytes:
    """The sender id of a queue that is there, whose reference does not lie in its own slot."""
    with Peer(front) as peer:  # pyright: ignore[reportArgumentType]
        box = peer.create(subscribe=False)
        return box.sender_id


def an_id(slot: Slot) -> bytes:
    return bytes((slot >> 4, (slot & 15) << 4)) + secrets.token_bytes(22)
