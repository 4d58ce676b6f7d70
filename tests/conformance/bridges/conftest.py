"""Log lines of bridges are captured whatever level an earlier test of the process has set."""

from collections.abc import Iterator

import pytest
import structlog


@pytest.fixture(autouse=True)
def default_logging() -> Iterator[None]:
    before = structlog.get_config()
    structlog.reset_defaults()
    yield
    structlog.configure(**before)
