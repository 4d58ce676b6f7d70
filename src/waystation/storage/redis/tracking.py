"""Message statuses for senders, and counts of tracked messages, in Redis.

A status is a hash with an index for the sweep. Counts have the layout of Autopush's reliability
tracking: `state_counts`, the sorted set `expiry` of messages that have not ended, and `state.ID`.
An ended message has no entry in `expiry`; its state is removed a day later.
"""

from collections.abc import Mapping, Sequence

from waystation.push.model import MessageId, MessageStatus, Milestone, MilestoneNote
from waystation.storage.redis import scripts
from waystation.storage.redis.layout import TRACKED_KEEP_MS, Keys
from waystation.storage.redis.session import Session

_PORTION = 500
_TERMINAL = tuple(milestone.value for milestone in Milestone if milestone.terminal)
_NOT_MILESTONES = (b"sender", b"keep_until_ms")


class Tracking:
    def __init__(self, session: Session, keys: Keys) -> None:
        self._session = session
        self._keys = keys

    # Statuses

    async def note(self, notes: Sequence[MilestoneNote]) -> None:
        """Merge notes of one message into its status."""
        message_id = notes[0].message_id
        tag = self._keys.status_tag(message_id)
        milestones = [part for note in notes for part in (note.milestone.value, note.at_ms)]
        await self._session.run_script(
            scripts.NOTE_MILESTONES,
            (self._keys.status(message_id), self._keys.statuses(tag)),
            message_id,
            notes[0].sender,
            max(note.keep_until_ms for note in notes),
            *milestones,
        )

    async def status(self, message_id: MessageId, now_ms: int) -> MessageStatus | None:
        key = self._keys.status(message_id)
        (flat,) = await self._session.run(key, (("HGETALL", key),))
        fields: dict[bytes, bytes] = dict(zip(flat[::2], flat[1::2], strict=True))
        keep_until_ms = int(fields.get(b"keep_until_ms", 0))
        if keep_until_ms <= now_ms:
            return None
        return MessageStatus(
            sender=fields[b"sender"],
            milestones={
                name.decode(): int(at_ms)
                for name, at_ms in fields.items()
                if name not in _NOT_MILESTONES
            },
            keep_until_ms=keep_until_ms,
        )

    # Counts

    async def track(self, reliability_id: str, milestone: Milestone, expires_at_ms: int) -> None:
        keys = self._keys
        await self._session.run_script(
            scripts.TRACK,
            (
                keys.state_counts,
                keys.state_ends,
                f"{keys.state_prefix}{reliability_id}",
                keys.ended,
            ),
            reliability_id,
            milestone.value,
            int(milestone.terminal),
            _seconds(expires_at_ms),
            expires_at_ms + TRACKED_KEEP_MS,
            *_TERMINAL,
        )

    async def expire(self, now_ms: int) -> None:
        """Move overdue messages to `expired`."""
        keys = self._keys
        moved = _PORTION
        while moved == _PORTION:
            moved = await self._session.run_script(
                scripts.EXPIRE_TRACKED,
                (keys.state_counts, keys.state_ends, keys.ended),
                _seconds(now_ms),
                _PORTION,
                keys.state_prefix,
                Milestone.EXPIRED.value,
                TRACKED_KEEP_MS,
            )

    async def counts(self, now_ms: int) -> Mapping[str, int]:
        await self.expire(now_ms)
        key = self._keys.state_counts
        (flat,) = await self._session.run(key, (("HGETALL", key),))
        counts = {
            state.decode(): int(count) for state, count in zip(flat[::2], flat[1::2], strict=True)
        }
        return {state: count for state, count in sorted(counts.items()) if count > 0}


def _seconds(at_ms: int) -> str:
    """Autopush's scores are seconds; the fraction keeps the ms."""
    return f"{at_ms // 1000}.{at_ms % 1000:03d}"
