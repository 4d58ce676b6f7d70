"""What callgrind has counted, read from its dumps."""

from pathlib import Path

from benchmarks.instructions import executed

DUMP = """version: 1
creator: callgrind-3.19.0
pid: 7
part: {part}
events: Ir
fn=(1) main
16 400
totals: {count}
"""


def test_dumps_of_all_processes_and_parts_add_up(tmp_path: Path) -> None:
    """A dump holds what was counted since the one before."""
    for name, part, count in (("7.1", 1, 0), ("7.2", 2, 1200), ("8.1", 1, 34)):
        (tmp_path / name).write_text(DUMP.format(part=part, count=count))

    assert executed(tmp_path) == 1234
