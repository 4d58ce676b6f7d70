"""The tests of `tests/e2e/queue/test_notifying.py`, unchanged, through an edge."""

from tests.e2e.queue import test_notifying
from tests.e2e.queue_through.unchanged import all_of

globals().update(
    all_of(
        test_notifying,
        but=(
            # starts one server of its own
            "test_notifications_without_a_subscriber_are_sent_later_even_after_a_restart",
        ),
    )
)
