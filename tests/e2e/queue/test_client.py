"""The client library against a real server over real TLS: two independent codecs."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from typing import TypeVar

import pytest

from tests.e2e.queue.process import QueueServer
from waystation.base.errors import GoneError
from waystation.client.queue.address import ServerAddress
from waystation.client.queue.client import QueueClient
from waystation.client.queue.commands import message_bytes_max
from waystation.client.queue.connection import ConnectionSettings
from waystation.client.queue.error_replies import AuthError, QueueFullError, RefusedError
from waystation.client.queue.events import Gone, Notified, QuotaReached, Received, Taken
from waystation.client.queue.hello import IdentityError, VersionError
from waystation.client.queue.keys import KeyKind, PrivateKey
from waystation.client.queue.queue_secrets import SenderQueue
from waystation.client.queue.relay import Relay
from waystation.client.queue.tls import client_context

T = TypeVar("T")
Dial = Callable[..., Awaitable[QueueClient]]
# This process has not the OpenSSL configuration of a queue client; the server chooses the suite.
TLS = client_context(any_suite=True)


def address_of(server: QueueServer, *, password: str = "") -> ServerAddress:
    return ServerAddress(server.identity.fingerprint, ("127.0.0.1",), server.port, password)


async def soon(waited: Awaitable[T]) -> T:
    async with asyncio.timeout(30):
        return await waited


async def received(client: QueueClient) -> Received:
    event = await soon(client.receive())
    assert isinstance(event, Received)
    return event


@pytest.fixture
async def dial(queue_server: QueueServer) -> AsyncIterator[Dial]:
    """Clients of a server; all are closed after the test."""
    async with AsyncExitStack() as stack:

        async def dial(
            server: QueueServer = queue_server, *, password: str = "", **settings: object
        ) -> QueueClient:
            made = ConnectionSettings(**{"backoff_max_s": 0.5, **settings})
            client = QueueClient(address_of(server, password=password), settings=made, tls=TLS)
            return await stack.enter_async_context(client)

        yield dial


@pytest.mark.parametrize("version", range(8, 19))
async def test_a_message_goes_through_in_every_version(dial: Dial, version: int) -> None:
    recipient, sender = [await dial(versions=(version, version)) for _ in range(2)]
    queue = await soon(recipient.create())
    key = PrivateKey.generate()
    there = SenderQueue(queue.sender_id, key)
    if version >= 9:
        await soon(sender.secure_as_sender(there))
    else:
        await soon(recipient.secure(queue, key.public))
    longest = b"\xfe" * message_bytes_max(version)
    for body in (b"", longest):
        await soon(sender.send(there, body))
    first = await received(recipient)
    confirmed = await soon(recipient.ack(first))
    second = await received(recipient)
    with pytest.raises(RefusedError, match="LARGE_MSG"):
        await soon(sender.send(there, longest + b"."))
    await soon(recipient.ack(second))
    session = await recipient.connected()
    await soon(recipient.delete(queue))

    assert session.version == version
    assert confirmed
    assert (first.body, second.body) == (b"", longest)
    with pytest.raises(AuthError):
        await soon(sender.send(there, b"late"))


@pytest.mark.parametrize("kind", ["ed25519", "ed448", "x25519"])
async def test_every_kind_of_key_owns_and_sends(dial: Dial, kind: KeyKind) -> None:
    client = await dial()
    queue = await soon(client.create(key_kind=kind))
    there = SenderQueue(queue.sender_id, PrivateKey.generate(kind))
    await soon(client.secure_as_sender(there))
    await soon(client.send(there, b"signed"))
    message = await received(client)

    assert message.body == b"signed"
    assert await soon(client.ack(message))
    with pytest.raises(AuthError):
        await soon(client.send(SenderQueue(queue.sender_id), b"unsigned"))
    wrong = SenderQueue(queue.sender_id, PrivateKey.generate(kind))
    with pytest.raises(AuthError):
        await soon(client.send(wrong, b"signed by another"))


async def test_a_client_without_a_key_of_its_own_is_served_without_inner_encryption(
    dial: Dial,
) -> None:
    client = await dial(inner_encryption=False)
    queue = await soon(client.create())
    await soon(client.send(SenderQueue(queue.sender_id), b"plain"))

    assert (await received(client)).body == b"plain"


async def test_a_server_that_is_not_the_one_of_the_address_is_not_spoken_to(
    queue_server: QueueServer,
) -> None:
    stranger = ServerAddress(b"x" * 32, ("127.0.0.1",), queue_server.port)
    async with QueueClient(stranger, tls=TLS) as client:
        with pytest.raises(IdentityError, match="fingerprint"):
            await soon(client.connected())


async def test_a_server_without_a_common_version_has_its_own_error(dial: Dial) -> None:
    client = await dial(versions=(19, 20))

    with pytest.raises(VersionError, match="8–18"):
        await soon(client.connected())


async def test_a_server_with_a_password_creates_queues_only_with_it(
    dial: Dial, legacy_server: QueueServer
) -> None:
    """Its identity is Ed448, as the reference's is."""
    stranger = await dial(legacy_server)
    friend = await dial(legacy_server, password="sesame")

    assert (await soon(friend.create())).mode == "M"
    with pytest.raises(AuthError):
        await soon(stranger.create())


async def test_the_last_connection_to_subscribe_has_the_subscription(dial: Dial) -> None:
    first, second = await dial(), await dial()
    queue = await soon(first.create())
    await soon(first.send(SenderQueue(queue.sender_id), b"one"))
    held = await received(first)
    await soon(second.subscribe(queue))
    taken = await soon(first.receive())
    again = await received(second)

    assert taken == Taken(queue)
    assert (again.message_id, again.body) == (held.message_id, b"one")
    assert not await soon(first.ack(held))
    assert await soon(second.ack(again))


async def test_many_queues_are_subscribed_at_once(dial: Dial) -> None:
    owner, reader = await dial(), await dial()
    queues = [await soon(owner.create(subscribe=False)) for _ in range(40)]
    for number, queue in enumerate(queues):
        await soon(owner.send(SenderQueue(queue.sender_id), b"%d" % number))
    await soon(reader.subscribe(*queues))
    found = {
        message.queue.recipient_id: message for message in [await received(reader) for _ in queues]
    }

    assert [found[queue.recipient_id].body for queue in queues] == [b"%d" % n for n in range(40)]


async def test_a_full_queue_refuses_until_it_was_read_empty(dial: Dial) -> None:
    """The server's quota is 4."""
    client = await dial()
    queue = await soon(client.create())
    there = SenderQueue(queue.sender_id)
    for number in range(4):
        await soon(client.send(there, b"%d" % number))
    with pytest.raises(QueueFullError):
        await soon(client.send(there, b"4"))
    bodies: list[bytes] = []
    for _ in range(4):
        message = await received(client)
        bodies.append(message.body)
        await soon(client.ack(message))
    marker = await soon(client.receive())
    while True:  # the client acknowledges the marker by itself
        try:
            await soon(client.send(there, b"5"))
        except QueueFullError:
            continue
        break

    assert bodies == [b"0", b"1", b"2", b"3"]
    assert isinstance(marker, QuotaReached)
    assert (await received(client)).body == b"5"


async def test_messages_are_fetched_one_by_one(dial: Dial) -> None:
    client = await dial()
    queue = await soon(client.create(subscribe=False))
    for body in (b"one", b"two"):
        await soon(client.send(SenderQueue(queue.sender_id), body))
    bodies: list[bytes] = []
    while (message := await soon(client.get(queue))) is not None:
        assert isinstance(message, Received)
        bodies.append(message.body)
        assert await soon(client.ack(message))
    fields = await soon(client.info(queue))

    assert bodies == [b"one", b"two"]
    assert (fields["qiSize"], fields["qiSnd"]) == (0, False)


async def test_a_suspended_queue_takes_nothing_and_gives_what_it_has(dial: Dial) -> None:
    client = await dial()
    queue = await soon(client.create(subscribe=False))
    there = SenderQueue(queue.sender_id)
    await soon(client.send(there, b"before"))
    await soon(client.suspend(queue))
    with pytest.raises(AuthError):
        await soon(client.send(there, b"after"))
    await soon(client.subscribe(queue))

    assert (await received(client)).body == b"before"


async def test_the_subscriber_of_a_deleted_queue_is_informed(dial: Dial) -> None:
    subscriber, other = await dial(), await dial()
    queue = await soon(subscriber.create())
    await soon(other.delete(queue))

    assert await soon(subscriber.receive()) == Gone(queue)


async def test_an_invitation_link_works_for_the_first_client_that_opens_it(dial: Dial) -> None:
    owner, friend, stranger = [await dial() for _ in range(3)]
    queue = await soon(owner.create(link_text="first words"))
    link = queue.link_address
    assert link is not None
    queue = await soon(owner.set_link(queue, "second thoughts"))
    content, there = await soon(friend.open_link(link))
    with pytest.raises(AuthError):
        await soon(stranger.open_link(link))
    again, _ = await soon(friend.open_link(link, there.key))
    await soon(friend.send(there, b"hello"))

    assert content.text == again.text == "second thoughts"
    assert content.address == queue.address
    assert (await received(owner)).body == b"hello"
    with pytest.raises(GoneError):  # the first message has removed it
        await soon(friend.open_link(link, there.key))


async def test_a_contact_link_works_for_every_client_until_it_is_deleted(dial: Dial) -> None:
    owner, one, two = [await dial() for _ in range(3)]
    queue = await soon(owner.create(mode="C"))
    queue = await soon(owner.set_link(queue, "write to me"))
    link = queue.link_address
    assert link is not None
    for client in (one, two):
        content, there = await soon(client.open_link(link))
        await soon(client.send(there, content.text.encode()))
        message = await received(owner)
        await soon(owner.ack(message))
        assert message.body == b"write to me"
    queue = await soon(owner.delete_link(queue))

    assert queue.link_address is None
    with pytest.raises(AuthError):
        await soon(one.open_link(link))


@pytest.mark.parametrize("at_once", [True, False])
async def test_a_notifier_gets_notifications_of_messages_with_the_flag(
    dial: Dial, at_once: bool
) -> None:
    owner, watcher = await dial(), await dial()
    queue = await soon(owner.create(notifier=at_once))
    if not at_once:
        queue = await soon(owner.add_notifier(queue))
    assert queue.notifier is not None
    await soon(watcher.subscribe_notifier(queue.notifier))
    there = SenderQueue(queue.sender_id)
    await soon(owner.send(there, b"quiet"))
    await soon(owner.ack(await received(owner)))
    await soon(owner.send(there, b"loud", notify=True))
    message = await received(owner)
    told = await soon(watcher.receive())
    await soon(owner.delete_notifier(queue))

    assert told == Notified(queue.notifier, message.message_id, message.sent_at_s)
    assert await soon(watcher.receive()) == Gone(queue.notifier)


@pytest.mark.parametrize("kind", ["ed25519", "ed448", "x25519"])
async def test_messages_go_through_a_proxy(
    dial: Dial, legacy_server: QueueServer, kind: KeyKind
) -> None:
    """The queue is on one server, the sender is connected to another."""
    owner = await dial(legacy_server, password="sesame")
    proxy = await dial()
    queue = await soon(owner.create())
    relay = Relay(proxy, address_of(legacy_server))
    there = SenderQueue(queue.sender_id, PrivateKey.generate(kind))
    await soon(relay.secure_as_sender(there))
    body = b"\xfe" * 16_048
    await soon(relay.send(there, body))

    assert (await received(owner)).body == body
    with pytest.raises(AuthError):
        await soon(relay.send(SenderQueue(queue.sender_id), b"unsigned"))


async def test_a_link_is_opened_through_a_proxy(dial: Dial, legacy_server: QueueServer) -> None:
    owner = await dial(legacy_server, password="sesame")
    proxy = await dial()
    queue = await soon(owner.create(link_text="hidden way"))
    assert queue.link_address is not None
    relay = Relay(proxy, address_of(legacy_server))
    content, there = await soon(relay.open_link(queue.link_address))
    await soon(relay.send(there, b"hello"))

    assert content.text == "hidden way"
    assert (await received(owner)).body == b"hello"


async def test_a_proxy_with_another_relay_than_the_one_of_the_address_is_refused(
    dial: Dial, legacy_server: QueueServer
) -> None:
    proxy = await dial()
    nobody = ServerAddress(b"x" * 32, ("127.0.0.1",), legacy_server.port)

    with pytest.raises(RefusedError, match="PROXY BROKER"):
        await soon(Relay(proxy, nobody).send(SenderQueue(b"s" * 24), b"x"))


async def test_a_client_that_was_cut_off_goes_on_where_it_was(dial: Dial) -> None:
    client = await dial()
    queue = await soon(client.create())
    there = SenderQueue(queue.sender_id)
    await soon(client.send(there, b"one"))
    held = await received(client)
    await client.drop_connection()
    await soon(client.send(there, b"two"))

    assert await soon(client.ack(held))
    assert (await received(client)).body == b"two"
    assert client.connections == 2
