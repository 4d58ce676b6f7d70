"""References in the embedded store, and the sweep of outdated ones."""

import secrets
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from waystation.queue.model import RefKind, Slot, slot_of
from waystation.queue.server import reference_sweep
from waystation.queue.server.reference_sweep import ReferenceSweep
from waystation.queue.store import Ref
from waystation.storage.embedded.queue import EmbeddedQueueStore
from waystation.storage.settings import Store

SLOT, ELSEWHERE = Slot(0x123), Slot(0x124)
TX = b"t" * 16


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[EmbeddedQueueStore]:
    store = await EmbeddedQueueStore.open(tmp_path, settings=Store(map_bytes=64 << 20, sync=False))
    yield store
    await store.close()


def an_id(slot: Slot = SLOT) -> bytes:
    return bytes((slot >> 4, (slot & 15) << 4)) + secrets.token_bytes(22)


class World:
    """Homes that know some ids, and a server that serves one slot."""

    def __init__(self, store: EmbeddedQueueStore, *, lost_after_s: float = 3600.0) -> None:
        self.known: dict[bytes, bool | None] = {}
        self.mono = 0.0
        self.served = {SLOT}
        self.running: Counter[int] = Counter()
        self.sweep = ReferenceSweep(
            store, self, knows=self.knows, mono=lambda: self.mono, lost_after_s=lost_after_s
        )

    async def knows(self, kind: RefKind, entity_id: bytes, home: Slot) -> bool | None:
        assert home == ELSEWHERE
        return self.known[entity_id]

    def serves(self, slot: int) -> bool:
        return slot in self.served

    def begin(self, slot: int) -> bool:
        self.running[slot] += self.serves(slot)
        return self.serves(slot)

    def end(self, slot: int) -> None:
        self.running[slot] -= 1


async def test_references_of_a_slot_are_read_in_pages(store: EmbeddedQueueStore) -> None:
    wanted = {(kind, an_id()) for kind in RefKind for _ in range(5)}
    for kind, entity_id in wanted:
        assert await store.set_ref(kind, entity_id, Ref(ELSEWHERE, TX))
    await store.set_ref(RefKind.LINK, an_id(ELSEWHERE), Ref(SLOT, TX))
    found: list[tuple[RefKind, bytes, Ref]] = []
    after = None
    while page := await store.refs_of(SLOT, after=after, limit=4):
        assert len(page) <= 4
        found += page
        after = page[-1][:2]

    assert {(kind, entity_id) for kind, entity_id, _ in found} == wanted
    assert len(found) == len(wanted)
    assert all(ref == Ref(ELSEWHERE, TX) for _, _, ref in found)


async def test_a_reference_that_leads_nowhere_for_an_hour_is_removed(
    store: EmbeddedQueueStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Q-118: what an edge could not take back is gone after the sweep."""
    monkeypatch.setattr(reference_sweep, "PAGE", 2)
    world = World(store)
    lost, kept, away = an_id(), an_id(), an_id()
    for entity_id, known in ((lost, False), (kept, True), (away, None)):
        world.known[entity_id] = known
        await store.set_ref(RefKind.LINK, entity_id, Ref(ELSEWHERE, TX))
    for world.mono in (0.0, 1800.0, 3599.0):
        await world.sweep.sweep()
        assert await store.get_ref(RefKind.LINK, lost) is not None

    world.mono = 3600.0
    await world.sweep.sweep()

    assert await store.get_ref(RefKind.LINK, lost) is None
    assert await store.get_ref(RefKind.LINK, kept) is not None
    assert await store.get_ref(RefKind.LINK, away) is not None
    assert world.sweep.removed == 1
    assert not +world.running


async def test_a_queue_that_came_to_be_clears_its_reference(store: EmbeddedQueueStore) -> None:
    """It was being made when the sweep first saw it."""
    world = World(store)
    entity_id = an_id()
    await store.set_ref(RefKind.SENDER, entity_id, Ref(ELSEWHERE, TX))
    for world.mono, known in ((0.0, False), (1000.0, True), (4000.0, False), (7000.0, None)):
        world.known[entity_id] = known
        await world.sweep.sweep()
    assert await store.get_ref(RefKind.SENDER, entity_id) is not None

    world.mono, world.known[entity_id] = 7600.0, False
    await world.sweep.sweep()

    assert await store.get_ref(RefKind.SENDER, entity_id) is None


async def test_a_reference_that_was_set_anew_is_another_one(store: EmbeddedQueueStore) -> None:
    world = World(store)
    entity_id = an_id()
    world.known[entity_id] = False
    await store.set_ref(RefKind.LINK, entity_id, Ref(ELSEWHERE, TX))
    await world.sweep.sweep()
    await store.drop_ref(RefKind.LINK, entity_id, TX)
    await store.set_ref(RefKind.LINK, entity_id, Ref(ELSEWHERE, b"u" * 16))
    world.mono = 3600.0
    await world.sweep.sweep()

    assert await store.get_ref(RefKind.LINK, entity_id) == Ref(ELSEWHERE, b"u" * 16)
    assert slot_of(entity_id) == SLOT


async def test_only_the_server_of_a_slot_sweeps_it(store: EmbeddedQueueStore) -> None:
    world = World(store, lost_after_s=0.001)
    entity_id = an_id()
    world.known[entity_id] = False
    await store.set_ref(RefKind.LINK, entity_id, Ref(ELSEWHERE, TX))
    world.served.clear()
    for world.mono in (0.0, 1.0, 2.0):
        await world.sweep.sweep()

    assert await store.get_ref(RefKind.LINK, entity_id) is not None
