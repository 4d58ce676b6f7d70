"""Merges one pass over the notifications of two stores.

Rule 1: a portion ends where the portion of either store ends: that store may have more rows after
        it, and a pass never goes back.
Rule 2: of two notifications of one topic only the newer is delivered; the other was replaced by it
        and is forgotten in its store.
Rule 3: other rows with equal sort keys, one in each store, are two notifications: Autopush's keys
        are unique within one store only. Both are delivered, in one portion if there is room.
"""

from collections.abc import Sequence

import msgspec

from waystation.push.model import MessageId, MessageStatus, Notification, SortKey

Row = tuple[SortKey, MessageId]


class Portion(msgspec.Struct, frozen=True):
    rows: list[Notification]
    replaced_in_primary: list[Row]
    replaced_in_secondary: list[Row]


def merge_portions(
    primary: Sequence[Notification], secondary: Sequence[Notification], limit: int
) -> Portion:
    if not primary or not secondary:
        return Portion(list(primary or secondary), [], [])
    end = min(primary[-1].sort_key, secondary[-1].sort_key)
    held = {row.sort_key: row for row in primary if row.sort_key <= end}
    twins: list[Notification] = []
    replaced_in_primary: list[Row] = []
    replaced_in_secondary: list[Row] = []
    for row in secondary:
        if row.sort_key > end:
            break
        other = held.setdefault(row.sort_key, row)
        if other.message_id == row.message_id:
            continue
        if row.topic is None:
            twins.append(row)
        elif _age(other) < _age(row):
            held[row.sort_key] = row
            replaced_in_primary.append((other.sort_key, other.message_id))
        else:
            replaced_in_secondary.append((row.sort_key, row.message_id))
    rows = sorted([*held.values(), *twins], key=_sort_key)
    if 1 < limit < len(rows) and rows[limit - 1].sort_key == rows[limit].sort_key:
        limit -= 1  # a pass continues after a key, so rows with equal keys stay in one portion
    return Portion(rows[:limit], replaced_in_primary, replaced_in_secondary)


def merge_statuses(
    first: MessageStatus | None, second: MessageStatus | None
) -> MessageStatus | None:
    """The statuses of one message in both stores; the earlier time of a milestone counts."""
    if first is None or second is None:
        return first or second
    milestones = dict(first.milestones)
    for name, at_ms in second.milestones.items():
        milestones[name] = min(at_ms, milestones.get(name, at_ms))
    return MessageStatus(
        sender=first.sender,
        milestones=milestones,
        keep_until_ms=max(first.keep_until_ms, second.keep_until_ms),
    )


def _sort_key(row: Notification) -> SortKey:
    return row.sort_key


def _age(row: Notification) -> tuple[int, MessageId]:
    return row.accepted_at_ms, row.message_id
