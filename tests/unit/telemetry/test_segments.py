import os
from pathlib import Path

import google_crc32c
import pytest
from hypothesis import given
from hypothesis import strategies as st

from waystation.base.clock import ManualClock
from waystation.telemetry import segments
from waystation.telemetry.segments import (
    SegmentWriter,
    remove_old,
    seal_abandoned,
    sealed_segments,
)

NODE = "host.connect.0"
BOOT = 1_700_000_000_000_000


def lines(*seqs: int) -> bytes:
    return b"".join(b'{"seq":%d}\n' % seq for seq in seqs)


def names(spool: Path) -> list[str]:
    return sorted(path.name for path in (spool / NODE).iterdir())


def writer(spool: Path, clock: ManualClock | None = None, **limits: int) -> SegmentWriter:
    return SegmentWriter(spool, NODE, BOOT, clock or ManualClock(), **limits)


def test_a_sealed_segment_describes_itself_in_its_name(tmp_path: Path) -> None:
    w = writer(tmp_path)
    w.append(lines(7, 8), 7, 2)
    w.append(lines(9), 9, 1)
    assert names(tmp_path) == [f"{BOOT}.0.open"]

    sealed = w.seal()

    crc = int.from_bytes(google_crc32c.Checksum(lines(7, 8, 9)).digest(), "big")
    assert sealed is not None
    assert names(tmp_path) == [f"{BOOT}.0.7.3.{crc:08x}.jsonl"]
    assert sealed.read_bytes() == lines(7, 8, 9)


def test_the_checksum_is_crc32c_and_no_other() -> None:
    """The check value of RFC 3720, appendix B.4, and of everyone since."""
    assert segments._extend(0, b"123456789") == 0xE3069283


def test_a_full_segment_is_sealed_and_the_next_number_opened(tmp_path: Path) -> None:
    w = writer(tmp_path, segment_bytes_max=20)
    for seq in range(5):
        w.append(lines(seq), seq, 1)
    w.seal()

    found = list(sealed_segments(tmp_path))
    assert [(s.segno, s.first_seq, s.count) for s in found] == [(0, 0, 2), (1, 2, 2), (2, 4, 1)]
    assert all(s.crc32c == segments._extend(0, s.path.read_bytes()) for s in found)


def test_an_old_segment_is_sealed(tmp_path: Path) -> None:
    clock = ManualClock()
    w = writer(tmp_path, clock)
    assert w.roll_at() is None
    w.append(lines(0), 0, 1)

    clock.advance(59.9)
    w.roll_if_old()
    assert names(tmp_path) == [f"{BOOT}.0.open"]
    clock.advance(0.1)
    w.roll_if_old()
    assert [s.count for s in sealed_segments(tmp_path)] == [1]


def test_sealing_nothing_does_nothing(tmp_path: Path) -> None:
    assert writer(tmp_path).seal() is None
    assert not (tmp_path / NODE).exists()


@pytest.mark.parametrize("node", ["", "Host", "a_b", "../x", "a" * 65, "host:80"])
def test_a_node_name_of_another_form_is_refused(tmp_path: Path, node: str) -> None:
    with pytest.raises(ValueError, match="node name"):
        SegmentWriter(tmp_path, node, BOOT, ManualClock())


def test_a_failed_write_leaves_no_half_line_and_no_hole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A full disk may take part of a line before it refuses the rest."""
    w = writer(tmp_path)
    real = os.write

    def full(fd: int, data: memoryview) -> int:
        if len(data) > 3:
            return real(fd, data[:3])
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "write", full)
    assert not w.append(lines(0), 0, 1)
    monkeypatch.setattr(os, "write", real)
    assert w.seal() is None
    assert w.append(lines(1), 1, 1)
    monkeypatch.setattr(os, "write", full)
    assert not w.append(lines(2), 2, 1)
    monkeypatch.setattr(os, "write", real)
    assert w.append(lines(3), 3, 1)
    w.seal()

    (segment,) = sealed_segments(tmp_path)
    assert (segment.segno, segment.count) == (0, 2)
    assert segment.path.read_bytes() == lines(1, 3)
    assert segment.crc32c == segments._extend(0, lines(1, 3))


def test_a_spool_at_its_limit_takes_no_new_segment_until_there_is_room(tmp_path: Path) -> None:
    clock = ManualClock()
    w = writer(tmp_path, clock, segment_bytes_max=10, spool_bytes_max=20)
    assert w.append(lines(0), 0, 1)
    assert w.append(lines(1), 1, 1)
    clock.advance(10)
    assert not w.append(lines(2), 2, 1)
    for segment in sealed_segments(tmp_path):
        segment.path.unlink()
    clock.advance(10)

    assert w.append(lines(3), 3, 1)


def test_the_segment_of_a_living_writer_is_left_alone(tmp_path: Path) -> None:
    w = writer(tmp_path)
    w.append(lines(0), 0, 1)

    assert seal_abandoned(tmp_path) == []
    assert names(tmp_path) == [f"{BOOT}.0.open"]


def test_the_segment_of_a_dead_writer_is_cut_back_and_sealed(tmp_path: Path) -> None:
    w = writer(tmp_path)
    w.append(lines(5, 6) + b'{"seq":7,"half', 5, 3)
    os.close(w._fd)  # what the death of a process does

    (sealed,) = seal_abandoned(tmp_path)

    assert sealed.read_bytes() == lines(5, 6)
    (segment,) = sealed_segments(tmp_path)
    assert (segment.first_seq, segment.count) == (5, 2)
    assert segment.crc32c == segments._extend(0, lines(5, 6))
    assert seal_abandoned(tmp_path) == []


@given(st.lists(st.binary(max_size=30).map(lambda b: b.replace(b"\n", b"")), max_size=20))
def test_a_left_over_is_cut_at_its_last_newline_wherever_the_chunks_end(
    tmp_path_factory: pytest.TempPathFactory, texts: list[bytes]
) -> None:
    spool = tmp_path_factory.mktemp("spool")
    (spool / NODE).mkdir()
    content = b"\n".join(texts)
    (spool / NODE / f"{BOOT}.3.open").write_bytes(content)
    whole = content[: content.rfind(b"\n") + 1]
    chunk_bytes = segments._CHUNK_BYTES
    segments._CHUNK_BYTES = 7
    try:
        sealed = seal_abandoned(spool)
    finally:
        segments._CHUNK_BYTES = chunk_bytes

    if not whole:
        assert sealed == []
        assert names(spool) == []
    else:
        (segment,) = sealed_segments(spool)
        assert segment.path.read_bytes() == whole
        assert (segment.segno, segment.count) == (3, whole.count(b"\n"))
        assert segment.crc32c == segments._extend(0, whole)


def test_foreign_files_and_a_missing_spool_are_no_trouble(tmp_path: Path) -> None:
    assert seal_abandoned(tmp_path / "none") == []
    (tmp_path / NODE).mkdir()
    (tmp_path / NODE / "notes.open").write_text("hello\n")
    (tmp_path / "file").write_text("")

    assert seal_abandoned(tmp_path) == []
    assert list(sealed_segments(tmp_path)) == []
    assert names(tmp_path) == ["notes.open"]


def test_only_old_segments_that_the_lake_has_are_removed(tmp_path: Path) -> None:
    w = writer(tmp_path, segment_bytes_max=1)
    for seq in range(3):
        w.append(lines(seq), seq, 1)
    found = list(sealed_segments(tmp_path))
    written_ms = int(found[0].path.stat().st_mtime * 1000)
    day_ms = 24 * 3600 * 1000

    assert remove_old(tmp_path, written_ms + day_ms - 60_000, covered=lambda _: True) == []
    removed = remove_old(tmp_path, written_ms + day_ms + 60_000, covered=lambda s: s.segno < 2)

    assert [s.segno for s in removed] == [0, 1]
    assert [s.segno for s in sealed_segments(tmp_path)] == [2]
