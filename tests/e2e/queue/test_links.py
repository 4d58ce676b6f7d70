"""Short links and their data (queues §7, 85 to 92)."""

import secrets

import pytest

from tests.e2e.queue.conftest import Connect
from tests.e2e.queue.peer import Mailbox, Peer, Signer
from waystation.queue.errors import Code
from waystation.queue.model import LinkData, LinkId, QueueMode, SenderId, sender_id_from
from waystation.queue.wire.commands import Ldel, Lget, Lkey, Lset, New, NewLink
from waystation.queue.wire.responses import Lnk, Ok

DATA = LinkData(b"fixed", b"user")
CHANGED = LinkData(b"fixed", b"user data, changed")


@pytest.fixture
def owner(connect: Connect) -> Peer:
    return connect()


@pytest.fixture
def guest(connect: Connect) -> Peer:
    return connect()


def new_link_id() -> LinkId:
    return LinkId(secrets.token_bytes(24))


def invitation(owner: Peer, data: LinkData = DATA) -> Mailbox:
    corr_id = secrets.token_bytes(24)
    return owner.create(corr_id=corr_id, link=NewLink(sender_id_from(corr_id), data))


def contact(owner: Peer, data: LinkData = DATA, link_id: LinkId | None = None) -> Mailbox:
    corr_id = secrets.token_bytes(24)
    link = NewLink(sender_id_from(corr_id), data, link_id or new_link_id())
    return owner.create(corr_id=corr_id, link=link, mode=QueueMode.CONTACT)


def link_id_of(box: Mailbox) -> LinkId:
    assert box.ids.link_id is not None
    return box.ids.link_id


def test_an_invitation_has_the_sender_id_that_follows_from_its_command(owner: Peer) -> None:
    """Q-085"""
    signer, corr_id = Signer(), secrets.token_bytes(24)
    assert owner.server_key is not None
    wrong = New(
        signer.public,
        owner.server_key,
        mode=QueueMode.MESSAGING,
        link=NewLink(SenderId(secrets.token_bytes(24)), DATA),
    )
    assert owner.fault(wrong, b"", signer, corr_id=corr_id) is Code.CMD_PROHIBITED
    box = owner.create(corr_id=corr_id, link=NewLink(sender_id_from(corr_id), DATA))

    assert box.sender_id == sender_id_from(corr_id)
    assert box.ids.mode is QueueMode.MESSAGING
    assert len(link_id_of(box)) == 24


def test_an_invitation_shows_its_data_to_the_sender_that_secures_it(
    owner: Peer, guest: Peer
) -> None:
    """Q-086, Q-087 and Q-088"""
    box = invitation(owner)
    link_id, key = link_id_of(box), Signer()

    assert guest.fault(Lget(), link_id) is Code.AUTH
    change = Lset(link_id, CHANGED)
    assert isinstance(owner.ask(change, box.recipient_id, box.signer), Ok)
    secure = Lkey(key.public)
    assert guest.fault(secure, link_id) is Code.CMD_NO_AUTH
    assert guest.fault(secure, link_id, Signer()) is Code.AUTH
    assert guest.fault(secure, box.recipient_id, key) is Code.AUTH
    for _ in range(2):
        assert guest.ask(secure, link_id, key) == Lnk(box.sender_id, CHANGED)
    other = Signer()
    assert guest.fault(Lkey(other.public), link_id, other) is Code.AUTH
    assert owner.fault(change, box.recipient_id, box.signer) is Code.AUTH
    assert isinstance(owner.ask(Ldel(), box.recipient_id, box.signer), Ok)


def test_a_contact_address_shows_its_data_to_every_client(owner: Peer, guest: Peer) -> None:
    """Q-089"""
    link_id, key = new_link_id(), Signer()
    box = contact(owner, link_id=link_id)

    assert box.ids.link_id == link_id
    assert guest.fault(Lkey(key.public), link_id, key) is Code.AUTH
    assert guest.fault(Lget(), link_id, key) is Code.CMD_HAS_AUTH
    assert guest.fault(Lget(), box.recipient_id) is Code.AUTH
    for _ in range(2):
        assert guest.ask(Lget(), link_id) == Lnk(box.sender_id, DATA)


def test_only_the_users_part_of_a_contact_address_changes(owner: Peer, guest: Peer) -> None:
    """Q-090"""
    box = contact(owner)
    link_id = link_id_of(box)
    assert isinstance(owner.ask(Lset(link_id, CHANGED), box.recipient_id, box.signer), Ok)

    assert guest.ask(Lget(), link_id) == Lnk(box.sender_id, CHANGED)
    elsewhere = Lset(new_link_id(), CHANGED)
    assert owner.fault(elsewhere, box.recipient_id, box.signer) is Code.AUTH
    other_fixed = Lset(link_id, LinkData(b"other", b"user"))
    assert owner.fault(other_fixed, box.recipient_id, box.signer) is Code.AUTH
    for _ in range(2):
        assert isinstance(owner.ask(Ldel(), box.recipient_id, box.signer), Ok)
    assert guest.fault(Lget(), link_id) is Code.AUTH


def test_an_address_in_use_is_not_given_away_twice(owner: Peer) -> None:
    link_id = new_link_id()
    contact(owner, link_id=link_id)
    signer, corr_id = Signer(), secrets.token_bytes(24)
    assert owner.server_key is not None
    again = New(
        signer.public,
        owner.server_key,
        mode=QueueMode.CONTACT,
        link=NewLink(sender_id_from(corr_id), DATA, link_id),
    )

    assert owner.fault(again, b"", signer, corr_id=corr_id) is Code.AUTH


def test_the_first_message_to_a_secured_invitation_ends_its_link(owner: Peer, guest: Peer) -> None:
    """Q-091"""
    box, key = invitation(owner), Signer()
    link_id = link_id_of(box)
    assert isinstance(guest.ask(Lkey(key.public), link_id, key), Lnk)
    guest.send(box, b"here I am", signer=key)

    assert owner.take(box) == b"here I am"
    assert guest.fault(Lkey(key.public), link_id, key) is Code.AUTH


def test_link_data_of_the_size_that_clients_send_fits(owner: Peer, guest: Peer) -> None:
    """Q-092"""
    data = LinkData(secrets.token_bytes(2048), secrets.token_bytes(13824))
    box = contact(owner, data)

    assert guest.ask(Lget(), link_id_of(box)) == Lnk(box.sender_id, data)
