"""A stage for every test that asks for one."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.unit.presence.broker_harness import Stage


@pytest.fixture
def stage_with() -> Iterator[Callable[..., Stage]]:
    stages: list[Stage] = []

    def make(**settings: Any) -> Stage:
        stages.append(Stage(**settings))
        return stages[-1]

    yield make
    for stage in stages:
        assert not stage.failures
        stage.close()


@pytest.fixture
def stage(stage_with: Callable[..., Stage]) -> Stage:
    return stage_with()
