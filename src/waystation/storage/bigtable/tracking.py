"""What happened to messages: statuses for their senders, and counts of tracked ones.

Rule 1: a tracked message and the counts that it is part of lie in one row, a bucket, because that
        is what Bigtable changes at once. `fence` changes with every write of it.
Rule 2: the timestamp of a tracked message's cell is when something is due: its end while it is
        open, and a day after its end once it is in a terminal state, when it is let go.
Rule 3: the log of a message's states is Autopush's, a row of its own.
"""

import asyncio
import os
import random
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence

from google.cloud.bigtable.data.mutations import Mutation

from waystation.base.clock import Clock
from waystation.base.errors import BusyError
from waystation.push.model import MessageId, MessageStatus, Milestone, MilestoneNote
from waystation.storage.bigtable import filters, layout
from waystation.storage.bigtable.cells import Cells, drop_column, replace_cell, set_cell
from waystation.storage.bigtable.layout import FENCE, KEPT, OWN, RELIABILITY
from waystation.storage.bigtable.session import Session
from waystation.storage.bigtable.user_agents import TRIES_MAX

ENDED_KEEP_MS = 86_400_000  # so that a late milestone is not counted as another message
DUE_AT_ONCE = 500  # tracked messages that one write of a bucket lets expire or go
_COUNT = b"count:"
_STATE = b"state:"
_STATES_END = b"state;"
_FOREVER_MS = 0  # these cells lie in a family that is not collected by age
_PAUSE_S = 0.02

States = dict[bytes, tuple[Milestone, int]]  # column -> state, when something is due
# What becomes of the states that were read: their new values; None lets one go.
Change = Callable[[States], Mapping[bytes, tuple[Milestone, int] | None]]


class Tracking:
    def __init__(self, session: Session, clock: Clock) -> None:
        self._session = session
        self._clock = clock
        # Those of one process take turns, and need not find out about each other by losing.
        self._turns: defaultdict[bytes, asyncio.Lock] = defaultdict(asyncio.Lock)

    # Statuses

    async def note(self, notes: Sequence[MilestoneNote]) -> None:
        rows: defaultdict[bytes, list[Mutation]] = defaultdict(list)
        for note in notes:
            column = layout.milestone_column(note.milestone, note.at_ms)
            rows[layout.status_key(note.message_id)] += [
                set_cell(OWN, b"sender", note.sender, note.keep_until_ms),
                set_cell(OWN, column, b"", note.keep_until_ms),
            ]
        if rows:
            await self._session.write_many(list(rows.items()))

    async def status(self, message_id: MessageId, now_ms: int) -> MessageStatus | None:
        key = layout.status_key(message_id)
        cells = await self._session.read_row(key, filters.alive(now_ms, OWN))
        if cells is None:
            return None
        columns = {name: cell.value for (_, name), cell in cells.items()}
        return layout.decode_status(columns, max(cell.ends_at_ms for cell in cells.values()))

    # Tracked messages

    async def track(
        self, reliability_id: str, milestone: Milestone, *, at_ms: int, expires_at_ms: int
    ) -> None:
        column = _STATE + reliability_id.encode()

        def move(states: States) -> Mapping[bytes, tuple[Milestone, int] | None]:
            held = states.get(column)
            if held is not None and held[0].terminal:
                return {}
            return {column: (milestone, _due_at(milestone, expires_at_ms))}

        key = layout.track_key(reliability_id)
        await asyncio.gather(
            self._change(key, [column], move), self._log(reliability_id, milestone, at_ms)
        )

    async def _log(self, reliability_id: str, milestone: Milestone, at_ms: int) -> None:
        key = reliability_id.encode()
        if 0 < len(key) <= layout.ROW_KEY_BYTES_MAX:
            ends_at_ms = self._clock.now_ms() + layout.RELIABILITY_LOG_S * 1000
            column = milestone.value.encode()
            cell = set_cell(RELIABILITY, column, layout.number(at_ms), ends_at_ms)
            await self._session.write(key, [cell])

    async def count(self, now_ms: int) -> Mapping[str, int]:
        await self.sweep(now_ms, 0)
        counts: Counter[str] = Counter()
        wanted = filters.kept(KEPT, _COUNT + rb"\C*")
        for row in await self._session.read_rows(wanted, after=_BUCKETS):
            for (_, name), cell in row.cells.items():
                counts[name.removeprefix(_COUNT).decode()] += _signed(cell.value)
        return {state: n for state, n in sorted(counts.items()) if n}

    async def sweep(self, now_ms: int, limit: int) -> int:
        """Let expire what is open past its time, and let go of at most `limit` ended ones."""
        gone = 0
        wanted = filters.due(now_ms, KEPT, _STATE, _STATES_END)
        for row in await self._session.read_rows(wanted, after=_BUCKETS):
            columns = [name for _, name in row.cells]
            for start in range(0, len(columns), DUE_AT_ONCE):
                portion = columns[start : start + DUE_AT_ONCE]
                while True:
                    change = _Sweep(now_ms, limit - gone)
                    await self._change(row.key, portion, change)
                    gone += change.gone
                    if not change.expired:
                        break  # else some of those may be due again, by their new time
        return gone

    # Inside

    async def _change(self, key: bytes, columns: Sequence[bytes], change: Change) -> None:
        async with self._turns[key]:
            for tried in range(TRIES_MAX):
                if tried:
                    await asyncio.sleep(random.uniform(0, _PAUSE_S * min(tried, 10)))
                wanted = b"|".join([FENCE, _COUNT + rb"\C*", *map(_quoted, columns)])
                cells = await self._session.read_row(key, filters.kept(KEPT, wanted)) or {}
                states = _states(cells)
                changes = change(states)
                if not changes:
                    return
                mutations = _mutations(cells, states, changes)
                fence = cells.get((KEPT, FENCE))
                if fence is None:
                    there = filters.has(KEPT, FENCE)
                    done = not await self._session.check(key, there, otherwise=mutations)
                else:
                    same = filters.holds(KEPT, FENCE, fence.value)
                    done = await self._session.check(key, same, then=mutations)
                if done:
                    return
        raise BusyError("others keep writing this bucket of tracked messages", retry_after_s=1)


class _Sweep:
    """Of the states that were read, those that are due."""

    def __init__(self, now_ms: int, limit: int) -> None:
        self._now_ms = now_ms
        self._limit = limit
        self.gone = 0
        self.expired = 0

    def __call__(self, states: States) -> Mapping[bytes, tuple[Milestone, int] | None]:
        changes: dict[bytes, tuple[Milestone, int] | None] = {}
        self.gone = self.expired = 0
        for column, (milestone, due_at_ms) in states.items():
            if due_at_ms > self._now_ms:
                continue
            if not milestone.terminal:
                changes[column] = Milestone.EXPIRED, due_at_ms + ENDED_KEEP_MS
                self.expired += 1
            elif self.gone < self._limit:
                changes[column] = None
                self.gone += 1
        return changes


_BUCKETS = (layout.TRACK_PREFIX, layout.TRACK_END)


def _due_at(milestone: Milestone, expires_at_ms: int) -> int:
    return expires_at_ms + ENDED_KEEP_MS if milestone.terminal else expires_at_ms


def _states(cells: Cells) -> States:
    return {
        name: (Milestone(cell.value.decode()), cell.ends_at_ms)
        for (_, name), cell in cells.items()
        if name.startswith(_STATE)
    }


def _mutations(
    cells: Cells, states: States, changes: Mapping[bytes, tuple[Milestone, int] | None]
) -> list[Mutation]:
    counts: Counter[str] = Counter()
    mutations: list[Mutation] = []
    for column, new in changes.items():
        old = states.get(column)
        if new is None:
            mutations.append(drop_column(KEPT, column))  # and it stays counted
            continue
        mutations += replace_cell(KEPT, column, new[0].value.encode(), new[1])
        counts[new[0].value] += 1
        if old is not None:
            counts[old[0].value] -= 1
    for state, difference in counts.items():
        column = _COUNT + state.encode()
        held = cells.get((KEPT, column))
        total = difference + (0 if held is None else _signed(held.value))
        value = total.to_bytes(8, "big", signed=True)
        mutations.append(set_cell(KEPT, column, value, _FOREVER_MS))
    mutations.append(set_cell(KEPT, FENCE, os.urandom(8), _FOREVER_MS))
    return mutations


def _signed(value: bytes) -> int:
    return int.from_bytes(value, "big", signed=True)


def _quoted(column: bytes) -> bytes:
    """The pattern of exactly these bytes; whoever posts chooses the id in them."""
    return b"".join(
        bytes([byte]) if chr(byte).isascii() and chr(byte).isalnum() else b"\\x%02x" % byte
        for byte in column
    )
