"""One address in front of three servers: clients notice no change of the cluster."""

import asyncio
from base64 import urlsafe_b64encode
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import TypeVar

import pytest

from tests.e2e.queue.exchange import check_outcome, create_queue, exchange
from tests.e2e.queue_cluster.cluster import Cluster, cluster
from waystation.client.queue.client import QueueClient
from waystation.client.queue.connection import ConnectionSettings
from waystation.client.queue.error_replies import AuthError, BlockedError, TemporaryError
from waystation.client.queue.events import Gone, Notified, Received, Taken
from waystation.client.queue.keys import KeyKind, PrivateKey
from waystation.client.queue.queue_secrets import SenderQueue
from waystation.client.queue.tls import client_context
from waystation.queue.model import slot_letters, slot_of

pytestmark = pytest.mark.e2e

T = TypeVar("T")
Dial = Callable[..., Awaitable[QueueClient]]
TLS = client_context(any_suite=True)


async def soon(waited: Awaitable[T]) -> T:
    async with asyncio.timeout(40):
        return await waited


async def received(client: QueueClient) -> Received:
    event = await soon(client.receive())
    assert isinstance(event, Received)
    return event


@pytest.fixture
async def dial(running: Cluster) -> AsyncIterator[Dial]:
    async with AsyncExitStack() as stack:

        async def dial(**settings: object) -> QueueClient:
            made = ConnectionSettings(**{"backoff_max_s": 0.5, **settings})
            client = QueueClient(running.address, settings=made, tls=TLS)
            return await stack.enter_async_context(client)

        yield dial


@pytest.mark.parametrize("kind", ["ed25519", "ed448", "x25519"])
async def test_every_kind_of_key_works_through_an_edge(dial: Dial, kind: KeyKind) -> None:
    """Q-120: the storage server checks what was signed for the edge's session."""
    recipient, sender = await dial(), await dial()
    queue = await create_queue(recipient, key_kind=kind)
    there = SenderQueue(queue.sender_id, PrivateKey.generate(kind))
    await soon(sender.secure_as_sender(there))
    for body in (b"one", b"\xfe" * 16_048):
        await soon(sender.send(there, body))
        message = await received(recipient)
        assert message.body == body
        assert await soon(recipient.ack(message))
    await soon(recipient.delete(queue))
    with pytest.raises(AuthError):
        await soon(sender.send(there, b"late"))


async def test_queues_are_on_all_servers_and_are_subscribed_at_once(
    dial: Dial, running: Cluster
) -> None:
    """Q-114, Q-121."""
    owner, reader = await dial(), await dial()
    # Until the edge has heard that every server's lease holds, it sends new queues elsewhere.
    taking: set[int] = set()
    async with asyncio.timeout(30):
        while taking != {1, 2, 3}:
            made = await create_queue(owner, subscribe=False)
            taking.add(await running.owner_of(made.recipient_id))
    queues = [await create_queue(owner, subscribe=False) for _ in range(60)]
    owners = {await running.owner_of(queue.recipient_id) for queue in queues}
    for number, queue in enumerate(queues):
        await soon(owner.send(SenderQueue(queue.sender_id), b"%d" % number))
    await soon(reader.subscribe(*queues))
    messages = [await received(reader) for _ in queues]
    found = {message.queue.recipient_id: message.body for message in messages}

    assert owners == {1, 2, 3}
    assert [found[queue.recipient_id] for queue in queues] == [b"%d" % n for n in range(60)]


async def test_links_lead_to_their_queue_on_whichever_server(dial: Dial) -> None:
    """Q-116, Q-117: ids that clients make get references."""
    owner, friend = await dial(), await dial()
    for _ in range(4):
        invitation = await create_queue(owner, link_text="only you")
        assert invitation.link_address is not None
        content, there = await soon(friend.open_link(invitation.link_address))
        await soon(friend.send(there, content.text.encode()))
        message = await received(owner)
        assert (message.queue.recipient_id, message.body) == (invitation.recipient_id, b"only you")
        await soon(owner.ack(message))
    contact = await create_queue(owner, mode="C", link_text="everybody")
    link = contact.link_address
    assert link is not None

    assert (await soon(friend.open_link(link)))[0].text == "everybody"
    await soon(owner.delete_link(contact))
    with pytest.raises(AuthError):
        await soon(friend.open_link(link))


async def test_a_queue_is_moderated_wherever_it_is(dial: Dial, running: Cluster) -> None:
    """§6.10: named by its sender's id, or by a link's that lies with another server."""
    owner, friend = await dial(), await dial()
    contact = await create_queue(owner, mode="C", link_text="everybody")
    assert contact.link is not None
    assert contact.link_address is not None
    names = [urlsafe_b64encode(one).decode() for one in (contact.sender_id, contact.link.link_id)]

    async def moderate(*words: str) -> str:
        return (await asyncio.to_thread(running.run, "moderate", *words, node=2)).strip()

    for name in names:
        assert await moderate("status", "--", name) == "active"
        assert await moderate("block", "--reason", "content", "--", name) == "ok"
        assert await moderate("status", "--", name) == "blocked,reason=content"
        with pytest.raises(BlockedError):
            await soon(friend.send(SenderQueue(contact.sender_id), b"spam"))
        assert await moderate("unblock", "--", name) == "ok"
        await soon(friend.send(SenderQueue(contact.sender_id), b"hello"))
    assert await moderate("delete", "--", names[1]) == "ok"
    with pytest.raises(AuthError):
        await soon(friend.open_link(contact.link_address))
    with pytest.raises(AssertionError, match="no queue has this id"):
        await moderate("status", "--", names[0])


async def test_a_notifier_gets_notifications_through_an_edge(dial: Dial) -> None:
    owner, watcher = await dial(), await dial()
    queue = await soon(owner.add_notifier(await create_queue(owner)))
    assert queue.notifier is not None
    await soon(watcher.subscribe_notifier(queue.notifier))
    await soon(owner.send(SenderQueue(queue.sender_id), b"loud", notify=True))
    message = await received(owner)

    assert await soon(watcher.receive()) == Notified(
        queue.notifier, message.message_id, message.sent_at_s
    )


async def test_a_subscription_moves_and_a_deletion_is_reported(dial: Dial) -> None:
    first, second = await dial(), await dial()
    queue = await create_queue(first)
    await soon(second.subscribe(queue))

    assert await soon(first.receive()) == Taken(queue)
    await soon(first.delete(queue))
    assert await soon(second.receive()) == Gone(queue)


async def test_a_moved_slot_takes_its_queues_messages_and_subscribers_along(
    dial: Dial, running: Cluster
) -> None:
    """Q-123, Q-131: subscribed by NEW, an unacknowledged message, and no END."""
    recipient, sender = await dial(), await dial()
    queue = await create_queue(recipient)
    there = SenderQueue(queue.sender_id, PrivateKey.generate())
    await soon(sender.secure_as_sender(there))
    await soon(sender.send(there, b"before"))
    held = await received(recipient)
    slot = slot_of(queue.recipient_id)
    target = await running.owner_of(queue.recipient_id) % 3 + 1
    # `--`: a slot's name may begin with a dash.
    await asyncio.to_thread(running.run, "move", "--", slot_letters(slot), str(target))
    await running.moved(slot, target)
    await soon(sender.send(there, b"after"))
    confirmed = await soon(recipient.ack(held))
    message = await received(recipient)

    assert message.body == b"after"
    assert confirmed
    assert await soon(recipient.ack(message))


async def test_a_wrong_link_address_is_reported_and_corrected(dial: Dial, running: Cluster) -> None:
    """The edge goes where the map says, so queues on that server wait for the correction."""
    owner, friend = await dial(), await dial()
    queue = await create_queue(owner)
    node = str(await running.owner_of(queue.recipient_id))
    links = {line.split()[1]: line.split()[-1] for line in cluster_lines(running)}
    right, wrong = links[node], links[str(int(node) % 3 + 1)]

    async def told(*words: str) -> str:
        return await asyncio.to_thread(running.run, *words)

    assert "not reached" not in await told("status")
    await told("set-link", wrong, "--node", node)
    said = await told("status")
    assert f"node {node} is alive, and its link {wrong} is not reached from here" in said
    assert f"node-{int(node) % 3 + 1} answers there" in said
    await told("set-link", right, "--node", node)
    assert "not reached" not in await told("status")
    async with asyncio.timeout(30):
        while True:
            try:
                await friend.send(SenderQueue(queue.sender_id), b"there")
                break
            except TemporaryError:
                await asyncio.sleep(0.1)
    assert (await received(owner)).body == b"there"


def cluster_lines(running: Cluster) -> list[str]:
    """One for each server."""
    return running.run("status").splitlines()[2:5]


async def test_two_people_write_to_each_other_while_servers_are_killed(running: Cluster) -> None:
    """Q-126: what a server has answered is there when it comes back."""

    def killed(number: int) -> Callable[[], Awaitable[None]]:
        async def disturb() -> None:
            await asyncio.to_thread(running.servers[number].kill)
            await asyncio.to_thread(running.servers[number].start)

        return disturb

    outcomes = await exchange(running.address, 60, [killed(number) for number in (1, 2, 0)])

    assert len(outcomes) == 2
    for outcome in outcomes:
        check_outcome(outcome, 60)


@pytest.fixture
def small(tmp_path: Path) -> Iterator[Cluster]:
    """Its second server has room for some forty messages."""
    with cluster(tmp_path, 2, store__map_bytes=1 << 20) as made:
        yield made


async def fill(client: QueueClient, sender_id: bytes) -> None:
    for _ in range(100):
        await soon(client.send(SenderQueue(sender_id), b"x" * 16_000))


async def test_queues_are_made_while_a_server_is_full(small: Cluster) -> None:
    """Q-114, §6.10: clients notice nothing of it."""
    settings = ConnectionSettings(backoff_max_s=0.5)
    async with QueueClient(small.address, settings=settings, tls=TLS) as owner:
        there = await create_queue(owner, subscribe=False)
        async with asyncio.timeout(30):
            while await small.owner_of(there.recipient_id) != 2:
                there = await create_queue(owner, subscribe=False)
        with pytest.raises(TemporaryError):
            await fill(owner, there.sender_id)

        queues = [await create_queue(owner, mode="C", link_text="here") for _ in range(20)]

        owners = {await small.owner_of(queue.recipient_id) for queue in queues}
        assert owners == {1}
