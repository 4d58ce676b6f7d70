"""The commit protocol: progress with output, rivals, fences, and what consumers see."""

from collections.abc import Iterable
from pathlib import Path

import duckdb
import pytest
from deltalake import DeltaTable
from pyarrow import parquet
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from waystation.pipeline.commit_log import HistoryGoneError
from waystation.pipeline.delta_table import Lake, LostRaceError
from waystation.pipeline.schema import EVENTS, Partition, TableSpec, columns, date_of_us

DAY_US = 86_400_000_000
SPEC = TableSpec(
    name="things",
    data=columns("ts bigint, name string"),
    partitions=(Partition("date", "date", date_of_us("ts")),),
    sort=("ts",),
    plain=("ts",),
    stats="ts",
)


def rows(spark: SparkSession, moments: Iterable[int]) -> DataFrame:
    return spark.createDataFrame([(ts, f"n{ts}") for ts in moments], SPEC.data)


def moments(frame: DataFrame) -> list[int]:
    return sorted(row.ts for row in frame.select("ts").toLocalIterator())


def append(lake: Lake, run: str, what: Iterable[int], **progress: int) -> None:
    handle = lake.table(SPEC).open()
    handle.append(handle.write(rows(lake.spark, what), run), run, progress)


def test_what_is_appended_is_read_with_its_partition_and_its_progress(lake: Lake) -> None:
    append(lake, "r1", [1, 2, DAY_US + 1], job=7)

    handle = lake.table(SPEC).open()
    assert handle.progress("job") == 7
    assert handle.progress("other") is None
    assert moments(handle.read()) == [1, 2, DAY_US + 1]
    assert moments(handle.read(date={"1970-01-02"})) == [DAY_US + 1]
    assert moments(handle.read(date=set())) == []
    assert handle.read().schema == SPEC.schema
    assert handle.partition_values("date") == {"1970-01-01", "1970-01-02"}
    assert {(file.rows, file.least, file.greatest) for file in handle.files()} == {
        (2, 1, 2),
        (1, DAY_US + 1, DAY_US + 1),
    }


def test_a_column_without_repetitions_gets_no_dictionary(lake: Lake) -> None:
    append(lake, "r1", [1] * 100)

    (path,) = Path(lake.root).glob("things/data/**/*.parquet")
    group = parquet.ParquetFile(path).metadata.row_group(0)
    chunks = [group.column(number) for number in range(group.num_columns)]
    assert {one.path_in_schema: one.has_dictionary_page for one in chunks} == {
        "ts": False,
        "name": True,
    }


def test_an_id_that_comes_again_far_below_is_in_the_file_once(lake: Lake) -> None:
    """In the order of `k` no message comes twice for long: neither on what would be a first page,
    nor before a dictionary of a megabyte is full."""
    messages = 40_000
    told = {
        "k": F.expr(f"cast(id div {messages} as smallint)"),
        "mid": F.md5(F.expr(f"cast(id % {messages} as string)")),
        "ts": F.col("id"),
    }
    events = lake.spark.range(2 * messages).select(
        *(
            told.get(field.name, F.lit(None)).cast(field.dataType).alias(field.name)
            for field in EVENTS.data.fields
        )
    )
    handle = lake.table(EVENTS).open()

    (file,) = handle.write(events, "r1")

    group = parquet.read_metadata(handle.table.files.uri(file.path)).row_group(0)
    chunks = [group.column(number) for number in range(group.num_columns)]
    (mid,) = (one for one in chunks if one.path_in_schema == "mid")
    assert file.rows == 2 * messages
    assert "PLAIN" not in mid.encodings
    # 16 random bytes, in hex digits, are 18 bytes in zstd; twice, they would be 36.
    assert mid.total_compressed_size < 24 * messages


def test_of_two_runs_of_a_job_one_loses_and_leaves_nothing_behind(lake: Lake) -> None:
    append(lake, "r0", [1], job=1)
    first, second = lake.table(SPEC).open(), lake.table(SPEC).open()
    first_files = first.write(rows(lake.spark, [2]), "first")
    second_files = second.write(rows(lake.spark, [2]), "second")

    first.append(first_files, "first", {"job": 2})
    with pytest.raises(LostRaceError):
        second.append(second_files, "second", {"job": 2})

    after = lake.table(SPEC).open()
    assert moments(after.read()) == [1, 2]
    assert not any("second" in found.path for found in after.table.files.below("data"))


def test_jobs_with_progress_of_their_own_do_not_disturb_each_other(lake: Lake) -> None:
    append(lake, "r0", [1], job=1)
    first, second = lake.table(SPEC).open(), lake.table(SPEC).open()

    first.append(first.write(rows(lake.spark, [2]), "a"), "a", {"ingest/a/1": 0})
    second.append(second.write(rows(lake.spark, [3]), "b"), "b", {"ingest/b/1": 0})

    after = lake.table(SPEC).open()
    assert moments(after.read()) == [1, 2, 3]
    assert (after.progress("ingest/a/1"), after.progress("ingest/b/1")) == (0, 0)


@pytest.mark.parametrize("stale_first", [False, True])
def test_a_stale_exchange_of_files_is_refused_in_either_order(
    lake: Lake, *, stale_first: bool
) -> None:
    append(lake, "r0", [1, 2], job=1)
    handles = [lake.table(SPEC).open(), lake.table(SPEC).open()]
    staged = [
        handle.write(handle.read(), run)
        for handle, run in zip(handles, ("one", "two"), strict=True)
    ]
    early, late = (1, 0) if stale_first else (0, 1)

    handles[early].swap(handles[early].files(), staged[early], ("one", "two")[early])
    with pytest.raises(LostRaceError):
        handles[late].swap(handles[late].files(), staged[late], ("one", "two")[late])

    assert moments(lake.read(SPEC)) == [1, 2]


def test_consumers_see_new_rows_once_and_rewritten_rows_never(lake: Lake) -> None:
    append(lake, "r1", [1], job=1)
    seen = lake.table(SPEC).open().version
    append(lake, "r2", [2], job=2)
    handle = lake.table(SPEC).open()
    handle.swap(handle.files(), handle.write(handle.read(), "packed"), "packed")
    append(lake, "r3", [3], job=3)

    after = lake.table(SPEC).open()
    assert moments(after.read()) == [1, 2, 3]
    assert moments(after.frame(after.added(seen))) == [2, 3]
    assert after.added(after.version) == []
    assert moments(lake.table(SPEC).open(seen).read()) == [1]


def test_replaced_partitions_leave_the_others_alone(lake: Lake) -> None:
    append(lake, "r1", [1, DAY_US], job=1)
    handle = lake.table(SPEC).open()

    handle.replace({"1970-01-02"}, rows(lake.spark, [DAY_US + 5]), "again", {"gold": 4})

    after = lake.table(SPEC).open()
    assert moments(after.read()) == [1, DAY_US + 5]
    assert after.progress("gold") == 4


def test_a_log_that_does_not_reach_back_says_so(lake: Lake) -> None:
    append(lake, "r1", [1], job=1)
    append(lake, "r2", [2], job=2)
    handle = lake.table(SPEC).open()
    Path(handle.table.files.uri("_delta_log/00000000000000000001.json")).unlink()

    with pytest.raises(HistoryGoneError):
        handle.added(0)

    assert [file.rows for file in handle.added(1)] == [1]


def test_a_new_column_is_null_in_older_rows(lake: Lake) -> None:
    append(lake, "r1", [1], job=1)
    wider = TableSpec(
        name="things",
        data=columns("ts bigint, name string, size bigint"),
        partitions=SPEC.partitions,
        sort=("ts",),
        stats="ts",
    )
    handle = lake.table(wider).open()
    assert "size" not in handle.column_names()

    handle.add_columns(["size"])
    handle = lake.table(wider).open()
    new = lake.spark.createDataFrame([(2, "n2", 22)], wider.data)
    handle.append(handle.write(new, "r2"), "r2", {"job": 2})

    got = {row.ts: row.size for row in lake.read(wider).collect()}
    assert got == {1: None, 2: 22}
    assert moments(lake.read(SPEC)) == [1, 2]  # a reader with the old columns


def test_other_readers_see_the_same_rows(lake: Lake) -> None:
    append(lake, "r1", range(1000), job=1)
    handle = lake.table(SPEC).open()
    handle.replace({"1970-01-01"}, rows(lake.spark, range(500)), "again", {})

    with duckdb.connect() as other:
        other.register("things", DeltaTable(handle.table.files.root).to_pyarrow_table())
        query = "select count(*), sum(ts), min(date)::text, count(distinct name) from things"
        assert other.execute(query).fetchall() == [(500, 124750, "1970-01-01", 500)]
