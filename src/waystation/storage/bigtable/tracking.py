"""What happened to messages: statuses for their senders, and counts of tracked ones.

Rule 1: a tracked message and the counts that it is part of lie in one row, a bucket, because that
        is what Bigtable changes at once. `fence` changes with every write of it.
Rule 2: the timestamp of a tracked message's cell is when something is due: of an open one its
        end, when it expires; of an ended one a day later, when it is let go.
Rule 3: the log of a message's states is Autopush's, a row of its own.
"""

import asyncio
import os
import random
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from waystation.base.clock import Clock
from waystation.base.errors import BusyError
from waystation.push.model import MessageId, MessageStatus, Milestone, MilestoneNote
from waystation.storage.bigtable import filters, layout
from waystation.storage.bigtable.cells import Cell, Mutation, drop_column, set_cell
from waystation.storage.bigtable.filters import RowFilter
from waystation.storage.bigtable.layout import FENCE, KEPT, OWN, RELIABILITY
from waystation.storage.bigtable.session import Session
from waystation.storage.bigtable.user_agents import TRIES_MAX

ENDED_KEEP_MS = 86_400_000  # so that a late milestone is not counted as another message
DUE_AT_ONCE = 500  # tracked messages that one write of a bucket lets expire or go
_COUNT = b"count:"
_OPEN = b"open:"
_ENDED = b"ended:"
_FOREVER_MS = 0  # these cells lie in a family that is not collected by age
_PAUSE_S = 0.02
_BUCKETS = (layout.TRACK_PREFIX, layout.TRACK_END)


class State(NamedTuple):
    """Where a tracked message is, as its column and cell say it."""

    milestone: Milestone
    due_at_ms: int


Columns = Mapping[bytes, Cell]
States = Mapping[str, State]  # by reliability id
# What becomes of those that were read; None lets one go.
Change = Callable[[States], Mapping[str, State | None]]


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
        ends = expires_at_ms + (ENDED_KEEP_MS if milestone.terminal else 0)

        def move(states: States) -> Mapping[str, State | None]:
            held = states.get(reliability_id)
            if held is not None and held.milestone.terminal:
                return {}
            return {reliability_id: State(milestone, ends)}

        name = reliability_id.encode()
        wanted = (filters.has(KEPT, _OPEN + name), filters.has(KEPT, _ENDED + name))
        await asyncio.gather(
            self._change(layout.track_key(reliability_id), wanted, move),
            self._log(reliability_id, milestone, at_ms),
        )

    async def _log(self, reliability_id: str, milestone: Milestone, at_ms: int) -> None:
        key = reliability_id.encode()
        if 0 < len(key) <= layout.ROW_KEY_BYTES_MAX:
            ends_at_ms = self._clock.now_ms() + layout.RELIABILITY_LOG_S * 1000
            column = milestone.value.encode()
            cell = set_cell(RELIABILITY, column, layout.number(at_ms), ends_at_ms)
            await self._session.write(key, [cell])

    async def count(self, now_ms: int) -> Mapping[str, int]:
        await self._expire(now_ms)
        counts: Counter[str] = Counter()
        wanted = filters.kept(KEPT, _COUNT + rb"\C*")
        for row in await self._session.read_rows(wanted, after=_BUCKETS):
            for (_, name), cell in row.cells.items():
                counts[name.removeprefix(_COUNT).decode()] += _signed(cell.value)
        return {state: n for state, n in sorted(counts.items()) if n}

    async def sweep(self, now_ms: int, limit: int) -> int:
        """Let expire what is open past its time, and let go of at most `limit` ended ones."""
        await self._expire(now_ms)

        def let_go(states: States) -> Mapping[str, State | None]:
            return dict.fromkeys(states)  # and they stay counted

        gone = 0
        for key in await self._due(now_ms, _ENDED):
            while gone < limit:
                at_once = min(DUE_AT_ONCE, limit - gone)
                wanted = filters.due(now_ms, KEPT, _ENDED, cells_max=at_once)
                changed = await self._change(key, (wanted,), let_go)
                gone += changed
                if changed < at_once:
                    break
        return gone

    async def _expire(self, now_ms: int) -> None:
        def expire(states: States) -> Mapping[str, State | None]:
            return {
                reliability_id: State(Milestone.EXPIRED, held.due_at_ms + ENDED_KEEP_MS)
                for reliability_id, held in states.items()
            }

        wanted = filters.due(now_ms, KEPT, _OPEN, cells_max=DUE_AT_ONCE)
        for key in await self._due(now_ms, _OPEN):
            while await self._change(key, (wanted,), expire) == DUE_AT_ONCE:
                pass

    async def _due(self, now_ms: int, prefix: bytes) -> list[bytes]:
        """The buckets in which something is."""
        wanted = filters.due(now_ms, KEPT, prefix, cells_max=1)
        return [row.key for row in await self._session.read_rows(wanted, after=_BUCKETS)]

    # Inside

    async def _change(self, key: bytes, wanted: Sequence[RowFilter], change: Change) -> int:
        """How many of the states that `wanted` finds were changed, their counts with them."""
        counts = filters.kept(KEPT, FENCE + b"|" + _COUNT + rb"\C*")
        async with self._turns[key]:
            for tried in range(TRIES_MAX):
                if tried:
                    await asyncio.sleep(random.uniform(0, _PAUSE_S * min(tried, 10)))
                found = await self._session.read_row(key, filters.either(counts, *wanted)) or {}
                cells = {name: cell for (_, name), cell in found.items()}
                states = _states(cells)
                changes = change(states)
                if not changes or await self._write(key, cells, states, changes):
                    return len(changes)
        raise BusyError("others keep writing this bucket of tracked messages", retry_after_s=1)

    async def _write(
        self, key: bytes, cells: Columns, states: States, changes: Mapping[str, State | None]
    ) -> bool:
        mutations = _mutations(cells, states, changes)
        fence = cells.get(FENCE)
        if fence is None:
            there = filters.has(KEPT, FENCE)
            return not await self._session.check(key, there, otherwise=mutations)
        same = filters.holds(KEPT, FENCE, fence.value)
        return await self._session.check(key, same, then=mutations)


def _column(reliability_id: str, milestone: Milestone) -> bytes:
    return (_ENDED if milestone.terminal else _OPEN) + reliability_id.encode()


def _states(cells: Columns) -> States:
    return {
        name.partition(b":")[2].decode(): State(Milestone(cell.value.decode()), cell.ends_at_ms)
        for name, cell in cells.items()
        if name.startswith((_OPEN, _ENDED))
    }


def _mutations(
    cells: Columns, states: States, changes: Mapping[str, State | None]
) -> list[Mutation]:
    counts: Counter[str] = Counter()
    mutations: list[Mutation] = []
    for reliability_id, new in changes.items():
        old = states.get(reliability_id)
        if old is not None:
            mutations.append(drop_column(KEPT, _column(reliability_id, old.milestone)))
        if new is None:
            continue
        column = _column(reliability_id, new.milestone)
        mutations.append(set_cell(KEPT, column, new.milestone.value.encode(), new.due_at_ms))
        counts[new.milestone.value] += 1
        if old is not None:
            counts[old.milestone.value] -= 1
    for state, difference in counts.items():
        column = _COUNT + state.encode()
        held = cells.get(column)
        total = difference + (0 if held is None else _signed(held.value))
        value = total.to_bytes(8, "big", signed=True)
        mutations.append(set_cell(KEPT, column, value, _FOREVER_MS))
    mutations.append(set_cell(KEPT, FENCE, os.urandom(8), _FOREVER_MS))
    return mutations


def _signed(value: bytes) -> int:
    return int.from_bytes(value, "big", signed=True)
