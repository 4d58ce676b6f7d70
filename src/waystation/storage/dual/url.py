"""Parses the URL of a dual store: both stores, which user agents move, and what is written to both.

The form is `dual:?primary=URL&secondary=URL[&option=…]`, each URL percent-encoded. Options:
`write_to_secondary`, `median`, `end_median`, and `tombstones`, which is set while `waystation
pipeline migrate` runs so that it copies nothing that was acked. Autopush's form is `dual` with all
of this in `db_settings`. A user agent is allotted to the primary if the first byte of its uaid is
at most `median` or the last byte at most `end_median`, both in hex; `none` allots no user agent.
"""

from typing import Any
from urllib.parse import parse_qsl, quote

import msgspec

from waystation.base.settings import SettingsError
from waystation.push.model import Uaid

_OPTIONS = ("primary", "secondary", "write_to_secondary", "median", "end_median", "tombstones")
_NOBODY = -1
_TRUE = {"1": True, "true": True, "0": False, "false": False}


class StoreDsn(msgspec.Struct, frozen=True):
    """URL and `db_settings` of one of the two stores."""

    url: str
    db_settings: str = ""


class DualUrl(msgspec.Struct, frozen=True, kw_only=True):
    """Two stores, and the options of the move."""

    primary: StoreDsn
    secondary: StoreDsn
    write_to_secondary: bool = False
    median: int | None = None
    end_median: int | None = None
    tombstones: bool = False

    @property
    def parts(self) -> tuple[StoreDsn, StoreDsn]:
        return self.primary, self.secondary

    def __repr__(self) -> str:  # the URLs may hold passwords
        return f"DualUrl(write_to_secondary={self.write_to_secondary}, median={self.median})"

    def allots(self, uaid: Uaid) -> bool:
        """Whether the user agent is allotted to the primary."""
        if self.median is None and self.end_median is None:
            return True
        first, last = self.median, self.end_median
        return (first is not None and uaid[0] <= first) or (last is not None and uaid[-1] <= last)


class _DsnSettings(msgspec.Struct, forbid_unknown_fields=True):
    dsn: str
    db_settings: str | dict[str, Any] | None = None

    def store_dsn(self) -> StoreDsn:
        settings = self.db_settings or ""
        if not isinstance(settings, str):
            settings = msgspec.json.encode(settings).decode()
        return StoreDsn(_dynamodb(self.dsn), settings)


class _Settings(msgspec.Struct, forbid_unknown_fields=True):
    """Autopush's names, and its default: `write_to_secondary` is on."""

    primary: _DsnSettings
    secondary: _DsnSettings
    write_to_secondary: bool = True
    median: str | None = None
    end_median: str | None = None
    tombstones: bool = False


def parse_dual_url(url: str, db_settings: str = "") -> DualUrl:
    """Raises `SettingsError` without repeating either URL. The two URLs are not parsed."""
    _, _, rest = url.strip().partition(":")
    place, _, query = rest.partition("?")
    if place.strip("/"):
        raise SettingsError(["store.url: `dual:` must be followed by `?primary=…&secondary=…`"])
    parsed = _from_query(query) if query else _from_settings(db_settings)
    for name, store in (("primary", parsed.primary), ("secondary", parsed.secondary)):
        if not store.url:
            raise SettingsError([f"store.url: `dual:` needs {name}=URL, percent-encoded"])
        if store.url.partition(":")[0] == "dual":
            raise SettingsError([f"store.url: the {name} of `dual:` cannot be a dual store"])
    if parsed.primary == parsed.secondary and parsed.primary.url.partition(":")[0] != "memory":
        raise SettingsError(["store.url: primary and secondary of `dual:` are the same store"])
    return parsed


def _from_query(query: str) -> DualUrl:
    options = dict(parse_qsl(query, keep_blank_values=True))
    for name in sorted(options.keys() - set(_OPTIONS)):
        known = ", ".join(_OPTIONS)
        raise SettingsError([f"store.url: `dual:` has no option {name!r}; it has {known}"])
    for name in ("write_to_secondary", "tombstones"):
        if options.get(name, "0").lower() not in _TRUE:
            raise SettingsError([f"store.url: {name} must be 1 or 0"])
    return DualUrl(
        primary=StoreDsn(_dynamodb(options.get("primary", ""))),
        secondary=StoreDsn(_dynamodb(options.get("secondary", ""))),
        write_to_secondary=_TRUE[options.get("write_to_secondary", "0").lower()],
        tombstones=_TRUE[options.get("tombstones", "0").lower()],
        median=_median("median", options.get("median")),
        end_median=_median("end_median", options.get("end_median")),
    )


def _from_settings(db_settings: str) -> DualUrl:
    if not db_settings.strip():
        raise SettingsError(
            ["store.url: `dual:` needs ?primary=URL&secondary=URL, or both in store.db_settings"]
        )
    try:
        settings = msgspec.json.decode(db_settings, type=_Settings)
    except msgspec.MsgspecError as exc:
        raise SettingsError([f"store.db_settings: invalid for a dual store: {exc}"]) from None
    return DualUrl(
        primary=settings.primary.store_dsn(),
        secondary=settings.secondary.store_dsn(),
        write_to_secondary=settings.write_to_secondary,
        tombstones=settings.tombstones,
        median=_median("median", settings.median),
        end_median=_median("end_median", settings.end_median),
    )


def _median(name: str, text: str | None) -> int | None:
    if not text:
        return None
    if text == "none":
        return _NOBODY
    try:
        (value,) = bytes.fromhex(text)
    except ValueError:
        raise SettingsError([f"store.url: {name} must be a hex byte, 00 to ff, or none"]) from None
    return value


def _dynamodb(url: str) -> str:
    """Autopush's DSN of DynamoDB is its endpoint address."""
    if url.startswith(("http://", "https://")):
        return f"dynamodb://us-east-1?endpoint={quote(url.rstrip('/'), safe='')}"
    return url
