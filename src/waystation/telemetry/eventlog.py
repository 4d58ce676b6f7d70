"""Event log of one process: buffers events, encodes them as lines, and passes them to a sink.

Rule 1: `emit` and `defer` append to a list and return. They never wait, raise or use the disk.
Rule 2: at most 10 ms later a timer encodes the list on the loop, in small portions, and passes the
        bytes to a thread that only writes to the sink. Encoding stays on the loop because in a
        thread it would hold the interpreter lock for switch intervals (5 ms); writing is in a
        thread because disk or broker may be slow.
Rule 3: at `buffered_max` events, or `unwritten_bytes_max` bytes queued for the sink, new events are
        dropped. They consume sequence numbers, and a `log.gap` has their number, so every loss is
        counted. Events that the sink gives up are counted the same way.
Rule 4: an exception loses only the events that it concerns. They are counted as lost, `on_failure`
        is called for the first failure of a kind, and the log continues.

Deferred events are made while their portion is encoded: hashing costs a third when many events are
made in a row, because code and data are in the processor's cache.

The delay is short because a buffered event keeps its message alive: 50 ms of a busy worker are
about two megabytes, more than fits into the cache.

Measured: `emit` takes 0.35 us, encoding and passing on 0.7 to 1.3 us an event, making it 0.1 us.
"""

import asyncio
import contextlib
import re
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any

import msgspec

from waystation.base.clock import Clock
from waystation.base.failures import Failures
from waystation.telemetry.contract import ATTRS_BYTES_MAX, CONTRACT_VERSION, KINDS, NODE_PATTERN
from waystation.telemetry.events import Event, LogGap
from waystation.telemetry.segments import (
    SEGMENT_AGE_MAX_S,
    SEGMENT_BYTES_MAX,
    SPOOL_BYTES_MAX,
    SegmentWriter,
    remove_old,
    seal_abandoned,
    sealed_segments,
)
from waystation.telemetry.sink import LineSink, Portion, SegmentSink

__all__ = ["EventLines", "EventLog", "remove_old", "seal_abandoned", "sealed_segments"]

BUFFERED_MAX = 65_536
UNWRITTEN_BYTES_MAX = 16 << 20
FLUSH_INTERVAL_S = 0.01
PORTION = 500  # events encoded in one go: about half a millisecond of the loop
_IDLE_LOOK_S = 1.0

_CUT_ATTRS = b'"{\\"cut\\":true}"'
_HAS_ATTRS = frozenset(code for code, kind in KINDS.items() if kind.attrs)


class EventLines:
    """Encodes events as lines with envelope and sequence number."""

    def __init__(self, node: str, boot_us: int) -> None:
        if re.fullmatch(NODE_PATTERN, node) is None:
            raise ValueError(f"node name {node!r} does not match {NODE_PATTERN}")
        self._encode = msgspec.json.Encoder().encode
        self._start = b'{"v":%d,"node":"%s","boot":%d,"ts":' % (
            CONTRACT_VERSION,
            node.encode(),
            boot_us,
        )
        self._kinds = {code: b',"k":%d,' % code for code in KINDS}
        self.seq = 0
        self.counts: dict[int, int] = {}  # by code, with weights; for node.stats

    def line(self, ts_us: int, event: Event, w: int) -> bytes:
        body = self._encode(event)
        k = event.k
        kind = self._kinds[k]
        if w != 1:
            kind = b'%b"w":%d,' % (kind, w)
        if k in _HAS_ATTRS:
            body = self._with_attrs_as_text(event, body)
        elif len(body) <= 2:
            kind = kind[:-1]  # nothing follows the comma
        self.counts[k] = self.counts.get(k, 0) + w
        line = b'%b%d,"seq":%d%b%b\n' % (self._start, ts_us, self.seq, kind, body[1:])
        self.seq += 1
        return line

    def encode(self, entries: "Sequence[Entry]") -> tuple[list[bytes], list[Exception]]:
        """The lines of a portion, and the exceptions of events that could not be encoded; those
        consume no sequence number."""
        lines: list[bytes] = []
        failed: list[Exception] = []
        for ts_ns, what, args, w in entries:
            try:
                event = what if isinstance(what, Event) else what(*args)
                lines.append(self.line(ts_ns // 1000, event, w))
            except Exception as exc:
                failed.append(exc)
        return lines, failed

    def _with_attrs_as_text(self, event: Any, body: bytes) -> bytes:
        """Encode `attrs` as a text column with a JSON object; it is last, so it can be replaced."""
        inner = self._encode(event.attrs)
        text = self._encode(inner.decode()) if len(inner) <= ATTRS_BYTES_MAX else _CUT_ATTRS
        return body[: -len(inner) - 1] + text + b"}"


# Time in nanoseconds, the event or a function with its arguments, and the weight.
Entry = tuple[int, Event | Callable[..., Event], tuple[object, ...], int]


class EventLog:
    """Created by `app` and started on its loop; `emit` may be called in the loop's thread only."""

    def __init__(
        self,
        directory: Path,
        node: str,
        boot_us: int,
        clock: Clock,
        *,
        buffered_max: int = BUFFERED_MAX,
        unwritten_bytes_max: int = UNWRITTEN_BYTES_MAX,
        flush_interval_s: float = FLUSH_INTERVAL_S,
        segment_bytes_max: int = SEGMENT_BYTES_MAX,
        segment_age_max_s: float = SEGMENT_AGE_MAX_S,
        spool_bytes_max: int = SPOOL_BYTES_MAX,
        sink: LineSink | None = None,
        on_failure: Callable[[Exception], None] = lambda _: None,
    ) -> None:
        """`directory` is the spool, where the node's folder is created. With a `sink`, lines go
        there instead. `on_failure` is called on the loop and in the log's thread."""
        self._lines = EventLines(node, boot_us)
        self._sink = sink or SegmentSink(
            SegmentWriter(
                directory,
                node,
                boot_us,
                clock,
                segment_bytes_max=segment_bytes_max,
                segment_age_max_s=segment_age_max_s,
                spool_bytes_max=spool_bytes_max,
            )
        )
        self._on_failure = on_failure
        self._failures = Failures(clock.mono)
        self._clock = clock
        self._now_ns: Callable[[], int] = clock.now_ns
        self._buffered_max = buffered_max
        self._unwritten_bytes_max = unwritten_bytes_max
        self._flush_interval_s = flush_interval_s
        self._buffer: list[Entry] = []
        self._dropped = 0  # since the last gap; without sequence numbers yet
        self._armed = False  # a timer is set
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._queue: SimpleQueue[Portion | None] = SimpleQueue()
        # Each is written by one thread and read by the other, so no lock is needed.
        self._bytes_queued = 0
        self._bytes_done = 0
        self._refused = 0  # events of portions for which the sink raised
        self._unwritten = 0
        self._unwritten_told = 0
        self.dropped_total = 0

    @property
    def counts(self) -> dict[int, int]:
        """Number of encoded events by code, cumulative."""
        return self._lines.counts

    @property
    def lost_total(self) -> int:
        """Number of lost events: dropped from the buffer or given up by the sink."""
        return self.dropped_total + self._unwritten

    def start(self, loop: asyncio.AbstractEventLoop) -> None:
        assert self._thread is None
        self._loop = loop
        self._thread = threading.Thread(target=self._write_on, name="eventlog", daemon=True)
        self._thread.start()
        if self._buffer:
            self._arm(loop)

    def emit(self, event: Event, w: int = 1) -> None:
        self._leave(event, (), w)

    def defer(self, make: Callable[..., Event], *args: object) -> None:
        self._leave(make, args, 1)

    def _leave(self, what: Event | Callable[..., Event], args: tuple[object, ...], w: int) -> None:
        if len(self._buffer) >= self._buffered_max:
            self._drop(1)
            return
        self._buffer.append((self._now_ns(), what, args, w))
        if not self._armed and self._loop is not None:
            self._arm(self._loop)

    async def close(self) -> None:
        """Write buffered events, close the sink, and end the thread."""
        thread, self._thread = self._thread, None
        if thread is None:
            return
        self._loop = None  # no more timers
        self._sink.hasten()
        while self._buffer:
            self._encode_portion()
        self._queue.put(None)
        await asyncio.to_thread(thread.join)

    def _drop(self, count: int) -> None:
        self._dropped += count
        self.dropped_total += count

    def _failed(self, doing: str, error: Exception) -> None:
        if self._failures.is_new(doing, error):
            self._on_failure(error)

    def _arm(self, loop: asyncio.AbstractEventLoop) -> None:
        self._armed = True
        loop.call_later(self._flush_interval_s, self._flush)

    def _flush(self) -> None:
        loop = self._loop
        if loop is None:  # closed meanwhile
            return
        if self._bytes_queued - self._bytes_done > self._unwritten_bytes_max:
            self._arm(loop)  # the sink is slow; the buffer fills, then drops events and counts them
            return
        try:
            self._encode_portion()
        finally:
            if self._buffer:
                loop.call_soon(self._flush)
            else:
                self._armed = False  # later losses are reported with the next events

    def _gap(self) -> int:
        return self._dropped + self._unwritten - self._unwritten_told

    def _encode_portion(self) -> None:
        """Encode up to PORTION events and queue their lines for the thread."""
        portion, self._buffer = self._buffer[:PORTION], self._buffer[PORTION:]
        first_seq, dropped_total = self._lines.seq, self.dropped_total
        try:
            self._queue_lines(portion)
        except Exception as exc:  # for example MemoryError: no line was queued
            self._lines.seq = first_seq
            self._drop(len(portion) - (self.dropped_total - dropped_total))
            self._failed("encoding", exc)

    def _queue_lines(self, portion: "Sequence[Entry]") -> None:
        first_seq = self._lines.seq
        lines, errors = self._lines.encode(portion)
        self._drop(len(errors))
        missing = 0 if self._buffer else self._gap()
        if missing:
            # Events are dropped while the buffer is full, so the gap follows the buffered ones.
            self._lines.seq += self._dropped
            if not lines:
                first_seq = self._lines.seq
            lines.append(self._lines.line(self._clock.now_us(), LogGap(n=missing), 1))
        if lines:
            text = b"".join(lines)
            self._queue.put(Portion(text, first_seq, len(lines), missing))
            self._bytes_queued += len(text)
        if missing:
            self._unwritten_told += missing - self._dropped
            self._dropped = 0
        for error in errors:
            self._failed("encoding", error)

    def _write_on(self) -> None:
        """Body of the thread: passes portions to the sink until it is told to end."""
        ending = False
        while not ending:
            portion = None
            with contextlib.suppress(Empty):
                portion = self._queue.get(timeout=_IDLE_LOOK_S)
                ending = portion is None
            try:
                self._use_sink(portion, ending=ending)
            except Exception as exc:
                if portion is not None:
                    self._refused += portion.count + portion.missing
                self._failed("writing", exc)
            self._unwritten = self._sink.lost + self._refused
            if portion is not None:
                self._bytes_done += len(portion.lines)

    def _use_sink(self, portion: Portion | None, *, ending: bool) -> None:
        if portion is not None:
            self._sink.append(portion)
        elif ending:
            self._sink.close()
        else:
            self._sink.look()
