"""Random waits between attempts."""

import random

from waystation.client.party.backoff import Backoff


def test_waits_double_up_to_a_limit_and_start_anew() -> None:
    backoff = Backoff(0.1, 10.0, random.Random(3))
    waits = [backoff.next_s() for _ in range(200)]

    assert waits[0] <= 0.1
    assert max(waits[:4]) <= 0.8
    assert 5.0 < max(waits) <= 10.0
    backoff.reset()
    assert backoff.next_s() <= 0.1
