"""Fixtures for tests of the clients."""

from pathlib import Path

import pytest

from tests.certificates import Certificates


@pytest.fixture
def certificates(tmp_path: Path) -> Certificates:
    return Certificates(tmp_path)
