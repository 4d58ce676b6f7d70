"""Conformance suite for queue stores: records of queues."""

import asyncio
import secrets

import msgspec
import pytest

from waystation.queue.model import (
    AuthKey,
    Blocking,
    BlockReason,
    KeyKind,
    Link,
    LinkData,
    MessageId,
    Notice,
    Queue,
    QueueMode,
    RecipientId,
    SenderId,
    Standing,
)
from waystation.queue.store import (
    Admission,
    Deleted,
    NotifierChange,
    Party,
    QueueStore,
)
from waystation.storage.capabilities import Capabilities
from waystation.testing.conformance.queue_samples import (
    DAY_S,
    QUOTA,
    TODAY_S,
    drained,
    new_key,
    new_link,
    new_message,
    new_notifier,
    new_queue,
    send,
)


class QueueSuite:
    """Base of the suites; a backend provides `store`, and its class's `capabilities`."""

    capabilities: Capabilities

    @pytest.fixture
    async def store(self) -> QueueStore:
        raise AssertionError("a backend's class gives its store")

    @pytest.fixture
    async def queue(self, store: QueueStore) -> Queue:
        queue = new_queue()
        assert await store.create(queue)
        return queue


class QueueRecordsConformance(QueueSuite):
    async def test_a_queue_is_found_by_each_of_its_ids_and_by_no_other(
        self, store: QueueStore
    ) -> None:
        link, notifier = new_link(), new_notifier()
        queue = new_queue(link=link, notifier=notifier)
        assert await store.create(queue)

        assert await store.find(Party.RECIPIENT, queue.recipient_id) == queue
        assert await store.find(Party.SENDER, queue.sender_id) == queue
        assert await store.find(Party.NOTIFIER, notifier.notifier_id) == queue
        assert await store.find(Party.LINK, link.link_id) == queue
        for party in Party:
            for entity_id in (queue.recipient_id, queue.sender_id, link.link_id):
                found = await store.find(party, entity_id)
                right = {
                    Party.RECIPIENT: queue.recipient_id,
                    Party.SENDER: queue.sender_id,
                    Party.NOTIFIER: notifier.notifier_id,
                    Party.LINK: link.link_id,
                }[party]
                assert (found is not None) == (entity_id == right)

    @pytest.mark.parametrize("entity_id", [b"", b"\0", b"12345678", bytes(24), bytes(255)])
    async def test_an_id_of_any_length_may_be_asked_for(
        self, store: QueueStore, entity_id: bytes
    ) -> None:
        for party in Party:
            assert await store.find(party, entity_id) is None

    async def test_a_queue_with_an_id_in_use_is_not_made(self, store: QueueStore) -> None:
        first = new_queue(link=new_link(), notifier=new_notifier())
        assert await store.create(first)
        for same in (
            {"recipient_id": first.recipient_id},
            {"sender_id": first.sender_id},
            {"link": first.link},
            {"notifier": first.notifier},
        ):
            second = msgspec.structs.replace(new_queue(), **same)

            assert not await store.create(second)
            if second.recipient_id != first.recipient_id:
                assert await store.find(Party.RECIPIENT, second.recipient_id) is None
        assert await store.find(Party.SENDER, first.sender_id) == first

    async def test_of_two_that_take_one_id_at_once_one_gets_it(self, store: QueueStore) -> None:
        sender_id = SenderId(secrets.token_bytes(24))
        queues = [new_queue() for _ in range(8)]
        named = [
            Queue(
                recipient_id=one.recipient_id,
                recipient_keys=one.recipient_keys,
                box_key=one.box_key,
                sender_id=sender_id,
            )
            for one in queues
        ]

        applied = await asyncio.gather(*(store.create(one) for one in named))

        assert applied.count(True) == 1

    async def test_a_queue_is_secured_once_and_the_same_key_may_come_again(
        self, store: QueueStore, queue: Queue
    ) -> None:
        key = new_key()

        assert await store.secure(queue.recipient_id, key)
        assert await store.secure(queue.recipient_id, key)
        assert not await store.secure(queue.recipient_id, new_key())
        found = await store.find(Party.SENDER, queue.sender_id)
        assert found is not None
        assert found.sender_key == key

    async def test_recipient_keys_are_replaced_in_contact_mode_only(
        self, store: QueueStore, queue: Queue
    ) -> None:
        contact = new_queue(mode=QueueMode.CONTACT)
        await store.create(contact)
        keys = (new_key(), AuthKey(KeyKind.ED448, secrets.token_bytes(57)))

        assert await store.set_recipient_keys(contact.recipient_id, keys)
        assert not await store.set_recipient_keys(queue.recipient_id, keys)
        found = await store.find(Party.RECIPIENT, contact.recipient_id)
        assert found is not None
        assert found.recipient_keys == keys

    async def test_user_data_of_a_link_changes_and_nothing_else_of_it(
        self, store: QueueStore
    ) -> None:
        link = new_link()
        queue = new_queue(mode=QueueMode.CONTACT, link=link)
        await store.create(queue)
        changed = Link(link.link_id, LinkData(b"fixed", b"other"))

        assert await store.set_link(queue.recipient_id, changed)
        assert not await store.set_link(queue.recipient_id, new_link())
        other_fixed = Link(link.link_id, LinkData(b"mended", b"user"))
        assert not await store.set_link(queue.recipient_id, other_fixed)
        found = await store.find(Party.LINK, link.link_id)
        assert found is not None
        assert found.link == changed

    async def test_a_link_may_be_made_later_under_a_free_id(
        self, store: QueueStore, queue: Queue
    ) -> None:
        taken = new_link()
        await store.create(new_queue(link=taken))
        link = new_link()

        assert not await store.set_link(queue.recipient_id, taken)
        assert await store.set_link(queue.recipient_id, link)
        found = await store.find(Party.LINK, link.link_id)
        assert found is not None
        assert found.recipient_id == queue.recipient_id

    async def test_a_secured_messaging_queue_takes_no_link(
        self, store: QueueStore, queue: Queue
    ) -> None:
        await store.secure(queue.recipient_id, new_key())

        assert not await store.set_link(queue.recipient_id, new_link())

    async def test_a_link_is_dropped_once_or_twice(self, store: QueueStore) -> None:
        link = new_link()
        queue = new_queue(link=link)
        await store.create(queue)

        assert await store.drop_link(queue.recipient_id)
        assert await store.drop_link(queue.recipient_id)
        assert await store.find(Party.LINK, link.link_id) is None
        assert await store.create(new_queue(link=link))

    async def test_a_new_notifier_takes_the_place_of_the_old_one(
        self, store: QueueStore, queue: Queue
    ) -> None:
        first, second = new_notifier(), new_notifier()

        assert await store.set_notifier(queue.recipient_id, first) == NotifierChange(True, None)
        change = await store.set_notifier(queue.recipient_id, second)
        assert change == NotifierChange(True, first.notifier_id)
        assert await store.find(Party.NOTIFIER, first.notifier_id) is None
        found = await store.find(Party.NOTIFIER, second.notifier_id)
        assert found is not None
        assert found.notifier == second
        dropped = await store.drop_notifier(queue.recipient_id)
        assert dropped == NotifierChange(True, second.notifier_id)
        assert await store.drop_notifier(queue.recipient_id) == NotifierChange(True, None)
        assert await store.find(Party.NOTIFIER, second.notifier_id) is None

    async def test_a_notifier_id_in_use_is_refused(self, store: QueueStore, queue: Queue) -> None:
        notifier = new_notifier()
        await store.create(new_queue(notifier=notifier))

        assert not (await store.set_notifier(queue.recipient_id, notifier)).applied

    async def test_a_suspended_queue_takes_nothing_and_keeps_what_it_has(
        self, store: QueueStore, queue: Queue
    ) -> None:
        message = new_message()
        await send(store, queue, message)

        assert await store.suspend(queue.recipient_id)
        assert await store.suspend(queue.recipient_id)
        assert (await send(store, queue, new_message())).admission is Admission.REFUSED
        assert await drained(store, queue) == [message]

    async def test_a_blocked_queue_says_why_until_it_is_unblocked(
        self, store: QueueStore, queue: Queue
    ) -> None:
        blocking = Blocking(BlockReason.SPAM, Notice(ttl=3600))

        assert not await store.unblock(queue.recipient_id)
        assert await store.block(queue.recipient_id, blocking)
        found = await store.find(Party.SENDER, queue.sender_id)
        assert found is not None
        assert found.standing is Standing.BLOCKED
        assert found.blocking == blocking
        assert (await send(store, queue, new_message())).admission is Admission.REFUSED
        assert await store.unblock(queue.recipient_id)
        assert await store.find(Party.SENDER, queue.sender_id) == queue
        assert (await send(store, queue, new_message())).admission is Admission.STORED

    async def test_the_day_of_use_is_remembered(self, store: QueueStore, queue: Queue) -> None:
        await store.touch(queue.recipient_id, TODAY_S + DAY_S)

        found = await store.find(Party.RECIPIENT, queue.recipient_id)
        assert found is not None
        assert found.updated_on_s == TODAY_S + DAY_S
        await store.append(
            queue.recipient_id, new_message(), quota=QUOTA, day_s=TODAY_S + 2 * DAY_S
        )
        found = await store.find(Party.RECIPIENT, queue.recipient_id)
        assert found is not None
        assert found.updated_on_s == TODAY_S + 2 * DAY_S

    async def test_nothing_of_a_deleted_queue_remains(self, store: QueueStore) -> None:
        queue = new_queue(link=new_link(), notifier=new_notifier())
        await store.create(queue)
        for _ in range(3):
            await send(store, queue, new_message())

        assert await store.delete(queue.recipient_id) == Deleted(queue, 3)
        assert await store.delete(queue.recipient_id) is None
        assert await store.find(Party.RECIPIENT, queue.recipient_id) is None
        assert await store.find(Party.SENDER, queue.sender_id) is None
        assert await store.head(queue.recipient_id) is None
        assert await store.size(queue.recipient_id) == 0
        assert (await send(store, queue, new_message())).admission is Admission.REFUSED
        assert await store.acknowledge(queue.recipient_id, MessageId(bytes(24))) is None
        assert await store.create(queue)
        assert await store.head(queue.recipient_id) is None

    async def test_changes_of_a_queue_that_is_not_there_are_not_applied(
        self, store: QueueStore
    ) -> None:
        nowhere = RecipientId(secrets.token_bytes(24))

        assert not await store.secure(nowhere, new_key())
        assert not await store.set_recipient_keys(nowhere, (new_key(),))
        assert not await store.set_link(nowhere, new_link())
        assert not await store.drop_link(nowhere)
        assert not (await store.set_notifier(nowhere, new_notifier())).applied
        assert not (await store.drop_notifier(nowhere)).applied
        assert not await store.suspend(nowhere)
        assert not await store.block(nowhere, Blocking(BlockReason.CONTENT))
        assert not await store.unblock(nowhere)
        await store.touch(nowhere, TODAY_S)
        assert await store.find(Party.RECIPIENT, nowhere) is None
