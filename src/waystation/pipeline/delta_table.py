"""Reads and changes tables of the lake: the commit protocol.

Tables are Delta tables. Spark writes and reads the Parquet files; the `deltalake` wheel reads and
writes the log of commits.

    plan    handle = table.open()               one handle, kept to the end
            done = handle.progress(app)         how far this job has come, or None
    write   staged = handle.write(frame, run)   data/RUN/…, never renamed afterwards
    commit  handle.append(staged, …) or handle.swap(removed, staged, …)

Rule 1: a job's progress is in the same commit as its output. There is no second place.
Rule 2: the commit goes through the handle that the plan was read from; by it the log detects a
        concurrent commit. Of two with the same progress name the second one loses
        (`LostRaceError`): its files are deleted, and the job plans again.
Rule 3: files are removed only by `swap`, which always carries the fence `rewrite`: a stale removal
        after a compaction would otherwise succeed and double every row. `swap` says "no change of
        data", so consumers never take rewritten rows for new ones.
Rule 4: a crash before the commit leaves files that no commit names; `vacuum` removes them later.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any
from urllib.parse import unquote

import msgspec
from deltalake import CommitProperties, DeltaTable, PostCommitHookProperties, Schema, Transaction
from deltalake.exceptions import CommitFailedError, DeltaError, TableNotFoundError
from deltalake.transaction import AddAction, RemoveAction
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from waystation.base.clock import Clock
from waystation.base.errors import BusyError
from waystation.pipeline.commit_log import Added, CommitLog, DataFile, Removed
from waystation.pipeline.files import Files
from waystation.pipeline.parquet_options import spark_options
from waystation.pipeline.schema import TableSpec

REWRITE = "rewrite"
_CONFIGURATION = {
    "delta.checkpointInterval": "50",
    "delta.logRetentionDuration": "interval 30 days",
    "delta.deletedFileRetentionDuration": "interval 7 days",
    "delta.enableExpiredLogCleanup": "false",  # `vacuum` trims the log when all have read it
}

# Called with "planned", "written", "committing" or "committed", and the table's name, so that tests
# can kill a job at these points.
Hook = Callable[[str, str], None]


class LostRaceError(BusyError):
    """Another run of the same job, or another rewriter, committed first; nothing was changed."""

    label = "lost_race"


class Lake:
    """All tables below one root."""

    def __init__(
        self,
        spark: SparkSession,
        root: str,
        clock: Clock,
        *,
        at: Hook | None = None,
        code_version: str = "",
    ) -> None:
        self.spark = spark
        self.root = root.rstrip("/")
        self.clock = clock
        self.code_version = code_version
        self.at: Hook = at or (lambda _point, _table: None)

    def table(self, spec: TableSpec) -> "Table":
        return Table(self, spec)

    def read(self, spec: TableSpec, **partitions: Iterable[str]) -> DataFrame:
        """The newest version of a table, or some of its partitions (`date={"2026-01-31"}`)."""
        return self.table(spec).open().read(**partitions)


class Table:
    """One table; `open` creates it if necessary."""

    def __init__(self, lake: Lake, spec: TableSpec) -> None:
        self.lake = lake
        self.spec = spec
        self.files = Files(f"{lake.root}/{spec.name}")
        self.log = CommitLog(self.files.read, spec.stats)

    def exists(self) -> bool:
        return DeltaTable.is_deltatable(self.files.root)

    def open(self, version: int | None = None) -> "Handle":
        try:
            delta = DeltaTable(self.files.root, version=version)
        except TableNotFoundError:
            self._create()
            delta = DeltaTable(self.files.root, version=version)
        return Handle(self, delta)

    def complete(self) -> "Handle":
        """Like `open`; also adds new columns of the specification in a separate commit before any
        row."""
        handle = self.open()
        missing = set(self.spec.schema.names) - set(handle.column_names())
        if not missing:
            return handle
        handle.add_columns(missing)
        return self.open()

    def _create(self) -> None:
        try:
            DeltaTable.create(
                self.files.root,
                Schema.from_json(self.spec.schema.json()),
                mode="ignore",
                partition_by=self.spec.partition_names,
                configuration=_CONFIGURATION,
            )
        except DeltaError:
            # Two processes may create it at once; the second one finds the table.
            if not self.exists():
                raise


class Handle:
    """One version of a table, and the commits on top of it."""

    def __init__(self, table: Table, delta: DeltaTable) -> None:
        self.table = table
        self.spec = table.spec
        self._lake = table.lake
        self._delta = delta

    @property
    def version(self) -> int:
        return self._delta.version()

    def progress(self, app: str) -> int | None:
        return self._delta.transaction_version(app)

    def column_names(self) -> list[str]:
        return [field.name for field in self._delta.schema().fields]

    def files(self, **partitions: Iterable[str]) -> list[DataFile]:
        """The files of this version, or those of some partitions."""
        wanted = {name: set(values) for name, values in partitions.items()}
        return [file for file in self._all_files() if file.lies_in(**wanted)]

    def partition_values(self, name: str) -> set[str]:
        return {value for file in self._all_files() if (value := file.partition[name]) is not None}

    def added(self, since: int) -> list[DataFile]:
        """Files with new data of the commits after `since`, up to this version, even if later
        removed. Raises `HistoryGoneError` if the log does not reach back to `since`."""
        changes = self.changes(since)
        return [one.file for one in changes if isinstance(one, Added) and one.changes_data]

    def changes(self, since: int) -> Iterator[Added | Removed]:
        return self.table.log.between(since, self.version)

    def read(self, **partitions: Iterable[str]) -> DataFrame:
        return self.frame(self.files(**partitions))

    def frame(self, files: Sequence[DataFile]) -> DataFrame:
        """The rows of these files with partition columns; an empty frame for no files."""
        return read_files(self._lake.spark, self.table, files)

    def files_with(self, condition: Column) -> dict[DataFile, int]:
        """Files of this version with rows that meet a condition, and the number of such rows."""
        files = self.files()
        if not files:
            return {}
        found = (
            _bare(self._lake.spark, self.table, files)
            .select("*", F.col("_metadata.file_path").alias("_file"))
            .where(condition)
            .groupBy("_file")
            .count()
        )
        counts = {unquote(row["_file"]): row["count"] for row in found.collect()}
        return {
            file: count
            for where, count in counts.items()
            for file in files
            if where.endswith(f"/{file.path}")
        }

    def write(self, frame: DataFrame, run: str) -> list[DataFile]:
        """Writes the frame's data columns below data/RUN with Spark; returns the files. Rows are
        shuffled by partition, so that each partition gets few files."""
        spec = self.spec
        names = spec.partition_names
        derived = {column.name: column.derive() for column in spec.partitions}
        rows = frame.select(*spec.data.names).withColumns(derived).select(*spec.schema.names)
        (
            rows.hint("rebalance", *names)
            .sortWithinPartitions(*names, *spec.sort)
            .write.mode("error")
            .partitionBy(*names)
            .options(**spark_options(spec))
            .parquet(self.table.files.uri(self.folder(run)))
        )
        return self.staged(run)

    def write_rows(
        self, rows: Sequence[Mapping[str, Any]], run: str, partition: Mapping[str, str]
    ) -> list[DataFile]:
        """Like `write`, for few rows of one partition, without a Spark job."""
        names = "/".join(f"{name}={value}" for name, value in partition.items())
        path = f"{self.folder(run)}/{names}/part-0.zstd.parquet"
        self.table.files.write_rows(path, rows, self.spec.data)
        return self.staged(run)

    def folder(self, run: str) -> str:
        """The folder of a run's files, below the table's root."""
        return f"data/{run}"

    def staged(self, run: str) -> list[DataFile]:
        """The files of a run, written by `write` or directly into `folder`; call when complete."""
        found = self._found(self.folder(run))
        self._lake.at("written", self.spec.name)
        return found

    def append(self, staged: Sequence[DataFile], run: str, progress: Mapping[str, int]) -> None:
        """Commits new data and the job's progress together."""
        self._commit([self._add(file, changes=True) for file in staged], run, progress)

    def swap(
        self,
        removed: Sequence[DataFile],
        staged: Sequence[DataFile],
        run: str,
        progress: Mapping[str, int] | None = None,
    ) -> None:
        """Replaces files by others in one commit, with the fence of rule 3."""
        now_ms = self._now_ms()
        actions: list[AddAction | RemoveAction] = [
            RemoveAction(file.path, False, now_ms, file.size_bytes, dict(file.partition))
            for file in removed
        ]
        actions += [self._add(file, changes=False) for file in staged]
        fence = {REWRITE: (self.progress(REWRITE) or 0) + 1}
        self._commit(actions, run, fence | dict(progress or {}))

    def replace(
        self, values: Iterable[str], frame: DataFrame, run: str, progress: Mapping[str, int]
    ) -> list[DataFile]:
        """Writes the frame and swaps it for all files with these values of the first partition
        column. Used by jobs that recompute whole days."""
        name = self.spec.partition_names[0]
        wanted = set(values)
        staged = self.write(frame, run)
        strange = {file.partition[name] for file in staged} - wanted
        assert not strange, f"rows outside the replaced partitions: {strange}"
        self.swap(self.files(**{name: wanted}), staged, run, progress)
        return staged

    def add_columns(self, missing: Iterable[str]) -> None:
        """Adds columns in a separate commit; older files yield nulls."""
        fields = Schema.from_json(self.spec.schema.json()).fields
        self._delta.alter.add_columns([field for field in fields if field.name in set(missing)])

    def oldest_commit(self) -> int:
        """The first commit that is still in the log."""
        names = (found.path.rpartition("/")[2] for found in self.table.files.below("_delta_log"))
        return min(int(name[:20]) for name in names if name[20:] == ".json")

    def trim_log(self) -> None:
        """Drops commits past their retention; a checkpoint keeps the resulting state."""
        if self.version > 0:
            self._delta.create_checkpoint()
            self._delta.cleanup_metadata()

    def discard(self, run: str) -> None:
        """Deletes the staged files of a run without a commit."""
        self.table.files.delete_folder(self.folder(run))

    def _commit(
        self, actions: Sequence[AddAction | RemoveAction], run: str, progress: Mapping[str, int]
    ) -> None:
        self._lake.at("committing", self.spec.name)
        now_ms = self._now_ms()
        try:
            self._delta.create_write_transaction(
                list(actions),
                mode="append",
                schema=self._delta.schema(),
                partition_by=self.spec.partition_names,
                commit_properties=CommitProperties(
                    custom_metadata={"run": run, "code": self._lake.code_version},
                    app_transactions=[
                        Transaction(app, version, now_ms) for app, version in progress.items()
                    ],
                ),
                post_commithook_properties=PostCommitHookProperties(cleanup_expired_logs=False),
            )
        except CommitFailedError as exc:
            self.discard(run)
            raise LostRaceError(f"{self.spec.name}: {exc}") from exc
        self._lake.at("committed", self.spec.name)

    def _add(self, file: DataFile, *, changes: bool) -> AddAction:
        stats: dict[str, Any] = {"numRecords": file.rows}
        if file.least is not None:
            column = self.spec.stats
            stats |= {"minValues": {column: file.least}, "maxValues": {column: file.greatest}}
        return AddAction(
            path=file.path,
            size=file.size_bytes,
            partition_values=file.partition,
            modification_time=self._now_ms(),
            data_change=changes,
            stats=msgspec.json.encode(stats).decode(),
        )

    def _found(self, folder: str) -> list[DataFile]:
        files = self.table.files
        staged: list[DataFile] = []
        for found in files.below(folder):
            if not found.path.endswith(".parquet"):
                continue
            footer = files.footer(found.path, self.spec.stats)
            if footer.rows:
                steps = (step.partition("=") for step in found.path.split("/")[:-1])
                partition: dict[str, str | None] = {
                    name: unquote(value) for name, equals, value in steps if equals
                }
                staged.append(
                    DataFile(
                        path=found.path,
                        size_bytes=found.size_bytes,
                        rows=footer.rows,
                        partition=partition,
                        least=footer.least,
                        greatest=footer.greatest,
                    )
                )
        return sorted(staged, key=lambda file: file.path)

    def _all_files(self) -> Iterator[DataFile]:
        table: Any = self._delta.get_add_actions(flatten=True)
        names = {name: f"partition.{name}" for name in self.spec.partition_names}
        least, greatest = f"min.{self.spec.stats}", f"max.{self.spec.stats}"
        present = set(table.column_names)
        wanted = ["path", "size_bytes", "num_records", *names.values(), least, greatest]
        lists: dict[str, list[Any]] = {
            name: table.column(name).to_pylist() for name in wanted if name in present
        }
        for at, path in enumerate(lists["path"]):
            values = {name: lists[column][at] for name, column in names.items()}
            yield DataFile(
                path=unquote(path),
                size_bytes=lists["size_bytes"][at],
                rows=lists["num_records"][at] or 0,
                partition={name: _text(value) for name, value in values.items()},
                least=lists[least][at] if least in lists else None,
                greatest=lists[greatest][at] if greatest in lists else None,
            )

    def _now_ms(self) -> int:
        return self._lake.clock.now_ms()


def read_files(spark: SparkSession, table: Table, files: Sequence[DataFile]) -> DataFrame:
    spec = table.spec
    if not files:
        return local_frame(spark, [], spec.schema)
    derived = {column.name: column.derive() for column in spec.partitions}
    return _bare(spark, table, files).withColumns(derived).select(*spec.schema.names)


def _bare(spark: SparkSession, table: Table, files: Sequence[DataFile]) -> DataFrame:
    paths = [table.files.uri(file.path) for file in files]
    return spark.read.schema(table.spec.data).parquet(*paths)


def local_frame(
    spark: SparkSession, rows: Sequence[Sequence[Any]], schema: StructType
) -> DataFrame:
    """A frame from few rows on the driver."""
    return spark.createDataFrame(rows, schema)  # pyright: ignore[reportUnknownMemberType]


def _text(value: Any) -> str | None:
    return None if value is None else str(value)
