"""The tests of `tests/e2e/queue/test_notifying.py`, unchanged, through an edge."""

from tests.e2e.queue import test_notifying
from tests.e2e.queue_through.unchanged import all_of

globals().update(
    all_of(
        test_notifying,
        but=(
            # starts one server of its own
            "test_what_nobody_was_there_for_is_told_later_even_after_a_restart",
        ),
    )
)
