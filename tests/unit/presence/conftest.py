"""A stage for every test that asks for one."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.unit.presence.broker_harness import BrokerHarness


@pytest.fixture
def stage_with() -> Iterator[Callable[..., BrokerHarness]]:
    stages: list[BrokerHarness] = []

    def make(**settings: Any) -> BrokerHarness:
        stages.append(BrokerHarness(**settings))
        return stages[-1]

    yield make
    for harness in stages:
        assert not harness.failures
        harness.close()


@pytest.fixture
def harness(stage_with: Callable[..., BrokerHarness]) -> BrokerHarness:
    return stage_with()
