"""What the URL of a Bigtable store says: project, instance, table, and how patient to be.

Ours is `bigtable://PROJECT/INSTANCE[/TABLE]?emulator=HOST:PORT`. Autopush's is `grpc://HOST[:PORT]`
with the table's whole name in `db_settings`; a loopback host means an emulator there. Autopush's
settings are taken from `db_settings` and from the query. Nothing here needs the driver.
"""

import ipaddress
import re
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

import msgspec

from waystation.base.settings import SettingsError
from waystation.push.model import USER_AGENT_LIFETIME_S
from waystation.storage.db_settings import read_db_settings

DEFAULT_TABLE = "autopush"
DEFAULT_HOST = "bigtable.googleapis.com"

# Autopush accepts names for its families and then uses these whatever was said.
FAMILY_NAMES = {
    "router_family": "router",
    "message_family": "message",
    "message_topic_family": "message_topic",
}

_TABLE_NAME = re.compile(r"projects/([^/]+)/instances/([^/]+)/tables/([^/]+)")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.:-]*")
_SECONDS = (
    "grpc_connect_timeout",
    "grpc_point_attempt_timeout",
    "grpc_point_total_timeout",
    "grpc_scan_attempt_timeout",
    "grpc_scan_total_timeout",
    "database_pool_wait_timeout",
    "max_router_ttl",
)
_COUNTS = {"grpc_channel_count": 1, "retry_count": 0, "database_pool_max_size": 1}
# Autopush knows them. The driver keeps its own channels alive, and asks the leader by app profile.
_WITHOUT_EFFECT = frozenset(
    {
        "database_pool_create_timeout",
        "database_pool_recycle_timeout",
        "database_pool_connection_ttl",
        "database_pool_max_idle",
        "grpc_channel_refresh_min",
        "grpc_channel_refresh_max",
        "route_to_leader",
    }
)
_OURS = ("emulator", "app_profile_id", *_SECONDS, *_COUNTS)
_AUTOPUSH = sorted(
    {"table_name", "profile_id", *_OURS, *FAMILY_NAMES, *_WITHOUT_EFFECT} - {"emulator"}
)


class BigtableUrl(msgspec.Struct, frozen=True, kw_only=True):
    """Which table, where, and Autopush's settings of it; None: the store's own setting rules."""

    project: str
    instance: str
    table: str = DEFAULT_TABLE
    host: str = DEFAULT_HOST
    emulator: str = ""  # HOST:PORT of one that needs neither TLS nor credentials
    app_profile_id: str = "default"
    grpc_channel_count: int = 4
    retry_count: int = 2
    database_pool_max_size: int | None = None
    database_pool_wait_timeout: int | None = None
    grpc_connect_timeout: int | None = None
    grpc_point_attempt_timeout: int | None = None
    grpc_point_total_timeout: int | None = None
    grpc_scan_attempt_timeout: int | None = None
    grpc_scan_total_timeout: int | None = None
    max_router_ttl: int = USER_AGENT_LIFETIME_S

    @property
    def table_name(self) -> str:
        return f"projects/{self.project}/instances/{self.instance}/tables/{self.table}"

    @property
    def instance_name(self) -> str:
        return f"projects/{self.project}/instances/{self.instance}"


def parse_bigtable_url(url: str, db_settings: str = "") -> BigtableUrl:
    """Raises `SettingsError` with a sentence for the first thing that is wrong."""
    parts = urlsplit(url.strip())
    options = _autopush_options(db_settings)
    table_name = options.pop("table_name", None)
    options |= dict(parse_qsl(parts.query, keep_blank_values=True))
    if parts.scheme == "grpc":
        fields = _grpc_place(parts.netloc, parts.path) | _named_table(table_name)
    else:
        fields = _place(parts.netloc, parts.path)
        if table_name:
            raise SettingsError(
                ["store.db_settings: table_name belongs to grpc://; bigtable:// names the table"]
            )
    fields |= _checked(options)
    parsed = BigtableUrl(**fields)
    _compare_timeouts(parsed)
    return parsed


def _place(netloc: str, path: str) -> dict[str, Any]:
    names = [unquote(netloc), *(unquote(part) for part in path.strip("/").split("/") if part)]
    if len(names) not in (2, 3) or not all(_NAME.fullmatch(name) for name in names):
        raise SettingsError(
            ["store.url: a Bigtable is bigtable://PROJECT/INSTANCE or with /TABLE after it"]
        )
    return dict(zip(("project", "instance", "table"), names, strict=False))


def _grpc_place(netloc: str, path: str) -> dict[str, Any]:
    if not netloc or path.strip("/"):
        raise SettingsError(
            ["store.url: Autopush's form of a Bigtable is grpc://HOST or HOST:PORT"]
        )
    try:
        parts = urlsplit(f"//{netloc}")
        host, port = parts.hostname or "", parts.port
    except ValueError:
        raise SettingsError(["store.url: after grpc:// comes HOST or HOST:PORT"]) from None
    if _loopback(host):
        return {"emulator": f"{_bracketed(host)}:{port or 8086}"}
    return {"host": _bracketed(host) if port is None else f"{_bracketed(host)}:{port}"}


def _loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host else host


def _named_table(table_name: object) -> dict[str, Any]:
    found = _TABLE_NAME.fullmatch(table_name) if isinstance(table_name, str) else None
    if found is None:
        raise SettingsError(
            [
                "store.db_settings: grpc:// needs table_name, in the form"
                " projects/PROJECT/instances/INSTANCE/tables/TABLE"
            ]
        )
    return dict(zip(("project", "instance", "table"), found.groups(), strict=True))


def _autopush_options(db_settings: str) -> dict[str, Any]:
    settings = read_db_settings(db_settings, "Bigtable", _AUTOPUSH)
    if "profile_id" in settings:  # its name in older releases
        settings.setdefault("app_profile_id", settings.pop("profile_id"))
    return settings


def _checked(options: dict[str, Any]) -> dict[str, Any]:
    fields: dict[str, Any] = {}
    for name, value in options.items():
        if name in _SECONDS:
            fields[name] = _whole(name, value, 1)
        elif name in _COUNTS:
            fields[name] = _whole(name, value, _COUNTS[name])
        elif name in FAMILY_NAMES:
            if value not in ("", FAMILY_NAMES[name]):
                raise SettingsError(
                    [f"store: {name} can only be {FAMILY_NAMES[name]!r}: Autopush uses no other"]
                )
        elif name in ("emulator", "app_profile_id"):
            if value:
                fields[name] = str(value)
        elif name not in _WITHOUT_EFFECT:
            raise SettingsError(
                [f"store.url: a Bigtable URL has no option {name!r}; there are {', '.join(_OURS)}"]
            )
    return fields


def _whole(name: str, value: object, least: int) -> int:
    text = str(value)
    if not (text.isdecimal() and least <= int(text) < 1 << 32):
        raise SettingsError([f"store: {name} is a whole number, at least {least}"])
    return int(text)


def _compare_timeouts(url: BigtableUrl) -> None:
    for kind in ("point", "scan"):
        attempt = getattr(url, f"grpc_{kind}_attempt_timeout")
        total = getattr(url, f"grpc_{kind}_total_timeout")
        if attempt is not None and total is not None and attempt > total:
            raise SettingsError(
                [f"store: grpc_{kind}_attempt_timeout is longer than grpc_{kind}_total_timeout"]
            )
