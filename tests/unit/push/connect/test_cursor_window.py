"""Autopush's cursor is moved when storage has been read through, and not before."""

from tests.unit.push.connect.talk import (
    NOW_MS,
    ack,
    notification,
    of,
    returned,
    settled_in,
)
from waystation.push.connect import effects as do
from waystation.push.connect.session_states import State


def test_the_cursor_moves_to_the_last_key_when_nothing_more_comes() -> None:
    talk, _ = returned(keeps_cursor=True, stored_batch_max=2)
    rows = [notification(n, accepted_at_ms=NOW_MS + n) for n in range(3)]
    effects = talk.session.fetched(rows[:2])
    effects += talk.say(ack(*rows[:2]))
    effects += talk.session.forgotten(2)
    effects += talk.session.fetched(rows[2:])
    effects += talk.say(ack(rows[2]))
    effects += talk.session.forgotten(1)

    assert not of(do.AdvanceCursor, effects), "there may be more"
    assert of(do.AdvanceCursor, talk.session.fetched([])) == [do.AdvanceCursor(NOW_MS + 2)]


def test_a_late_row_with_a_lower_key_does_not_move_it_back() -> None:
    talk, _ = returned(keeps_cursor=True)
    early, late = notification(1, accepted_at_ms=NOW_MS), notification(2, accepted_at_ms=NOW_MS - 9)
    for row in (early, late):
        talk.session.fetched([row])
        talk.say(ack(row))
        talk.session.forgotten(1)

    assert talk.session.fetched([]) == [do.AdvanceCursor(NOW_MS)]


def test_topics_and_empty_passes_do_not_move_it() -> None:
    talk = settled_in(keeps_cursor=True)
    talk.session.check_stored()
    row = notification("t", topic="t")
    talk.session.fetched([row])
    talk.say(ack(row))
    talk.session.forgotten(1)

    assert talk.session.fetched([]) == []


def test_without_autopushs_keys_nobody_asks_for_it() -> None:
    talk, _ = returned()
    talk.session.fetched([notification(1)])
    talk.say(ack(notification(1)))
    talk.session.forgotten(1)

    assert talk.session.fetched([]) == []


def test_a_store_that_does_not_answer_is_asked_again_after_the_next_pass() -> None:
    talk = settled_in(keeps_cursor=True)

    assert talk.session.failed(do.AdvanceCursor(NOW_MS)) == []
    assert talk.session.state is State.IDENTIFIED
