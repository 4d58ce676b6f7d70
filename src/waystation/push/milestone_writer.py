"""Writes milestones of notifications to the store in the background.

Rule 1: noting a milestone never waits and never fails, so that statuses do not slow down delivery.
Rule 2: at most `notes_max` of each kind are queued; more are dropped and counted. The status is
        then incomplete; the notification is not affected.
Rule 3: the store is written at most twice a second, in batches. One write runs at a time, so a
        message's milestones arrive in the order in which they were noted.

Both roles use it; the store merges the notes of endpoint and connection node by message id.
"""

import asyncio
from collections import deque
from collections.abc import Mapping
from typing import Final

import msgspec

from waystation.base.clock import Clock
from waystation.base.errors import WaystationError

from .model import Milestone, MilestoneNote, Notification
from .store import PushStore

NOTES_MAX: Final = 2_048  # so at most 4,096 a second: about 2 % of a core on the embedded store
BATCH_MAX: Final = 1_024
MOVES_MAX: Final = 64  # tracked messages moved at the same time
INTERVAL_S: Final = 0.5
KEEP_MS: Final = 3_600_000  # a status outlives its message by an hour


class _Move(msgspec.Struct, frozen=True, gc=False):
    """One step of a tracked message."""

    reliability_id: str
    milestone: Milestone
    at_ms: int
    expires_at_ms: int


class MilestoneWriter:
    """One per worker. `message_status` is the setting of that name."""

    def __init__(
        self,
        store: PushStore,
        clock: Clock,
        loop: asyncio.AbstractEventLoop,
        *,
        message_status: bool = True,
        notes_max: int = NOTES_MAX,
        interval_s: float = INTERVAL_S,
    ) -> None:
        self._store = store
        self._clock = clock
        self._loop = loop
        self._message_status = message_status
        self._notes_max = notes_max
        self._interval_s = interval_s
        self._notes: deque[MilestoneNote] = deque()
        self._moves: deque[_Move] = deque()
        self._timer: asyncio.TimerHandle | None = None
        self._writing: asyncio.Task[None] | None = None
        self._closed = False
        self.dropped = 0  # because the queue was full
        self.failed = 0  # because a store write failed

    def note(self, notification: Notification, milestone: Milestone) -> None:
        """Queue a note of a signed message (for its status) or a tracked one (for the counters)."""
        sender = notification.sender if self._message_status else None
        if sender is None and notification.reliability_id is None:
            return
        now_ms = self._clock.now_ms()
        if sender is not None and self._has_room(len(self._notes)):
            self._notes.append(
                MilestoneNote(
                    notification.message_id,
                    sender,
                    milestone,
                    now_ms,
                    notification.expires_at_ms + KEEP_MS,
                )
            )
        if notification.reliability_id is not None and self._has_room(len(self._moves)):
            self._moves.append(
                _Move(notification.reliability_id, milestone, now_ms, notification.expires_at_ms)
            )
        if self._timer is None and self._writing is None and not self._closed:
            self._timer = self._loop.call_later(self._interval_s, self._begin)

    def _has_room(self, waiting: int) -> bool:
        """Each kind has its own limit, so that statuses do not displace tracked messages."""
        if waiting < self._notes_max and not self._closed:
            return True
        self.dropped += 1
        return False

    def _begin(self) -> None:
        self._timer = None
        self._writing = self._loop.create_task(self._write(), name="milestones")
        self._writing.add_done_callback(self._written)

    def _written(self, task: asyncio.Task[None]) -> None:
        self._writing = None
        error = None if task.cancelled() else task.exception()
        if error is not None:  # a bug in a backend: report it and continue with later notes
            self._loop.call_exception_handler(
                {"message": "milestones could not be written", "exception": error}
            )
        if (self._notes or self._moves) and not self._closed:
            self._timer = self._loop.call_later(self._interval_s, self._begin)

    async def _write(self) -> None:
        """Write the notes queued now; later ones go with the next write."""
        for _ in range(-(-len(self._notes) // BATCH_MAX)):
            batch = [self._notes.popleft() for _ in range(min(BATCH_MAX, len(self._notes)))]
            try:
                await self._store.note_milestones(batch)
            except WaystationError:
                self.failed += len(batch)
        for _ in range(len(self._moves)):
            if self._moves:
                await self._move()

    async def _move(self) -> None:
        """Move a batch of tracked messages, each at most once."""
        moves: dict[str, _Move] = {}
        while self._moves and len(moves) < MOVES_MAX:
            if self._moves[0].reliability_id in moves:
                break  # a message's second step must follow its first
            move = self._moves.popleft()
            moves[move.reliability_id] = move
        results = await asyncio.gather(
            *(
                self._store.track(
                    move.reliability_id,
                    move.milestone,
                    at_ms=move.at_ms,
                    expires_at_ms=move.expires_at_ms,
                )
                for move in moves.values()
            ),
            return_exceptions=True,
        )
        for result in results:
            if isinstance(result, WaystationError):
                self.failed += 1
            elif result is not None:
                raise result

    async def flush(self) -> None:
        """Wait until all notes so far are in the store or have failed."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._writing is not None:
            await asyncio.wait({self._writing})
        await self._write()

    async def close(self) -> None:
        self._closed = True
        await self.flush()


def reliability_lines(counts: Mapping[str, int]) -> str:
    """Tracked messages by state, in the OpenMetrics text that Autopush serves."""
    lines = [
        "# HELP autopush_reliability Tracked messages by the state they are in.",
        "# TYPE autopush_reliability gauge",
    ]
    lines += [
        f'autopush_reliability{{state="{state}"}} {count}'
        for state, count in sorted(counts.items())
    ]
    return "\n".join([*lines, "# EOF", ""])
