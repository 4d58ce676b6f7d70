"""The tests of `tests/e2e/queue/test_delivering.py`, unchanged, through an edge."""

from tests.e2e.queue import test_delivering
from tests.e2e.queue_through.unchanged import all_of

globals().update(all_of(test_delivering))
