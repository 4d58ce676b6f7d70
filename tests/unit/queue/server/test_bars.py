"""After a refusal nothing about the same id is done, until the edge begins again."""

import pytest

from waystation.queue.errors import Code
from waystation.queue.model import CorrId, EntityId, RefKind, Slot
from waystation.queue.server.admission import Case
from waystation.queue.server.bars import Bars, SaidAgain, term_of
from waystation.queue.wire.commands import Send
from waystation.queue.wire.link_words import Moved
from waystation.queue.wire.transmission import Transmission

ID, OTHER = EntityId(b"i" * 24), EntityId(b"o" * 24)
SLOT = Slot(7)


def command(number: int, entity_id: EntityId = ID) -> Transmission:
    return Transmission(CorrId(b"%d" % number), entity_id, Send(False, b"%d" % number))


@pytest.fixture
def bars() -> Bars:
    return Bars()


def test_what_arrived_before_the_edge_knew_is_refused_too(bars: Bars) -> None:
    first, second = bars.tag(command(1)), bars.tag(command(2))
    bars.bar(first, SLOT)  # the freeze ends here

    assert bars.refuses(second)
    assert not bars.refuses(command(3, OTHER))
    bars.again(ID)
    again = bars.tag(command(1))
    assert not bars.refuses(again)
    assert bars.refuses(second)  # it arrived in the term of the first


def test_a_bar_ends_with_the_first_command_that_is_done(bars: Bars) -> None:
    bars.bar(command(1), SLOT)
    bars.again(ID)
    again, next_one = bars.tag(command(1)), bars.tag(command(2))
    bars.done(again)

    assert not bars.refuses(next_one)
    assert len(bars) == 0
    plain = command(3)
    assert bars.tag(plain) is plain


def test_a_second_refusal_bars_the_later_term(bars: Bars) -> None:
    bars.bar(command(1), SLOT)
    bars.again(ID)
    again, next_one = bars.tag(command(1)), bars.tag(command(2))
    bars.bar(again, SLOT)

    assert bars.refuses(next_one)
    bars.again(ID)
    third = bars.tag(command(1))
    assert term_of(third) > term_of(again)
    assert not bars.refuses(third)


def test_a_slot_that_is_anothers_is_barred_no_more(bars: Bars) -> None:
    bars.bar(command(1), SLOT)
    bars.bar(command(2, OTHER), Slot(8))

    bars.lost({SLOT})

    assert not bars.refuses(command(1))
    assert bars.refuses(command(2, OTHER))


def test_what_follows_one_that_was_sent_on_is_sent_on_too(bars: Bars) -> None:
    """Though its queue may be here by now: it would be done before the first."""
    first, second = command(1), command(2)
    bars.send_on(first, Moved(first.corr_id, RefKind.SENDER, SLOT))

    assert bars.sends_on(second, RefKind.SENDER) == Moved(second.corr_id, RefKind.SENDER, SLOT)
    assert bars.sends_on(second, RefKind.LINK) is None, "another thing under the same id"
    assert bars.sends_on(command(3, OTHER), RefKind.SENDER) is None
    assert not bars.refuses(second)
    bars.again(ID)
    assert len(bars) == 0
    plain = command(1)
    assert bars.tag(plain) is plain


def test_one_that_was_sent_on_and_then_refused_has_a_later_term_when_it_is_said_again(
    bars: Bars,
) -> None:
    bars.send_on(command(1), Moved(CorrId(b"1"), RefKind.SENDER, SLOT))
    bars.bar(command(2), SLOT)

    bars.again(ID)

    assert bars.refuses(command(2))
    assert not bars.refuses(bars.tag(command(1)))
    assert bars.sends_on(command(1), RefKind.SENDER) is None


def test_a_command_that_is_said_again_is_the_command(bars: Bars) -> None:
    """Whoever looks at it sees no difference."""
    sent = Transmission(CorrId(b"c"), ID, Send(True, b"x"), b"p" * 64, b"authorized", None)
    bars.again(ID)
    again = bars.tag(sent)

    assert isinstance(again, SaidAgain)
    assert Case(again).verdict(proven=False) is Code.AUTH
    assert (again.corr_id, again.entity_id, again.command, again.proof, again.authorized) == (
        sent.corr_id,
        sent.entity_id,
        sent.command,
        sent.proof,
        sent.authorized,
    )
