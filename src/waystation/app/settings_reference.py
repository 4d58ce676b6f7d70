"""Renders settings: the reference page in Markdown, and the values in force as TOML."""

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from waystation.base.settings import SettingDoc, describe

from .autopush_settings import PREFIXES, daemon_names
from .settings import PREFIX, Settings

HIDDEN = "(set, not shown)"

_INTRODUCTION = """\
# Settings

<!-- Written by `make docs` (`waystation config docs`). Do not edit. -->

Defaults < TOML file (`--config FILE`) < environment < flags. A name such as `connect.port` is the
key `port` of the table `[connect]` in the file and `WAYSTATION_CONNECT__PORT` in the environment.
An unknown name is an error that says which known one is nearest.

The last two columns are for the drop-in daemons: `autoconnect` reads `AUTOCONNECT__…`,
`autoendpoint` reads `AUTOEND__…`, or the same names in lower case from a TOML file given with `-c`.
They ignore unknown names, but log each once. Their own defaults differ in a few places:
`autoconnect` listens on 0.0.0.0, `autoendpoint` on 127.0.0.1:8000; both run one worker, do not
spread the closes of a stop (`drain_s` 0) and write logs as Autopush does; `msg_limit` is 150 and
`simplepush` is off; `sort_keys` is `autopush` on Redis, PostgreSQL, Bigtable, DynamoDB, and on two
stores as one if either is one of them. `autoendpoint` needs `AUTOEND__AUTH_KEYS` and does not start
without it.
"""

_SECTION_TITLES = {
    "": "General",
    "log": "Logs",
    "tls": "TLS",
    "metrics": "Metrics",
    "ops": "Ops ports",
    "events": "The event log",
    "cluster": "Cluster",
    "store": "Store",
    "push": "Push: what both roles share",
    "connect": "Connection node",
    "endpoint": "Endpoint node",
    "fcm": "Bridge to FCM",
    "apns": "Bridge to APNs",
    "stub": "Stub of a bridge",
    "queue": "Queue server",
    "edge": "Front of a queue cluster",
    "controller": "Controller of a queue cluster",
    "presence": "Presence",
    "presence.auth": "Presence: who may join",
    "presence.redis": "Presence on Redis",
    "console": "Console",
    "pipeline": "Pipeline",
}


def render_markdown() -> str:
    """The whole reference page."""
    parts = [_INTRODUCTION]
    autoconnect, autoendpoint = daemon_names("autoconnect"), daemon_names("autoendpoint")
    section = None
    for row in describe(Settings, prefix=PREFIX):
        its_section = row.name.rpartition(".")[0]
        if its_section != section:
            section = its_section
            parts.append(
                f"\n## {_SECTION_TITLES[section]}\n\n"
                "| setting | default | what it does | environment | autoconnect | autoendpoint |\n"
                "|---|---|---|---|---|---|\n"
            )
        daemons = (
            _daemon_cell("autoconnect", autoconnect.get(row.name)),
            _daemon_cell("autoendpoint", autoendpoint.get(row.name)),
        )
        cells = (f"`{row.name}`", _default(row), row.sentence, f"`{row.env}`", *daemons)
        parts.append(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |\n")
    return "".join(parts)


def _daemon_cell(daemon: Any, name: str | None) -> str:
    return f"`{PREFIXES[daemon]}{name.replace('.', '__').upper()}`" if name else ""


def _default(row: SettingDoc) -> str:
    if row.default in ('""', "none"):
        return ""
    return f"`{row.default}`" + (f" {row.unit}" if row.unit else "")


def render_toml(settings: Settings, *, changed_only: bool = False) -> str:
    """The settings in force; secrets are shown as set, without their value."""
    docs = {row.name: row for row in describe(Settings, prefix=PREFIX)}
    defaults = dict(_leaves(Settings()))
    lines: list[str] = []
    section = ""
    for name, value in _leaves(settings):
        if changed_only and value == defaults[name]:
            continue
        its_section, _, leaf = name.rpartition(".")
        if its_section != section:
            section = its_section
            lines.extend(["", f"[{section}]"])
        shown = HIDDEN if docs[name].secret and value else value
        lines.append(f"{leaf} = {_toml(shown)}")
    return "\n".join(lines).strip("\n")


def _leaves(value: msgspec.Struct, path: str = "") -> Iterator[tuple[str, Any]]:
    for field in value.__struct_fields__:
        inner = getattr(value, field)
        if isinstance(inner, msgspec.Struct):
            yield from _leaves(inner, f"{path}{field}.")
        else:
            yield path + field, inner


def _toml(value: Any) -> str:
    match value:
        case bool():
            return "true" if value else "false"
        case float() if math.isinf(value):
            return "inf"
        case int() | float():
            return repr(value)
        case Path():
            return _toml(str(value))
        case _:
            return msgspec.json.encode(str(value)).decode()  # a basic TOML string is a JSON string
