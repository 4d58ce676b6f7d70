import asyncio
import errno
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from waystation.base.clock import ManualClock, SystemClock
from waystation.telemetry import eventlog
from waystation.telemetry.contract import COLUMNS
from waystation.telemetry.eventlog import EventLines, EventLog
from waystation.telemetry.events import (
    ConnClose,
    ConnHello,
    ConnHelloAttrs,
    EpRequest,
    EpRequestAttrs,
    LogGap,
    NodeStats,
    NodeStatsAttrs,
    PushExpired,
    PushStored,
)
from waystation.telemetry.segments import sealed_segments
from waystation.telemetry.sink import Portion

NODE = "host.connect.0"
BOOT = 1_700_000_000_000_000
MID = "0" * 32


def rows(spool: Path) -> list[dict[str, Any]]:
    return [
        json.loads(line)
        for segment in sealed_segments(spool)
        for line in segment.path.read_bytes().splitlines()
    ]


async def until(condition: Callable[[], object]) -> None:
    """The log's thread tells nobody when it has written; looking is all a test can do."""
    async with asyncio.timeout(10):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.005)


def no_descriptor() -> PushExpired:
    raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))


class Moody:
    """A sink that raises when it is told to, once."""

    def __init__(self) -> None:
        self.lost = 0
        self.raises = False
        self.lines: list[bytes] = []

    def append(self, portion: Portion) -> None:
        if self.raises:
            self.raises = False
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        self.lines += portion.lines.splitlines()

    def look(self) -> None: ...

    def hasten(self) -> None: ...

    def close(self) -> None: ...


class TestLines:
    def test_a_line_has_the_envelope_and_the_columns_that_are_not_null(self) -> None:
        lines = EventLines(NODE, BOOT)

        assert lines.line(5, ConnClose(cid=1, dur=2, code=1000), 1) == (
            b'{"v":1,"node":"host.connect.0","boot":1700000000000000,"ts":5,"seq":0,"k":29,'
            b'"cid":1,"dur":2,"code":1000}\n'
        )

    def test_numbers_rise_and_weights_are_written_when_they_are_not_one(self) -> None:
        lines = EventLines(NODE, BOOT)
        first = json.loads(lines.line(5, PushExpired(mid=MID), 1))
        second = json.loads(lines.line(6, PushExpired(mid=MID), 10))

        assert (first["seq"], "w" in first) == (0, False)
        assert (second["seq"], second["w"]) == (1, 10)
        assert lines.counts == {11: 11}

    def test_attrs_are_a_text_that_holds_an_object(self) -> None:
        event = ConnHello(
            cid=1, uah=-2, flag=True, n=3, attrs=ConnHelloAttrs(os='Li"nux', browser="Firefox")
        )
        row = json.loads(EventLines(NODE, BOOT).line(5, event, 1))

        assert json.loads(row["attrs"]) == {"os": 'Li"nux', "browser": "Firefox"}
        assert (row["uah"], row["flag"]) == (-2, True)

    def test_attrs_leave_out_what_is_null(self) -> None:
        event = EpRequest(code=201, errno=0, size=0, ttl=0, dur=1, attrs=EpRequestAttrs(sub=7))
        row = json.loads(EventLines(NODE, BOOT).line(5, event, 1))

        assert row["attrs"] == '{"sub":7}'
        assert "app" not in row

    def test_attrs_beyond_their_limit_are_cut(self) -> None:
        many = {f"counter{index}": index for index in range(1000)}
        event = NodeStats(
            attrs=NodeStatsAttrs(
                connections=1, rss=1, cpu=0.5, loop_lag=0.1, spool_bytes=1, counters=many
            )
        )
        row = json.loads(EventLines(NODE, BOOT).line(5, event, 1))

        assert json.loads(row["attrs"]) == {"cut": True}

    def test_every_key_is_a_column(self) -> None:
        row = json.loads(EventLines(NODE, BOOT).line(5, PushStored(mid=MID, uah=1, flag=False), 2))

        assert set(row) <= set(COLUMNS)
        assert row["flag"] is False, "false is a value, not an absence"


class TestLog:
    async def test_what_is_emitted_is_in_a_sealed_segment_after_closing(
        self, tmp_path: Path
    ) -> None:
        clock = ManualClock(now_ms=77)
        log = EventLog(tmp_path, NODE, BOOT, clock)
        log.emit(PushExpired(mid="before-start"))
        log.start(asyncio.get_running_loop())
        for index in range(1200):
            log.emit(PushExpired(mid=str(index)))
        await log.close()

        found = rows(tmp_path)
        assert [row["seq"] for row in found] == list(range(1201))
        assert [row["mid"] for row in found[:3]] == ["before-start", "0", "1"]
        assert {row["ts"] for row in found} == {77_000}
        assert log.counts == {11: 1201}
        assert log.lost_total == 0

    async def test_events_reach_the_file_without_being_asked_to(self, tmp_path: Path) -> None:
        """Within 100 ms on a machine that has time; the test only asks that they do."""
        log = EventLog(tmp_path, NODE, BOOT, SystemClock())
        log.start(asyncio.get_running_loop())
        log.emit(PushExpired(mid=MID))
        path = tmp_path / NODE / f"{BOOT}.0.open"
        await until(lambda: path.exists() and path.read_bytes().endswith(b"\n"))
        await log.close()

        assert len(rows(tmp_path)) == 1

    async def test_a_deferred_event_has_its_own_moment_and_its_place_in_line(
        self, tmp_path: Path
    ) -> None:
        clock = ManualClock(now_ms=77)
        log = EventLog(tmp_path, NODE, BOOT, clock)
        made: list[str] = []

        def make(mid: str) -> PushExpired:
            made.append(mid)
            return PushExpired(mid=mid)

        log.start(asyncio.get_running_loop())
        log.emit(PushExpired(mid="a"))
        log.defer(make, "b")
        log.emit(PushExpired(mid="c"), 5)
        made_at_once = list(made)
        clock.advance(1)
        await log.close()

        assert made_at_once == []
        assert [(row["mid"], row["ts"], row["seq"], row.get("w")) for row in rows(tmp_path)] == [
            ("a", 77_000, 0, None), ("b", 77_000, 1, None), ("c", 77_000, 2, 5),
        ]  # fmt: skip

    async def test_a_full_buffer_drops_what_is_deferred_as_well(self, tmp_path: Path) -> None:
        log = EventLog(tmp_path, NODE, BOOT, ManualClock(), buffered_max=1)
        log.start(asyncio.get_running_loop())
        for index in range(3):
            log.defer(lambda mid: PushExpired(mid=mid), str(index))
        await log.close()

        assert [(row["seq"], row["k"]) for row in rows(tmp_path)] == [(0, 11), (3, LogGap.k)]
        assert log.lost_total == 2

    async def test_emitting_alone_never_touches_the_disk(self, tmp_path: Path) -> None:
        log = EventLog(tmp_path / "not" / "there", NODE, BOOT, ManualClock())
        for _ in range(10):
            log.emit(PushExpired(mid=MID))

        assert list(tmp_path.iterdir()) == []

    async def test_a_full_buffer_drops_and_says_how_many(self, tmp_path: Path) -> None:
        """The dropped ones use up their sequence numbers, so loss is countable."""
        log = EventLog(tmp_path, NODE, BOOT, ManualClock(), buffered_max=3)
        log.start(asyncio.get_running_loop())
        for index in range(5):
            log.emit(PushExpired(mid=str(index)))
        await asyncio.sleep(0.2)
        log.emit(PushExpired(mid="after"))
        await log.close()

        found = rows(tmp_path)
        assert [(row["seq"], row["k"]) for row in found] == [
            (0, 11), (1, 11), (2, 11), (5, LogGap.k), (6, 11),
        ]  # fmt: skip
        assert found[3]["n"] == 2
        assert log.lost_total == 2
        assert found[-1]["seq"] - found[0]["seq"] + 1 == len(found) + found[3]["n"]

    async def test_what_the_disk_refuses_is_told_once_it_takes_lines_again(
        self, tmp_path: Path
    ) -> None:
        log = EventLog(tmp_path, NODE, BOOT, ManualClock(), flush_interval_s=0.001)
        obstacle = tmp_path / NODE
        obstacle.write_text("a file where the folder should be")
        log.start(asyncio.get_running_loop())
        log.emit(PushExpired(mid="lost"))
        await until(lambda: log.lost_total)
        obstacle.unlink()
        log.emit(PushExpired(mid="kept"))
        await log.close()

        assert [(row["seq"], row["k"]) for row in rows(tmp_path)] == [(1, 11), (2, LogGap.k)]
        assert rows(tmp_path)[1]["n"] == 1

    async def test_a_disk_that_is_behind_stops_the_encoding_not_the_caller(
        self, tmp_path: Path
    ) -> None:
        log = EventLog(
            tmp_path, NODE, BOOT, ManualClock(), buffered_max=10, unwritten_bytes_max=0,
            flush_interval_s=0.001,
        )  # fmt: skip
        log.start(asyncio.get_running_loop())
        log._bytes_queued += 1  # as if the thread had not come round yet
        for index in range(15):
            log.emit(PushExpired(mid=str(index)))
        await asyncio.sleep(0.05)
        assert log.dropped_total == 5
        log._bytes_done += 1
        await asyncio.sleep(0.05)
        await log.close()

        assert sum(row["k"] == 11 for row in rows(tmp_path)) == 10
        assert [row["n"] for row in rows(tmp_path) if row["k"] == LogGap.k] == [5]

    async def test_an_event_that_cannot_be_made_is_lost_alone_and_counted(
        self, tmp_path: Path
    ) -> None:
        told: list[Exception] = []
        log = EventLog(tmp_path, NODE, BOOT, ManualClock(), on_failure=told.append)
        log.start(asyncio.get_running_loop())
        for index in range(4):
            log.emit(PushExpired(mid=str(index)))
            log.defer(no_descriptor)
        await log.close()

        assert [(row["seq"], row.get("mid"), row.get("n")) for row in rows(tmp_path)] == [
            (0, "0", None), (1, "1", None), (2, "2", None), (3, "3", None), (8, None, 4),
        ]  # fmt: skip
        assert log.lost_total == 4
        assert [str(error) for error in told] == ["[Errno 24] Too many open files"]

    async def test_after_a_flush_that_raised_the_log_goes_on(self, tmp_path: Path) -> None:
        log = EventLog(tmp_path, NODE, BOOT, ManualClock(), flush_interval_s=0.001)
        log.start(asyncio.get_running_loop())
        log.defer(no_descriptor)
        await until(lambda: log.lost_total)
        log.emit(PushExpired(mid="after"))
        path = tmp_path / NODE / f"{BOOT}.0.open"
        await until(lambda: path.exists() and b'"after"' in path.read_bytes())
        await log.close()

        assert [(row["seq"], row["k"]) for row in rows(tmp_path)] == [(1, LogGap.k), (2, 11)]

    async def test_a_portion_that_cannot_be_encoded_is_counted_event_by_event(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        log = EventLog(tmp_path, NODE, BOOT, ManualClock(), flush_interval_s=0.001)
        encode = log._lines.encode

        def raises(_entries: object) -> object:
            raise MemoryError

        monkeypatch.setattr(log._lines, "encode", raises)
        log.start(asyncio.get_running_loop())
        for index in range(700):
            log.emit(PushExpired(mid=str(index)))
        await until(lambda: log.lost_total == 700)
        monkeypatch.setattr(log._lines, "encode", encode)
        log.emit(PushExpired(mid="after"))
        await log.close()

        assert [(row["seq"], row["k"]) for row in rows(tmp_path)] == [(0, 11), (701, LogGap.k)]

    async def test_a_sink_that_raises_loses_what_it_was_given_and_is_asked_again(
        self, tmp_path: Path
    ) -> None:
        sink, told = Moody(), list[Exception]()
        log = EventLog(
            tmp_path, NODE, BOOT, ManualClock(), flush_interval_s=0.001, sink=sink,
            on_failure=told.append,
        )  # fmt: skip
        log.start(asyncio.get_running_loop())
        for lost in (1, 4):  # the second time with the gap that tells of the first
            sink.raises = True
            log.emit(PushExpired(mid=MID))
            await until(lambda: log.lost_total == lost)  # noqa: B023 awaited in this round
        log.emit(PushExpired(mid="after"))
        await log.close()

        assert [json.loads(line)["k"] for line in sink.lines] == [11, LogGap.k]
        assert json.loads(sink.lines[-1])["n"] == 3
        assert len(told) == 1

    async def test_closing_twice_is_closing_once(self, tmp_path: Path) -> None:
        log = EventLog(tmp_path, NODE, BOOT, ManualClock())
        log.start(asyncio.get_running_loop())
        await log.close()
        await log.close()

        assert not (tmp_path / NODE).exists()

    async def test_an_old_segment_is_sealed_even_when_nothing_more_comes(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(eventlog, "_IDLE_LOOK_S", 0.01)
        clock = ManualClock()
        log = EventLog(tmp_path, NODE, BOOT, clock, flush_interval_s=0.001)
        log.start(asyncio.get_running_loop())
        log.emit(PushExpired(mid=MID))
        await until((tmp_path / NODE / f"{BOOT}.0.open").exists)
        clock.advance(60)
        await until(lambda: rows(tmp_path))
        await log.close()

        assert [row["seq"] for row in rows(tmp_path)] == [0]
