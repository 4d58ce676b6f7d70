"""What the URL of a PostgreSQL store says: server, credentials, TLS, tables and lifetimes.

`postgres://[USER[:PASSWORD]@]HOST[:PORT]/DATABASE[?option=…]`, `postgresql://…` alike. Autopush's
settings of PostgreSQL (`schema`, the names of the tables, `max_router_ttl`) are taken from the
query and from `db_settings`. Nothing here needs the driver.
"""

import re
from typing import Any
from urllib.parse import parse_qsl, unquote, urlencode, urlsplit, urlunsplit

import msgspec

from waystation.base.settings import SettingsError
from waystation.push.model import USER_AGENT_LIFETIME_S
from waystation.storage.db_settings import read_db_settings

# Names go into statements as they are, so they are plain ones. Autopush does not quote them, which
# makes them lower case.
_NAME = re.compile(r"[a-z_][a-z0-9_$]{0,62}")
_TABLES = ("router_table", "message_table", "meta_table", "reliability_table")
_AUTOPUSH = ("schema", *_TABLES, "max_router_ttl")
_TLS = ("sslmode", "sslrootcert", "sslcert", "sslkey", "sslcrl", "sslnegotiation")
_OURS = ("connect_timeout", "application_name", "statement_cache_size", "target_session_attrs")
# Drivers of others know them; ours keeps connections alive as the system does.
_PASSED_OVER = ("keepalives", "keepalives_idle", "keepalives_interval", "keepalives_retries")


class PostgresUrl(msgspec.Struct, frozen=True, kw_only=True):
    """Where a PostgreSQL is, how to come in, and what the tables are called."""

    dsn: str  # what the driver understands: no options of ours or of Autopush
    schema: str | None = None
    router_table: str = "router"
    message_table: str = "message"
    meta_table: str = "meta"
    reliability_table: str = "reliability"
    max_router_ttl_s: int = USER_AGENT_LIFETIME_S
    connect_timeout_s: float | None = None  # None: the store's own setting
    application_name: str = "waystation"
    statement_cache_size: int = 100  # 0 behind a pooler that shares connections

    @property
    def address(self) -> str:
        """For people: the server and the database, without credentials."""
        parts = urlsplit(self.dsn)
        return f"{parts.netloc.rpartition('@')[2] or 'localhost'}{parts.path}"

    def __repr__(self) -> str:  # a password never reaches a line
        return f"PostgresUrl({self.address})"


def parse_postgres_url(url: str, db_settings: str = "") -> PostgresUrl:
    """Raises `SettingsError`; its sentences repeat neither credentials nor the query."""
    parts = urlsplit(url.strip())
    try:
        _ = parts.port
    except ValueError:
        raise SettingsError(["store.url: the port of PostgreSQL is a number up to 65535"]) from None
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
        fields["connect_timeout_s"] = seconds or None  # 0 says that there is none of its own
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
            [f"store: {option} is a name of letters, digits and underscores, at most 63 of them"]
        )
    return name


def _number(option: str, value: object, *, least: int) -> int:
    text = str(value)
    number = int(text) if text.isascii() and text.isdecimal() and len(text) <= 10 else -1
    if number < least:
        raise SettingsError([f"store: {option} is a whole number, at least {least}"])
    return number
