"""References of older queues in LMDB: for ids of other slots, in pages, over whatever was there."""

import secrets
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import pytest

from waystation.queue.model import Queue, RecipientId, RefKind, Slot, slot_of
from waystation.queue.store import Ref, Referenced
from waystation.storage.embedded.queue import EmbeddedQueueStore
from waystation.storage.settings import Store
from waystation.testing.conformance.queue_samples import new_link, new_notifier, new_queue

HOME, OTHER = Slot(0x123), Slot(0x456)


def id_in(slot: Slot) -> bytes:
    return bytes((slot >> 4, (slot & 15) << 4)) + secrets.token_bytes(22)


def queue_in(slot: Slot, **ids: object) -> Queue:
    queue = new_queue(link=new_link(), notifier=new_notifier())
    assert queue.link is not None
    assert queue.notifier is not None
    return msgspec.structs.replace(
        queue,
        recipient_id=RecipientId(id_in(slot)),
        sender_id=ids.get("sender", id_in(slot)),
        link=msgspec.structs.replace(queue.link, link_id=ids.get("link", id_in(slot))),
        notifier=msgspec.structs.replace(
            queue.notifier, notifier_id=ids.get("notifier", id_in(slot))
        ),
    )


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[EmbeddedQueueStore]:
    store = await EmbeddedQueueStore.open(tmp_path / "queue", settings=Store(map_bytes=1 << 24))
    yield store
    await store.close()


async def test_ids_that_do_not_begin_with_the_slot_of_their_queue_get_references(
    store: EmbeddedQueueStore,
) -> None:
    sender, link, notifier = (id_in(OTHER) for _ in range(3))
    assert await store.create(queue_in(HOME, sender=sender, link=link, notifier=notifier))
    assert await store.create(queue_in(HOME, sender=id_in(HOME)))
    assert await store.create(queue_in(OTHER, sender=id_in(HOME)))

    assert await store.write_refs(HOME, after=None, limit=10) == Referenced(3, None)

    found = await store.refs_of(OTHER, after=None, limit=10)
    assert {(kind, entity_id): ref.home for kind, entity_id, ref in found} == {
        (RefKind.SENDER, sender): HOME,
        (RefKind.LINK, link): HOME,
        (RefKind.NOTIFIER, notifier): HOME,
    }
    assert not await store.refs_of(HOME, after=None, limit=10)  # slot OTHER has not had its turn


async def test_pages_come_to_an_end_and_may_be_written_again(store: EmbeddedQueueStore) -> None:
    for _ in range(5):
        assert await store.create(queue_in(HOME, sender=id_in(OTHER)))

    for _ in range(2):
        after: RecipientId | None = None
        written: list[int] = []
        while True:
            page = await store.write_refs(HOME, after=after, limit=2)
            written.append(page.written)
            after = page.after
            if after is None:
                break
        assert written == [2, 2, 1]

    assert len(await store.refs_of(OTHER, after=None, limit=10)) == 5


async def test_the_queue_that_is_there_wins_over_one_that_was_to_have_its_id(
    store: EmbeddedQueueStore,
) -> None:
    """Somebody asked for a queue with an id of an older one: its reference was set first, and is
    taken back when the queue turns out to be refused."""
    sender = id_in(OTHER)
    assert await store.create(queue_in(HOME, sender=sender))
    assert await store.set_ref(RefKind.SENDER, sender, Ref(Slot(7), b"t" * 16))

    await store.write_refs(HOME, after=None, limit=10)
    await store.drop_ref(RefKind.SENDER, sender, b"t" * 16)

    found = await store.get_ref(RefKind.SENDER, sender)
    assert found is not None
    assert found.home == HOME
    assert not await store.set_ref(RefKind.SENDER, sender, Ref(Slot(8), b"u" * 16))


async def test_a_follower_hears_of_references_in_their_own_slot(store: EmbeddedQueueStore) -> None:
    told: list[tuple[Slot, int]] = []
    assert await store.create(queue_in(HOME, sender=id_in(OTHER)))
    store.tap(lambda slot, rows: told.append((slot, len(rows))))

    await store.write_refs(HOME, after=None, limit=10)

    assert told == [(OTHER, 1)]
    assert slot_of(id_in(OTHER)) == OTHER
