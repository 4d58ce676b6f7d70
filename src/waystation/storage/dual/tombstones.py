"""Tombstones of notifications: they stop a running copy from restoring acked notifications.

Rule 1: a tombstone is a row under the key of its notification, so the store itself refuses a copy
        (`save_new`). Its message id is that of the notification with a prefix.
Rule 2: it is written after the notification was removed in the secondary, and the ack succeeds when
        it is written: afterwards no copy can restore the notification.
Rule 3: it expires after KEPT_S, longer than a copy may take. Its accept time is the oldest
        possible, so that a handed-back notification of its topic replaces it.
"""

from collections.abc import Sequence

from waystation.base.clock import Clock
from waystation.base.ids import parse_uuid
from waystation.push.model import TTL_MAX_S, ChannelId, MessageId, Notification, SortKey, Uaid
from waystation.push.store import PushStore
from waystation.storage.bulk_rows import TOMBSTONE_MARK

KEPT_S = 3600
_TRIES = 3
_NO_CHANNEL = ChannelId(bytes(16))


class Tombstones:
    def __init__(self, primary: PushStore, clock: Clock) -> None:
        self._primary = primary
        self._clock = clock

    async def write(self, uaid: Uaid, rows: Sequence[tuple[SortKey, MessageId]]) -> None:
        for row in rows:
            await self._write_one(uaid, *row)

    async def _write_one(self, uaid: Uaid, sort_key: SortKey, message_id: MessageId) -> None:
        tombstone = self._tombstone(sort_key, message_id)
        for _ in range(_TRIES):
            if await self._primary.save_new(uaid, tombstone):
                return
            if not await self._primary.forget(uaid, [(sort_key, message_id)]):
                return  # another message has the key, which also refuses the copy

    def _tombstone(self, sort_key: SortKey, message_id: MessageId) -> Notification:
        begins_s = self._clock.now_ms() // 1000 + KEPT_S - TTL_MAX_S
        return Notification(
            _channel_of(sort_key),
            MessageId(TOMBSTONE_MARK + message_id),
            sort_key,
            begins_s * 1000,
            TTL_MAX_S,
            topic=sort_key.split(":")[2] if sort_key.startswith("01:") else None,
        )


def without_tombstones(rows: Sequence[Notification]) -> Sequence[Notification]:
    """The rows without tombstones and without the notifications that they mark."""
    gone = {
        row.message_id[len(TOMBSTONE_MARK) :]
        for row in rows
        if row.message_id.startswith(TOMBSTONE_MARK)
    }
    if not gone:
        return rows
    return [
        row
        for row in rows
        if not row.message_id.startswith(TOMBSTONE_MARK) and row.message_id not in gone
    ]


def _channel_of(sort_key: SortKey) -> ChannelId:
    match sort_key.split(":"):
        case ["01", channel, *_] | ["02", _, channel, *_]:
            return ChannelId(parse_uuid(channel) or _NO_CHANNEL)
        case _:
            return _NO_CHANNEL
