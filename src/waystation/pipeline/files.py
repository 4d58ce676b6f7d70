"""The files below a table's root, on a disk or in an object store.

Spark reads and writes data files itself. The driver uses this module to list the files of a run, to
read footers and commits, to write a few rows, and to delete files.
"""

from collections.abc import Iterator, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

import msgspec
from pyspark.sql.types import StructType

# Modules without type hints; only this module annotates their results.
_arrow: Any = import_module("pyarrow")
_filesystems: Any = import_module("pyarrow.fs")
_parquet: Any = import_module("pyarrow.parquet")
_spark_types: Any = import_module("pyspark.sql.pandas.types")  # only its name mentions pandas


class Found(msgspec.Struct, frozen=True):
    path: str
    size_bytes: int
    changed_at_ms: int


class Footer(msgspec.Struct, frozen=True):
    rows: int
    least: int | str | None
    greatest: int | str | None


class Files:
    """Paths are relative to `root`, a folder or the URL of an object store."""

    def __init__(self, root: str) -> None:
        self.root = root if "://" in root else str(Path(root).absolute())
        base, path = _filesystems.FileSystem.from_uri(self.root)
        self._files: Any = _filesystems.SubTreeFileSystem(path, base)

    def uri(self, path: str) -> str:
        return f"{self.root}/{path}"

    def read(self, path: str) -> bytes | None:
        try:
            with self._files.open_input_file(path) as file:
                return file.read()
        except FileNotFoundError:
            return None

    def below(self, folder: str) -> Iterator[Found]:
        """Every file below a folder, unordered; none if the folder does not exist."""
        selector = _filesystems.FileSelector(folder, recursive=True, allow_not_found=True)
        for info in self._files.get_file_info(selector):
            if info.is_file:
                yield Found(info.path, info.size, (info.mtime_ns or 0) // 1_000_000)

    def folders(self, folder: str) -> list[str]:
        selector = _filesystems.FileSelector(folder, recursive=False, allow_not_found=True)
        return [info.path for info in self._files.get_file_info(selector) if not info.is_file]

    def delete(self, path: str) -> bool:
        """Returns whether the file existed."""
        try:
            self._files.delete_file(path)
        except FileNotFoundError:
            return False
        return True

    def delete_folder(self, folder: str) -> None:
        self._files.delete_dir_contents(folder, missing_dir_ok=True)
        if self._files.get_file_info(folder).type != _filesystems.FileType.NotFound:
            self._files.delete_dir(folder)

    def footer(self, path: str, column: str) -> Footer:
        """Row count of a Parquet file, and the range of a column if the statistics have it."""
        metadata = _parquet.read_metadata(path, filesystem=self._files)
        names = [metadata.schema.column(at).path for at in range(metadata.num_columns)]
        if column not in names:
            return Footer(metadata.num_rows, None, None)
        at = names.index(column)
        groups = [
            metadata.row_group(number).column(at).statistics
            for number in range(metadata.num_row_groups)
        ]
        if not groups or not all(one is not None and one.has_min_max for one in groups):
            return Footer(metadata.num_rows, None, None)
        return Footer(
            metadata.num_rows, min(one.min for one in groups), max(one.max for one in groups)
        )

    def write_rows(self, path: str, rows: Sequence[Mapping[str, Any]], schema: StructType) -> int:
        """Writes a small Parquet file from rows on the driver; returns its size."""
        self._files.create_dir(path.rpartition("/")[0], recursive=True)
        table = _arrow.Table.from_pylist(list(rows), schema=_spark_types.to_arrow_schema(schema))
        _parquet.write_table(table, path, filesystem=self._files, compression="zstd")
        return self._files.get_file_info(path).size

    def write_table(self, path: str, table: Any, **coding: Any) -> None:
        """Writes a Parquet file from Arrow columns, with `parquet_options.arrow_options`."""
        self._files.create_dir(path.rpartition("/")[0], recursive=True)
        _parquet.write_table(table, path, filesystem=self._files, **coding)
