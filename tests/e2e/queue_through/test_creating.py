"""The tests of `tests/e2e/queue/test_creating.py`, unchanged, through an edge."""

from tests.e2e.queue import test_creating
from tests.e2e.queue_through.unchanged import all_of

globals().update(
    all_of(
        test_creating,
        but=(
            "test_a_server_may_take_no_new_queues",  # starts one server of its own
            "test_ids_that_a_server_makes_begin_with_the_slot_of_their_queue",  # with one id mode
        ),
    )
)
