"""Creating, securing and sending (queues §7, 36 to 52), suspending and deleting (53 to 58)."""

import secrets
import time
from pathlib import Path

import pytest

from tests.e2e.queue.conftest import Connect
from tests.e2e.queue.peer import Mailbox, Peer, Signer
from tests.e2e.queue.process import QueueServer
from waystation.queue.errors import Code
from waystation.queue.model import CorrId, KeyKind, QueueMode, slot_of
from waystation.queue.wire.commands import Ack, Del, Key, New, Off, Que, Rkey, Send, Skey, Sub
from waystation.queue.wire.responses import Deld, End, Info, Msg, Ok, Sok

KINDS = list(KeyKind)


@pytest.fixture
def recipient(connect: Connect) -> Peer:
    return connect()


@pytest.fixture
def sender(connect: Connect) -> Peer:
    return connect()


def secured(recipient: Peer, key: Signer) -> Mailbox:
    box = recipient.create()
    assert isinstance(recipient.ask(Key(key.public), box.recipient_id, box.signer), Ok)
    return box


@pytest.mark.parametrize("mode", list(QueueMode))
def test_a_new_queue_has_three_ids_and_the_mode_that_was_asked_for(
    recipient: Peer, mode: QueueMode
) -> None:
    """Q-036"""
    box = recipient.create(signer=Signer(KeyKind.ED448), mode=mode)

    assert len({box.recipient_id, box.sender_id, box.ids.dh_key}) == 3
    assert len(box.recipient_id) == len(box.sender_id) == 24
    assert box.ids.mode is mode
    assert box.ids.link_id is None


def test_ids_that_a_server_makes_begin_with_the_slot_of_their_queue(recipient: Peer) -> None:
    """The default of `queue.id_mode`."""
    box = recipient.create()

    assert slot_of(box.recipient_id) == slot_of(box.sender_id)


def test_an_unsigned_message_reaches_the_subscriber_of_an_unsecured_queue(
    recipient: Peer, sender: Peer
) -> None:
    """Q-037 and Q-038"""
    box = recipient.create()
    sender.send(box, b"hello", notify=True)
    message = recipient.received(box)

    assert message.body == b"hello"
    assert message.notify
    assert abs(message.accepted_at_s - time.time()) < 60
    assert isinstance(recipient.ack(box, message), Ok)
    again = Ack(message.message_id)
    assert recipient.fault(again, box.recipient_id, box.signer) is Code.NO_MSG


def test_a_signed_message_to_an_unsecured_queue_is_refused(recipient: Peer, sender: Peer) -> None:
    """Q-039"""
    box = recipient.create()

    for kind in KINDS:
        assert sender.fault(Send(False, b""), box.sender_id, Signer(kind)) is Code.AUTH


def test_only_its_owner_secures_a_queue_and_only_once(recipient: Peer) -> None:
    """Q-040 and Q-041"""
    box, key = recipient.create(), Signer()
    say = Key(key.public)

    assert recipient.fault(say, box.recipient_id, Signer()) is Code.AUTH
    assert recipient.fault(say, box.sender_id, box.signer) is Code.AUTH
    assert isinstance(recipient.ask(say, box.recipient_id, box.signer), Ok)
    assert isinstance(recipient.ask(say, box.recipient_id, box.signer), Ok)
    other = Key(Signer().public)
    assert recipient.fault(other, box.recipient_id, box.signer) is Code.AUTH


def test_a_secured_queue_takes_messages_of_its_sender_only(recipient: Peer, sender: Peer) -> None:
    """Q-042"""
    key = Signer()
    box = secured(recipient, key)
    sender.send(box, b"from the right one", signer=key)

    assert recipient.take(box) == b"from the right one"
    assert sender.fault(Send(False, b""), box.sender_id) is Code.AUTH
    assert sender.fault(Send(False, b""), box.sender_id, Signer()) is Code.AUTH


def test_a_sender_secures_a_messaging_queue_by_itself(recipient: Peer, sender: Peer) -> None:
    """Q-044"""
    box, key = recipient.create(), Signer()
    say = Skey(key.public)

    assert sender.fault(say, box.sender_id, Signer()) is Code.AUTH
    assert sender.fault(say, box.recipient_id, key) is Code.AUTH
    assert isinstance(sender.ask(say, box.sender_id, key), Ok)
    assert isinstance(sender.ask(say, box.sender_id, key), Ok)
    other = Signer()
    assert sender.fault(Skey(other.public), box.sender_id, other) is Code.AUTH


def test_a_sender_cannot_secure_a_contact_address(recipient: Peer, sender: Peer) -> None:
    """Q-045"""
    box, key = recipient.create(mode=QueueMode.CONTACT), Signer()

    assert sender.fault(Skey(key.public), box.sender_id, key) is Code.AUTH


def test_an_authenticator_serves_once_and_in_its_own_session(recipient: Peer, sender: Peer) -> None:
    """Q-046"""
    key = Signer(KeyKind.X25519)
    box = secured(recipient, key)
    sender.send(box, b"deniable", signer=key)
    assert recipient.take(box) == b"deniable"

    from waystation.queue.wire.commands import encode_command
    from waystation.queue.wire.transmission import authorized_bytes

    corr_id = CorrId(secrets.token_bytes(24))
    command = encode_command(Send(False, b"x"), 18)
    signed = authorized_bytes(corr_id, box.sender_id, command, sender.dialect)
    proof = key.prove(signed, corr_id, sender.server_key)
    changed = bytes([proof[0] ^ 1]) + proof[1:]
    how = {"corr_id": corr_id, "proof": changed}
    assert sender.fault(command, box.sender_id, **how) is Code.AUTH
    other = {"corr_id": secrets.token_bytes(24), "proof": proof}
    assert sender.fault(command, box.sender_id, **other) is Code.AUTH
    right = sender.ask(command, box.sender_id, corr_id=corr_id, proof=proof)
    assert isinstance(right, Ok)


@pytest.mark.parametrize("kind", KINDS)
def test_recipients_may_have_keys_of_every_kind(
    connect: Connect, recipient: Peer, sender: Peer, kind: KeyKind
) -> None:
    """Q-047"""
    box = recipient.create(signer=Signer(kind))
    other = connect()
    other.subscribe(box)
    sender.send(box, b"hello")

    assert other.take(box) == b"hello"


def test_the_keys_of_a_contact_address_are_replaced_as_a_whole(recipient: Peer) -> None:
    """Q-048"""
    box = recipient.create(mode=QueueMode.CONTACT)
    first, second = box.signer, Signer(KeyKind.ED448)

    def keys(by: Signer, *signers: Signer) -> object:
        return recipient.ask(Rkey(tuple(one.public for one in signers)), box.recipient_id, by)

    assert isinstance(keys(first, first, second), Ok)
    for signer in (first, second):
        assert isinstance(recipient.ask(Que(), box.recipient_id, signer), Info)
    assert isinstance(keys(first, second), Ok)  # it removes itself
    assert recipient.fault(Que(), box.recipient_id, first) is Code.AUTH
    assert isinstance(keys(second, second, first), Ok)
    assert isinstance(recipient.ask(Que(), box.recipient_id, first), Info)


def test_the_keys_of_a_messaging_queue_stay(recipient: Peer) -> None:
    """Q-048"""
    box = recipient.create()

    say = Rkey((Signer().public,))
    assert recipient.fault(say, box.recipient_id, box.signer) is Code.AUTH


def test_a_server_may_take_no_new_queues(data_dir: Path) -> None:
    """Q-049, and Q-104: with the memory store a restart forgets everything."""
    with QueueServer(data_dir, store_url="memory:") as server:
        with Peer(server) as peer:
            box = peer.create()
        server.stop()
        server.change(new_queues=False)
        server.start()
        with Peer(server) as peer:
            signer = Signer()
            said = New(signer.public, box.ids.dh_key)

            assert peer.fault(said, b"", signer) is Code.AUTH
            assert peer.fault(Send(False, b""), box.sender_id) is Code.AUTH


def test_creating_a_queue_needs_the_password(connect: Connect, legacy_server: QueueServer) -> None:
    """Q-050"""
    peer, signer = connect(legacy_server), Signer()
    dh_key = peer.server_key
    assert dh_key is not None

    for password in (None, b"", b"wrong", b"sesame!"):
        assert peer.fault(New(signer.public, dh_key, password), b"", signer) is Code.AUTH
    assert peer.create(password=b"sesame").recipient_id


def test_many_queues_follow_their_owner_to_other_connections(
    connect: Connect, sender: Peer
) -> None:
    """Q-051"""
    first, second, third = connect(), connect(), connect()
    boxes = [first.create() for _ in range(50)]

    def subscribe_all(peer: Peer) -> None:
        said = [peer.transmission(Sub(), box.recipient_id, box.signer) for box in boxes]
        peer.write(*(one for one, _ in said))
        for _, corr_id in said:
            assert isinstance(peer.answer_to(corr_id), Sok)

    subscribe_all(second)
    # Queues have no order among each other.
    ended = [first.next() for _ in boxes]
    assert all(isinstance(one.response, End) for one in ended)
    assert {one.entity_id for one in ended} == {box.recipient_id for box in boxes}
    second.close()
    subscribe_all(third)
    sender.send(boxes[17], b"found")
    assert third.take(boxes[17]) == b"found"


def test_a_queue_that_was_only_created_delivers_after_a_subscription(
    recipient: Peer, sender: Peer
) -> None:
    """Q-052"""
    box = recipient.create(subscribe=False)
    sender.send(box, b"patient")
    recipient.expect_silence()
    recipient.subscribe(box)

    assert recipient.take(box) == b"patient"


# Suspending and deleting


def test_the_second_message_waits_for_the_ack_of_the_first(recipient: Peer, sender: Peer) -> None:
    """Q-053 and Q-062"""
    box = recipient.create()
    sender.send(box, b"first")
    sender.send(box, b"second")
    first = recipient.received(box)
    recipient.expect_silence()
    answer = recipient.ack(box, first)

    assert first.body == b"first"
    assert box.open(answer).body == b"second"


def test_a_suspended_queue_refuses_senders_and_serves_its_owner(
    recipient: Peer, sender: Peer
) -> None:
    """Q-054 and Q-055"""
    key = Signer()
    box = secured(recipient, key)
    sender.send(box, b"before", signer=key)
    first = recipient.received(box)

    assert recipient.fault(Off(), box.recipient_id, Signer()) is Code.AUTH
    assert recipient.fault(Off(), box.sender_id, box.signer) is Code.AUTH
    for _ in range(2):
        assert isinstance(recipient.ask(Off(), box.recipient_id, box.signer), Ok)
    assert sender.fault(Send(False, b""), box.sender_id, key) is Code.AUTH
    assert sender.fault(Send(False, b""), box.sender_id) is Code.AUTH
    recipient.subscribe(box)
    again = recipient.received(box)
    assert again == first
    assert isinstance(recipient.ack(box, again), Ok)


def test_nothing_of_a_deleted_queue_answers(recipient: Peer, sender: Peer) -> None:
    """Q-056 and Q-057"""
    key = Signer()
    box = secured(recipient, key)

    assert recipient.fault(Del(), box.recipient_id, Signer()) is Code.AUTH
    assert recipient.fault(Del(), box.sender_id, box.signer) is Code.AUTH
    assert isinstance(recipient.ask(Del(), box.recipient_id, box.signer), Ok)
    assert sender.fault(Send(False, b""), box.sender_id, key) is Code.AUTH
    assert sender.fault(Send(False, b""), box.sender_id) is Code.AUTH
    for command in (Sub(), Ack(CorrId(b"")), Off(), Del()):  # pyright: ignore[reportArgumentType]
        assert recipient.fault(command, box.recipient_id, box.signer) is Code.AUTH


@pytest.mark.parametrize("version,event", [(18, Deld), (9, End)])
def test_a_subscriber_learns_that_its_queue_was_deleted(
    connect: Connect, sender: Peer, version: int, event: type
) -> None:
    """Q-058"""
    subscriber, deleter = connect(version=version), connect()
    box = subscriber.create()
    assert isinstance(deleter.ask(Del(), box.recipient_id, box.signer), Ok)

    subscriber.event(event, box.recipient_id)
    assert sender.fault(Send(False, b""), box.sender_id) is Code.AUTH
    deleter.expect_silence()


def test_messages_are_for_the_recipient_alone(recipient: Peer, sender: Peer) -> None:
    """What enters and what leaves have nothing in common, and the same message looks the same."""
    box = recipient.create()
    body = bytes(1000)
    sender.send(box, body)
    first = recipient.event(Msg, box.recipient_id)
    recipient.subscribe(box)
    second = recipient.event(Msg, box.recipient_id)

    assert first == second
    assert len(first.encrypted) == 16122
    assert bytes(32) not in first.encrypted
