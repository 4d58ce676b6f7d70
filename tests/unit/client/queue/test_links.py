"""Short links: the reader finds the address and detects changes by the server."""

import msgspec
import pytest

from tests.unit.client.queue.peer import SERVER, a_queue
from waystation.client.queue.address import LinkAddress
from waystation.client.queue.answers import Ids, Link
from waystation.client.queue.boxes import NotOpenedError
from waystation.client.queue.commands import GetLink, Mode, SecureByLink
from waystation.client.queue.encoding import BadBytesError
from waystation.client.queue.keys import PrivateKey
from waystation.client.queue.links import (
    USER_TEXT_BYTES_MAX,
    NewLinkPlan,
    contact_link_ids,
    data_key,
    link_outcome,
    link_request,
    open_link,
    renewed,
    seal_link,
    sender_id_of,
)

INBOX = PrivateKey.generate("x25519")


def planned(mode: Mode, text: str = "hello") -> NewLinkPlan:
    plan = NewLinkPlan.make(SERVER, INBOX, mode, text)
    assert plan is not None
    return plan


@pytest.mark.parametrize("mode", ["M", "C"])
def test_a_link_leads_to_the_address_and_its_text(mode: Mode) -> None:
    plan = planned(mode)
    content = open_link(plan.request.data, plan.link_key, contact=mode == "C")

    assert content.text == "hello"
    assert content.address.sender_id == plan.request.sender_id == sender_id_of(plan.corr_id)
    assert content.address.dh == INBOX.public
    assert (len(plan.request.data.fixed), len(plan.request.data.user)) == (2048, 13_824)


def test_a_contacts_link_id_follows_from_its_key_and_an_invitations_is_drawn() -> None:
    contact = planned("C")

    assert contact.request.link_id == contact_link_ids(contact.link_key)[0]
    assert planned("M").request.link_id == b""


def test_the_text_may_change_and_the_fixed_part_stays() -> None:
    plan = planned("C")
    ids = Ids(
        recipient_id=b"r",
        sender_id=plan.request.sender_id,
        server_dh=b"",
        mode="C",
        link_id=plan.request.link_id,
    )
    plan.check(ids)
    queue = msgspec.structs.replace(
        a_queue(), mode="C", sender_id=ids.sender_id, link=plan.kept(ids)
    )
    link = renewed(queue, "another")

    assert link.data.fixed == plan.request.data.fixed
    assert open_link(link.data, link.link_key, contact=True).text == "another"


def test_a_queue_without_a_link_gets_one() -> None:
    queue = a_queue()
    link = renewed(queue, "first")

    assert open_link(link.data, link.link_key, contact=False).address == queue.address


def test_data_that_the_server_exchanged_is_noticed() -> None:
    plan, other = planned("C"), planned("C")
    key = data_key(plan.link_key, contact=True)
    forged = seal_link(b"", "forged", PrivateKey.generate(), key)
    mixed = msgspec.structs.replace(plan.request.data, user=forged.user)

    with pytest.raises(NotOpenedError):
        open_link(other.request.data, plan.link_key, contact=True)
    with pytest.raises(NotOpenedError, match="not signed by its owner"):
        open_link(mixed, plan.link_key, contact=True)
    with pytest.raises(NotOpenedError, match="does not match the link"):
        open_link(seal_link(b"x", "t", plan.root, key), plan.link_key, contact=True)


def test_a_text_that_does_not_fit_is_refused() -> None:
    assert planned("M", "x" * USER_TEXT_BYTES_MAX)
    with pytest.raises(BadBytesError, match="holds"):
        planned("M", "x" * (USER_TEXT_BYTES_MAX + 1))


def test_opening_an_invitation_secures_it_and_opening_a_contact_does_not() -> None:
    invitation = link_request(LinkAddress(SERVER, b"k" * 32, b"i" * 24), None)
    contact = link_request(LinkAddress(SERVER, b"k" * 32), None)

    assert isinstance(invitation[0], SecureByLink)
    assert invitation[1] == b"i" * 24
    assert invitation[2] is not None
    assert contact == (GetLink(), contact_link_ids(b"k" * 32)[0], None)


def test_data_of_another_queue_than_the_links_is_refused() -> None:
    plan = planned("C")
    link = LinkAddress(SERVER, plan.link_key)
    content, sender = link_outcome(Link(plan.request.sender_id, plan.request.data), link, None)

    assert content.address.sender_id == sender.sender_id
    with pytest.raises(BadBytesError, match="does not match the link"):
        link_outcome(Link(b"other", plan.request.data), link, None)
