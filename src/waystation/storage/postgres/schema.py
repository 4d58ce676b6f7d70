"""Tables, indexes and functions; `waystation store init` creates and migrates them.

Rule 1: each step runs once and is recorded in `waystation_migration`. All steps of a run are one
        transaction under one lock, so nodes may start at once.
Rule 2: Autopush's tables are kept. Additions do not affect Autopush's nodes: nullable columns,
        indexes, and a longer `node_id`.
Rule 3: a released step is never changed; changes are new steps.
"""

from collections.abc import Awaitable, Callable

from waystation.base.errors import StoreUnavailableError
from waystation.storage.postgres.session import (
    Connection,
    DriverError,
    close_connection,
    connect,
    store_error,
)
from waystation.storage.postgres.tables import Tables
from waystation.storage.postgres.url import PostgresUrl, parse_postgres_url
from waystation.storage.settings import Store

MAJOR_MIN = 13
_LOCK = 0x57617973  # arbitrary unique number: "Ways"

# As in autopush-rs, but with sort keys in byte order, and without its unique index over the sort
# keys of all user agents, because two user agents may choose the same channel id.
_AUTOPUSH_TABLES = """
CREATE TABLE IF NOT EXISTS {router} (
    uaid varchar(40) PRIMARY KEY,
    connected_at bigint,
    router_type varchar(100),
    router_data text,
    last_connect bigint,
    node_id text,
    record_version bigint,
    version text,
    last_update bigint,
    expiry bigint,
    priv_channels varchar(40)[]
);
CREATE TABLE IF NOT EXISTS {meta} (
    channel_id varchar(40) NOT NULL,
    uaid varchar(40) NOT NULL REFERENCES {router} ON DELETE CASCADE,
    PRIMARY KEY (uaid, channel_id)
);
CREATE TABLE IF NOT EXISTS {reliability} (
    id varchar(40) PRIMARY KEY,
    states jsonb,
    last_update_timestamp bigint
);
CREATE TABLE IF NOT EXISTS {message} (
    uaid varchar(40) NOT NULL REFERENCES {router} ON DELETE CASCADE,
    channel_id varchar(40),
    chid_message_id varchar(100) COLLATE "C",
    version text,
    ttl bigint,
    expiry bigint,
    topic varchar,
    "timestamp" bigint,
    data text,
    sortkey_timestamp bigint,
    headers text,
    reliability_id varchar(40) REFERENCES {reliability},
    PRIMARY KEY (uaid, chid_message_id)
);
"""

# Rows of Autopush's first releases have no expiry: the sweep needs one, so it is added. A message
# may refer to the log of tracked messages, so a removal from the log checks for such messages.
_ADDITIONS = """
ALTER TABLE {message} ADD COLUMN IF NOT EXISTS accepted_at_ms bigint;
ALTER TABLE {message} ADD COLUMN IF NOT EXISTS extras text;
ALTER TABLE {router} ALTER COLUMN node_id TYPE text;
UPDATE {router} SET expiry = connected_at / 1000 + {lifetime_s} WHERE expiry IS NULL;
UPDATE {message} SET expiry = "timestamp" + ttl WHERE expiry IS NULL;
CREATE INDEX IF NOT EXISTS waystation_message_expiry ON {message} (expiry);
CREATE INDEX IF NOT EXISTS waystation_router_expiry ON {router} (expiry);
CREATE INDEX IF NOT EXISTS waystation_message_tracked ON {message} (reliability_id)
    WHERE reliability_id IS NOT NULL;
CREATE INDEX IF NOT EXISTS waystation_reliability_end ON {reliability} (last_update_timestamp);
"""

_OWN_TABLES = """
CREATE TABLE {update} (
    uaid varchar(40) NOT NULL,
    channel_id varchar(40) NOT NULL,
    version numeric NOT NULL,
    PRIMARY KEY (uaid, channel_id),
    FOREIGN KEY (uaid, channel_id) REFERENCES {meta} (uaid, channel_id) ON DELETE CASCADE
);
CREATE TABLE {broadcast} (id text PRIMARY KEY, version text NOT NULL);
CREATE TABLE {status} (
    message_id text PRIMARY KEY,
    sender bytea NOT NULL,
    milestones jsonb NOT NULL,
    keep_until_ms bigint NOT NULL
);
CREATE INDEX waystation_status_end ON {status} (keep_until_ms);
CREATE TABLE {tracked} (
    id text PRIMARY KEY,
    milestone text NOT NULL,
    ended boolean NOT NULL,
    expires_at_ms bigint NOT NULL
);
CREATE INDEX waystation_tracked_end ON {tracked} (ended, expires_at_ms);
CREATE TABLE {counted} (milestone text PRIMARY KEY, n bigint NOT NULL);
"""

# Each statement of a function sees all earlier commits; a single statement would count the channels
# as of the time before it waited for the lock.
_ADD_CHANNEL = """
CREATE FUNCTION {add_channel}(
    the_uaid text, the_channel text, channels_max int, now_s bigint
) RETURNS boolean LANGUAGE plpgsql AS $body$
BEGIN
    PERFORM FROM {router} AS r WHERE r.uaid = the_uaid AND {router_end} > now_s FOR NO KEY UPDATE;
    IF NOT FOUND THEN
        RETURN false;
    END IF;
    PERFORM FROM {meta} AS m WHERE m.uaid = the_uaid AND m.channel_id = the_channel;
    IF FOUND THEN
        RETURN true;
    END IF;
    IF (SELECT count(*) FROM {meta} AS m WHERE m.uaid = the_uaid) >= channels_max THEN
        RETURN false;
    END IF;
    INSERT INTO {meta} (uaid, channel_id) VALUES (the_uaid, the_channel) ON CONFLICT DO NOTHING;
    RETURN true;
END
$body$;
"""

# Before PostgreSQL 18 no single statement can return the old values of a row that it changes.
_UPDATE_TIMES = """
ALTER TABLE {update} ADD COLUMN accepted_at_ms bigint, ADD COLUMN accepted_version numeric;
CREATE FUNCTION {save_update}(
    the_uaid text, the_channel text, the_version numeric, the_time_ms bigint, now_s bigint,
    OUT applied boolean, OUT held_version numeric, OUT held_at_ms bigint
) LANGUAGE plpgsql AS $body$
BEGIN
    PERFORM FROM {meta} AS m JOIN {router} AS r ON r.uaid = m.uaid
        WHERE m.uaid = the_uaid AND m.channel_id = the_channel AND {router_end} > now_s
        FOR KEY SHARE OF m;
    applied := false;
    IF NOT FOUND THEN
        RETURN;
    END IF;
    LOOP
        INSERT INTO {update} (uaid, channel_id, version, accepted_at_ms, accepted_version)
            VALUES (the_uaid, the_channel, the_version, the_time_ms, the_version)
            ON CONFLICT DO NOTHING;
        IF FOUND THEN
            applied := true;
            RETURN;
        END IF;
        SELECT u.version, {update_time} INTO held_version, held_at_ms FROM {update} AS u
            WHERE u.uaid = the_uaid AND u.channel_id = the_channel FOR UPDATE;
        EXIT WHEN FOUND;  -- else it was forgotten meanwhile
    END LOOP;
    IF held_version < the_version THEN
        UPDATE {update} AS u
            SET version = the_version, accepted_at_ms = the_time_ms, accepted_version = the_version
            WHERE u.uaid = the_uaid AND u.channel_id = the_channel;
        applied := true;
    END IF;
END
$body$;
"""


class ForeignTablesError(StoreUnavailableError):
    """The tables are Autopush's or of an earlier release; the operator must run `store init`."""

    label = "foreign_tables"


async def init_store(url: str, settings: Store) -> list[str]:
    """Create what is missing; returns a sentence for each change. May run repeatedly and while
    servers, also Autopush's, use the store."""
    parsed = parse_postgres_url(url, settings.db_settings)
    try:
        connection = await connect(parsed, settings)
        try:
            done = [await _check_version(connection)]
            done += await migrate(connection, Tables(parsed))
        finally:
            await close_connection(connection)
    except DriverError as exc:
        raise store_error(exc) from exc
    return done


async def make_ready(connection: Connection, url: PostgresUrl) -> None:
    """At start-up: initialises an empty database; raises for foreign tables."""
    tables = Tables(url)
    missing = await _missing(connection, tables)
    if not missing:
        return
    if len(missing) == len(_STEPS) and not await _exists(connection, tables.router):
        await _check_version(connection)
        await migrate(connection, tables)
        return
    raise ForeignTablesError(
        f"the tables in {url.address} are Autopush's, or of an earlier release:"
        " run `waystation store init` with the same settings"
    )


async def migrate(connection: Connection, tables: Tables) -> list[str]:
    done: list[str] = []
    async with connection.transaction():
        await connection.execute("SELECT pg_advisory_xact_lock($1)", _LOCK)
        if tables.schema is not None and not await connection.fetchval(
            "SELECT EXISTS (SELECT FROM pg_namespace WHERE nspname = $1)", tables.schema
        ):
            await connection.execute(f'CREATE SCHEMA "{tables.schema}"')
            done.append(f"made the schema {tables.schema}")
        await connection.execute(
            tables.fill(
                "CREATE TABLE IF NOT EXISTS {migration} (step int PRIMARY KEY,"
                " done_at timestamptz NOT NULL DEFAULT now(), what text NOT NULL)"
            )
        )
        for step in await _missing(connection, tables):
            what = await _STEPS[step](connection, tables)
            await connection.execute(
                tables.fill("INSERT INTO {migration} (step, what) VALUES ($1, $2)"), step, what
            )
            done.append(what)
    return done or ["the tables are up to date"]


async def _autopush_tables(connection: Connection, tables: Tables) -> str:
    taken_over = await _exists(connection, tables.message)
    await connection.execute(tables.fill(_AUTOPUSH_TABLES))
    return "took over the tables of Autopush" if taken_over else "made the tables of Autopush"


async def _own_tables(connection: Connection, tables: Tables) -> str:
    await connection.execute(tables.fill(_ADDITIONS))
    if await _collation(connection, tables) != "C":
        await connection.execute(
            tables.fill(
                "CREATE INDEX IF NOT EXISTS waystation_message_order ON {message}"
                ' (uaid, chid_message_id COLLATE "C")'
            )
        )
    await connection.execute(tables.fill(_OWN_TABLES))
    await connection.execute(tables.fill(_ADD_CHANNEL))
    return "added the columns, indexes and tables of our own"


async def _update_times(connection: Connection, tables: Tables) -> str:
    await connection.execute(tables.fill(_UPDATE_TIMES))
    return "added the times of SimplePush updates"


_STEPS: dict[int, Callable[[Connection, Tables], Awaitable[str]]] = {
    1: _autopush_tables,
    2: _own_tables,
    3: _update_times,
}


async def _missing(connection: Connection, tables: Tables) -> list[int]:
    steps: set[int] = set()
    if await _exists(connection, tables.migration):
        rows = await connection.fetch(tables.fill("SELECT step FROM {migration}"))
        steps = {row["step"] for row in rows}
    return [step for step in _STEPS if step not in steps]


async def _exists(connection: Connection, table: str) -> bool:
    return await connection.fetchval("SELECT to_regclass($1) IS NOT NULL", table)


async def _collation(connection: Connection, tables: Tables) -> str:
    return await connection.fetchval(
        "SELECT c.collname FROM pg_attribute AS a JOIN pg_collation AS c ON c.oid = a.attcollation"
        " WHERE a.attrelid = $1::text::regclass AND a.attname = 'chid_message_id'",
        tables.message,
    )


async def _check_version(connection: Connection) -> str:
    version: str = await connection.fetchval("SELECT current_setting('server_version')")
    if connection.get_server_version().major < MAJOR_MIN:
        raise StoreUnavailableError(f"PostgreSQL {version} is too old: use {MAJOR_MIN} or later")
    return f"PostgreSQL {version.partition(' ')[0]}"
