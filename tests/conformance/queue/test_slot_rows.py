"""Slots as rows: a copy of rows and reported changes equals the slot."""

import asyncio
import random
import secrets
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import pytest

from waystation.queue.model import (
    Blocking,
    BlockReason,
    MessageId,
    Queue,
    QueueMode,
    RecipientId,
    ServiceId,
    Slot,
    slot_of,
)
from waystation.queue.store import Party, Ref, RefKind, Row
from waystation.storage.embedded.queue import EmbeddedQueueStore
from waystation.storage.settings import Store
from waystation.testing.conformance.queue_samples import (
    QUOTA,
    drained,
    new_key,
    new_link,
    new_message,
    new_notifier,
    new_queue,
    send,
)

SETTINGS = Store(map_bytes=64 << 20, sync=False)
SLOT = Slot(0xABC)
SERVICES = (ServiceId(b"s" * 24), ServiceId(b"t" * 24), None)


@pytest.fixture
async def stores(tmp_path: Path) -> AsyncIterator[list[EmbeddedQueueStore]]:
    stores = [await EmbeddedQueueStore.open(tmp_path / name, settings=SETTINGS) for name in "ab"]
    yield stores
    for store in stores:
        await store.close()


async def all_rows(store: EmbeddedQueueStore, slot: Slot, limit_bytes: int = 500) -> list[Row]:
    rows: list[Row] = []
    after = None
    while chunk := await store.read_rows(slot, after=after, limit_bytes=limit_bytes):
        rows += chunk
        after = (chunk[-1].table, chunk[-1].key)
    return rows


def as_map(rows: Sequence[Row]) -> dict[tuple[int, bytes], bytes | None]:
    mapped = {(row.table, row.key): row.value for row in rows}
    assert len(mapped) == len(rows), "no row comes twice"
    return mapped


async def filled(store: EmbeddedQueueStore, slot: int) -> list[Queue]:
    queues = [
        new_queue(slot=slot),
        new_queue(slot=slot, link=new_link(), notifier=new_notifier()),
        new_queue(slot=slot, mode=QueueMode.CONTACT, link=new_link()),
    ]
    for queue in queues:
        assert await store.create(queue)
        for n in range(3):
            await send(store, queue, new_message(b"%d" % n))
    return queues


async def test_a_copy_by_rows_is_the_slot_and_nothing_else(
    stores: list[EmbeddedQueueStore],
) -> None:
    source, target = stores
    queues = await filled(source, SLOT)
    for neighbour in (SLOT - 1, SLOT + 1):
        await filled(source, neighbour)
    reference = bytes((SLOT >> 4, (SLOT & 15) << 4)) + bytes(22)
    await source.set_ref(RefKind.LINK, reference, Ref(Slot(7), b"t" * 16))
    rows = await all_rows(source, SLOT)
    await target.apply_rows(SLOT, rows, erase=True)

    assert await target.held_slots() == [SLOT]
    assert await source.held_slots() == [SLOT - 1, SLOT, SLOT + 1]
    for queue in queues:
        assert await target.find(Party.RECIPIENT, queue.recipient_id) == queue
        assert await target.find(Party.SENDER, queue.sender_id) == queue
        if queue.link is not None:
            assert await target.find(Party.LINK, queue.link.link_id) == queue
        if queue.notifier is not None:
            assert await target.find(Party.NOTIFIER, queue.notifier.notifier_id) == queue
        assert [one.body for one in await drained(target, queue)] == [b"0", b"1", b"2"]
    assert await target.get_ref(RefKind.LINK, reference) == Ref(Slot(7), b"t" * 16)
    assert (await target.counts()).queues == 3


async def test_what_is_a_services_moves_with_its_slot(stores: list[EmbeddedQueueStore]) -> None:
    source, target = stores
    service_id, notifier = ServiceId(b"s" * 24), new_notifier()
    queue = new_queue(slot=SLOT, notifier=notifier, service_id=service_id)
    await source.create(queue)
    await source.set_notifier_service(queue.recipient_id, notifier.notifier_id, service_id)
    await target.apply_rows(SLOT, await all_rows(source, SLOT), erase=True)
    await source.erase_slot(SLOT)

    assert await target.count_notifiers(service_id) == 1
    counts = await source.counts()
    assert (counts.service_queues, counts.service_notifiers) == (0, 0)
    assert (await target.counts()).service_queues == 1


async def test_an_erased_slot_leaves_its_neighbours(stores: list[EmbeddedQueueStore]) -> None:
    store = stores[0]
    gone = await filled(store, SLOT)
    kept = await filled(store, SLOT + 1)
    await store.erase_slot(SLOT)

    assert await store.held_slots() == [SLOT + 1]
    assert await all_rows(store, SLOT) == []
    for queue in gone:
        assert await store.find(Party.SENDER, queue.sender_id) is None
        assert await store.head(queue.recipient_id) is None
    for queue in kept:
        assert await store.find(Party.SENDER, queue.sender_id) == queue
        assert len(await drained(store, queue)) == 3
    for queue in gone:
        assert await store.create(queue)


@pytest.mark.parametrize("limit_bytes", [1, 300, 1 << 20])
async def test_rows_come_in_portions_that_together_are_all(
    stores: list[EmbeddedQueueStore], limit_bytes: int
) -> None:
    await filled(stores[0], SLOT)

    assert as_map(await all_rows(stores[0], SLOT, limit_bytes)) == as_map(
        await all_rows(stores[0], SLOT, 1 << 30)
    )


async def test_a_reference_is_set_once_and_dropped_by_its_own_transaction(
    stores: list[EmbeddedQueueStore],
) -> None:
    store, entity_id = stores[0], secrets.token_bytes(24)
    ref = Ref(Slot(5), b"a" * 16)

    assert await store.set_ref(RefKind.SENDER, entity_id, ref)
    assert await store.set_ref(RefKind.SENDER, entity_id, ref)
    assert not await store.set_ref(RefKind.SENDER, entity_id, Ref(Slot(6), b"b" * 16))
    assert await store.get_ref(RefKind.SENDER, entity_id) == ref
    assert await store.get_ref(RefKind.LINK, entity_id) is None
    assert not await store.drop_ref(RefKind.SENDER, entity_id, b"b" * 16)
    assert await store.drop_ref(RefKind.SENDER, entity_id, b"a" * 16)
    assert not await store.drop_ref(RefKind.SENDER, entity_id, None)


async def _serve(
    store: EmbeddedQueueStore, recipient_id: RecipientId, chance: random.Random
) -> None:
    found = await store.find(Party.RECIPIENT, recipient_id)
    if found is not None and found.notifier is not None:
        await store.set_notifier_service(
            recipient_id, found.notifier.notifier_id, chance.choice(SERVICES)
        )
    else:
        await store.set_queue_service(recipient_id, chance.choice(SERVICES))


async def _anything(store: EmbeddedQueueStore, queues: list[Queue], chance: random.Random) -> None:
    """One command, as clients and operators give them."""
    queue = chance.choice(queues)
    recipient_id = queue.recipient_id
    match chance.randrange(18):
        case 0:
            fresh = new_queue(
                slot=SLOT if chance.random() < 0.7 else None,
                link=new_link() if chance.random() < 0.5 else None,
                notifier=new_notifier() if chance.random() < 0.5 else None,
            )
            if await store.create(fresh):
                queues.append(fresh)
        case 1:
            await store.delete(recipient_id)
        case 2:
            await store.secure(recipient_id, new_key())
        case 3 | 4:
            if not await store.set_link(recipient_id, new_link()):
                await store.drop_link(recipient_id)
        case 5:
            await store.set_notifier(recipient_id, new_notifier())
        case 6:
            await store.drop_notifier(recipient_id)
        case 7 | 8:
            if not await store.unblock(recipient_id):
                await store.block(recipient_id, Blocking(BlockReason.SPAM))
        case 9:
            head = await store.head(recipient_id)
            await store.acknowledge(recipient_id, head.message_id if head else MessageId(b""))
        case 10:
            await store.touch(recipient_id, 86_400 * chance.randrange(1000))
        case 11:
            await store.set_ref(
                RefKind.SENDER, bytes(recipient_id[:2]) + bytes(22), Ref(Slot(1), b"x" * 16)
            )
        case 12 | 13 | 14:
            await _serve(store, recipient_id, chance)
        case _:
            await send(store, queue, new_message(secrets.token_bytes(20)), quota=QUOTA)


@pytest.mark.parametrize("seed", range(4))
async def test_rows_and_concurrent_changes_make_the_same_slot(
    stores: list[EmbeddedQueueStore], seed: int
) -> None:
    """A chunk at a time, with changes between and during the chunks; whatever comes last counts."""
    source, target = stores
    chance = random.Random(seed)
    queues = [new_queue(slot=SLOT) for _ in range(6)]
    for queue in queues:
        await source.create(queue)
    stream: list[Row] = []

    def sink(slot: Slot, rows: Sequence[Row]) -> None:
        if slot == SLOT:
            stream.extend(rows)

    source.tap(sink)
    after = None
    while True:
        await asyncio.gather(*(_anything(source, queues, chance) for _ in range(10)))
        chunk = await source.read_rows(SLOT, after=after, limit_bytes=400)
        stream.extend(chunk)
        if not chunk:
            break
        after = (chunk[-1].table, chunk[-1].key)
    await asyncio.gather(*(_anything(source, queues, chance) for _ in range(50)))
    source.tap(None)
    await target.apply_rows(SLOT, stream, erase=True)

    assert as_map(await all_rows(target, SLOT)) == as_map(await all_rows(source, SLOT))


async def test_a_caller_waits_for_the_sink(stores: list[EmbeddedQueueStore]) -> None:
    store, queue = stores[0], new_queue(slot=SLOT)
    released, heard = asyncio.Event(), asyncio.Event()
    told: list[tuple[Slot, int]] = []

    async def wait() -> None:
        await released.wait()

    def sink(slot: Slot, rows: Sequence[Row]) -> asyncio.Task[None]:
        told.append((slot, len(rows)))
        heard.set()
        return asyncio.ensure_future(wait())

    store.tap(sink)
    creating = asyncio.ensure_future(store.create(queue))
    await heard.wait()
    assert not creating.done()
    released.set()

    assert await creating
    assert told == [(SLOT, 2)]


async def test_an_error_of_the_sink_reaches_the_caller(
    stores: list[EmbeddedQueueStore],
) -> None:
    store = stores[0]

    async def refuse() -> None:
        raise ConnectionAbortedError

    store.tap(lambda _slot, _rows: asyncio.ensure_future(refuse()))

    with pytest.raises(ConnectionAbortedError):
        await store.create(new_queue(slot=SLOT))


async def test_a_write_of_a_cancelled_caller_reaches_the_sink(
    stores: list[EmbeddedQueueStore],
) -> None:
    store, queue = stores[0], new_queue(slot=SLOT)
    told: asyncio.Queue[Slot] = asyncio.Queue()
    store.tap(lambda slot, _rows: told.put_nowait(slot))
    creating = asyncio.ensure_future(store.create(queue))
    await asyncio.sleep(0)
    creating.cancel()

    assert await told.get() == SLOT
    assert await store.find(Party.RECIPIENT, RecipientId(queue.recipient_id)) == queue
    assert slot_of(queue.recipient_id) == SLOT
