"""What is looked at before the pipeline runs."""

from pathlib import Path

from waystation.pipeline.lake_queries import disk_of


def test_the_disk_of_a_lake_that_is_not_there_yet_is_that_of_its_first_folder_that_is(
    tmp_path: Path,
) -> None:
    assert disk_of(str(tmp_path / "data" / "lake")) == tmp_path
    assert disk_of(str(tmp_path)) == tmp_path


def test_a_lake_in_a_bucket_needs_our_own_disk() -> None:
    assert disk_of("s3://bucket/lake") == Path("/")
