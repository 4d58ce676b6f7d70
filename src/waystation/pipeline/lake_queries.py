"""Reads tables, partitions, commits and query results of the lake for the command line."""

import shutil
import sys
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

import msgspec

from waystation.base.errors import RejectedError
from waystation.pipeline.all_tables import TABLES
from waystation.pipeline.delta_table import Lake, local_frame
from waystation.pipeline.java import Java
from waystation.pipeline.job_context import Context
from waystation.pipeline.schema import Partition, TableSpec, columns, date_of_us
from waystation.telemetry import contract

ROWS_MAX = 1000
_commit_line = msgspec.json.Decoder(dict[str, dict[str, Any]])
_READING = ("select", "with", "show", "describe", "explain", "values")


class NoTableError(RejectedError):
    """A table name is unknown; the message lists the known ones."""

    label = "no_table"


class QueryError(RejectedError):
    """The query is not read-only."""

    label = "query"


class TableRow(msgspec.Struct, frozen=True):
    table: str
    version: int
    rows: int
    files: int
    mib: float
    first: str
    last: str


class PartitionRow(msgspec.Struct, frozen=True):
    partition: str
    rows: int
    files: int
    mib: float


class CommitRow(msgspec.Struct, frozen=True):
    version: int
    at: str
    run: str
    added: int
    removed: int


class Finding(msgspec.Struct, frozen=True):
    what: str
    ok: bool
    found: str


def spec_of(name: str) -> TableSpec:
    if name not in TABLES:
        raise NoTableError(f"no table {name!r}; there are {', '.join(TABLES)}")
    return TABLES[name]


def overview(ctx: Context) -> list[TableRow]:
    found: list[TableRow] = []
    for spec in TABLES.values():
        table = ctx.lake.table(spec)
        if table.exists():
            handle = table.open()
            files = handle.files()
            days = sorted(handle.partition_values(spec.partition_names[0]))
            found.append(
                TableRow(
                    spec.name,
                    handle.version,
                    sum(file.rows for file in files),
                    len(files),
                    _mib(sum(file.size_bytes for file in files)),
                    days[0] if days else "-",
                    days[-1] if days else "-",
                )
            )
    return found


def partitions(ctx: Context, name: str) -> list[PartitionRow]:
    rows: dict[str, list[tuple[int, int]]] = {}
    for file in ctx.lake.table(spec_of(name)).open().files():
        key = "/".join(f"{column}={value}" for column, value in file.partition.items())
        rows.setdefault(key, []).append((file.rows, file.size_bytes))
    return [
        PartitionRow(key, sum(n for n, _ in of), len(of), _mib(sum(size for _, size in of)))
        for key, of in sorted(rows.items())
    ]


def commits(ctx: Context, name: str, limit: int = 50) -> list[CommitRow]:
    handle = ctx.lake.table(spec_of(name)).open()
    rows: list[CommitRow] = []
    for number in range(handle.version, max(-1, handle.version - limit), -1):
        data = handle.table.files.read(f"_delta_log/{number:020d}.json")
        if data is None:
            break
        actions = [_commit_line.decode(line) for line in data.splitlines()]
        info: dict[str, Any] = {"timestamp": 0}
        for one in actions:
            info |= one.get("commitInfo", {})
        at = datetime.fromtimestamp(info["timestamp"] / 1000, UTC)
        rows.append(
            CommitRow(
                number,
                at.isoformat(timespec="seconds"),
                info.get("run", info.get("operation", "")),
                sum("add" in one for one in actions),
                sum("remove" in one for one in actions),
            )
        )
    return rows


def ask(ctx: Context, query: str) -> Iterator[str]:
    """The result of one SELECT over views of all tables, tab-separated, with a header line."""
    first = query.strip().split(None, 1)[0].lower() if query.strip() else ""
    if first not in _READING:
        raise QueryError(f"queries are read-only: begin with {', '.join(_READING)}")
    for spec in TABLES.values():
        table = ctx.lake.table(spec)
        frame = table.open().read() if table.exists() else local_frame(ctx.spark, [], spec.schema)
        frame.createOrReplaceTempView(spec.name)
    answer = ctx.spark.sql(query)
    yield "\t".join(answer.columns)
    for row in answer.limit(ROWS_MAX).toLocalIterator():
        yield "\t".join("" if row[name] is None else str(row[name]) for name in answer.columns)


def segment_lines(path: Path, *, as_json: bool) -> Iterator[str]:
    """The lines of a segment, unchanged or formatted with event names and without the envelope."""
    for line in path.read_bytes().splitlines():
        if as_json:
            yield line.decode()
            continue
        try:
            row = msgspec.json.decode(line, type=dict[str, object])
            kind = contract.KINDS.get(int(str(row.get("k"))))
            at = datetime.fromtimestamp(int(str(row.get("ts"))) / 1e6, UTC).isoformat()
        except (msgspec.MsgspecError, ValueError):
            yield f"not an event: {line[:120]!r}"
            continue
        envelope = {"v", "ts", "node", "boot", "seq", "k"}
        rest = " ".join(f"{key}={value}" for key, value in row.items() if key not in envelope)
        yield f"{at} {row.get('seq')} {kind.name if kind else row.get('k')} {rest}".rstrip()


def examine(ctx: Context, java: Java) -> list[Finding]:
    """The findings of `waystation pipeline doctor`."""
    began = time.monotonic()
    counted = ctx.spark.range(1000).count()
    free = shutil.disk_usage(disk_of(ctx.lake.root)).free
    findings = [
        Finding("java", ok=True, found=f"{java.version} in {java.home}"),
        *(
            Finding(name, ok=True, found=version(name))
            for name in ("pyspark", "deltalake", "pyarrow")
        ),
        Finding("python", ok=True, found=sys.version.split()[0]),
        Finding("a query", ok=counted == 1000, found=f"{time.monotonic() - began:.1f} s"),
        Finding("free disk", ok=free > 1 << 30, found=f"{free >> 30} GiB"),
    ]
    return [*findings, _commit_test(ctx)]


def _commit_test(ctx: Context) -> Finding:
    probe = f"{ctx.lake.root}/.doctor-{ctx.new_run()}"
    spec = TableSpec(
        name="probe",
        data=columns("at bigint"),
        partitions=(Partition("date", "date", date_of_us("at")),),
    )
    table = Lake(ctx.spark, probe, ctx.clock).table(spec)
    began = time.monotonic()
    handle = table.open()
    staged = handle.write(local_frame(ctx.spark, [(ctx.clock.now_us(),)], spec.data), "probe")
    handle.append(staged, "probe", {"doctor": 1})
    rows = table.open().read().count()
    if "://" not in probe:
        shutil.rmtree(probe, ignore_errors=True)
    took = f"{time.monotonic() - began:.1f} s in {ctx.lake.root}"
    return Finding("a write and a commit", ok=rows == 1, found=took)


def _mib(size_bytes: int) -> float:
    return round(size_bytes / (1 << 20), 2)


def disk_of(root: str) -> Path:
    """An existing folder on the disk of the lake; for a remote lake, the current folder."""
    folder = Path("/") if "://" in root else Path(root).absolute()
    while not folder.exists():
        folder = folder.parent
    return folder
