"""A cluster of three servers for all tests that do not need their own."""

from collections.abc import Iterator

import pytest

from tests.e2e.queue_cluster.cluster import Cluster, cluster


@pytest.fixture(scope="session")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with cluster(tmp_path_factory.mktemp("cluster"), 3) as made:
        yield made
