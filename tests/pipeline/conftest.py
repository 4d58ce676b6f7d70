"""One Spark session for all tests of the pipeline, and a lake of its own for each."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from waystation.base.clock import ManualClock
from waystation.pipeline import session
from waystation.pipeline.delta_table import Lake

HERE = Path(__file__).parent
NOW_MS = 1_794_000_000_000  # 2026-11-06, a moment that tests agree on


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Every test of this folder needs Java, as SKIP=spark wants to know."""
    for item in items:
        if item.path.is_relative_to(HERE):
            item.add_marker(pytest.mark.spark)


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    # A few rows are computed sooner than the code that would compute many is compiled.
    built = session.build("test", {"spark.sql.codegen.wholeStage": "false"})
    yield built
    built.stop()


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(now_ms=NOW_MS)


@pytest.fixture
def lake(spark: SparkSession, tmp_path: Path, clock: ManualClock) -> Lake:
    return Lake(spark, str(tmp_path / "lake"), clock)
