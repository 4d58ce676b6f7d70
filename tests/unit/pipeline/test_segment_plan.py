"""Which segments come next: order, holes, turns, and files that are not what their names say."""

import os
from pathlib import Path

import google_crc32c
import pytest

from waystation.pipeline.sources.segments import Batch, Source, examine, plan
from waystation.telemetry.segments import sealed_segments

NOW_S = 1_794_000_000.0
BOOT = 7


def seal(
    spool: Path, node: str, segno: int, text: bytes = b"{}\n", *, age_s: float = 0, lie: int = 0
) -> Path:
    folder = spool / node
    folder.mkdir(parents=True, exist_ok=True)
    count = text.count(b"\n") + lie
    path = folder / f"{BOOT}.{segno}.{segno}.{count}.{google_crc32c.value(text):08x}.jsonl"
    path.write_bytes(text)
    os.utime(path, (NOW_S - age_s, NOW_S - age_s))
    return path


def planned(spool: Path, done: dict[Source, int] | None = None, *, most: int = 1 << 30) -> Batch:
    known = done or {}
    return plan(spool, known.get, NOW_S, batch_bytes_max=most, hole_wait_s=3600)


def taken(batch: Batch) -> list[tuple[str, int]]:
    return [(one.segment.node, one.segment.segno) for one in batch.taken]


def test_no_spool_is_no_work(tmp_path: Path) -> None:
    assert planned(tmp_path / "nowhere") == Batch([], [], 0, more=False)


def test_what_the_lake_has_is_left_out(tmp_path: Path) -> None:
    for segno in range(4):
        seal(tmp_path, "a.b.0", segno)

    batch = planned(tmp_path, {("a.b.0", BOOT): 1})

    assert taken(batch) == [("a.b.0", 2), ("a.b.0", 3)]
    assert batch.last_segnos() == {("a.b.0", BOOT): 3}


def test_a_young_hole_stops_and_an_old_one_is_counted(tmp_path: Path) -> None:
    seal(tmp_path, "a.b.0", 0)
    seal(tmp_path, "a.b.0", 3)
    seal(tmp_path, "old.b.0", 2, age_s=3601)

    batch = planned(tmp_path)

    assert taken(batch) == [("a.b.0", 0), ("old.b.0", 2)]
    assert batch.missing == 2


def test_nodes_take_turns_until_the_batch_is_full(tmp_path: Path) -> None:
    for segno in range(5):
        seal(tmp_path, "far.behind.0", segno, b"x" * 99 + b"\n")
    seal(tmp_path, "small.one.0", 0, b"x" * 99 + b"\n")

    batch = planned(tmp_path, most=300)

    assert taken(batch) == [("far.behind.0", 0), ("small.one.0", 0), ("far.behind.0", 1)]
    assert batch.more


def test_a_file_larger_than_a_batch_is_taken_alone(tmp_path: Path) -> None:
    seal(tmp_path, "a.b.0", 0, b"x" * 5000 + b"\n")
    seal(tmp_path, "a.b.0", 1)

    assert taken(planned(tmp_path, most=10)) == [("a.b.0", 0)]


def test_a_broken_segment_stops_its_source_alone(tmp_path: Path) -> None:
    seal(tmp_path, "bad.b.0", 0, lie=1)
    seal(tmp_path, "bad.b.0", 1)
    seal(tmp_path, "good.b.0", 0)

    batch = planned(tmp_path)

    assert taken(batch) == [("good.b.0", 0)]
    assert [(one.node, one.segno) for one in batch.broken] == [("bad.b.0", 0)]


@pytest.mark.parametrize(
    "text, blank", [(b"a\nb\n", 0), (b"\n", 1), (b"a\n\n\nb\n", 2), (b"\n\n", 2), (b"a\n\n", 1)]
)
def test_blank_lines_are_counted(tmp_path: Path, text: bytes, blank: int) -> None:
    seal(tmp_path, "a.b.0", 0, text)

    one = examine(next(sealed_segments(tmp_path)))

    assert one is not None
    assert one.blank_lines == blank


def test_blank_lines_across_chunks_are_counted_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("waystation.pipeline.sources.segments._CHUNK_BYTES", 1)
    seal(tmp_path, "a.b.0", 0, b"a\n\nb\n\n\nc\n")

    one = examine(next(sealed_segments(tmp_path)))

    assert one is not None
    assert one.blank_lines == 3


def test_a_changed_or_cut_file_is_not_taken(tmp_path: Path) -> None:
    path = seal(tmp_path, "a.b.0", 0, b'{"a":1}\n{"b":2}\n')
    segment = next(sealed_segments(tmp_path))
    path.write_bytes(b'{"a":1}\n{"b":3}\n')
    assert examine(segment) is None

    path.write_bytes(b'{"a":1}\n')
    assert examine(segment) is None
