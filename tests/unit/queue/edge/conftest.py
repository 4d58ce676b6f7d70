"""Fixtures for tests of an edge's core."""

import pytest

from tests.unit.queue.edge.stage import World


@pytest.fixture
def world() -> World:
    return World()
