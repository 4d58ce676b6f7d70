"""Segments into `events`: every line once, bad ones with their reason, whatever happens."""

import os
import random
import shutil
from collections import Counter
from collections.abc import Sequence
from itertools import product
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pytest
from pyspark.sql import DataFrame
from pyspark.sql.types import StructType

from tests.oracle import intake as oracle
from tests.pipeline.conftest import NOW_MS
from tests.pipeline.spools import SECOND_US, Source, encode, odd_spool, write_segment
from waystation.pipeline.delta_table import Lake
from waystation.pipeline.job_context import Context
from waystation.pipeline.jobs import ingest
from waystation.pipeline.quality import QualityStopError
from waystation.pipeline.schema import DQ, EVENTS, QUARANTINE
from waystation.pipeline.settings import Pipeline
from waystation.telemetry import contract

TOLERANT = Pipeline(quarantine_share_max=1.0)
COLUMNS = tuple(contract.COLUMNS)
GOLDEN = Path(__file__).parent / "golden"


@pytest.fixture
def ctx(lake: Lake) -> Context:
    return Context(lake.spark, lake, lake.clock, TOLERANT)


def rows(frame: DataFrame) -> Counter[tuple[Any, ...]]:
    return Counter(tuple(row) for row in frame.collect())


def events(ctx: Context) -> Counter[tuple[Any, ...]]:
    return rows(ctx.lake.read(EVENTS).select(*COLUMNS))


def rejected(ctx: Context) -> Counter[tuple[Any, ...]]:
    return rows(ctx.lake.read(QUARANTINE).select("node", "boot", "segno", "reason"))


def check_equals_the_oracle(ctx: Context, spool: Path) -> None:
    truth = oracle.judge(spool)

    assert events(ctx) == Counter(tuple(row[name] for name in COLUMNS) for row in truth.events)
    assert rejected(ctx) == Counter(truth.rejected)


def test_lines_are_judged_as_the_oracle_judges_them(ctx: Context, tmp_path: Path) -> None:
    spool = tmp_path / "spool"
    odd_spool(spool, 1, NOW_MS, sources=24, odd=0.15)

    result = ingest.drain(ctx, spool)

    check_equals_the_oracle(ctx, spool)
    reasons = {reason for *_, reason in oracle.judge(spool).rejected}
    assert len(reasons) >= 10, "the spool is not odd enough"
    assert result.rows_in + sum(1 for *_, r in oracle.judge(spool).rejected if r == "blank") == sum(
        int(path.name.split(".")[3]) for path in spool.glob("*/*.jsonl")
    )
    assert ingest.run(ctx, spool).state == "noop"


def test_new_segments_are_taken_in_order_and_a_hole_is_waited_for(
    ctx: Context, tmp_path: Path
) -> None:
    spool = tmp_path / "spool"
    now_s = NOW_MS / 1000
    segment(spool, 0, sealed_at_s=now_s)
    segment(spool, 2, sealed_at_s=now_s)
    assert ingest.drain(ctx, spool).files == 1

    segment(spool, 1, sealed_at_s=now_s)
    assert ingest.drain(ctx, spool).files == 2
    young = segment(spool, 4, sealed_at_s=now_s)
    assert ingest.drain(ctx, spool).state == "noop"

    young.unlink()
    segment(spool, 4, sealed_at_s=now_s - 3601)
    assert ingest.drain(ctx, spool).files == 1
    assert {row[4] for row in events(ctx)} == {0, 10, 20, 40}
    missing = ctx.lake.read(DQ).where("check = 'segment_missing' and not ok").collect()
    assert [row.value for row in missing] == [1.0]


def test_a_segment_that_is_not_what_its_name_says_stops_its_node_alone(
    ctx: Context, tmp_path: Path
) -> None:
    spool = tmp_path / "spool"
    now_s = NOW_MS / 1000
    line = encode(Source(random.Random(1), "good.node.0", 7, NOW_MS * 1000).event(301, code=0))
    write_segment(spool, "good.node.0", 7, 0, [line], first_seq=0, sealed_at_s=now_s)
    cut = encode(Source(random.Random(1), "bad.node.0", 7, NOW_MS * 1000).event(301, code=0))
    write_segment(spool, "bad.node.0", 7, 0, [cut], first_seq=0, sealed_at_s=now_s, count=2)

    with pytest.raises(QualityStopError, match=r"segment_count .*bad\.node\.0/7\.0\.0\.2"):
        ingest.drain(ctx, spool)

    assert {row[2] for row in events(ctx)} == {"good.node.0"}


def test_too_many_bad_lines_and_private_texts_stop_before_anything_is_committed(
    ctx: Context, tmp_path: Path
) -> None:
    strict = Context(ctx.spark, ctx.lake, ctx.clock, Pipeline(quarantine_floor=1))
    bad, private = tmp_path / "bad", tmp_path / "private"
    now_s = NOW_MS / 1000
    write_segment(bad, "a.b.0", 7, 0, [b"{", b"}"], first_seq=0, sealed_at_s=now_s)
    source = Source(random.Random(1), "a.b.0", 7, NOW_MS * 1000)
    told = encode(source.event(300, attrs='{"version": "1", "from": "192.0.2.7"}'))
    write_segment(private, "a.b.0", 7, 0, [told], first_seq=0, sealed_at_s=now_s)

    with pytest.raises(QualityStopError, match="quarantine_rate"):
        ingest.drain(strict, bad)
    with pytest.raises(QualityStopError, match="privacy"):
        ingest.drain(ctx, private)

    assert not events(ctx)
    assert not rejected(ctx)
    assert not list(ctx.lake.table(EVENTS).files.below("data"))
    failed = {row.check for row in ctx.lake.read(DQ).where("level = 'stop' and not ok").collect()}
    assert failed == {"quarantine_rate", "privacy"}


def test_an_open_segment_of_a_process_that_is_gone_is_sealed_and_taken(
    ctx: Context, tmp_path: Path
) -> None:
    spool = tmp_path / "spool"
    source = Source(random.Random(1), "a.b.0", 7, NOW_MS * 1000)
    whole = encode(source.event(301, code=0)) + b"\n"
    left = spool / "a.b.0" / "7.0.open"
    left.parent.mkdir(parents=True)
    left.write_bytes(whole + b'{"v":1,"no')
    os.utime(left, (NOW_MS / 1000 - 60, NOW_MS / 1000 - 60))
    assert ingest.drain(ctx, spool).state == "noop"

    os.utime(left, (NOW_MS / 1000 - 601, NOW_MS / 1000 - 601))
    assert ingest.drain(ctx, spool).rows_out == 1
    assert not left.exists()


def test_a_rival_ingest_that_commits_first_wins_and_nothing_is_doubled(
    ctx: Context, tmp_path: Path
) -> None:
    spool = tmp_path / "spool"
    odd_spool(spool, 5, NOW_MS, sources=2, odd=0.1)
    lake = ctx.lake
    raced: list[str] = []

    def let_a_rival_in(point: str, table: str) -> None:
        if point == "committing" and table in {"quarantine", "events"} and table not in raced:
            raced.append(table)
            ingest.drain(ctx, spool)

    raced_lake = Lake(lake.spark, lake.root, lake.clock, at=let_a_rival_in)
    slow = Context(ctx.spark, raced_lake, ctx.clock, TOLERANT)
    assert ingest.drain(slow, spool).state == "noop"
    segment(spool, 0, sealed_at_s=NOW_MS / 1000)  # without bad lines: the race is for `events`
    assert ingest.drain(slow, spool).state == "noop"

    assert raced == ["quarantine", "events"]
    check_equals_the_oracle(ctx, spool)


class Killed(BaseException):
    """Not an error that anybody catches: the process is gone."""


@pytest.mark.parametrize("bad_lines", [True, False])
def test_an_ingest_that_dies_anywhere_and_runs_again_has_taken_every_line_once(
    ctx: Context, tmp_path: Path, *, bad_lines: bool
) -> None:
    """Each point gets a new segment, dies there, and is run again."""
    spool = tmp_path / "spool"
    armed: list[tuple[str, str]] = []

    def die(point: str, table: str) -> None:
        if (point, table) in armed:
            armed.clear()
            raise Killed

    lake = ctx.lake
    deadly = Context(
        ctx.spark, Lake(lake.spark, lake.root, lake.clock, at=die), ctx.clock, TOLERANT
    )
    tables = ("quarantine",) if bad_lines else ("events",)
    for segno, (point, table) in enumerate(product(("written", "committing", "committed"), tables)):
        more = [b"{"] if bad_lines else []
        segment(spool, segno, sealed_at_s=NOW_MS / 1000, more=more)
        armed.append((point, table))
        with pytest.raises(Killed):
            ingest.drain(deadly, spool)
        ingest.drain(deadly, spool)

    check_equals_the_oracle(ctx, spool)


def test_a_zstd_segment_is_read_as_it_is(ctx: Context, tmp_path: Path) -> None:
    spool = tmp_path / "spool"
    plain = segment(spool, 0, sealed_at_s=NOW_MS / 1000)
    packed = plain.with_suffix(".jsonl.zst")
    with pa.output_stream(str(packed), compression="zstd") as stream:
        stream.write(plain.read_bytes())
    plain.unlink()
    os.utime(packed, (NOW_MS / 1000, NOW_MS / 1000))

    assert ingest.drain(ctx, spool).rows_out == 1


def test_segments_of_every_contract_version_are_read(ctx: Context, tmp_path: Path) -> None:
    """Golden files: one folder a version, as nodes of that version wrote them. Each has one event
    of every code; `with_more` is of a newer node with columns that we do not know yet."""
    spool = tmp_path / "spool"
    for version in sorted(GOLDEN.iterdir()):
        shutil.copytree(version, spool, dirs_exist_ok=True)
    for path in spool.glob("*/*.jsonl"):
        boot_s = int(path.name.split(".")[0]) / 1e6
        os.utime(path, (boot_s + 60, boot_s + 60))

    ingest.drain(ctx, spool)

    found = events(ctx)
    codes = {row[5] for row in found if row[2] == "golden.all.0"}
    assert codes >= {0, 1, 8, 20, 21, 40, 103, 130, 200, 208, 300, 302, 303}
    assert {row[5] for row in found if row[2] == "golden.more.0"} == {300, 999}
    assert not rejected(ctx)


def test_a_column_that_the_contract_gains_is_added_before_the_first_row(
    ctx: Context, tmp_path: Path
) -> None:
    spool = tmp_path / "spool"
    older = msgspec.structs.replace(
        EVENTS, data=StructType([field for field in EVENTS.data.fields if field.name != "iph"])
    )
    ctx.lake.table(older).open()
    source = Source(random.Random(1), "a.b.0", 7, NOW_MS * 1000)
    line = encode(source.event(20, cid=1, iph=77))
    write_segment(spool, "a.b.0", 7, 0, [line], first_seq=0, sealed_at_s=NOW_MS / 1000)

    ingest.drain(ctx, spool)

    assert [row.iph for row in ctx.lake.read(EVENTS).collect()] == [77]
    assert "iph" in ctx.lake.table(older).open().column_names()
    assert ctx.lake.read(older).count() == 1  # an older reader is not disturbed


def segment(spool: Path, segno: int, *, sealed_at_s: float, more: Sequence[bytes] = ()) -> Path:
    """One event of one process, which has the sequence number 10 * segno, and other lines."""
    source = Source(random.Random(segno), "a.b.0", 7, int(sealed_at_s * 1e6) - SECOND_US * 10)
    source.seq = 10 * segno
    line = encode(source.event(301, code=segno))
    return write_segment(
        spool, "a.b.0", 7, segno, [line, *more], first_seq=10 * segno, sealed_at_s=sealed_at_s
    )
