"""Copies a slot to another server while it is served: rows first, then every change.

Rule 1: one stream, in order. A chunk of rows is read and queued without an await between; the
        changes of a commit are queued when it is durable. So what the target applies last for a key
        is the newest, and applying a change twice is harmless.
Rule 2: the target confirms the sequence numbers that are durable there; at most `window_max` frames
        are unconfirmed.
Rule 3: waiting changes are limited by `backlog_bytes_max`; above it the copy is given up and begins
        again, instead of blocking the slot's senders.
Rule 4: both ends chain a digest over all frames. The last frame of a move carries it; a target with
        another digest refuses the slot.
"""

import hashlib
from collections import deque
from collections.abc import Sequence
from typing import Literal

import msgspec

from waystation.queue.store import Row

WINDOW_MAX = 64
BACKLOG_BYTES_MAX = 32 * 2**20
FRAME_BYTES_MAX = 256 * 1024  # waiting changes are joined up to this size
LAG_TO_FREEZE = 50


Kind = Literal["rows", "log", "end"]


class Frame(msgspec.Struct, frozen=True, array_like=True):
    """One message of a copy; `seq` counts from 1."""

    seq: int
    kind: Kind
    changes: tuple[Row, ...] = ()
    digest: bytes = b""


class Cursor(msgspec.Struct, frozen=True, array_like=True):
    """The last row that was read."""

    table: int
    key: bytes


class ReadRows(msgspec.Struct, frozen=True):
    """Effect: read the next chunk after `after` and pass it to `rows`."""

    after: Cursor | None


class Send(msgspec.Struct, frozen=True):
    """Effect: send this frame."""

    frame: Frame


class GiveUp(msgspec.Struct, frozen=True):
    """Effect: begin again later."""

    why: str


Effect = ReadRows | Send | GiveUp

_encoder = msgspec.msgpack.Encoder()


def _chained(digest: bytes, frame: Frame) -> bytes:
    chain = hashlib.sha256(digest)
    chain.update(_encoder.encode(frame))
    return chain.digest()


def _weight(changes: Sequence[Row]) -> int:
    return sum(len(one.key) + len(one.value or b"") + 16 for one in changes)


class _Waiting:
    """A frame that was not sent yet; later changes may join it."""

    __slots__ = ("changes", "kind", "seq", "weight")

    def __init__(self, seq: int, kind: Kind) -> None:
        self.seq = seq
        self.kind: Kind = kind
        self.changes: list[Row] = []
        self.weight = 0


class CopySource:
    """The owner's end."""

    def __init__(
        self, *, window_max: int = WINDOW_MAX, backlog_bytes_max: int = BACKLOG_BYTES_MAX
    ) -> None:
        self._window_max = window_max
        self._backlog_bytes_max = backlog_bytes_max
        self._waiting: deque[_Waiting] = deque()
        self._waiting_bytes = 0
        self._seq = 0
        self._sent = 0
        self.confirmed = 0
        self._digest = b""
        self._reading = False
        self._after: Cursor | None = None
        self.rows_done = False
        self.ended = False
        self.given_up = False

    @property
    def seq(self) -> int:
        """Of the newest queued frame; once it is confirmed, all changes so far are on the peer."""
        return self._seq

    @property
    def lag(self) -> int:
        return self._seq - self.confirmed

    @property
    def caught_up(self) -> bool:
        """Whether the peer is close enough behind that a freeze is short."""
        answers = self.confirmed > 0 and not self.given_up
        return answers and self.rows_done and self.lag < LAG_TO_FREEZE

    def begin(self) -> list[Effect]:
        """The first frame is empty: a target that refuses does so before anything is frozen."""
        self._queue("rows", ())
        return self._pump()

    def rows(self, rows: Sequence[Row]) -> list[Effect]:
        """A chunk that was asked for; an empty one ends the rows."""
        assert self._reading
        self._reading = False
        if rows:
            self._after = Cursor(rows[-1].table, rows[-1].key)
            self._queue("rows", rows)
        else:
            self.rows_done = True
        return self._pump()

    def changed(self, changes: Sequence[Row]) -> list[Effect]:
        """The changes of a commit that is durable here."""
        if self.given_up or self.ended:
            return []
        self._queue("log", changes)
        if self._waiting_bytes > self._backlog_bytes_max:
            self.given_up = True
            self._waiting.clear()
            return [GiveUp(f"more than {self._backlog_bytes_max >> 20} MiB of changes wait")]
        return self._pump()

    def acked(self, seq: int) -> list[Effect]:
        """The peer confirms that everything up to `seq` is durable there."""
        if not self.confirmed <= seq <= self._sent:
            self.given_up = True
            return [GiveUp(f"frame {seq} was confirmed, {self._sent} were sent")]
        self.confirmed = seq
        return self._pump()

    def end(self) -> list[Effect]:
        """The slot is frozen and its last change has been passed on."""
        assert self.rows_done
        assert not self.ended
        self.ended = True
        self._queue("end", ())
        return self._pump()

    def _queue(self, kind: Kind, changes: Sequence[Row]) -> None:
        last = self._waiting[-1] if self._waiting else None
        # A busy slot changes more often than frames are confirmed: waiting changes are joined, or
        # the copy would never catch up.
        joins = last is not None and last.kind == kind == "log" and last.weight < FRAME_BYTES_MAX
        if last is None or not joins:
            self._seq += 1
            last = _Waiting(self._seq, kind)
            self._waiting.append(last)
        weight = _weight(changes)
        last.changes.extend(changes)
        last.weight += weight
        self._waiting_bytes += weight

    def _next(self) -> Frame:
        one = self._waiting.popleft()
        self._waiting_bytes -= one.weight
        self._sent = one.seq
        if one.kind == "end":
            return Frame(one.seq, "end", (), self._digest)
        frame = Frame(one.seq, one.kind, tuple(one.changes))
        self._digest = _chained(self._digest, frame)
        return frame

    def _pump(self) -> list[Effect]:
        effects: list[Effect] = []
        if self.given_up:
            return effects
        while self._waiting and self._sent - self.confirmed < self._window_max:
            effects.append(Send(self._next()))
        room = not self._waiting and self._sent - self.confirmed < self._window_max
        if room and not self._reading and not self.rows_done:
            self._reading = True
            effects.append(ReadRows(self._after))
        return effects


class BrokenCopyError(Exception):
    """Frames out of order, or a wrong digest: the copy must begin again."""


class CopyTarget:
    """The receiving end: returns what to apply; the driver confirms once it is durable."""

    def __init__(self) -> None:
        self.seq = 0
        self._digest = b""
        self.complete = False

    def receive(self, frame: Frame) -> tuple[Row, ...]:
        """Changes to apply in this order. After the last frame `complete` is true."""
        if frame.seq != self.seq + 1 or self.complete:
            raise BrokenCopyError(f"frame {frame.seq} came after frame {self.seq}")
        self.seq = frame.seq
        if frame.kind == "end":
            if frame.digest != self._digest:
                raise BrokenCopyError("the digest of the copy differs from its source's")
            self.complete = True
            return ()
        self._digest = _chained(self._digest, frame)
        return frame.changes
