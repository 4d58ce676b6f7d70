"""Message statuses for senders, and counts of tracked messages by state, in PostgreSQL.

Each tracked message has a row with its state, so nodes do not contend for a counter. A count is the
number of rows plus the number in `counted`, to which swept rows are added. Autopush's log of
tracked messages (§8.6: state -> time, 60 days) is written too.
"""

from collections.abc import Mapping, Sequence

import msgspec

from waystation.push.model import MessageId, MessageStatus, Milestone, MilestoneNote
from waystation.storage.postgres.layout import RELIABILITY_ID_CHARS_MAX, RELIABILITY_LOG_S
from waystation.storage.postgres.session import Session
from waystation.storage.postgres.tables import Tables

KEEP_MS = 86_400_000  # ended messages are kept: a late milestone is not a new message
PORTION = 1000

# The earliest time of each milestone is kept.
_NOTE = """
INSERT INTO {status} AS s (message_id, sender, milestones, keep_until_ms)
SELECT g.message_id, g.sender, g.milestones::jsonb, g.keep_until_ms
FROM unnest($1::text[], $2::bytea[], $3::text[], $4::bigint[])
    AS g (message_id, sender, milestones, keep_until_ms)
ORDER BY g.message_id
ON CONFLICT (message_id) DO UPDATE SET
    milestones = (
        SELECT jsonb_object_agg(name, at_ms) FROM (
            SELECT key AS name, min(value::bigint) AS at_ms FROM (
                SELECT * FROM jsonb_each_text(s.milestones)
                UNION ALL SELECT * FROM jsonb_each_text(EXCLUDED.milestones)
            ) AS every GROUP BY key
        ) AS first
    ),
    keep_until_ms = greatest(s.keep_until_ms, EXCLUDED.keep_until_ms)
"""

_STATUS = """
SELECT sender, milestones::text AS milestones, keep_until_ms FROM {status}
WHERE message_id = $1 AND keep_until_ms > $2
"""

_TRACK = """
WITH logged AS (
    INSERT INTO {reliability} AS l (id, states, last_update_timestamp)
    SELECT $7::text, jsonb_build_object($2::text, $5::bigint), $6::bigint
    WHERE $7::text IS NOT NULL
    ON CONFLICT (id) DO UPDATE SET
        states = EXCLUDED.states || COALESCE(l.states, '{}'),
        last_update_timestamp = greatest(l.last_update_timestamp, EXCLUDED.last_update_timestamp)
)
INSERT INTO {tracked} AS t (id, milestone, ended, expires_at_ms)
VALUES ($1::text, $2::text, $3::boolean, $4::bigint)
ON CONFLICT (id) DO UPDATE SET
    milestone = EXCLUDED.milestone, ended = EXCLUDED.ended, expires_at_ms = EXCLUDED.expires_at_ms
WHERE NOT t.ended
"""

_EXPIRE = """
UPDATE {tracked} SET milestone = 'expired', ended = true
WHERE id = ANY (ARRAY(
    SELECT id FROM {tracked} WHERE NOT ended AND expires_at_ms <= $1
    ORDER BY expires_at_ms LIMIT $2 FOR UPDATE SKIP LOCKED
))
RETURNING 1
"""

_COUNT = """
SELECT milestone, sum(n)::bigint AS n FROM (
    SELECT milestone, count(*) AS n FROM {tracked} GROUP BY milestone
    UNION ALL SELECT milestone, n FROM {counted}
) AS every GROUP BY milestone ORDER BY milestone
"""

_SWEEP_ENDED = """
WITH gone AS (
    DELETE FROM {tracked} WHERE id = ANY (ARRAY(
        SELECT id FROM {tracked} WHERE ended AND expires_at_ms <= $1
        ORDER BY expires_at_ms LIMIT $2 FOR UPDATE SKIP LOCKED
    ))
    RETURNING milestone
), added AS (
    INSERT INTO {counted} AS c (milestone, n)
    SELECT milestone, count(*) FROM gone GROUP BY milestone ORDER BY milestone
    ON CONFLICT (milestone) DO UPDATE SET n = c.n + EXCLUDED.n
)
SELECT 1 FROM gone
"""

_milestones_decoder = msgspec.json.Decoder(dict[str, int])


class Tracking:
    def __init__(self, session: Session, tables: Tables) -> None:
        self._session = session
        self._note = tables.fill(_NOTE)
        self._status = tables.fill(_STATUS)
        self._track = tables.fill(_TRACK)
        self._expire = tables.fill(_EXPIRE)
        self._count = tables.fill(_COUNT)
        self._sweep_ended = tables.fill(_SWEEP_ENDED)

    async def note(self, notes: Sequence[MilestoneNote]) -> None:
        merged: dict[MessageId, MessageStatus] = {}
        for note in notes:
            held = merged.get(note.message_id)
            if held is None:
                merged[note.message_id] = MessageStatus(
                    note.sender, {note.milestone.value: note.at_ms}, note.keep_until_ms
                )
                continue
            first_ms = held.milestones.get(note.milestone.value, note.at_ms)
            held.milestones[note.milestone.value] = min(first_ms, note.at_ms)
            keep_until_ms = max(held.keep_until_ms, note.keep_until_ms)
            merged[note.message_id] = msgspec.structs.replace(held, keep_until_ms=keep_until_ms)
        statuses = merged.values()
        await self._session.change(
            self._note,
            list(merged),
            [status.sender for status in statuses],
            [msgspec.json.encode(status.milestones).decode() for status in statuses],
            [status.keep_until_ms for status in statuses],
        )

    async def status(self, message_id: MessageId, now_ms: int) -> MessageStatus | None:
        rows = await self._session.read(self._status, message_id, now_ms)
        if not rows:
            return None
        row = rows[0]
        milestones = _milestones_decoder.decode(row["milestones"])
        return MessageStatus(bytes(row["sender"]), milestones, row["keep_until_ms"])

    async def track(
        self, reliability_id: str, milestone: Milestone, at_ms: int, expires_at_ms: int
    ) -> None:
        await self._session.change(
            self._track,
            reliability_id,
            milestone.value,
            milestone.terminal,
            expires_at_ms,
            at_ms,
            at_ms // 1000 + RELIABILITY_LOG_S,
            reliability_id if 0 < len(reliability_id) <= RELIABILITY_ID_CHARS_MAX else None,
        )

    async def count(self, now_ms: int) -> Mapping[str, int]:
        await self.expire(now_ms)
        rows = await self._session.read(self._count)
        return {row["milestone"]: row["n"] for row in rows if row["n"]}

    async def expire(self, now_ms: int) -> None:
        """Moves overdue messages to `expired`."""
        while len(await self._session.change(self._expire, now_ms, PORTION)) >= PORTION:
            pass

    async def sweep(self, now_ms: int, limit: int) -> int:
        return len(await self._session.change(self._sweep_ended, now_ms - KEEP_MS, limit))
