"""Delivery: the right client, order, and once (queues §7, 59 to 75)."""

import base64
import json
import threading
import time

import pytest

from tests.e2e.queue.conftest import Connect
from tests.e2e.queue.peer import Mailbox, Peer, Signer
from tests.e2e.queue.process import QueueServer
from waystation.queue.errors import Code
from waystation.queue.model import Message, MessageId
from waystation.queue.wire.commands import Ack, Get, Key, Ping, Que, Send, Sub
from waystation.queue.wire.responses import End, Err, Info, Msg, Ok, Pong, Sok


@pytest.fixture
def recipient(connect: Connect) -> Peer:
    return connect()


@pytest.fixture
def sender(connect: Connect) -> Peer:
    return connect()


def test_two_queues_carry_a_conversation(connect: Connect) -> None:
    """Q-059: the keys that secure each queue travel through the other."""
    alice, bob = connect(), connect()
    to_alice, to_bob = alice.create(), bob.create()
    alices, bobs = Signer(), Signer()
    bob.send(to_alice, bobs.public.raw)
    assert alice.take(to_alice) == bobs.public.raw
    alice.ask(Key(bobs.public), to_alice.recipient_id, to_alice.signer)
    alice.send(to_bob, alices.public.raw)
    assert bob.take(to_bob) == alices.public.raw
    bob.ask(Key(alices.public), to_bob.recipient_id, to_bob.signer)

    for n in range(5):
        alice.send(to_bob, b"to bob %d" % n, signer=alices)
        bob.send(to_alice, b"to alice %d" % n, signer=bobs)
        assert bob.take(to_bob) == b"to bob %d" % n
        assert alice.take(to_alice) == b"to alice %d" % n


def test_a_subscription_moves_with_what_was_not_acknowledged(
    connect: Connect, sender: Peer
) -> None:
    """Q-060"""
    first, second = connect(), connect()
    box = first.create()
    sender.send(box, b"one")
    delivered = first.received(box)
    second.subscribe(box)

    assert second.received(box) == delivered
    first.event(End, box.recipient_id)
    again = Ack(delivered.message_id)
    assert first.fault(again, box.recipient_id, box.signer) is Code.NO_MSG
    assert isinstance(second.ack(box, delivered), Ok)
    sender.send(box, b"two")
    assert second.take(box) == b"two"
    first.expect_silence()


def test_a_subscription_is_answered_first_and_the_message_follows_by_itself(
    recipient: Peer, sender: Peer
) -> None:
    """Q-061"""
    box = recipient.create(subscribe=False)
    sender.send(box, b"waiting")
    said, corr_id = recipient.transmission(Sub(), box.recipient_id, box.signer)
    recipient.write(said)
    answer, event = recipient.next(), recipient.next()

    assert (answer.corr_id, type(answer.response)) == (corr_id, Sok)
    assert (event.corr_id, type(event.response)) == (b"", Msg)
    assert event.entity_id == box.recipient_id


def test_an_ack_brings_the_next_message(recipient: Peer, sender: Peer) -> None:
    """Q-062"""
    box = recipient.create()
    for n in range(3):
        sender.send(box, b"%d" % n)
    message = recipient.received(box)
    bodies = [message.body]
    while isinstance(answer := recipient.ack(box, message), Msg):
        message = box.open(answer)
        bodies.append(message.body)

    assert bodies == [b"0", b"1", b"2"]
    assert isinstance(answer, Ok)


def test_an_ack_without_an_id_takes_what_was_delivered(recipient: Peer, sender: Peer) -> None:
    box = recipient.create()
    sender.send(box)
    recipient.received(box)

    assert isinstance(recipient.ask(Ack(MessageId(b"")), box.recipient_id, box.signer), Ok)


def test_a_repeated_subscription_delivers_again(recipient: Peer, sender: Peer) -> None:
    """Q-063"""
    box = recipient.create()
    sender.send(box)
    first = recipient.received(box)
    recipient.subscribe(box)

    assert recipient.received(box) == first
    assert isinstance(recipient.ack(box, first), Ok)


def test_on_one_connection_the_message_comes_before_the_ok(recipient: Peer) -> None:
    """Q-064"""
    box = recipient.create()
    said, corr_id = recipient.transmission(Send(False, b"to myself"), box.sender_id)
    recipient.write(said)
    first, second = recipient.next(), recipient.next()

    assert isinstance(first.response, Msg)
    assert (second.corr_id, second.response) == (corr_id, Ok())


def test_get_fetches_and_an_ack_removes(connect: Connect, recipient: Peer, sender: Peer) -> None:
    """Q-065"""
    box = recipient.create(subscribe=False)
    sender.send(box, b"fetched")
    answer = recipient.get(box)

    message = box.open(answer)
    assert message.body == b"fetched"
    assert isinstance(recipient.ack(box, message), Ok)
    assert isinstance(recipient.get(box), Ok)


def test_getter_and_subscriber_see_the_same_and_stay_apart(connect: Connect, sender: Peer) -> None:
    """Q-066 and Q-067"""
    subscriber, getter = connect(), connect()
    box = subscriber.create()
    sender.send(box, b"both")
    pushed = subscriber.event(Msg, box.recipient_id)
    fetched = getter.get(box)

    assert fetched == pushed
    assert subscriber.fault(Get(), box.recipient_id, box.signer) is Code.CMD_PROHIBITED
    assert getter.fault(Sub(), box.recipient_id, box.signer) is Code.CMD_PROHIBITED
    foreign = Ack(MessageId(bytes(24)))
    assert subscriber.fault(foreign, box.recipient_id, box.signer) is Code.NO_MSG
    message = box.open(pushed)
    assert isinstance(subscriber.ack(box, message), Ok)
    assert isinstance(getter.ack(box, message), Ok)
    assert getter.fault(Ack(message.message_id), box.recipient_id, box.signer) is Code.NO_MSG


def test_a_getters_ack_is_answered_ok_and_a_late_ack_brings_the_next(
    connect: Connect, sender: Peer
) -> None:
    """Q-068"""
    subscriber, getter = connect(), connect()
    box = subscriber.create()
    for n in range(2):
        sender.send(box, b"%d" % n)
    first = subscriber.received(box)
    assert box.open(getter.get(box)) == first

    assert isinstance(getter.ack(box, first), Ok)
    assert box.open(subscriber.ack(box, first)).body == b"1"


def test_of_two_messages_at_once_one_is_pushed_and_one_comes_with_the_ack(
    connect: Connect, recipient: Peer
) -> None:
    """Q-069"""
    box = recipient.create()
    senders = [connect(), connect()]
    for n in range(50):
        threads = [
            threading.Thread(target=one.send, args=(box, b"%d-%d" % (n, k)))
            for k, one in enumerate(senders)
        ]
        for thread in threads:
            thread.start()
        first = recipient.received(box)
        for thread in threads:
            thread.join()
        second = box.open(recipient.ack(box, first))

        assert {first.body, second.body} == {b"%d-0" % n, b"%d-1" % n}
        assert isinstance(recipient.ack(box, second), Ok)


def test_a_queue_says_what_is_in_it(connect: Connect, recipient: Peer, sender: Peer) -> None:
    """Q-070"""
    box, getter = recipient.create(), connect()
    sender.send(box)
    sender.send(box)
    first = recipient.received(box)

    def asked(peer: Peer) -> dict[str, object]:
        info = peer.ask(Que(), box.recipient_id, box.signer)
        assert isinstance(info, Info)
        return json.loads(info.json)

    message_id = base64.b64encode(first.message_id).decode()
    told = asked(recipient)
    at = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(first.accepted_at_s))
    assert told["qiSize"] == 2
    assert told["qiSnd"] is False
    assert told["qiNtf"] is False
    assert told["qiMsg"] == {"msgId": message_id, "msgTs": at, "msgType": "message"}
    assert told["qiSub"] == {"qSubThread": "noSub", "qDelivered": message_id}
    assert "qiSub" not in asked(getter)
    getter.get(box)
    state = asked(getter)["qiSub"]
    assert isinstance(state, dict)
    assert state["qSubThread"] == "prohibitSub"
    recipient.ask(Key(Signer().public), box.recipient_id, box.signer)
    assert asked(recipient)["qiSnd"] is True


def test_a_full_queue_says_so_to_both_sides_until_all_is_taken(
    recipient: Peer, sender: Peer
) -> None:
    """Q-071, with a quota of four"""
    box = recipient.create()
    for n in range(4):
        sender.send(box, b"%d" % n)

    def refused() -> bool:
        return sender.fault(Send(False, b"more"), box.sender_id) is Code.QUOTA

    assert refused()
    message = recipient.received(box)
    for n in range(4):
        assert message.body == b"%d" % n
        assert refused()
        message = box.open(recipient.ack(box, message))
    assert message.is_marker
    assert refused()
    assert isinstance(recipient.ack(box, message), Ok)
    sender.send(box, b"again")
    assert recipient.take(box) == b"again"


def test_subscriptions_are_all_answered_before_their_messages_come(
    connect: Connect, sender: Peer
) -> None:
    """Q-072"""
    owner, later = connect(), connect()
    boxes = [owner.create(subscribe=False) for _ in range(10)]
    for box in boxes:
        sender.send(box, box.sender_id)
    said = [later.transmission(Sub(), box.recipient_id, box.signer) for box in boxes]
    later.write(*(one for one, _ in said))
    answers = [later.next() for _ in range(20)]

    assert [one.corr_id for one in answers[:10]] == [corr_id for _, corr_id in said]
    assert all(isinstance(one.response, Sok) for one in answers[:10])
    assert all(isinstance(one.response, Msg) for one in answers[10:])
    assert {one.entity_id for one in answers[10:]} == {box.recipient_id for box in boxes}
    with_answers = answers[0].block
    assert sum(one.block == with_answers for one in answers[10:]) <= 1


def test_a_slow_reader_delays_no_other_client_and_gets_everything_later(
    connect: Connect, legacy_server: QueueServer
) -> None:
    """Q-073: two blocks may wait for a client there; the rest waits in the store."""
    slow, sender = connect(legacy_server), connect(legacy_server)
    boxes = [slow.create(password=b"sesame") for _ in range(260)]
    body = bytes(16_000)
    started = time.monotonic()
    for box in boxes:
        sender.send(box, body)
    took_s = time.monotonic() - started
    other = connect(legacy_server)
    box = other.create(password=b"sesame")
    sender.send(box, b"meanwhile")
    assert other.take(box) == b"meanwhile"
    arrived = {slow.next().entity_id for _ in boxes}

    assert arrived == {box.recipient_id for box in boxes}
    assert took_s < 60
    slow.expect_silence()


def test_what_was_not_acknowledged_comes_again_after_a_lost_connection(
    connect: Connect, sender: Peer
) -> None:
    """Q-074"""
    first, second = connect(), connect()
    box = first.create()
    sender.send(box, b"survivor")
    delivered = first.received(box)
    first.close()
    second.subscribe(box)

    assert second.received(box) == delivered


def test_an_inactive_connection_is_closed_unless_it_has_a_subscription(
    connect: Connect, impatient_queue_server: QueueServer
) -> None:
    """Q-075"""
    subscriber = connect(impatient_queue_server)
    subscriber.create()
    idle = connect(impatient_queue_server)
    assert isinstance(idle.ask(Ping()), Pong)
    idle.expect_closed()

    assert isinstance(subscriber.ask(Ping()), Pong)


def test_commands_of_one_block_may_concern_one_queue(recipient: Peer) -> None:
    """They take effect in their order, and are answered in it."""
    box = recipient.create()
    sends = [
        recipient.transmission(Send(False, b"%d" % n), box.sender_id, corr_id=b"s%d" % n)
        for n in range(3)
    ]
    que = recipient.transmission(Que(), box.recipient_id, box.signer, corr_id=b"que")
    recipient.write(*(one for one, _ in sends), que[0])
    answers = [recipient.next() for _ in range(5)]
    events = [one for one in answers if not one.corr_id]
    replies = [one for one in answers if one.corr_id]

    assert [one.corr_id for one in replies] == [b"s0", b"s1", b"s2", b"que"]
    assert box.open(events[0].response).body == b"0"
    told = replies[3].response
    assert isinstance(told, Info)
    assert json.loads(told.json)["qiSize"] == 3


def drain_all(peer: Peer, box: Mailbox, first: Message) -> list[bytes | None]:
    """The bodies from this message to the last."""
    bodies = [first.body]
    while isinstance(answer := peer.ack(box, first), Msg):
        first = box.open(answer)
        bodies.append(first.body)
    return bodies


def test_many_blocks_at_once_keep_their_order(connect: Connect, legacy_server: QueueServer) -> None:
    """A sender that does not wait for its answers is served as fast, and in order."""
    recipient, sender = connect(legacy_server), connect(legacy_server)
    box = recipient.create(password=b"sesame")
    said = [sender.transmission(Send(False, b"%d" % n), box.sender_id) for n in range(60)]
    for one, _ in said:
        sender.write(one)
    for _, corr_id in said:
        assert isinstance(sender.answer_to(corr_id), Ok)
    first = recipient.received(box)

    assert drain_all(recipient, box, first) == [b"%d" % n for n in range(60)]


def test_refusals_do_not_end_a_connection(recipient: Peer) -> None:
    for _ in range(20):
        assert recipient.ask(Sub(), bytes(24), Signer()) == Err(Code.AUTH)

    assert isinstance(recipient.ask(Ping()), Pong)
