"""After a refusal no command for the same id is executed until the edge begins again."""

import pytest

from waystation.queue.errors import Code
from waystation.queue.model import CorrId, EntityId, RefKind, Slot
from waystation.queue.server.admission import Case
from waystation.queue.server.refused_ids import RefusedIds, SaidAgain, term_of
from waystation.queue.wire.commands import Send
from waystation.queue.wire.link_messages import Moved
from waystation.queue.wire.transmission import Transmission

ID, OTHER = EntityId(b"i" * 24), EntityId(b"o" * 24)
SLOT = Slot(7)


def command(number: int, entity_id: EntityId = ID) -> Transmission:
    return Transmission(CorrId(b"%d" % number), entity_id, Send(False, b"%d" % number))


@pytest.fixture
def refused_ids() -> RefusedIds:
    return RefusedIds()


def test_what_arrived_before_the_edge_knew_is_refused_too(refused_ids: RefusedIds) -> None:
    first, second = refused_ids.tag(command(1)), refused_ids.tag(command(2))
    refused_ids.bar(first, SLOT)  # the freeze ends here

    assert refused_ids.refuses(second)
    assert not refused_ids.refuses(command(3, OTHER))
    refused_ids.again(ID)
    again = refused_ids.tag(command(1))
    assert not refused_ids.refuses(again)
    assert refused_ids.refuses(second)  # it arrived in the term of the first


def test_a_bar_ends_with_the_first_command_that_is_done(refused_ids: RefusedIds) -> None:
    refused_ids.bar(command(1), SLOT)
    refused_ids.again(ID)
    again, next_one = refused_ids.tag(command(1)), refused_ids.tag(command(2))
    refused_ids.done(again)

    assert not refused_ids.refuses(next_one)
    assert len(refused_ids) == 0
    plain = command(3)
    assert refused_ids.tag(plain) is plain


def test_a_second_refusal_bars_the_later_term(refused_ids: RefusedIds) -> None:
    refused_ids.bar(command(1), SLOT)
    refused_ids.again(ID)
    again, next_one = refused_ids.tag(command(1)), refused_ids.tag(command(2))
    refused_ids.bar(again, SLOT)

    assert refused_ids.refuses(next_one)
    refused_ids.again(ID)
    third = refused_ids.tag(command(1))
    assert term_of(third) > term_of(again)
    assert not refused_ids.refuses(third)


def test_a_slot_that_is_anothers_is_barred_no_more(refused_ids: RefusedIds) -> None:
    refused_ids.bar(command(1), SLOT)
    refused_ids.bar(command(2, OTHER), Slot(8))

    refused_ids.lost({SLOT})

    assert not refused_ids.refuses(command(1))
    assert refused_ids.refuses(command(2, OTHER))


def test_what_follows_one_that_was_sent_on_is_sent_on_too(refused_ids: RefusedIds) -> None:
    """Though its queue may be here by now: it would be done before the first."""
    first, second = command(1), command(2)
    refused_ids.send_on(first, Moved(first.corr_id, RefKind.SENDER, SLOT))

    assert refused_ids.sends_on(second, RefKind.SENDER) == Moved(
        second.corr_id, RefKind.SENDER, SLOT
    )
    assert refused_ids.sends_on(second, RefKind.LINK) is None, "another thing under the same id"
    assert refused_ids.sends_on(command(3, OTHER), RefKind.SENDER) is None
    assert not refused_ids.refuses(second)
    refused_ids.again(ID)
    assert len(refused_ids) == 0
    plain = command(1)
    assert refused_ids.tag(plain) is plain


def test_one_that_was_sent_on_and_then_refused_has_a_later_term_when_it_is_said_again(
    refused_ids: RefusedIds,
) -> None:
    refused_ids.send_on(command(1), Moved(CorrId(b"1"), RefKind.SENDER, SLOT))
    refused_ids.bar(command(2), SLOT)

    refused_ids.again(ID)

    assert refused_ids.refuses(command(2))
    assert not refused_ids.refuses(refused_ids.tag(command(1)))
    assert refused_ids.sends_on(command(1), RefKind.SENDER) is None


def test_a_command_that_is_said_again_is_the_command(refused_ids: RefusedIds) -> None:
    """Whoever looks at it sees no difference."""
    sent = Transmission(CorrId(b"c"), ID, Send(True, b"x"), b"p" * 64, b"authorized", None)
    refused_ids.again(ID)
    again = refused_ids.tag(sent)

    assert isinstance(again, SaidAgain)
    assert Case(again).verdict(proven=False) is Code.AUTH
    assert (again.corr_id, again.entity_id, again.command, again.proof, again.authorized) == (
        sent.corr_id,
        sent.entity_id,
        sent.command,
        sent.proof,
        sent.authorized,
    )
