"""Replays journals of dead workers: hands their unsettled notifications back to the store."""

import asyncio
from collections import defaultdict
from pathlib import Path
from typing import Any

from waystation.push.connect.journal import (
    Abandoned,
    JournalHeldError,
    owed_files,
    set_aside,
)
from waystation.push.connect.unacked_saver import UnackedSaver
from waystation.push.model import Notification, Uaid, Update


async def replay(path: Path, saver: UnackedSaver) -> int:
    """Hand back the unsettled notifications of dead workers' journals at `path`, oldest first.
    Returns their number; 0 while the worker is alive."""
    try:
        set_aside(path)
    except JournalHeldError:
        return 0
    return sum([await _replay_one(owed, saver) for owed in owed_files(path)])


async def _replay_one(path: Path, saver: UnackedSaver) -> int:
    try:
        abandoned = Abandoned(path)
    except (FileNotFoundError, JournalHeldError):
        return 0  # another process replays it, or has finished
    try:
        owed: dict[Uaid, list[Notification | Update]] = defaultdict(list)
        for entry in abandoned.unsettled():
            notification = entry.notification or entry.update
            assert notification is not None
            owed[Uaid(entry.uaid)].append(notification)
        for uaid, notifications in owed.items():
            if await saver.save(uaid, notifications, connected_at_ms=None):
                return 0  # the store is full and the process stops: the next one starts over
        abandoned.done()
        return sum(len(notifications) for notifications in owed.values())
    finally:
        abandoned.close()


async def replayed_or_troubled(replaying: "asyncio.Task[Any]", saver: UnackedSaver) -> bool:
    """Wait for the replay, or for its first store error. Whether the replay is over; after an error
    it continues in the background and the journal keeps its notifications."""
    troubled = asyncio.ensure_future(saver.troubled.wait())
    try:
        await asyncio.wait({replaying, troubled}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        troubled.cancel()
    return replaying.done()
