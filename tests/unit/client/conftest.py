"""What several tests of the clients need."""

from pathlib import Path

import pytest

from tests.unit.client.certificates import Certificates


@pytest.fixture
def certificates(tmp_path: Path) -> Certificates:
    return Certificates(tmp_path)
