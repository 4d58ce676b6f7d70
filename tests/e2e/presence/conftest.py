"""Presence nodes that the files of this folder share: one for each transport."""

from collections.abc import Iterator

import pytest

from tests.e2e.presence.node import Node

TRANSPORTS = ("grpcio", "native")


@pytest.fixture(scope="session", params=TRANSPORTS)
def node(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Node]:
    with Node(tmp_path_factory.mktemp("presence"), transport=request.param) as running:
        yield running
