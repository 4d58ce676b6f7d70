"""Two portions, one order."""

from typing import Any

from waystation.push.model import MessageId, MessageStatus, Notification
from waystation.storage.dual.merge import merge_portions, merge_statuses
from waystation.testing.conformance.push_samples import (
    new_channel,
    timed_notification,
    topic_notification,
)

CHANNEL = new_channel()


def row(at_ms: int, **fields: Any) -> Notification:
    return timed_notification(CHANNEL, accepted_at_ms=at_ms, **fields)


def test_an_empty_side_has_no_say() -> None:
    rows = [row(1000), row(1001)]

    assert merge_portions(rows, [], 10).rows == rows
    assert merge_portions([], rows, 10).rows == rows
    assert merge_portions([], [], 10).rows == []


def test_a_portion_ends_where_the_shorter_one_ends() -> None:
    """Behind its last row either side may have more that comes before the other's rows."""
    a, b, c, d = (row(1000 + n) for n in range(4))

    assert merge_portions([a, c], [b, d], 10).rows == [a, b, c]
    assert merge_portions([a], [b, c, d], 10).rows == [a]
    assert merge_portions([d], [a, b], 10).rows == [a, b]


def test_the_limit_is_kept() -> None:
    a, b, c, d = (row(1000 + n) for n in range(4))

    assert merge_portions([a, c], [b, d], 2).rows == [a, b]


def test_what_lies_in_both_is_delivered_once() -> None:
    a, b = row(1000), row(1001)
    merged = merge_portions([a, b], [a, b], 10)

    assert merged.rows == [a, b]
    assert merged.replaced_in_primary == merged.replaced_in_secondary == []


def test_of_two_messages_of_a_topic_the_newer_stays_wherever_it_lies() -> None:
    old = topic_notification(CHANNEL, "t", accepted_at_ms=1000)
    new = topic_notification(CHANNEL, "t", accepted_at_ms=1001)

    merged = merge_portions([new], [old], 10)
    assert merged.rows == [new]
    assert merged.replaced_in_secondary == [(old.sort_key, old.message_id)]
    assert merged.replaced_in_primary == []
    merged = merge_portions([old], [new], 10)
    assert merged.rows == [new]
    assert merged.replaced_in_primary == [(old.sort_key, old.message_id)]
    assert merged.replaced_in_secondary == []


def test_timed_messages_under_one_key_are_two_and_stay_together() -> None:
    first, twin, other, last = row(1000), row(1001), row(1001), row(1002)

    merged = merge_portions([first, twin, last], [other, last], 10)
    assert merged.rows == [first, twin, other, last]
    assert merged.replaced_in_primary == merged.replaced_in_secondary == []
    assert merge_portions([first, twin, last], [other, last], 2).rows == [first]
    assert merge_portions([twin], [other], 1).rows == [twin]


def test_of_one_millisecond_the_greater_message_id_is_the_newer() -> None:
    low, high = (
        topic_notification(CHANNEL, "t", accepted_at_ms=1, message_id=MessageId(text))
        for text in ("a", "b")
    )

    assert merge_portions([low], [high], 10).rows == [high]


def test_a_status_of_both_has_all_milestones_and_the_first_times() -> None:
    one = MessageStatus(sender=b"s", milestones={"received": 5, "stored": 6}, keep_until_ms=10)
    two = MessageStatus(sender=b"s", milestones={"received": 4, "delivered": 9}, keep_until_ms=12)

    assert merge_statuses(one, None) == merge_statuses(None, one) == one
    assert merge_statuses(None, None) is None
    assert merge_statuses(one, two) == MessageStatus(
        sender=b"s",
        milestones={"received": 4, "stored": 6, "delivered": 9},
        keep_until_ms=12,
    )
