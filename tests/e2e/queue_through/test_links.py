"""The tests of `tests/e2e/queue/test_links.py`, unchanged, through an edge."""

from tests.e2e.queue import test_links
from tests.e2e.queue_through.unchanged import all_of

globals().update(all_of(test_links))
