"""Job `compact`: merges many small files into few, partition by partition.

Inputs and outputs: any table. Progress: none; a compact partition is skipped.
Idempotence: files are replaced by files with the same rows in one commit with the fence of
rewriters, flagged as no change of data, so no consumer reads them again.
Cost: one pass over the small files of due partitions.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime

from waystation.pipeline.commit_log import DataFile
from waystation.pipeline.job_context import Context, JobResult, noop
from waystation.pipeline.quality import equal, record
from waystation.pipeline.schema import TableSpec

NAME = "compact"
SMALL_BYTES = 32 << 20
FILES_MAX = 8
COMMIT_BYTES_MAX = 2 << 30


def run(ctx: Context, specs: Iterable[TableSpec], *, files_max: int = FILES_MAX) -> JobResult:
    now = datetime.fromtimestamp(ctx.clock.now_ms() / 1000, UTC)
    current = {"date": now.date().isoformat(), "hour": str(now.hour)}
    name = ctx.new_run()
    taken = written = rows = 0
    for spec in specs:
        table = ctx.lake.table(spec)
        if not table.exists():
            continue
        for number, files in enumerate(_due(table.open().files(), current, files_max)):
            handle = table.open()
            run_name = f"{name}-{number}"
            staged = handle.write(handle.frame(files), run_name)
            before, after = (sum(file.rows for file in some) for some in (files, staged))
            record(ctx, spec.name, run_name, [equal("compact_conserves", "stop", after, before)])
            handle.swap(files, staged, run_name)
            taken += len(files)
            written += len(staged)
            rows += after
    if not taken:
        return noop(NAME)
    notes: dict[str, int | float | str] = {"files before": taken}
    return JobResult(job=NAME, run=name, rows_in=rows, rows_out=rows, files=written, notes=notes)


def _due(
    files: Sequence[DataFile], current: dict[str, str], files_max: int
) -> Iterator[list[DataFile]]:
    """Small files of partitions with many of them, limited to one commit."""
    crowds: dict[tuple[str | None, ...], list[DataFile]] = defaultdict(list)
    for file in files:
        is_current = "hour" in file.partition and file.partition.items() >= current.items()
        if file.size_bytes < SMALL_BYTES and not is_current:
            crowds[tuple(file.partition.values())].append(file)
    bundle: list[DataFile] = []
    for _, crowd in sorted(crowds.items(), key=lambda item: str(item[0])):
        if len(crowd) > files_max:
            bundle += crowd
            if sum(file.size_bytes for file in bundle) > COMMIT_BYTES_MAX:
                yield bundle
                bundle = []
    if bundle:
        yield bundle
