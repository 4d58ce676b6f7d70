"""Conformance suite for queue stores: all parts in one class."""

from waystation.queue.model import (
    Message,
)
from waystation.queue.store import (
    Admission,
    Party,
    QueueStore,
)
from waystation.testing.conformance.queue_messages import QueueMessagesConformance
from waystation.testing.conformance.queue_records import QueueRecordsConformance
from waystation.testing.conformance.queue_samples import (
    drained,
    new_link,
    new_message,
    new_notifier,
    new_queue,
    send,
)
from waystation.testing.conformance.queue_services import (
    LIMIT,
    QueueServicesConformance,
    new_fingerprint,
    new_service,
)


class QueueStoreConformance(
    QueueRecordsConformance, QueueMessagesConformance, QueueServicesConformance
):
    """The whole contract."""


class DurableQueueStoreConformance(QueueStoreConformance):
    """For durable backends; `reopened` closes `store` and opens it again."""

    async def reopened(self, store: QueueStore) -> QueueStore:
        raise AssertionError("a backend's class says how")

    async def test_services_and_what_is_theirs_are_there_after_a_restart(
        self, store: QueueStore
    ) -> None:
        fingerprint, service, notifier = new_fingerprint(), new_service(), new_notifier()
        queue = new_queue(notifier=notifier)
        await store.create(queue)
        await store.register_service(fingerprint, service, limit=LIMIT)
        await store.set_notifier_service(
            queue.recipient_id, notifier.notifier_id, service.service_id
        )

        again = await self.reopened(store)

        known = await again.register_service(fingerprint, new_service(), limit=LIMIT)
        assert known == service
        assert await again.count_notifiers(service.service_id) == 1
        await again.close()

    async def test_everything_is_there_after_a_restart(self, store: QueueStore) -> None:
        queue = new_queue(link=new_link(), notifier=new_notifier())
        gone = new_queue()
        await store.create(queue)
        await store.create(gone)
        await store.delete(gone.recipient_id)
        sent = [new_message(b"%d" % n) for n in range(3)]
        for one in sent[:2]:
            await send(store, queue, one, quota=2)
        refused = new_message()
        await send(store, queue, refused, quota=2)
        await store.acknowledge(queue.recipient_id, sent[0].message_id)

        again = await self.reopened(store)

        assert await again.find(Party.SENDER, queue.sender_id) == queue
        assert await again.find(Party.RECIPIENT, gone.recipient_id) is None
        assert (await send(again, queue, new_message(), quota=2)).admission is Admission.FULL
        left = await drained(again, queue)
        assert left == [sent[1], Message(refused.message_id, refused.accepted_at_s)]
        assert (await send(again, queue, new_message(), quota=2)).admission is Admission.STORED
        await again.close()
