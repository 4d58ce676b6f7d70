"""Where the lines of an event log go: what its thread asks of segment files, or of Kafka.

Everything here runs in the event log's thread, which may wait; `hasten` alone is called by others.
"""

from typing import Protocol

import msgspec

from waystation.telemetry.segments import SegmentWriter


class Portion(msgspec.Struct, frozen=True):
    """Lines of one process, in the order of their sequence numbers."""

    lines: bytes
    first_seq: int
    count: int
    missing: int  # what a gap, the last of the lines, tells of; lost with it, it is told again


class LineSink(Protocol):
    lost: int
    """Events that it was given and gave up on, with those that lost gaps told of; only grows."""

    def append(self, portion: Portion) -> None:
        """Takes the lines; may wait while whoever is behind it is slow."""
        ...

    def look(self) -> None:
        """Called about once a second when nothing comes."""
        ...

    def hasten(self) -> None:
        """The process is ending: from now on, wait only for a little while."""
        ...

    def close(self) -> None:
        """Nothing comes after it."""
        ...


class SegmentSink:
    """Into segment files; what the disk refuses is lost."""

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
        """A disk is not waited for."""

    def close(self) -> None:
        self._writer.seal()
