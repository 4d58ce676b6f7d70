"""Parses the URL of a PostgreSQL store: server, credentials, TLS, tables and lifetimes.

`postgres://[USER[:PASSWORD]@]HOST[:PORT]/DATABASE[?option=…]`, `postgresql://…` alike. Autopush's
settings of PostgreSQL (`schema`, the names of the tables, `max_router_ttl`) come from the query
and from `db_settings`. This module does not import the driver.
"""

import re
from typing import Any
from urllib.parse import parse_qsl, unquote, urlencode, urlsplit, urlunsplit

import msgspec

from waystation.base.settings import SettingsError
from waystation.push.model import USER_AGENT_LIFETIME_S
from waystation.storage.db_settings import read_db_settings

# Names are inserted into statements, so their characters are restricted. Autopush does not quote
# them, so they are lower case.
_NAME = re.compile(r"[a-z_][a-z0-9_$]{0,62}")
_TABLES = ("router_table", "message_table", "meta_table", "reliability_table")
_AUTOPUSH = ("schema", *_TABLES, "max_router_ttl")
_TLS = ("sslmode", "sslrootcert", "sslcert", "sslkey", "sslcrl", "sslnegotiation")
_OURS = ("connect_timeout", "application_name", "statement_cache_size", "target_session_attrs")
# Options of other drivers; asyncpg uses the system's keep-alive.
_PASSED_OVER = ("keepalives", "keepalives_idle", "keepalives_interval", "keepalives_retries")


class PostgresUrl(msgspec.Struct, frozen=True, kw_only=True):
    """Server, credentials, options and table names of a PostgreSQL store."""

    dsn: str  # for the driver: without Waystation's and Autopush's options
    schema: str | None = None
    router_table: str = "router"
    message_table: str = "message"
    meta_table: str = "meta"
    reliability_table: str = "reliability"
    max_router_ttl_s: int = USER_AGENT_LIFETIME_S
    connect_timeout_s: float | None = None  # None: `store.connect_timeout_s` applies
    application_name: str = "waystation"
    statement_cache_size: int = 100  # set 0 behind a pooler that shares connections

    @property
    def address(self) -> str:
        """Server and database without credentials, for messages."""
        parts = urlsplit(self.dsn)
        return f"{parts.netloc.rpartition('@')[2] or 'localhost'}{parts.path}"

    def __repr__(self) -> str:  # without the password
        return f"PostgresUrl({self.address})"


def parse_postgres_url(url: str, db_settings: str = "") -> PostgresUrl:
    """Raises `SettingsError` without repeating credentials or the query."""
    parts = urlsplit(url.strip())
    try:
        _ = parts.port
    except ValueError:
        raise SettingsError(["store.url: PostgreSQL's port must be at most 65535"]) from None
    options: dict[str, Any] = dict(parse_qsl(parts.query, keep_blank_values=True))
    known = (*_AUTOPUSH, *_OURS, *_TLS, *_PASSED_OVER)
    for name in sorted(options.keys() - set(known)):
        raise SettingsError(
            [f"store.url: a PostgreSQL URL has no option {name!r}; there are {', '.join(known)}"]
        )
    for_driver = {
        name: options[name] for name in (*_TLS, "target_session_attrs") if name in options
    }
    dsn = urlunsplit(("postgresql", parts.netloc, parts.path, urlencode(for_driver), ""))
    options = read_db_settings(db_settings, "PostgreSQL", _AUTOPUSH) | options
    fields: dict[str, Any] = {
        name: _name(name, options[name]) for name in _TABLES if options.get(name)
    }
    if options.get("schema"):
        fields["schema"] = _name("schema", options["schema"])
    if "max_router_ttl" in options:
        fields["max_router_ttl_s"] = _number("max_router_ttl", options["max_router_ttl"], least=1)
    if "connect_timeout" in options:
        seconds = _number("connect_timeout", options["connect_timeout"], least=0)
        fields["connect_timeout_s"] = seconds or None  # 0: `store.connect_timeout_s` applies
    if "statement_cache_size" in options:
        size = _number("statement_cache_size", options["statement_cache_size"], least=0)
        fields["statement_cache_size"] = size
    if options.get("application_name"):
        fields["application_name"] = str(options["application_name"])
    return PostgresUrl(dsn=dsn, **fields)


def _name(option: str, value: object) -> str:
    name = unquote(str(value)).lower()
    if not _NAME.fullmatch(name):
        raise SettingsError(
            [f"store: {option} must have at most 63 letters, digits and underscores"]
        )
    return name


def _number(option: str, value: object, *, least: int) -> int:
    text = str(value)
    number = int(text) if text.isascii() and text.isdecimal() and len(text) <= 10 else -1
    if number < least:
        raise SettingsError([f"store: {option} must be a whole number, at least {least}"])
    return number
