"""Tables and functions of the queue service in PostgreSQL, created at the first start.

Rule 1: conditions are inside a statement or function, never between two: the queue's row is locked
        first, so changes of one queue are serialised.
Rule 2: functions are replaced at every start; tables are only created. A new column has a default.
Rule 3: all of this is one transaction under one lock, so several servers may start at once.
"""

import re

from waystation.storage.postgres.session import Connection
from waystation.storage.postgres.url import PostgresUrl

_LOCK = 0x57617171  # arbitrary unique number: "Waqq"

# `size` counts the messages; their numbers have no gaps. Keys and blockings are encoded bytes.
_TABLES = """
CREATE TABLE IF NOT EXISTS {queue} (
    recipient_id bytea PRIMARY KEY,
    sender_id bytea NOT NULL UNIQUE,
    link_id bytea UNIQUE,
    notifier_id bytea UNIQUE,
    recipient_keys bytea NOT NULL,
    box_key bytea NOT NULL,
    sender_key bytea,
    mode text,
    link_fixed bytea,
    link_user bytea,
    notifier_key bytea,
    notifier_box_key bytea,
    standing text NOT NULL,
    blocking bytea,
    updated_on_s bigint NOT NULL,
    size int NOT NULL DEFAULT 0,
    next_number bigint NOT NULL DEFAULT 0,
    can_write boolean NOT NULL DEFAULT true
);
CREATE INDEX IF NOT EXISTS waystation_queue_waiting ON {queue} (recipient_id) WHERE size > 0;
CREATE TABLE IF NOT EXISTS {message} (
    recipient_id bytea NOT NULL,
    number bigint NOT NULL,
    message_id bytea NOT NULL,
    accepted_at_s bigint NOT NULL,
    notify boolean NOT NULL,
    body bytea,
    PRIMARY KEY (recipient_id, number)
);
CREATE TABLE IF NOT EXISTS {pending} (number bigint PRIMARY KEY, notification bytea NOT NULL);
CREATE TABLE IF NOT EXISTS {service} (
    fingerprint bytea PRIMARY KEY, service_id bytea NOT NULL UNIQUE, role text NOT NULL
);
ALTER TABLE {queue} ADD COLUMN IF NOT EXISTS service_id bytea;
ALTER TABLE {queue} ADD COLUMN IF NOT EXISTS notifier_service_id bytea;
CREATE INDEX IF NOT EXISTS waystation_queue_notified ON {queue} (notifier_service_id)
    WHERE notifier_service_id IS NOT NULL;
"""

_EXPIRE = """
CREATE OR REPLACE FUNCTION {expire}(the_id bytea, before_s bigint) RETURNS int
LANGUAGE plpgsql AS $body$
DECLARE
    kept bigint;
    gone int;
BEGIN
    PERFORM FROM {queue} WHERE recipient_id = the_id FOR UPDATE;
    SELECT min(number) INTO kept FROM {message}
        WHERE recipient_id = the_id AND (accepted_at_s >= before_s OR body IS NULL);
    DELETE FROM {message} WHERE recipient_id = the_id AND (kept IS NULL OR number < kept);
    GET DIAGNOSTICS gone = ROW_COUNT;
    IF gone > 0 THEN
        UPDATE {queue} SET size = size - gone, can_write = can_write OR size = gone
            WHERE recipient_id = the_id;
    END IF;
    RETURN gone;
END
$body$;
"""

_APPEND = """
CREATE OR REPLACE FUNCTION {append}(
    the_id bytea, the_message bytea, at_s bigint, notifies boolean, the_body bytea,
    quota int, day_s bigint, before_s bigint,
    OUT admission text, OUT is_head boolean, OUT expired int
) LANGUAGE plpgsql AS $body$
DECLARE
    q {queue}%ROWTYPE;
BEGIN
    expired := 0;
    is_head := false;
    SELECT * INTO q FROM {queue} WHERE recipient_id = the_id FOR UPDATE;
    IF NOT FOUND OR q.standing <> 'active' THEN
        admission := 'refused';
        RETURN;
    END IF;
    IF before_s IS NOT NULL THEN
        expired := {expire}(the_id, before_s);
        q.size := q.size - expired;
        q.can_write := q.can_write OR q.size = 0;
    END IF;
    is_head := q.size = 0;
    IF NOT q.can_write AND q.size > 0 THEN
        admission := 'full';
    ELSIF q.size < quota THEN
        admission := 'stored';
        q.can_write := true;
    ELSE
        admission := 'marked';
        q.can_write := false;
        the_body := NULL;
        notifies := false;
    END IF;
    IF admission <> 'full' THEN
        INSERT INTO {message} (recipient_id, number, message_id, accepted_at_s, notify, body)
            VALUES (the_id, q.next_number, the_message, at_s, notifies, the_body);
        q.next_number := q.next_number + 1;
        q.size := q.size + 1;
    END IF;
    IF admission = 'stored' AND q.mode = 'M' AND q.sender_key IS NOT NULL THEN
        q.link_id := NULL;
        q.link_fixed := NULL;
        q.link_user := NULL;
    END IF;
    UPDATE {queue} SET size = q.size, next_number = q.next_number, can_write = q.can_write,
            updated_on_s = day_s, link_id = q.link_id, link_fixed = q.link_fixed,
            link_user = q.link_user
        WHERE recipient_id = the_id;
END
$body$;
"""

_ACKNOWLEDGE = """
CREATE OR REPLACE FUNCTION {acknowledge}(the_id bytea, the_message bytea)
RETURNS TABLE (removed boolean, message_id bytea, accepted_at_s bigint, notify boolean, body bytea)
LANGUAGE plpgsql AS $body$
DECLARE
    head {message}%ROWTYPE;
BEGIN
    PERFORM FROM {queue} AS q WHERE q.recipient_id = the_id FOR UPDATE;
    IF NOT FOUND THEN
        RETURN;
    END IF;
    SELECT m.* INTO head FROM {message} AS m
        WHERE m.recipient_id = the_id ORDER BY m.number LIMIT 1;
    IF head.message_id = the_message THEN
        DELETE FROM {message} AS m WHERE m.recipient_id = the_id AND m.number = head.number;
        UPDATE {queue} AS q SET size = size - 1, can_write = can_write OR size = 1
            WHERE q.recipient_id = the_id;
        RETURN QUERY
            SELECT true, head.message_id, head.accepted_at_s, head.notify, head.body;
        SELECT m.* INTO head FROM {message} AS m
            WHERE m.recipient_id = the_id ORDER BY m.number LIMIT 1;
    END IF;
    -- The head now; a row without an id says that nothing waits.
    RETURN QUERY SELECT false, head.message_id, head.accepted_at_s, head.notify, head.body;
END
$body$;
"""


class QueueTables:
    """The names of our tables and functions, quoted."""

    def __init__(self, url: PostgresUrl) -> None:
        self.schema = url.schema
        prefix = f'"{url.schema}".' if url.schema else ""
        self._names = {
            name: f"{prefix}waystation_queue{suffix}"
            for name, suffix in (
                ("queue", ""),
                ("message", "_message"),
                ("pending", "_pending"),
                ("service", "_service"),
                ("expire", "_expire"),
                ("append", "_append"),
                ("acknowledge", "_acknowledge"),
            )
        }

    def fill(self, sql: str) -> str:
        return re.sub(r"\{(\w+)\}", lambda found: self._names[found[1]], sql)


async def make_queue_tables(connection: Connection, url: PostgresUrl) -> None:
    tables = QueueTables(url)
    async with connection.transaction():
        await connection.execute("SELECT pg_advisory_xact_lock($1)", _LOCK)
        if tables.schema is not None:
            await connection.execute(f'CREATE SCHEMA IF NOT EXISTS "{tables.schema}"')
        # Suppress notices about existing objects.
        await connection.execute("SET LOCAL client_min_messages = warning")
        for sql in (_TABLES, _EXPIRE, _APPEND, _ACKNOWLEDGE):
            await connection.execute(tables.fill(sql))
