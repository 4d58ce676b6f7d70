"""The client against a scripted server: commands, events, and their order."""

import asyncio
from collections.abc import Awaitable
from typing import TypeVar

import msgspec
import pytest

from tests.unit.client.queue.peer import (
    ANY_TLS,
    SERVER,
    Peer,
    Server,
    a_queue,
    ids,
    marker,
    message,
    queue_box_key,
)
from waystation.client.queue.boxes import seal_padded
from waystation.client.queue.client import QueueClient
from waystation.client.queue.connection import (
    ConnectionSettings,
    NotConnectedError,
    OutcomeUnknownError,
)
from waystation.client.queue.encoding import BadBytesError, Reader, i64, short
from waystation.client.queue.error_replies import (
    AuthError,
    BlockedError,
    QueueFullError,
    RefusedError,
    TemporaryError,
)
from waystation.client.queue.events import (
    Event,
    Gone,
    Notified,
    QuotaReached,
    Received,
    SubscriptionFailed,
    Taken,
    Unreadable,
)
from waystation.client.queue.hello import IdentityError
from waystation.client.queue.keys import PrivateKey
from waystation.client.queue.links import sender_id_of
from waystation.client.queue.queue_secrets import Notifier, SenderQueue

T = TypeVar("T")
SOK = b"SOK 0"
QUEUE = a_queue()
ID = QUEUE.recipient_id


def message_id(number: int) -> bytes:
    return bytes([number]) * 24


async def soon(waited: Awaitable[T]) -> T:
    async with asyncio.timeout(20):
        return await waited


async def received(client: QueueClient) -> Received:
    event = await soon(client.receive())
    assert isinstance(event, Received)
    return event


async def attended(peer: Peer, task: "asyncio.Task[T]", words: bytes = SOK) -> T:
    """Gives every command the same answer until `task` is done. A subscription may be asked for
    twice: by who subscribes, and by a connection that comes up meanwhile."""
    while True:
        hear = asyncio.ensure_future(peer.hear())
        await soon(asyncio.wait({hear, task}, return_when=asyncio.FIRST_COMPLETED))
        if not hear.done():
            hear.cancel()
            await asyncio.wait({hear})
            return await task
        peer.answer(hear.result(), words)


async def subscribed(client: QueueClient, server: Server) -> Peer:
    """A client that follows QUEUE: the server's end."""
    task = asyncio.ensure_future(client.subscribe(QUEUE))
    peer = await soon(server.peer())
    await attended(peer, task)
    return peer


async def test_a_new_queue_has_the_ids_of_the_server_and_opens_its_messages(
    client: QueueClient, server: Server
) -> None:
    task = asyncio.ensure_future(client.create())
    peer = await soon(server.peer())
    new = await soon(peer.hear())
    reader = Reader(new.command.removeprefix(b"NEW "))
    key, dh = reader.short(), reader.short()
    peer.answer(new, ids(ID, QUEUE.sender_id))
    queue = await soon(task)
    there = msgspec.structs.replace(queue, box_key=queue_box_key(dh))
    peer.say((b"", ID, message(there, message_id(1), b"hello")))

    assert (queue.recipient_id, queue.sender_id, queue.mode) == (ID, QUEUE.sender_id, "M")
    assert queue.key.public.der == key
    assert new.entity_id == b""
    assert (await received(client)).body == b"hello"


async def test_a_queue_with_a_link_is_asked_for_under_ids_that_follow_from_secrets(
    client: QueueClient, server: Server
) -> None:
    task = asyncio.ensure_future(client.create(mode="C", link_text="call me"))
    peer = await soon(server.peer())
    new = await soon(peer.hear())
    sender_id = sender_id_of(new.corr_id)
    at = new.command.index(sender_id)
    link_id = new.command[at - 25 : at - 1]
    peer.answer(new, ids(ID, sender_id, mode=b"C", link_id=link_id))
    queue = await soon(task)

    assert queue.link is not None
    assert queue.link.link_id == link_id
    assert (len(queue.link.data.fixed), len(queue.link.data.user)) == (2048, 13_824)


async def test_a_new_queue_with_other_ids_than_the_links_is_refused(
    client: QueueClient, server: Server
) -> None:
    task = asyncio.ensure_future(client.create(link_text="call me"))
    peer = await soon(server.peer())
    peer.answer(await soon(peer.hear()), ids(ID, QUEUE.sender_id, link_id=b"L" * 24))

    with pytest.raises(BadBytesError, match="other ids"):
        await soon(task)


async def test_the_answer_to_an_ack_may_be_the_next_message(
    client: QueueClient, server: Server
) -> None:
    peer = await subscribed(client, server)
    peer.say((b"", ID, message(QUEUE, message_id(1), b"one")))
    first = await received(client)
    task = asyncio.ensure_future(client.ack(first))
    ack = await soon(peer.hear())
    peer.answer(ack, message(QUEUE, message_id(2), b"two"))

    assert await soon(task)
    assert ack.command == b"ACK " + short(message_id(1))
    assert (await received(client)).body == b"two"


async def test_a_message_that_comes_again_is_handed_over_once_and_acked_again(
    client: QueueClient, server: Server
) -> None:
    """The answer to the ACK is lost with the connection."""
    peer = await subscribed(client, server)
    peer.say((b"", ID, message(QUEUE, message_id(1), b"one")))
    task = asyncio.ensure_future(client.ack(await received(client)))
    await soon(peer.hear())
    peer.hang_up()
    confirmed = await soon(task)
    peer = await soon(server.peer())
    peer.answer(await soon(peer.hear()), SOK)
    peer.say((b"", ID, message(QUEUE, message_id(1), b"one")))
    again = await soon(peer.hear())
    peer.answer(again, message(QUEUE, message_id(2), b"two"))

    assert not confirmed
    assert again.command == b"ACK " + short(message_id(1))
    assert (await received(client)).body == b"two"
    assert client.repeated == 1


async def test_a_message_that_the_caller_still_holds_is_not_handed_over_again(
    client: QueueClient, server: Server
) -> None:
    peer = await subscribed(client, server)
    peer.say((b"", ID, message(QUEUE, message_id(1), b"one")))
    first = await received(client)
    peer.hang_up()
    peer = await soon(server.peer())
    peer.answer(await soon(peer.hear()), SOK)
    peer.say((b"", ID, message(QUEUE, message_id(1), b"one")))
    task = asyncio.ensure_future(client.ack(first))
    peer.answer(await soon(peer.hear()), message(QUEUE, message_id(2), b"two"))

    assert await soon(task)
    assert (await received(client)).body == b"two"


async def test_what_was_handled_before_the_program_started_is_only_acked(
    client: QueueClient, server: Server
) -> None:
    task = asyncio.ensure_future(client.subscribe(QUEUE, acked=[message_id(1)]))
    peer = await soon(server.peer())
    await attended(peer, task)
    peer.say((b"", ID, message(QUEUE, message_id(1), b"one")))

    assert (await soon(peer.hear())).command == b"ACK " + short(message_id(1))


async def test_subscriptions_are_restored_in_one_block(server: Server, client: QueueClient) -> None:
    queues = [a_queue(number) for number in range(1, 100)]
    task = asyncio.ensure_future(client.subscribe(*queues))
    peer = await soon(server.peer())
    await attended(peer, task)
    peer.hang_up()
    peer = await soon(server.peer())
    heard = [await soon(peer.hear()) for _ in queues]

    assert [one.entity_id for one in heard] == [queue.recipient_id for queue in queues]
    assert {one.command for one in heard} == {b"SUB"}
    assert peer.blocks == 1


async def test_a_subscription_that_fails_after_a_reconnect_is_an_event(
    client: QueueClient, server: Server
) -> None:
    peer = await subscribed(client, server)
    peer.hang_up()
    peer = await soon(server.peer())
    peer.answer(await soon(peer.hear()), b"ERR AUTH")
    event = await soon(client.receive())

    assert isinstance(event, SubscriptionFailed)
    assert isinstance(event.error, AuthError)


async def test_a_refused_subscription_raises_and_is_not_restored(
    client: QueueClient, server: Server
) -> None:
    task = asyncio.ensure_future(client.subscribe(QUEUE))
    peer = await soon(server.peer())
    with pytest.raises(AuthError):
        await attended(peer, task, b"ERR AUTH")
    ping = asyncio.ensure_future(client.ping())
    await soon(peer.hear())
    peer.hang_up()
    peer = await soon(server.peer())
    heard = await soon(peer.hear())
    peer.answer(heard, b"PONG")
    await soon(ping)

    assert heard.command == b"PING"


@pytest.mark.parametrize(
    "words, kind",
    [(b"END", Taken), (b"DELD", Gone), (b"ERR BLOCKED reason=spam", SubscriptionFailed)],
)
async def test_a_subscription_that_ended_is_an_event_and_not_renewed(
    client: QueueClient, server: Server, words: bytes, kind: type[Event]
) -> None:
    peer = await subscribed(client, server)
    peer.say((b"", ID, words))
    event = await soon(client.receive())
    peer.hang_up()
    ping = asyncio.ensure_future(client.ping())
    peer = await soon(server.peer())
    heard = await soon(peer.hear())
    ping.cancel()

    assert isinstance(event, kind)
    assert heard.command == b"PING"


async def test_the_quota_marker_is_an_event_and_acked_by_the_client(
    client: QueueClient, server: Server
) -> None:
    peer = await subscribed(client, server)
    peer.say((b"", ID, marker(QUEUE, message_id(3), 99)))

    assert await soon(client.receive()) == QuotaReached(QUEUE, 99)
    assert (await soon(peer.hear())).command == b"ACK " + short(message_id(3))


async def test_a_message_that_does_not_open_is_handed_over_as_such(
    client: QueueClient, server: Server
) -> None:
    peer = await subscribed(client, server)
    peer.say((b"", ID, message(a_queue(9), message_id(1), b"for another")))
    event = await soon(client.receive())
    assert isinstance(event, Unreadable)
    task = asyncio.ensure_future(client.ack(event))
    peer.answer(await soon(peer.hear()), b"OK")

    assert await soon(task)


async def test_a_server_that_does_not_wait_for_acks_is_disconnected(
    client: QueueClient, server: Server
) -> None:
    peer = await subscribed(client, server)
    for number in range(300):
        peer.say((b"", ID, message(QUEUE, number.to_bytes(24), b"flood")))
    again = await soon(server.peer())
    heard = await soon(again.hear())

    assert heard.command == b"SUB"
    assert "before the ACK of the last" in client._line.last_problem


async def test_messages_are_fetched_without_a_subscription(
    client: QueueClient, server: Server
) -> None:
    task = asyncio.ensure_future(client.get(QUEUE))
    peer = await soon(server.peer())
    peer.answer(await soon(peer.hear()), message(QUEUE, message_id(1), b"one"))
    first = await soon(task)
    task = asyncio.ensure_future(client.get(QUEUE))
    peer.answer(await soon(peer.hear()), b"OK")

    assert isinstance(first, Received)
    assert first.body == b"one"
    assert await soon(task) is None


async def test_a_send_whose_answer_was_lost_is_not_repeated_unless_asked(
    client: QueueClient, server: Server
) -> None:
    sender = SenderQueue(QUEUE.sender_id)
    task = asyncio.ensure_future(client.send(sender, b"once"))
    peer = await soon(server.peer())
    await soon(peer.hear())
    peer.hang_up()
    with pytest.raises(OutcomeUnknownError):
        await soon(task)

    task = asyncio.ensure_future(client.send(sender, b"twice", again=True))
    peer = await soon(server.peer())
    first = await soon(peer.hear())
    peer.hang_up()
    peer = await soon(server.peer())
    second = await soon(peer.hear())
    peer.answer(second, b"OK")
    await soon(task)

    assert first.command == second.command == b"SEND F twice"
    assert first.corr_id != second.corr_id


async def test_a_command_that_cannot_have_reached_the_server_waits_for_the_next_connection(
    server: Server, client: QueueClient
) -> None:
    server.refuse = 3
    task = asyncio.ensure_future(client.send(SenderQueue(QUEUE.sender_id), b"late", notify=True))
    peer = await soon(server.peer())
    heard = await soon(peer.hear())
    peer.answer(heard, b"OK")
    await soon(task)

    assert heard.command == b"SEND T late"


async def test_a_server_that_is_not_there_is_named_in_the_error(server: Server) -> None:
    server.refuse = 1_000_000
    settings = ConnectionSettings(patience_s=0.05, backoff_base_s=0.001, backoff_max_s=0.01)
    async with QueueClient(SERVER, settings=settings, tls=ANY_TLS, dial=server.dial) as client:
        with pytest.raises(NotConnectedError, match=r"server\.test port 5223: nobody there"):
            await soon(client.ping())


async def test_a_command_without_an_answer_ends_the_connection(server: Server) -> None:
    settings = ConnectionSettings(request_timeout_s=0.05, backoff_base_s=0.001, backoff_max_s=0.01)
    async with QueueClient(SERVER, settings=settings, tls=ANY_TLS, dial=server.dial) as client:
        with pytest.raises(OutcomeUnknownError, match=r"no answer within 0\.05 s"):
            await soon(client.send(SenderQueue(QUEUE.sender_id), b"x"))


async def test_a_silent_server_is_asked_whether_it_is_there(server: Server) -> None:
    settings = ConnectionSettings(ping_interval_s=0.02)
    async with QueueClient(SERVER, settings=settings, tls=ANY_TLS, dial=server.dial):
        peer = await soon(server.peer())
        heard = await soon(peer.hear())

        assert heard.command == b"PING"
        assert heard.entity_id == heard.auth == b""


@pytest.mark.parametrize(
    "words, error",
    [
        (b"AUTH", AuthError),
        (b"QUOTA", QueueFullError),
        (b"LARGE_MSG", RefusedError),
        (b"BLOCKED reason=content", BlockedError),
        (b"PROXY BROKER TIMEOUT", TemporaryError),
    ],
)
async def test_a_refusal_says_what_to_do_next(
    client: QueueClient, server: Server, words: bytes, error: type[Exception]
) -> None:
    task = asyncio.ensure_future(client.send(SenderQueue(QUEUE.sender_id), b"x"))
    peer = await soon(server.peer())
    peer.answer(await soon(peer.hear()), b"ERR " + words)

    with pytest.raises(error):
        await soon(task)


async def test_an_answer_about_another_queue_ends_the_connection(
    client: QueueClient, server: Server
) -> None:
    task = asyncio.ensure_future(client.send(SenderQueue(QUEUE.sender_id), b"x"))
    peer = await soon(server.peer())
    heard = await soon(peer.hear())
    peer.say((heard.corr_id, b"another", b"OK"))

    with pytest.raises(OutcomeUnknownError, match="another queue"):
        await soon(task)


async def test_bytes_that_are_no_block_end_the_connection(
    client: QueueClient, server: Server
) -> None:
    task = asyncio.ensure_future(client.send(SenderQueue(QUEUE.sender_id), b"x"))
    peer = await soon(server.peer())
    await soon(peer.hear())
    peer.raw(b"\0" * 16_384)

    with pytest.raises(OutcomeUnknownError, match="does not decrypt"):
        await soon(task)


async def test_deleting_twice_because_the_answer_was_lost_is_deleting(
    client: QueueClient, server: Server
) -> None:
    task = asyncio.ensure_future(client.delete(QUEUE))
    peer = await soon(server.peer())
    await soon(peer.hear())
    peer.hang_up()
    peer = await soon(server.peer())
    heard = await soon(peer.hear())
    peer.answer(heard, b"ERR AUTH")
    await soon(task)

    assert heard.command == b"DEL"


async def test_deleting_what_is_not_ours_is_refused(client: QueueClient, server: Server) -> None:
    task = asyncio.ensure_future(client.delete(QUEUE))
    peer = await soon(server.peer())
    peer.answer(await soon(peer.hear()), b"ERR AUTH")

    with pytest.raises(AuthError):
        await soon(task)


async def test_a_notifier_learns_of_messages_and_nothing_else(
    client: QueueClient, server: Server
) -> None:
    notifier = Notifier(b"N" * 24, PrivateKey.generate(), b"k" * 32)
    task = asyncio.ensure_future(client.subscribe_notifier(notifier))
    peer = await soon(server.peer())
    await attended(peer, task)
    nonce = b"n" * 24
    meta = seal_padded(notifier.box_key, nonce, short(message_id(5)) + i64(77), 128)
    peer.say((b"", notifier.notifier_id, b"NMSG " + nonce + short(meta)))

    assert await soon(client.receive()) == Notified(notifier, message_id(5), 77)


async def test_commands_of_one_turn_share_a_block(client: QueueClient, server: Server) -> None:
    peer = await subscribed(client, server)
    before = peer.blocks
    tasks = [asyncio.ensure_future(client.info(QUEUE)) for _ in range(20)]
    for _ in tasks:
        peer.answer(await soon(peer.hear()), b'INFO {"qiSize":3}')

    assert [await soon(task) for task in tasks] == [{"qiSize": 3}] * 20
    assert peer.blocks == before + 1


async def test_a_body_that_fits_no_block_is_refused_and_the_session_goes_on(
    client: QueueClient, server: Server
) -> None:
    peer = await subscribed(client, server)
    sender = SenderQueue(QUEUE.sender_id)
    too_long = asyncio.ensure_future(client.send(sender, bytes(17_000)))
    good = asyncio.ensure_future(client.send(sender, b"short"))
    heard = await soon(peer.hear())
    peer.answer(heard, b"OK")
    await soon(good)

    assert heard.command == b"SEND F short"
    with pytest.raises(BadBytesError, match="too long for a block"):
        await soon(too_long)


async def test_a_caller_waiting_for_events_gets_the_error_of_a_changed_identity(
    client: QueueClient, server: Server
) -> None:
    peer = await subscribed(client, server)
    waiting = asyncio.ensure_future(client.receive())
    server.become_another()
    peer.hang_up()

    with pytest.raises(IdentityError):
        await soon(waiting)
    with pytest.raises(IdentityError):
        await soon(client.ping())


async def test_a_caller_waiting_for_events_gets_an_error_when_the_client_is_closed(
    server: Server,
) -> None:
    async with QueueClient(SERVER, tls=ANY_TLS, dial=server.dial) as client:
        waiting = asyncio.ensure_future(client.receive())
        await soon(server.peer())

    with pytest.raises(NotConnectedError, match="closed"):
        await soon(waiting)


async def test_a_queue_may_be_followed_before_there_is_a_connection(server: Server) -> None:
    server.refuse = 3
    settings = ConnectionSettings(backoff_base_s=0.001, backoff_max_s=0.01)
    client = QueueClient(SERVER, settings=settings, tls=ANY_TLS, dial=server.dial)
    client.follow(QUEUE)
    async with client:
        peer = await soon(server.peer())
        heard = await soon(peer.hear())

        assert (heard.command, heard.entity_id) == (b"SUB", ID)
