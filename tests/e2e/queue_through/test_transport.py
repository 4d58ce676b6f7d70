"""The tests of `tests/e2e/queue/test_transport.py`, unchanged, through an edge."""

import pytest

from tests.e2e.queue import test_transport
from tests.e2e.queue_through.unchanged import all_of

# One of them names its server in a parameter, so pytest does not see which fixtures it has.
pytestmark = pytest.mark.usefixtures("way")

globals().update(
    all_of(
        test_transport,
        but=(
            "test_the_second_certificate_of_a_longer_chain_is_the_identity",  # a server of its own
            "test_the_packaged_configuration_is_where_the_supervisor_looks",
        ),
    )
)
