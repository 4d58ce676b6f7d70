"""Conformance suite for queue stores: messages and their expiry."""

import asyncio
import secrets

from waystation.queue.model import (
    Message,
    NotifierId,
    Queue,
    QueueMode,
    Slot,
    slot_of,
)
from waystation.queue.store import (
    Acknowledged,
    Admission,
    Appended,
    Counts,
    Party,
    PendingNotification,
    QueueStore,
)
from waystation.testing.conformance.queue_records import QueueSuite
from waystation.testing.conformance.queue_samples import (
    NOW_S,
    drained,
    new_key,
    new_link,
    new_message,
    new_notifier,
    new_queue,
    send,
)


class QueueMessagesConformance(QueueSuite):
    async def test_messages_keep_their_order_and_their_bytes(
        self, store: QueueStore, queue: Queue
    ) -> None:
        sent = [
            new_message(secrets.token_bytes(size), at_s=NOW_S + n, notify=n % 2 == 1)
            for n, size in enumerate((0, 1, 16_088))
        ]
        appended = [await send(store, queue, one) for one in sent]

        assert [one.is_head for one in appended] == [True, False, False]
        assert await store.size(queue.recipient_id) == 3
        assert await drained(store, queue) == sent
        assert await store.size(queue.recipient_id) == 0

    async def test_messages_sent_at_once_keep_the_order_of_the_calls(
        self, store: QueueStore, queue: Queue
    ) -> None:
        sent = [new_message(b"%d" % n) for n in range(40)]

        outcomes = await asyncio.gather(*(send(store, queue, one, quota=100) for one in sent))

        assert [one.is_head for one in outcomes] == [True] + [False] * 39
        assert await drained(store, queue) == sent

    async def test_only_the_head_is_acknowledged(self, store: QueueStore, queue: Queue) -> None:
        first, second = new_message(), new_message()
        await send(store, queue, first)
        await send(store, queue, second)
        recipient_id = queue.recipient_id

        wrong = await store.acknowledge(recipient_id, second.message_id)
        assert wrong == Acknowledged(None, first)
        assert await store.acknowledge(recipient_id, first.message_id) == Acknowledged(
            first, second
        )
        assert await store.acknowledge(recipient_id, first.message_id) == Acknowledged(None, second)
        assert await store.acknowledge(recipient_id, second.message_id) == Acknowledged(
            second, None
        )
        assert await store.acknowledge(recipient_id, second.message_id) == Acknowledged(None, None)

    async def test_an_acknowledgement_twice_at_once_removes_one_message(
        self, store: QueueStore, queue: Queue
    ) -> None:
        first, second = new_message(), new_message()
        await send(store, queue, first)
        await send(store, queue, second)

        outcomes = await asyncio.gather(
            *(store.acknowledge(queue.recipient_id, first.message_id) for _ in range(5))
        )

        assert sum(one is not None and one.removed is not None for one in outcomes) == 1
        assert await drained(store, queue) == [second]

    async def test_the_quota_leaves_a_marker_and_opens_when_all_is_taken(
        self, store: QueueStore, queue: Queue
    ) -> None:
        sent = [new_message(), new_message()]
        refused = new_message(at_s=NOW_S + 7)
        for one in sent:
            assert (await send(store, queue, one, quota=2)).admission is Admission.STORED

        assert (await send(store, queue, refused, quota=2)).admission is Admission.MARKED
        assert (await send(store, queue, new_message(), quota=2)).admission is Admission.FULL
        assert await store.size(queue.recipient_id) == 3
        for one in sent:
            await store.acknowledge(queue.recipient_id, one.message_id)
            outcome = await send(store, queue, new_message(), quota=2)
            assert outcome.admission is Admission.FULL
        marker = await store.head(queue.recipient_id)
        assert marker == Message(refused.message_id, NOW_S + 7)
        await store.acknowledge(queue.recipient_id, refused.message_id)
        outcome = await send(store, queue, new_message(), quota=2)
        assert outcome == Appended(Admission.STORED, is_head=True)

    async def test_a_link_goes_with_the_first_message_of_who_secured_the_queue(
        self, store: QueueStore
    ) -> None:
        link = new_link()
        queue = new_queue(link=link)
        await store.create(queue)
        await send(store, queue, new_message())
        assert await store.find(Party.LINK, link.link_id) is not None

        await store.secure(queue.recipient_id, new_key())
        assert await store.find(Party.LINK, link.link_id) is not None
        await send(store, queue, new_message())
        assert await store.find(Party.LINK, link.link_id) is None

    async def test_the_link_of_a_contact_address_stays(self, store: QueueStore) -> None:
        link = new_link()
        queue = new_queue(mode=QueueMode.CONTACT, link=link, sender_key=new_key())
        await store.create(queue)

        await send(store, queue, new_message())

        assert await store.find(Party.LINK, link.link_id) is not None

    # Upkeep

    async def test_old_messages_go_from_the_head_up_to_the_first_younger_one(
        self, store: QueueStore, queue: Queue
    ) -> None:
        old = [new_message(at_s=NOW_S - 100 + n) for n in range(2)]
        young = new_message(at_s=NOW_S)
        late_but_old = new_message(at_s=NOW_S - 50)
        for one in (*old, young, late_but_old):
            await send(store, queue, one, quota=10)
        other = new_queue()
        await store.create(other)
        await send(store, other, new_message(at_s=NOW_S - 100))

        expired = await store.expire(before_s=NOW_S - 10, after=None, limit=1000)

        assert expired.after is None
        assert sum(expired.by_slot.values()) == 3
        assert expired.by_slot[slot_of(other.recipient_id)] >= 1
        assert await drained(store, queue) == [young, late_but_old]
        assert await store.head(other.recipient_id) is None
        assert (await send(store, other, new_message())).is_head

    async def test_a_marker_never_expires_and_keeps_the_queue_shut(
        self, store: QueueStore, queue: Queue
    ) -> None:
        for _ in range(2):
            await send(store, queue, new_message(at_s=NOW_S - 100), quota=1)

        await store.expire(before_s=NOW_S, after=None, limit=1000)

        head = await store.head(queue.recipient_id)
        assert head is not None
        assert head.is_marker
        assert (await send(store, queue, new_message(), quota=1)).admission is Admission.FULL

    async def test_expiry_goes_on_where_it_stopped(self, store: QueueStore) -> None:
        queues = [new_queue() for _ in range(7)]
        for queue in queues:
            await store.create(queue)
            await send(store, queue, new_message(at_s=NOW_S - 100))
        removed, passes, after = 0, 0, None
        while passes == 0 or after is not None:
            expired = await store.expire(before_s=NOW_S, after=after, limit=2)
            removed += sum(expired.by_slot.values())
            after = expired.after
            passes += 1
            assert passes < 20

        assert removed == 7
        assert passes > 1

    async def test_a_send_may_remove_what_is_old_first(
        self, store: QueueStore, queue: Queue
    ) -> None:
        await send(store, queue, new_message(at_s=NOW_S - 100))
        fresh = new_message()

        outcome = await send(store, queue, fresh, expire_before_s=NOW_S - 10)

        assert outcome == Appended(Admission.STORED, is_head=True, expired=1)
        assert await drained(store, queue) == [fresh]

    async def test_a_slot_is_scanned_in_order_and_in_portions(self, store: QueueStore) -> None:
        slot = Slot(0xABC)
        inside = sorted(new_queue(slot=0xABC).recipient_id for _ in range(5))
        for recipient_id in inside:
            fresh = new_queue()
            await store.create(
                Queue(
                    recipient_id=recipient_id,
                    recipient_keys=fresh.recipient_keys,
                    box_key=fresh.box_key,
                    sender_id=fresh.sender_id,
                )
            )
        for neighbour in (0xABB, 0xABD):
            await store.create(new_queue(slot=neighbour))

        first = list(await store.scan(slot, after=None, limit=3))
        rest = list(await store.scan(slot, after=first[-1], limit=10))

        assert first + rest == inside

    async def test_the_load_of_a_slot_is_its_own(self, store: QueueStore) -> None:
        inside, beside = new_queue(slot=0xABC), new_queue(slot=0xABD)
        for queue in (inside, beside):
            await store.create(queue)
        for _ in range(2):
            await send(store, inside, new_message(bytes(1000)))
        load = await store.slot_load(Slot(0xABC))

        assert (load.queues, load.messages) == (1, 2)
        assert 2000 <= load.stored_bytes < 3000
        assert (await store.slot_load(Slot(0xABD))).messages == 0
        assert (await store.slot_load(Slot(0))).queues == 0

    async def test_counts_follow_what_is_there(self, store: QueueStore) -> None:
        queue = new_queue(notifier=new_notifier())
        await store.create(queue)
        await store.create(new_queue())
        await send(store, queue, new_message())

        assert await store.counts() == Counts(queues=2, messages=1, notifiers=1)
        await store.delete(queue.recipient_id)
        assert await store.counts() == Counts(queues=1, messages=0, notifiers=0)

    async def test_waiting_notifications_are_taken_once(self, store: QueueStore) -> None:
        waiting = [
            PendingNotification(
                NotifierId(secrets.token_bytes(24)),
                secrets.token_bytes(24),
                secrets.token_bytes(144),
                NOW_S + n,
            )
            for n in range(3)
        ]
        await store.save_pending(waiting)

        assert list(await store.take_pending()) == waiting
        assert list(await store.take_pending()) == []

    async def test_an_open_store_answers(self, store: QueueStore) -> None:
        await store.check()

        assert await store.counts() == Counts(0, 0, 0)
