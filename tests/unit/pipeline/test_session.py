"""What the JVM of a session is started with; sessions themselves are started in tests/pipeline."""

from pathlib import Path

from waystation.pipeline.session import options

FIRST_COMPILER_ALONE = "-XX:TieredStopAtLevel=1"


def test_only_short_work_does_without_the_optimising_compiler(tmp_path: Path) -> None:
    """P8: a long job with the first compiler alone costs twice as much."""
    assert FIRST_COMPILER_ALONE not in options("embedded", tmp_path)
    assert FIRST_COMPILER_ALONE in options("embedded", tmp_path, short=True)
    assert FIRST_COMPILER_ALONE in options("test", tmp_path)
