"""Removes expired rows from a Redis store.

The sweep needs no SCAN: `waystation/due/` contains every user agent with the time of its next
expiry.
"""

import asyncio
from collections.abc import Sequence

from waystation.storage.redis import scripts
from waystation.storage.redis.layout import Keys
from waystation.storage.redis.session import Session

_AGENTS_PER_CALL = 100
_ROWS_PER_CALL = 1000
_TAGS_AT_ONCE = 256


async def sweep(session: Session, keys: Keys, *, now_ms: int, limit: int) -> int:
    """Remove up to `limit` expired rows."""
    removed = 0
    for start in range(0, len(keys.tags), _TAGS_AT_ONCE):
        tags = await _due_tags(session, keys, keys.tags[start : start + _TAGS_AT_ONCE], now_ms)
        for tag in tags:
            removed += await _sweep_agents(session, keys, tag, now_ms, limit - removed)
            index, begins = keys.statuses(tag), keys.status_prefix(tag)
            removed += await _sweep_index(session, index, begins, now_ms, limit - removed)
            if removed >= limit:
                return removed
    left = limit - removed
    return removed + await _sweep_index(session, keys.ended, keys.state_prefix, now_ms, left)


async def _due_tags(session: Session, keys: Keys, tags: Sequence[str], now_ms: int) -> list[str]:
    """The partitions with expired rows; in a cluster, usually few have any."""
    if len(tags) == 1:
        return list(tags)
    counts = await asyncio.gather(
        *(
            session.run(
                keys.due(tag),
                (
                    ("ZCOUNT", keys.due(tag), "-inf", now_ms),
                    ("ZCOUNT", keys.statuses(tag), "-inf", now_ms),
                ),
            )
            for tag in tags
        )
    )
    return [tag for tag, count in zip(tags, counts, strict=True) if any(count)]


async def _sweep_agents(session: Session, keys: Keys, tag: str, now_ms: int, limit: int) -> int:
    removed = 0
    more = 1
    while more and removed < limit:
        room = min(limit - removed, _ROWS_PER_CALL)
        gone, more = await session.run_script(
            scripts.SWEEP_AGENTS, (keys.due(tag),), tag, now_ms, room, _AGENTS_PER_CALL
        )
        removed += gone
    return removed


async def _sweep_index(session: Session, index: str, begins: str, now_ms: int, limit: int) -> int:
    """Removes keys by their index, a sorted set: their names are `begins` and a member."""
    removed = 0
    while removed < limit:
        room = min(limit - removed, _ROWS_PER_CALL)
        gone: int = await session.run_script(scripts.SWEEP_INDEX, (index,), now_ms, room, begins)
        removed += gone
        if gone < room:
            break
    return removed
