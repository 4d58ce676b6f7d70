"""Every statement of the store: one per operation, so one round trip each.

Rule 1: conditions are inside a statement, never between two. Statements lock rows in the order
        (uaid, sort key), so they cannot deadlock.
Rule 2: sort keys are compared as bytes (`COLLATE "C"`), independent of the database's collation.
Rule 3: an expired record (`{router_end}`, in seconds) counts as missing; a returning user agent
        gets a new one. The time is an argument: the node's clock decides, not PostgreSQL's.
Rule 4: statements with arrays serve several callers; `n` is the caller's position.
"""

from waystation.storage.postgres.layout import MESSAGE_COLUMNS, RELIABILITY_LOG_S, REPLACED
from waystation.storage.postgres.tables import Tables

_RECORD = "connected_at, router_type, router_data, node_id, record_version, version, last_update"
_COLUMNS = [f'"{name}"' for name, _ in MESSAGE_COLUMNS]


def _replace(*but: str) -> str:
    """The assignments by which a newer message overwrites an older one."""
    kept = [f'"{name}"' for name in ("uaid", "chid_message_id", *but)]
    return ", ".join(f"{column} = EXCLUDED.{column}" for column in _COLUMNS if column not in kept)


_PHRASES = {
    "<record>": _RECORD,
    "<columns>": ", ".join(_COLUMNS),
    "<given>": ", ".join(f"g.{column}" for column in _COLUMNS),
    "<arrays>": ", ".join(
        f"${place}::{kind}[]" for place, (_, kind) in enumerate(MESSAGE_COLUMNS, 1)
    ),
    "<replace and note>": _replace("extras")
    + """, extras = CASE
        WHEN EXCLUDED.topic IS NOT NULL AND m.version <> EXCLUDED.version
        THEN '<replaced>'
            || json_build_array(m.version, <accepted_at_ms>, m."timestamp" + m.ttl)::text
            || coalesce(',' || substr(EXCLUDED.extras, 2), '}')
        ELSE EXCLUDED.extras
    END""",
    # Accept time of a row's message, as in `layout.read_notification`.
    "<accepted_at_ms>": """
    CASE
        WHEN m.accepted_at_ms / 1000 = m."timestamp" THEN m.accepted_at_ms
        WHEN m.sortkey_timestamp / 1000 = m."timestamp" THEN m.sortkey_timestamp
        ELSE m."timestamp" * 1000
    END""",
    "<replaced>": REPLACED,
    "<now>": f"${len(MESSAGE_COLUMNS) + 1}",  # after the columns
    "<log>": str(RELIABILITY_LOG_S),
}

_GET = """
SELECT r.* FROM (SELECT expiry, <record> FROM {router} WHERE uaid = $1) AS r
WHERE {router_end} > $2
"""

# LIMIT makes the planner use one index look-up per caller, even with statistics of a small table.
_LOOK_UP = """
SELECT g.n, r.*, EXISTS (
    SELECT FROM {meta} AS m WHERE m.uaid = g.uaid AND m.channel_id = g.channel_id
) AS subscribed
FROM unnest($1::text[], $2::text[]) WITH ORDINALITY AS g (uaid, channel_id, n)
CROSS JOIN LATERAL (
    SELECT expiry, <record> FROM {router} WHERE uaid = g.uaid LIMIT 1
) AS r
WHERE {router_end} > $3
"""

# The INSERT reads `dead`, so the expired row is searched before any write.
_WRITE_RECORD = """
WITH dead AS (
    SELECT uaid FROM {router} AS r WHERE uaid = $1 AND {router_end} <= $9 FOR UPDATE
), channels_gone AS (
    DELETE FROM {meta} WHERE uaid IN (SELECT uaid FROM dead)
), messages_gone AS (
    DELETE FROM {message} WHERE uaid IN (SELECT uaid FROM dead)
)
INSERT INTO {router} AS r (uaid, <record>, expiry, priv_channels)
SELECT $1, $2::bigint, $3::text, $4::text, $5::text, $6::bigint, $7::text, $8::bigint,
    $9::bigint + {lifetime_s}, '{}'::varchar[]
FROM (SELECT count(*) FROM dead) AS looked
ON CONFLICT (uaid) DO UPDATE SET
    connected_at = EXCLUDED.connected_at, router_type = EXCLUDED.router_type,
    router_data = EXCLUDED.router_data, node_id = EXCLUDED.node_id,
    record_version = EXCLUDED.record_version, version = EXCLUDED.version,
    last_update = EXCLUDED.last_update, expiry = EXCLUDED.expiry
WHERE {router_end} <= $9 <or>
RETURNING 1
"""

_CLEAR_ROUTE = """
UPDATE {router} AS r SET node_id = NULL
WHERE uaid = $1 AND node_id = $2 AND connected_at = $3
    AND ($4::text IS NULL OR version = $4) AND {router_end} > $5
RETURNING 1
"""

_ADVANCE_CURSOR = """
UPDATE {router} AS r SET last_update = $2
WHERE uaid = $1 AND (last_update IS NULL OR last_update < $2) AND {router_end} > $3
RETURNING 1
"""

_REMOVE_USER_AGENT = """
DELETE FROM {router} AS r WHERE uaid = $1 RETURNING {router_end} > $2 AS alive
"""

_GET_CHANNELS = """
SELECT m.channel_id FROM {meta} AS m JOIN {router} AS r ON r.uaid = m.uaid
WHERE m.uaid = $1 AND {router_end} > $2
"""

_REMOVE_CHANNEL = """
WITH known AS (
    DELETE FROM {meta} AS m USING {router} AS r
    WHERE m.uaid = $1 AND m.channel_id = $2 AND r.uaid = m.uaid AND {router_end} > $3
    RETURNING m.uaid
), messages_gone AS (
    DELETE FROM {message} WHERE uaid IN (SELECT uaid FROM known) AND channel_id = $2
)
SELECT 1 FROM known
"""

# Autopush's column refers to its log of tracked messages, so a log row must exist.
_LOGGED = """
WITH given AS (
    SELECT * FROM unnest(<arrays>) AS g (<columns>)
), logged AS (
    INSERT INTO {reliability} (id, states, last_update_timestamp)
    SELECT reliability_id, '{}', max("timestamp") + <log> FROM given
    WHERE reliability_id IS NOT NULL GROUP BY reliability_id ORDER BY reliability_id
    ON CONFLICT (id) DO NOTHING
)
"""

# The lock keeps the user agent's row until the message is written, so the foreign key holds.
# An upsert returns only new values, and a separate read of the old row would miss one written
# after the statement began; so a topic's row records which message it replaced.
_UPSERTED = """
, written AS (
    INSERT INTO {message} AS m (<columns>)
    SELECT <given> FROM given AS g JOIN {router} AS r ON r.uaid = g.uaid
    ORDER BY g.uaid, g.chid_message_id COLLATE "C" FOR KEY SHARE OF r
    ON CONFLICT (uaid, chid_message_id) DO UPDATE SET <replace and note>
    RETURNING m.uaid, m.chid_message_id, m.extras
)
SELECT uaid, chid_message_id, extras FROM written WHERE starts_with(extras, '<replaced>')
"""
_SAVE = _LOGGED + _UPSERTED

# A message without a user agent counts as saved; only another message refuses it. ON CONFLICT names
# no index, because Autopush's tables have a second unique index that may be checked first.
_INSERTED = """
, written AS (
    INSERT INTO {message} AS m (<columns>)
    SELECT <given> FROM given AS g JOIN {router} AS r ON r.uaid = g.uaid
    ORDER BY g.uaid, g.chid_message_id COLLATE "C" FOR KEY SHARE OF r
    ON CONFLICT DO NOTHING
    RETURNING m.uaid, m.chid_message_id, m.version
)
SELECT g.uaid, g.chid_message_id, g.version FROM given AS g
WHERE EXISTS (SELECT FROM written AS m
        WHERE (m.uaid, m.chid_message_id, m.version) = (g.uaid, g.chid_message_id, g.version))
    OR NOT EXISTS (SELECT FROM {router} AS r WHERE r.uaid = g.uaid)
    OR EXISTS (SELECT FROM {message} AS m
        WHERE (m.uaid, m.chid_message_id, m.version) = (g.uaid, g.chid_message_id, g.version))
"""
_SAVE_NEW = _LOGGED + _INSERTED

# A topic's message overwrites itself, so an unwritten one has met a newer one. `xmax` is zero in a
# new row.
_UPSERTED_IF_NEWER = """
, wanted AS (
    SELECT g.* FROM given AS g JOIN {router} AS r ON r.uaid = g.uaid
    WHERE {router_end} > <now> AND EXISTS (
        SELECT FROM {meta} AS c WHERE c.uaid = g.uaid AND c.channel_id = g.channel_id
    )
    ORDER BY g.uaid, g.chid_message_id COLLATE "C" FOR KEY SHARE OF r
), written AS (
    INSERT INTO {message} AS m (<columns>)
    SELECT <given> FROM wanted AS g ORDER BY g.uaid, g.chid_message_id COLLATE "C"
    ON CONFLICT (uaid, chid_message_id) DO UPDATE SET <replace and note>
    WHERE (<accepted_at_ms>, m.version COLLATE "C")
            < (EXCLUDED.accepted_at_ms, EXCLUDED.version COLLATE "C")
        OR (EXCLUDED.topic IS NOT NULL AND m.version = EXCLUDED.version)
    RETURNING m.chid_message_id, m.extras, m.xmax = 0 AS is_new
)
SELECT g.chid_message_id, m.chid_message_id IS NOT NULL AS is_written, m.extras, m.is_new
FROM wanted AS g LEFT JOIN written AS m ON m.chid_message_id = g.chid_message_id
"""
_SAVE_IF_NEWER = _LOGGED + _UPSERTED_IF_NEWER

_FETCH = """
SELECT m.*, EXISTS (
    SELECT FROM {meta} AS c JOIN {router} AS r ON r.uaid = c.uaid
    WHERE c.uaid = $1 AND c.channel_id = m.channel_id AND {router_end} > $4
) AS subscribed
FROM (
    SELECT <columns> FROM {message}
    WHERE uaid = $1 AND chid_message_id COLLATE "C" > $2
    ORDER BY chid_message_id COLLATE "C" LIMIT $3
) AS m
ORDER BY m.chid_message_id COLLATE "C"
"""

_FORGET = """
WITH given AS (
    SELECT * FROM unnest($1::int[], $2::text[], $3::text[], $4::text[])
        AS g (n, uaid, chid_message_id, version)
), held AS (
    SELECT g.n, m.uaid, m.chid_message_id, m.version
    FROM given AS g JOIN {message} AS m
        ON m.uaid = g.uaid AND m.chid_message_id = g.chid_message_id AND m.version = g.version
    ORDER BY m.uaid, m.chid_message_id COLLATE "C" FOR UPDATE OF m
)
DELETE FROM {message} AS m USING held AS h
WHERE m.uaid = h.uaid AND m.chid_message_id = h.chid_message_id AND m.version = h.version
RETURNING h.n
"""

_FETCH_UPDATES = """
SELECT u.channel_id, u.version, {update_time} AS accepted_at_ms
FROM {update} AS u JOIN {router} AS r ON r.uaid = u.uaid
WHERE u.uaid = $1 AND {router_end} > $2 ORDER BY u.channel_id COLLATE "C" LIMIT $3
"""

_FORGET_UPDATE = """
DELETE FROM {update} AS u USING {router} AS r
WHERE u.uaid = $1 AND u.channel_id = $2 AND u.version = $3 AND r.uaid = u.uaid
    AND {router_end} > $4
RETURNING 1
"""

# `xmax` is zero in a new row.
_PUBLISH = """
INSERT INTO {broadcast} AS b (id, version) VALUES ($1, $2)
ON CONFLICT (id) DO UPDATE SET version = EXCLUDED.version RETURNING xmax = 0 AS is_new
"""


class Statements:
    """The statements with the table names of this installation."""

    def __init__(self, tables: Tables) -> None:
        def fill(text: str) -> str:
            for mark, phrase in _PHRASES.items():
                text = text.replace(mark, phrase)
            return tables.fill(text)

        unrouted = "OR r.node_id IS NULL OR r.connected_at < EXCLUDED.connected_at"
        self.get = fill(_GET)
        self.look_up = fill(_LOOK_UP)
        self.add_user_agent = fill(_WRITE_RECORD.replace("<or>", ""))
        self.claim_route = fill(_WRITE_RECORD.replace("<or>", unrouted))
        self.clear_route = fill(_CLEAR_ROUTE)
        self.advance_cursor = fill(_ADVANCE_CURSOR)
        self.remove_user_agent = fill(_REMOVE_USER_AGENT)
        # A function, because it must count after it has waited for the lock (schema.py).
        self.add_channel = fill("SELECT {add_channel}($1, $2, $3::int, $4::bigint) AS added")
        self.get_channels = fill(_GET_CHANNELS)
        self.remove_channel = fill(_REMOVE_CHANNEL)
        self.save = fill(_SAVE)
        self.save_new = fill(_SAVE_NEW)
        self.save_if_newer = fill(_SAVE_IF_NEWER)
        self.fetch = fill(_FETCH)
        self.forget = fill(_FORGET)
        self.save_update = fill("SELECT * FROM {save_update}($1, $2, $3, $4::bigint, $5::bigint)")
        self.fetch_updates = fill(_FETCH_UPDATES)
        self.forget_update = fill(_FORGET_UPDATE)
        self.publish = fill(_PUBLISH)
        self.get_broadcasts = fill("SELECT id, version FROM {broadcast}")
        self.check = fill("SELECT EXISTS (SELECT FROM {router})")
