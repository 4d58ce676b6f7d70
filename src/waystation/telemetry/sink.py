"""Sinks of an event log's lines: the interface, and the sink for segment files.

All methods run in the event log's thread, which may wait; only `hasten` is called elsewhere.
"""

from typing import Protocol

import msgspec

from waystation.telemetry.segments import SegmentWriter


class Portion(msgspec.Struct, frozen=True):
    """Lines of one process, in the order of their sequence numbers."""

    lines: bytes
    first_seq: int
    count: int
    missing: int  # number in the gap that is the last line; if the gap is lost, reported again


class LineSink(Protocol):
    lost: int
    """Number of events that were given up, including those in lost gaps; only grows."""

    def append(self, portion: Portion) -> None:
        """Write the lines; may wait for a slow broker."""
        ...

    def look(self) -> None:
        """Called about once a second while there are no lines."""
        ...

    def hasten(self) -> None:
        """The process is ending: limit further waits."""
        ...

    def close(self) -> None:
        """The last call."""
        ...


class SegmentSink:
    """Writes to segment files; lines that the disk refuses are lost."""

    def __init__(self, writer: SegmentWriter) -> None:
        self._writer = writer
        self.lost = 0

    def append(self, portion: Portion) -> None:
        if not self._writer.append(portion.lines, portion.first_seq, portion.count):
            self.lost += portion.count + portion.missing
        self._writer.roll_if_old()

    def look(self) -> None:
        self._writer.roll_if_old()

    def hasten(self) -> None:
        """Nothing to do: this sink never waits."""

    def close(self) -> None:
        self._writer.seal()
