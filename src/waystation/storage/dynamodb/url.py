"""What the URL of a DynamoDB store says: region, table names, rotation.

`dynamodb://REGION[/PREFIX][?option=…]`; options: `endpoint`, `rotation` (`off` or `monthly`),
`create_tables` (`on` or `off`), `router_table`, `message_table`, `storage_table`, `read_units`,
`write_units` and `key_hash`. Autopush's settings (`router_table`, `message_table`,
`no_table_rotation`) are taken from `db_settings` as well; the URL wins. Nothing here needs the
driver.
"""

import re
from typing import Any, Literal
from urllib.parse import parse_qsl, urlsplit

import msgspec

from waystation.base.settings import SettingsError
from waystation.storage.db_settings import read_db_settings
from waystation.storage.dynamodb.months import month_of_name

Rotation = Literal["off", "monthly"]

_TABLES = ("router_table", "message_table", "storage_table")
_UNITS = ("read_units", "write_units")
_OPTIONS = ("endpoint", "rotation", "create_tables", *_TABLES, *_UNITS, "key_hash")
# The other two are Autopush's way to say what we find out by asking for the tables.
_AUTOPUSH = (
    "router_table",
    "message_table",
    "no_table_rotation",
    "message_table_names",
    "current_message_month",
)
_NAME = re.compile(r"[A-Za-z0-9_.-]{3,255}")
_PREFIX = re.compile(r"[A-Za-z0-9_.-]{1,128}")


class DynamoUrl(msgspec.Struct, frozen=True, kw_only=True):
    """Which tables, and where."""

    region: str
    endpoint: str = ""  # empty: the service of the region
    rotation: Rotation = "off"
    create_tables: bool = True  # those that are missing when the store opens
    router_table: str = "router"
    message_table: str = "message"  # of monthly tables: what stands before _YYYY_MM
    storage_table: str = "storage"  # SimplePush's versions
    own_table: str = "waystation"  # what Autopush has no table for
    read_units: int = 0  # 0: tables are made that are paid by the request
    write_units: int = 0
    key_hash: str = ""

    def __repr__(self) -> str:  # the key of the hash never reaches a line
        return f"DynamoUrl({self.region}, {self.router_table}, rotation={self.rotation})"


def parse_dynamodb_url(url: str, db_settings: str = "") -> DynamoUrl:
    """Raises `SettingsError`; its sentences do not repeat the query."""
    parts = urlsplit(url.strip())
    region = parts.netloc
    if not region or "@" in region or ":" in region:
        raise SettingsError(["store.url: after dynamodb:// comes a region, as in eu-central-1"])
    options: dict[str, Any] = dict(parse_qsl(parts.query, keep_blank_values=True))
    for name in sorted(options.keys() - set(_OPTIONS)):
        known = ", ".join(_OPTIONS)
        raise SettingsError([f"store.url: a DynamoDB URL has no option {name!r}; it has {known}"])
    settings = read_db_settings(db_settings, "DynamoDB", _AUTOPUSH)
    options = {name: settings[name] for name in _TABLES if settings.get(name)} | options
    rotation = options.get("rotation") or _autopush_rotation(settings.get("no_table_rotation"))
    if rotation not in ("off", "monthly"):
        raise SettingsError(["store.url: rotation is off or monthly"])
    create_tables = options.get("create_tables", "on")
    if create_tables not in ("on", "off"):
        raise SettingsError(["store.url: create_tables is on or off"])
    names = _table_names(parts.path.strip("/"), options)
    read_units = _units("read_units", options.get("read_units", "0"))
    write_units = _units("write_units", options.get("write_units", "0"))
    if (read_units == 0) != (write_units == 0):
        raise SettingsError(["store.url: read_units and write_units are given together"])
    return DynamoUrl(
        region=region,
        endpoint=_endpoint(options.get("endpoint", "")),
        rotation=rotation,
        create_tables=create_tables == "on",
        key_hash=options.get("key_hash", ""),
        read_units=read_units,
        write_units=write_units,
        **names,
    )


def _table_names(prefix: str, options: dict[str, Any]) -> dict[str, str]:
    if prefix and not _PREFIX.fullmatch(prefix):
        raise SettingsError(["store.url: a prefix of tables has letters, digits, `_`, `.`, `-`"])
    before = f"{prefix}_" if prefix else ""
    names = {"own_table": f"{before}waystation"}
    for option in _TABLES:
        default = before + option.removesuffix("_table")
        names[option] = str(options.get(option) or default)
    if month_of_name(names["message_table"]) is not None:  # Autopush names the month's own table
        names["message_table"] = names["message_table"].rsplit("_", 2)[0]
    for option, name in names.items():
        if not _NAME.fullmatch(name):
            raise SettingsError(
                [f"store.url: {option} is 3 to 255 letters, digits, `_`, `.` or `-`"]
            )
    return names


def _autopush_rotation(no_table_rotation: Any) -> str:
    """Unless it is said there, ours: off."""
    if no_table_rotation not in (None, True, False):
        raise SettingsError(["store.db_settings: no_table_rotation is true or false"])
    return "monthly" if no_table_rotation is False else "off"


def _endpoint(text: str) -> str:
    if not text:
        return ""
    parts = urlsplit(text)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise SettingsError(["store.url: endpoint is the http or https URL of a DynamoDB"])
    return text


def _units(name: str, text: str) -> int:
    if not text.isdecimal():
        raise SettingsError([f"store.url: {name} is a number of capacity units"])
    return int(text)
