"""Conformance suite for queue stores: services, and their queues and notifiers."""

import asyncio
import secrets

from waystation.queue.model import (
    Fingerprint,
    Queue,
    RecipientId,
    Service,
    ServiceId,
    ServiceRole,
)
from waystation.queue.store import Party, PendingNotification, QueueStore
from waystation.testing.conformance.queue_records import QueueSuite
from waystation.testing.conformance.queue_samples import new_notifier, new_queue

LIMIT = 3


def new_service(role: ServiceRole = ServiceRole.NOTIFIER) -> Service:
    return Service(ServiceId(secrets.token_bytes(24)), role)


def new_fingerprint() -> Fingerprint:
    return Fingerprint(secrets.token_bytes(32))


class QueueServicesConformance(QueueSuite):
    async def test_a_service_keeps_the_id_and_role_of_its_first_time(
        self, store: QueueStore
    ) -> None:
        fingerprint, first = new_fingerprint(), new_service()
        assert await store.register_service(fingerprint, first, limit=LIMIT) == first

        later = new_service(ServiceRole.MESSAGING)
        assert await store.register_service(fingerprint, later, limit=LIMIT) == first
        other = new_service()
        assert await store.register_service(new_fingerprint(), other, limit=LIMIT) == other

    async def test_two_who_come_together_are_one_service(self, store: QueueStore) -> None:
        fingerprint = new_fingerprint()
        both = await asyncio.gather(
            *(store.register_service(fingerprint, new_service(), limit=LIMIT) for _ in range(2))
        )

        assert both[0] is not None
        assert both[0] == both[1]

    async def test_beyond_the_limit_only_those_known_come_in(self, store: QueueStore) -> None:
        known = {new_fingerprint(): new_service() for _ in range(LIMIT)}
        for fingerprint, service in known.items():
            assert await store.register_service(fingerprint, service, limit=LIMIT) == service

        assert await store.register_service(new_fingerprint(), new_service(), limit=LIMIT) is None
        for fingerprint, service in known.items():
            again = await store.register_service(fingerprint, new_service(), limit=LIMIT)
            assert again == service

    async def test_a_queue_is_one_services_and_then_anothers(
        self, store: QueueStore, queue: Queue
    ) -> None:
        for service_id in (new_service().service_id, new_service().service_id, None):
            assert await store.set_queue_service(queue.recipient_id, service_id)
            found = await store.find(Party.RECIPIENT, queue.recipient_id)
            assert found is not None
            assert found.service_id == service_id
            assert (await store.counts()).service_queues == (service_id is not None)

        assert not await store.set_queue_service(RecipientId(bytes(24)), None)

    async def test_notifiers_are_counted_for_each_service(self, store: QueueStore) -> None:
        mine, other = new_service().service_id, new_service().service_id
        queues = [new_queue(notifier=new_notifier()) for _ in range(4)]
        for queue in queues:
            assert await store.create(queue)
            assert queue.notifier is not None
            notifier_id = queue.notifier.notifier_id
            assert await store.set_notifier_service(queue.recipient_id, notifier_id, mine)
        first, second, third, _ = queues
        assert first.notifier is not None
        notifier_id = first.notifier.notifier_id
        assert await store.set_notifier_service(first.recipient_id, notifier_id, other)
        await store.drop_notifier(second.recipient_id)
        await store.delete(third.recipient_id)

        assert await store.count_notifiers(mine) == 1
        assert await store.count_notifiers(other) == 1
        assert (await store.counts()).service_notifiers == 2
        found = await store.find(Party.NOTIFIER, notifier_id)
        assert found is not None
        assert found.notifier is not None
        assert found.notifier.service_id == other

    async def test_a_new_notifier_is_nobodys(self, store: QueueStore, queue: Queue) -> None:
        service_id, old, new = new_service().service_id, new_notifier(), new_notifier()
        await store.set_notifier(queue.recipient_id, old)
        assert await store.set_notifier_service(queue.recipient_id, old.notifier_id, service_id)
        await store.set_notifier(queue.recipient_id, new)

        assert await store.count_notifiers(service_id) == 0
        assert not await store.set_notifier_service(queue.recipient_id, old.notifier_id, service_id)
        found = await store.find(Party.NOTIFIER, new.notifier_id)
        assert found is not None
        assert found.notifier == new

    async def test_a_queue_may_be_a_services_from_its_beginning(self, store: QueueStore) -> None:
        service_id = new_service().service_id
        queue = new_queue(service_id=service_id)
        assert await store.create(queue)
        assert (await store.counts()).service_queues == 1
        assert await store.find(Party.SENDER, queue.sender_id) == queue

        await store.delete(queue.recipient_id)
        assert (await store.counts()).service_queues == 0

    async def test_services_are_counted_by_their_role(self, store: QueueStore) -> None:
        for role in (ServiceRole.NOTIFIER, ServiceRole.NOTIFIER, ServiceRole.MESSAGING):
            await store.register_service(new_fingerprint(), new_service(role), limit=LIMIT)

        counts = await store.counts()
        assert (counts.recipient_services, counts.notifier_services) == (1, 2)

    async def test_a_waiting_notification_remembers_whose_it_is(self, store: QueueStore) -> None:
        notifier, service = new_notifier(), new_service()
        waiting = [
            PendingNotification(notifier.notifier_id, b"n" * 24, b"m" * 144, 1, service_id)
            for service_id in (None, service.service_id)
        ]
        await store.save_pending(waiting)

        assert list(await store.take_pending()) == waiting
