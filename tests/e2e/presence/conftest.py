"""The presence node that the files of this folder share."""

from collections.abc import Iterator

import pytest

from tests.e2e.presence.node import Node


@pytest.fixture(scope="session")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    with Node(tmp_path_factory.mktemp("presence")) as running:
        yield running
