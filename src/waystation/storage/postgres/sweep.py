"""Removes expired rows from a PostgreSQL store, and warns about unsafe server settings.

Rows are removed in portions, each in its own transaction. Locked rows are skipped, so several nodes
may sweep at once. ORDER BY makes the planner use the expiry index; without it, a sweep that finds
nothing would read the whole table.
"""

from itertools import islice

from waystation.storage.postgres.session import Session
from waystation.storage.postgres.tables import Tables
from waystation.storage.postgres.tracking import PORTION, Tracking

_MESSAGES = """
DELETE FROM {message} WHERE ctid = ANY (ARRAY(
    SELECT ctid FROM {message} WHERE expiry <= $1
    ORDER BY expiry LIMIT $2 FOR UPDATE SKIP LOCKED
))
RETURNING 1
"""

# Before the user agents: their foreign keys would remove more than one portion.
_MESSAGES_OF_THE_DEAD = """
DELETE FROM {message} WHERE ctid = ANY (ARRAY(
    SELECT m.ctid FROM (
        SELECT uaid FROM {router} WHERE expiry <= $1 ORDER BY expiry LIMIT $2
    ) AS r
    CROSS JOIN LATERAL (
        SELECT ctid FROM {message} WHERE uaid = r.uaid LIMIT $2 FOR UPDATE SKIP LOCKED
    ) AS m
    LIMIT $2
))
RETURNING 1
"""

_USER_AGENTS = """
DELETE FROM {router} WHERE ctid = ANY (ARRAY(
    SELECT r.ctid FROM (
        SELECT ctid, uaid FROM {router} WHERE expiry <= $1
        ORDER BY expiry LIMIT $2 FOR UPDATE SKIP LOCKED
    ) AS r
    WHERE (SELECT count(*) FROM (SELECT FROM {message} WHERE uaid = r.uaid LIMIT 1) AS m) = 0
))
RETURNING 1
"""

_STATUSES = """
DELETE FROM {status} WHERE ctid = ANY (ARRAY(
    SELECT ctid FROM {status} WHERE keep_until_ms <= $1
    ORDER BY keep_until_ms LIMIT $2 FOR UPDATE SKIP LOCKED
))
RETURNING 1
"""

_LOG = """
DELETE FROM {reliability} WHERE ctid = ANY (ARRAY(
    SELECT l.ctid FROM {reliability} AS l
    WHERE l.last_update_timestamp <= $1
        AND NOT EXISTS (SELECT FROM {message} AS m WHERE m.reliability_id = l.id)
    ORDER BY l.last_update_timestamp LIMIT $2 FOR UPDATE SKIP LOCKED
))
RETURNING 1
"""

STATEMENTS = (_MESSAGES, _MESSAGES_OF_THE_DEAD, _USER_AGENTS, _STATUSES, _LOG)

_SETTINGS = """
SELECT current_setting('fsync') AS fsync, current_setting('full_page_writes') AS pages,
    current_setting('synchronous_commit') AS commit
"""

_SHARED_INDEX = """
SELECT i.indexrelid::regclass::text AS name FROM pg_index AS i
JOIN pg_attribute AS a ON a.attrelid = i.indrelid AND a.attnum = i.indkey[0]
WHERE i.indrelid = $1::text::regclass AND i.indisunique AND i.indnkeyatts = 1
    AND a.attname = 'chid_message_id'
"""


class Sweep:
    def __init__(self, session: Session, tables: Tables, tracking: Tracking) -> None:
        self._session = session
        self._tables = tables
        self._tracking = tracking
        filled = map(tables.fill, STATEMENTS)
        self._messages, self._messages_of_the_dead, self._user_agents = islice(filled, 3)
        self._statuses, self._log = filled

    async def sweep(self, now_ms: int, limit: int) -> int:
        await self._tracking.expire(now_ms)
        now_s = now_ms // 1000
        removed = await self._portions(self._messages, now_s, limit)
        removed += await self._sweep_user_agents(now_s, limit - removed)
        removed += await self._portions(self._statuses, now_ms, limit - removed)
        removed += await self._portions(self._log, now_s, limit - removed)
        if removed < limit:
            removed += await self._tracking.sweep(now_ms, limit - removed)
        return removed

    async def _sweep_user_agents(self, now_s: int, limit: int) -> int:
        removed = 0
        while removed < limit:
            removed += await self._portions(self._messages_of_the_dead, now_s, limit - removed)
            portion = min(PORTION, limit - removed)
            if portion == 0:
                break
            gone = len(await self._session.change(self._user_agents, now_s, portion))
            removed += gone
            if gone < portion:
                break
        return removed

    async def _portions(self, statement: str, now: int, limit: int) -> int:
        removed = 0
        while removed < limit:
            portion = min(PORTION, limit - removed)
            gone = len(await self._session.change(statement, now, portion))
            removed += gone
            if gone < portion:
                break
        return removed

    async def warnings(self) -> list[str]:
        row = (await self._session.read(_SETTINGS))[0]
        warnings: list[str] = []
        if "off" in (row["fsync"], row["pages"]):
            warnings.append(
                "PostgreSQL runs without fsync or full_page_writes: a crash of its machine may"
                " damage the database. Set both to `on`"
            )
        if row["commit"] == "off":
            warnings.append(
                "PostgreSQL answers before it has written (synchronous_commit off): accepted"
                " notifications may be lost in a crash. Set `synchronous_commit = on`"
            )
        return warnings + [
            f"the unique index {found['name']}, which Autopush's nodes need, allows a channel id"
            " and topic for one user agent only: a message of a second one is answered 503."
            " Drop the index when the last Autopush node has stopped"
            for found in await self._session.read(_SHARED_INDEX, self._tables.message)
        ]
