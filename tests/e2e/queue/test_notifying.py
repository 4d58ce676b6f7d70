"""Notifications for push servers (queues §7, 76 to 83)."""

import time
from pathlib import Path

import pytest

from tests.e2e.queue.conftest import Connect
from tests.e2e.queue.peer import Mailbox, Peer, Signer
from tests.e2e.queue.process import QueueServer
from waystation.queue.errors import Code
from waystation.queue.model import BoxKey, NotifierId
from waystation.queue.wire.boxes import agree, new_dh_pair
from waystation.queue.wire.commands import Ndel, NewNotifier, Nkey, Nsub, Nsubs, Subs
from waystation.queue.wire.delivery import decrypt_meta
from waystation.queue.wire.fields import short
from waystation.queue.wire.responses import Deld, End, Err, Nid, Nmsg, Ok, Sok


class Credentials:
    """What a push server is told by the owner of a queue."""

    def __init__(self) -> None:
        self.signer = Signer()
        self.public, self._private = new_dh_pair()
        self.notifier_id = NotifierId(b"")
        self.box_key = BoxKey(b"")

    def set_up(self, peer: Peer, box: Mailbox) -> "Credentials":
        command = Nkey(self.signer.public, self.public)
        nid = peer.ask(command, box.recipient_id, box.signer)
        assert isinstance(nid, Nid), nid
        self.learn(nid.notifier_id, nid.dh_key)
        return self

    def learn(self, notifier_id: NotifierId, dh_key: bytes) -> None:
        self.notifier_id = notifier_id
        self.box_key = agree(dh_key, self._private)  # pyright: ignore[reportArgumentType]

    def subscribe(self, peer: Peer) -> None:
        assert isinstance(peer.ask(Nsub(), self.notifier_id, self.signer), Sok)


@pytest.fixture
def recipient(connect: Connect) -> Peer:
    return connect()


@pytest.fixture
def sender(connect: Connect) -> Peer:
    return connect()


@pytest.fixture
def notifier(connect: Connect) -> Peer:
    return connect()


def test_a_new_notifier_takes_the_place_of_the_old_one(recipient: Peer, notifier: Peer) -> None:
    """Q-076"""
    box = recipient.create()
    first = Credentials().set_up(recipient, box)
    first.subscribe(notifier)
    second = Credentials().set_up(recipient, box)

    assert first.notifier_id != second.notifier_id
    notifier.event(Deld, first.notifier_id)
    assert notifier.fault(Nsub(), first.notifier_id, first.signer) is Code.AUTH


def test_a_message_with_the_notify_flag_causes_a_notification(
    recipient: Peer, sender: Peer, notifier: Peer
) -> None:
    """Q-077"""
    box = recipient.create()
    credentials = Credentials().set_up(recipient, box)
    assert notifier.fault(Nsub(), credentials.notifier_id, Signer()) is Code.AUTH
    credentials.subscribe(notifier)
    sender.send(box, b"quiet")
    recipient.take(box)
    sender.send(box, b"loud", notify=True)
    message = recipient.received(box)
    told = notifier.event(Nmsg, credentials.notifier_id)

    about = decrypt_meta(credentials.box_key, told.nonce, told.encrypted_meta)
    assert about == (message.message_id, message.accepted_at_s)
    assert len(told.encrypted_meta) == 144
    notifier.expect_silence()


def test_another_push_server_takes_the_subscription_over(
    connect: Connect, recipient: Peer, sender: Peer, notifier: Peer
) -> None:
    """Q-078"""
    box, second = recipient.create(), connect()
    credentials = Credentials().set_up(recipient, box)
    credentials.subscribe(notifier)
    credentials.subscribe(second)
    notifier.event(End, credentials.notifier_id)
    sender.send(box, b"", notify=True)

    second.event(Nmsg, credentials.notifier_id)
    notifier.expect_silence()


def test_without_a_notifier_there_are_no_notifications_until_a_new_one_is_set(
    recipient: Peer, sender: Peer, notifier: Peer
) -> None:
    """Q-079 and Q-080"""
    box = recipient.create()
    old = Credentials().set_up(recipient, box)
    old.subscribe(notifier)
    for _ in range(2):
        assert isinstance(recipient.ask(Ndel(), box.recipient_id, box.signer), Ok)
    notifier.event(Deld, old.notifier_id)
    sender.send(box, b"untold", notify=True)
    recipient.take(box)
    notifier.expect_silence()
    new = Credentials().set_up(recipient, box)
    new.subscribe(notifier)
    sender.send(box, b"told", notify=True)

    notifier.event(Nmsg, new.notifier_id)


def test_credentials_may_come_with_the_queue(recipient: Peer, sender: Peer, notifier: Peer) -> None:
    """Q-081"""
    credentials = Credentials()
    box = recipient.create(notifier=NewNotifier(credentials.signer.public, credentials.public))
    assert box.ids.notifier is not None
    credentials.learn(box.ids.notifier.notifier_id, box.ids.notifier.dh_key)
    credentials.subscribe(notifier)
    sender.send(box, b"", notify=True)

    told = notifier.event(Nmsg, credentials.notifier_id)
    _, at_s = decrypt_meta(credentials.box_key, told.nonce, told.encrypted_meta)
    assert abs(at_s - time.time()) < 60


def test_notifications_without_a_subscriber_are_sent_later_even_after_a_restart(
    data_dir: Path,
) -> None:
    """Q-082, and Q-105 as far as notifications go"""
    with QueueServer(data_dir) as server:
        with Peer(server) as owner, Peer(server) as sender:
            box = owner.create()
            credentials = Credentials().set_up(owner, box)
            sender.send(box, b"", notify=True)
            owner.take(box)
            sender.send(box, b"", notify=True)
        assert server.stop() == 0
        server.start()
        with Peer(server) as notifier:
            credentials.subscribe(notifier)
            for _ in range(2):
                notifier.event(Nmsg, credentials.notifier_id)
            notifier.expect_silence()


def test_notifications_that_are_too_old_are_not_sent(
    connect: Connect, impatient_queue_server: QueueServer
) -> None:
    """Q-082"""
    owner = connect(impatient_queue_server)
    box = owner.create()
    credentials = Credentials().set_up(owner, box)
    owner.send(box, b"", notify=True)
    owner.take(box)
    owner.expect_silence(3.2)  # nothing else to wait for: its age is the point
    notifier = connect(impatient_queue_server)
    credentials.subscribe(notifier)

    notifier.expect_silence()


def test_services_are_declined(recipient: Peer, notifier: Peer) -> None:
    """Q-083: we ask nobody for a certificate, so a proof by one is out of place."""
    box = recipient.create()
    credentials = Credentials().set_up(recipient, box)
    said, corr_id = notifier.transmission(Nsub(), credentials.notifier_id, credentials.signer)
    assert said[65:66] == b"0"
    notifier.write(said[:65] + b"1" + short(bytes(64)) + said[66:])

    assert notifier.answer_to(corr_id) == Err(Code.SERVICE)
    for command in (Subs(), Nsubs()):
        assert notifier.fault(command, bytes(24), Signer()) is Code.SERVICE
