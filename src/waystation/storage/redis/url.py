"""Parses the URL of a Redis store: servers, credentials, TLS and lifetimes.

`redis://[USER:PASSWORD@]HOST[:PORT][/DB]`, `rediss://…` with TLS, and
`redis+cluster://[USER:PASSWORD@]HOST:PORT[,HOST:PORT…][?tls=1]`. Autopush's settings of Redis
(`create_timeout`, `router_ttl`, `notification_ttl`, in seconds) come from the query and from
`db_settings`. This module does not import the driver.
"""

from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

import msgspec

from waystation.base.settings import SettingsError
from waystation.push.model import TTL_MAX_S, USER_AGENT_LIFETIME_S
from waystation.storage.db_settings import read_db_settings

DEFAULT_PORT = 6379

_SECONDS = ("create_timeout", "router_ttl", "notification_ttl")
_FILES = ("ssl_ca_certs", "ssl_certfile", "ssl_keyfile")
_FLAGS = ("tls", "ssl_check_hostname")


class Address(msgspec.Struct, frozen=True, gc=False):
    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


class RedisUrl(msgspec.Struct, frozen=True, kw_only=True):
    """Addresses, credentials and options of a Redis store."""

    addresses: tuple[Address, ...]  # of a cluster: some nodes, which name the others
    cluster: bool = False
    db: int = 0
    username: str = ""
    password: str = ""
    tls: bool = False
    ssl_ca_certs: str = ""
    ssl_certfile: str = ""
    ssl_keyfile: str = ""
    ssl_check_hostname: bool = True
    create_timeout_s: int | None = None  # None: `store.connect_timeout_s` applies
    router_ttl_s: int = USER_AGENT_LIFETIME_S
    notification_ttl_s: int = TTL_MAX_S

    def __repr__(self) -> str:  # without the password
        servers = ",".join(str(address) for address in self.addresses)
        return f"RedisUrl({servers}/{self.db})"


def parse_redis_url(url: str, db_settings: str = "") -> RedisUrl:
    """Raises `SettingsError` without repeating credentials or the query."""
    parts = urlsplit(url.strip())
    cluster = parts.scheme == "redis+cluster"
    fields = _addresses_and_credentials(parts.netloc)
    options: dict[str, Any] = dict(parse_qsl(parts.query, keep_blank_values=True))
    options = read_db_settings(db_settings, "Redis", _SECONDS) | options
    for name in sorted(options.keys() - {*_SECONDS, *_FILES, *_FLAGS}):
        known = ", ".join((*_SECONDS, *_FILES, *_FLAGS))
        raise SettingsError([f"store.url: a Redis URL has no option {name!r}; there are {known}"])
    fields |= {name: str(options[name]) for name in _FILES if name in options}
    fields |= {name: _flag(name, options[name]) for name in _FLAGS if name in options}
    fields |= {f"{name}_s": _seconds(name, options[name]) for name in _SECONDS if name in options}
    if parts.scheme == "rediss":
        fields["tls"] = True
    return RedisUrl(**fields, cluster=cluster, db=_db(parts.path, cluster))


def _addresses_and_credentials(netloc: str) -> dict[str, Any]:
    credentials, _, servers = netloc.rpartition("@")
    username, _, password = credentials.partition(":")
    addresses = tuple(_address(server) for server in servers.split(","))
    return {"addresses": addresses, "username": unquote(username), "password": unquote(password)}


def _address(server: str) -> Address:
    try:
        parts = urlsplit(f"//{server}")
        return Address(unquote(parts.hostname or "127.0.0.1"), parts.port or DEFAULT_PORT)
    except ValueError:
        raise SettingsError(["store.url: name a Redis server as HOST or HOST:PORT"]) from None


def _db(path: str, cluster: bool) -> int:
    text = path.strip("/")
    if text and not text.isdecimal():
        raise SettingsError(["store.url: the path of a Redis URL must be a database number"])
    if cluster and text not in ("", "0"):
        raise SettingsError(["store.url: Redis Cluster has database 0 only"])
    return int(text or 0)


def _seconds(name: str, value: object) -> int:
    text = str(value)
    # Autopush's `create_timeout` 0 means the default.
    least = 0 if name == "create_timeout" else 1
    if not (text.isdecimal() and least <= int(text) < 1 << 32):
        raise SettingsError([f"store: {name} must be a whole number of seconds, at least {least}"])
    return int(text)


def _flag(name: str, value: object) -> bool:
    text = str(value).lower()
    if text not in ("0", "1", "false", "true", "no", "yes"):
        raise SettingsError([f"store.url: {name} must be 0 or 1"])
    return text in ("1", "true", "yes")
