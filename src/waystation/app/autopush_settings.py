"""Settings of the drop-in daemons: maps Autopush's names and defaults to ours (webpush §8.4).

Names are `AUTOCONNECT__NAME` and `AUTOEND__NAME`, nested with two more underscores; a TOML file
given with `-c` uses the same names; the environment wins. Autopush's names come first, then ours:
the name of a setting with or without its unit (`delivery_window`, `min_ping_interval`), or its full
path (`connect__drain_s`). Unknown names, and names without effect here, are ignored as in Autopush,
but logged once. A retired setting and a bad value are refused under the name that was written.

On a store with Autopush's layout the default of `sort_keys` is Autopush's: its nodes may use the
same rows and refuse other keys.
"""

import socket
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Literal, cast

import msgspec

from waystation.base.settings import SettingsError, describe, load
from waystation.storage.open import has_autopush_layout, shared_by_machines

from .addresses import bracketed, origin
from .roles import Role
from .settings import RETIRED, Settings, cross_check, read_toml, replaced

Daemon = Literal["autoconnect", "autoendpoint"]
PREFIXES: Mapping[Daemon, str] = {"autoconnect": "AUTOCONNECT__", "autoendpoint": "AUTOEND__"}
ROLE_OF: Mapping[Daemon, Role] = {"autoconnect": "connect", "autoendpoint": "endpoint"}

_DEFAULTS: Mapping[Daemon, Mapping[str, Any]] = {
    "autoconnect": {
        "host": "0.0.0.0",
        "workers": 1,
        "log": {"form": "mozlog"},
        "store": {"table_units": 1},
        "connect": {"msg_limit": 150, "drain_s": 0.0, "simplepush": "off"},
    },
    "autoendpoint": {
        "host": "127.0.0.1",
        "workers": 1,
        "log": {"form": "mozlog"},
        "store": {"table_units": 1},
        "connect": {"drain_s": 0.0},
        "endpoint": {"port": 8000},
    },
}

# Autopush's name -> our setting. Names that are missing here equal ours, or are below.
_SHARED_NAMES = {
    "db_dsn": "store.url",
    "db_settings": "store.db_settings",
    "crypto_key": "push.crypto_keys",
    "crypto_keys": "push.crypto_keys",
    "tracking_keys": "push.tracking_keys",
    "pool_max_idle_per_host": "endpoint.pool_max_idle_per_host",
    "pool_idle_timeout_secs": "endpoint.pool_idle_timeout_s",
}
_NAMES: Mapping[Daemon, Mapping[str, str]] = {
    "autoconnect": {
        **_SHARED_NAMES,
        "port": "connect.port",
        "router_port": "connect.relay_port",
        "client_channel_capacity": "connect.delivery_window",
        "actix_max_connections": "connect.max_connections",
        "actix_workers": "workers",
    },
    "autoendpoint": {
        **_SHARED_NAMES,
        "port": "endpoint.port",
        "host": "host",
        "endpoint_url": "endpoint.url",
        "auth_key": "push.auth_keys",
        "connection_timeout_millis": "endpoint.connection_timeout_s",
        "request_timeout_millis": "endpoint.request_timeout_s",
    },
}
_MILLIS = ("connection_timeout_millis", "request_timeout_millis")

# Names of which several together make one of our settings.
_OWN_NAMES: Mapping[Daemon, frozenset[str]] = {
    "autoconnect": frozenset(
        {
            "hostname",
            "router_hostname",
            "resolve_hostname",
            "endpoint_scheme",
            "endpoint_hostname",
            "endpoint_port",
            "human_logs",
            "no_table_rotation",
        }
    ),
    "autoendpoint": frozenset({"scheme", "human_logs", "no_table_rotation"}),
}

# Known to Autopush, without effect here.
_WITHOUT_EFFECT = frozenset(
    {
        "statsd_host",
        "statsd_port",
        "statsd_label",
        "log_chan_size",
        "disable_sentry",
        "reliability_dsn",
        "reliability_retry_count",
        "router_table_name",
        "message_table_name",
        "kubernetes_memory_path",
        # Of the generation in Python:
        "key_hash",
        "datadog_api_key",
        "datadog_app_key",
        "datadog_flush_interval",
        "router_tablename",
        "message_tablename",
        "router_read_throughput",
        "router_write_throughput",
        "message_read_throughput",
        "message_write_throughput",
        "memusage_port",
        "env",
        "firehose_stream_name",
        "no_cors",
        "client_certs",
        "proxy_protocol_port",
        "close_handshake_timeout",
        "ssl_dh_param",
        # Of the stub's double, which is not asked for anything here:
        "stub.url",
        "stub.credentials",
        "stub.server_credentials",
    }
)
# Of discontinued bridges, and of Autopush's Python generation, which had other credentials.
_DISCONTINUED = ("gcm.", "adm.", "gcm_", "fcm_", "apns_", "adm_", "senderid_")
# Tables whose keys are chosen by the operator, not settings.
_TABLES = frozenset({"fcm.credentials", "apns.channels"})

_NOT_FOR_DAEMONS = frozenset({"port_base"})

_UNITS = ("_s", "_ms", "_bytes")


class DaemonSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The settings of a daemon, and the messages about them for its log."""

    settings: Settings
    unknown: tuple[str, ...] = ()  # names, as they were written
    without_effect: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()  # sentences


class _Named(msgspec.Struct, frozen=True):
    """A value, and the name under which it was written."""

    text: str
    written: str


def load_daemon_settings(
    daemon: Daemon,
    *,
    config: Path | None = None,
    env: Mapping[str, str],
    hostname: Callable[[], str] = socket.gethostname,
    resolve: Callable[[str], str] = socket.gethostbyname,
) -> DaemonSettings:
    """Raises `SettingsError` with all problems."""
    given = _given(daemon, config, env)
    table = _name_table(daemon)
    values: dict[str, _Named] = {}  # our path -> value
    own: dict[str, str] = {}
    unknown: list[str] = []
    without_effect: list[str] = []
    retired: list[str] = []
    for name, value in given.items():
        if name in _OWN_NAMES[daemon]:
            own[name] = value.text
        elif name in RETIRED:
            retired.append(f"{value.written}: this setting was retired: {RETIRED[name]}")
        elif name in table:
            values[table[name]] = _in_seconds(value) if name in _MILLIS else value
        elif name in _WITHOUT_EFFECT or name.startswith(_DISCONTINUED):
            without_effect.append(value.written)
        else:
            unknown.append(value.written)
    if retired:
        raise SettingsError(retired)
    unknown += _misspelled_prefixes(daemon, env)
    prefix = PREFIXES[daemon]
    translated = {prefix + path.replace(".", "__").upper(): v for path, v in values.items()}
    try:
        settings = load(
            Settings,
            defaults=_DEFAULTS[daemon],
            env={name: value.text for name, value in translated.items()},
            prefix=prefix,
        )
    except SettingsError as exc:
        raise SettingsError([_as_written(p, translated) for p in exc.problems]) from exc
    if not settings.store.url.strip():
        settings = replaced(settings, {"store": {"url": "embedded:./store"}})
    if (no_rotation := own.get("no_table_rotation")) is not None:
        if settings.store.url.startswith("dynamodb:"):
            settings = _with_rotation(settings, _switched_on(no_rotation))
        else:
            without_effect.append(given["no_table_rotation"].written)
    if "push.sort_keys" not in values and has_autopush_layout(
        settings.store.url, settings.store.db_settings
    ):
        settings = replaced(settings, {"push": {"sort_keys": "autopush"}})
    settings, warnings = _with_good_tracking_keys(settings)
    derive = _derived_for_connect if daemon == "autoconnect" else _derived_for_endpoint
    settings = derive(settings, own, hostname=hostname, resolve=resolve)
    problems = cross_check(settings, (ROLE_OF[daemon],))
    if daemon == "autoendpoint" and not settings.push.auth_keys.strip("[]\"' ,"):
        problems.append(
            "AUTOEND__AUTH_KEYS is empty. Without it anyone could compute the registration secret"
            " of any user agent, so autoendpoint does not start. Set it to a list of long random"
            " texts, newest first; `waystation keys auth-key` makes one"
        )
    if problems:
        raise SettingsError(problems)
    return DaemonSettings(
        settings=settings,
        unknown=tuple(unknown),
        without_effect=tuple(without_effect),
        warnings=warnings,
    )


def daemon_names(daemon: Daemon) -> dict[str, str]:
    """Our setting -> its name for that daemon, as documents show it."""
    names: dict[str, str] = {}
    for name, path in _name_table(daemon).items():
        known = names.get(path)
        if known is None or name in _NAMES[daemon]:
            names[path] = name
    return names


def _given(daemon: Daemon, config: Path | None, env: Mapping[str, str]) -> dict[str, _Named]:
    """All given names, in lower case with dots; the environment wins over the file."""
    given: dict[str, _Named] = {}
    if config is not None:
        for name, value in _flat(read_toml(config)):
            given[name.lower()] = _Named(_text(value), f"{name} in {config}")
    prefix = PREFIXES[daemon]
    for name, text in env.items():
        if name.upper().startswith(prefix):
            key = name[len(prefix) :].lower().replace("__", ".")
            given[key] = _Named(text, name)
    return given


def _misspelled_prefixes(daemon: Daemon, env: Mapping[str, str]) -> list[str]:
    """Variables with a wrong prefix that Autopush's documents mention but that it never read."""
    prefix = PREFIXES[daemon]
    others = (prefix[:-1], "AUTOENDPOINT_") if daemon == "autoendpoint" else (prefix[:-1],)
    return [
        f"{name} (the prefix is {prefix})"
        for name in env
        if name.upper().startswith(others) and not name.upper().startswith(prefix)
    ]


def _with_good_tracking_keys(settings: Settings) -> tuple[Settings, tuple[str, ...]]:
    """Drop malformed tracking keys with a warning: Autopush accepts them, and they never match."""
    if not settings.push.tracking_keys:
        return settings, ()
    from waystation.push.token import parse_list, parse_public_key  # noqa: PLC0415 seldom needed

    keys = parse_list(settings.push.tracking_keys)
    good = [key for key in keys if parse_public_key(key) is not None]
    if len(good) == len(keys):
        return settings, ()
    bad = ", ".join(str(place) for place, key in enumerate(keys, start=1) if key not in good)
    warning = (
        f"tracking_keys: number {bad} of {len(keys)} is not a VAPID public key (65 bytes in"
        " base64url) and tracks nobody; convert a PEM with: waystation keys vapid FILE"
    )
    return replaced(settings, {"push": {"tracking_keys": ",".join(good)}}), (warning,)


def _with_rotation(settings: Settings, no_table_rotation: bool) -> Settings:
    """Put Autopush's flag into `store.db_settings`, whose own value wins."""
    try:
        said = msgspec.json.decode(settings.store.db_settings or "{}", type=dict[str, Any])
    except msgspec.MsgspecError:
        return settings  # refused where the store is opened
    text = msgspec.json.encode({"no_table_rotation": no_table_rotation} | said).decode()
    return replaced(settings, {"store": {"db_settings": text}})


def _flat(table: Mapping[str, Any], path: str = "") -> list[tuple[str, Any]]:
    found: list[tuple[str, Any]] = []
    for key, value in table.items():
        name = path + key
        if isinstance(value, dict) and name.lower() not in _TABLES:
            found.extend(_flat(cast("dict[str, Any]", value), f"{name}."))
        else:
            found.append((name, cast(Any, value)))
    return found


def _text(value: Any) -> str:
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()


def _in_seconds(value: _Named) -> _Named:
    try:
        return _Named(repr(float(value.text) / 1000), value.written)
    except ValueError:
        return value  # refused where all values are checked


def _name_table(daemon: Daemon) -> dict[str, str]:
    """Every accepted name -> our setting."""
    first = ROLE_OF[daemon]
    table: dict[str, str] = {}
    rows = [row for row in describe(Settings) if row.name not in _NOT_FOR_DAEMONS]
    # Short names belong to the section of the daemon's own role first.
    rows.sort(key=lambda row: row.name.partition(".")[0] != first)
    for row in rows:
        section, _, leaf = row.name.rpartition(".")
        table.setdefault(row.name, row.name)
        if "." in row.daemon:  # of a section that Autopush has as well
            table.setdefault(row.daemon, row.name)
        if section in (first, "push", "store", "cluster", "endpoint", "") or not section:
            for name in (leaf, _without_unit(leaf), row.daemon):
                if name and (section == first or name not in ("port", "host", "url", "secret")):
                    table.setdefault(name, row.name)
    return {**table, **_NAMES[daemon]}


def _without_unit(leaf: str) -> str:
    for unit in _UNITS:
        if leaf.endswith(unit):
            return leaf.removesuffix(unit)
    return leaf


def _as_written(problem: str, translated: Mapping[str, _Named]) -> str:
    for name, value in translated.items():
        problem = problem.replace(f"environment variable {name} ", f"{value.written} ")
    return problem


def _derived_for_endpoint(
    settings: Settings, own: Mapping[str, str], **_names: Callable[..., str]
) -> Settings:
    """The settings that Autopush composes from several of its own."""
    changes = {"log": _log_form(own)}
    if not settings.endpoint.url:
        scheme = own.get("scheme", "http")
        _known_scheme("AUTOEND__SCHEME", scheme)
        url = origin(scheme, bracketed(settings.host), settings.endpoint.port)
        changes["endpoint"] = {"url": url}
    return replaced(settings, changes)


def _derived_for_connect(
    settings: Settings,
    own: Mapping[str, str],
    *,
    hostname: Callable[[], str],
    resolve: Callable[[str], str],
) -> Settings:
    changes = {"log": _log_form(own)}
    if not settings.connect.relay_url:
        name = own.get("router_hostname") or own.get("hostname", "")
        if not name:
            # With an embedded store, only this machine asks for its user agents.
            store = settings.store
            name = hostname() if shared_by_machines(store.url, store.db_settings) else "127.0.0.1"
        if _switched_on(own.get("resolve_hostname", "")):
            try:
                name = resolve(name)
            except OSError as exc:
                raise SettingsError(
                    [f"AUTOCONNECT__RESOLVE_HOSTNAME: {name!r} has no address: {exc}"]
                ) from exc
        scheme = "https" if settings.connect.relay_tls else "http"
        url = origin(scheme, bracketed(name), settings.connect.relay_port)
        changes["connect"] = {"relay_url": url}
    if not settings.endpoint.url:
        scheme = own.get("endpoint_scheme", "http")
        _known_scheme("AUTOCONNECT__ENDPOINT_SCHEME", scheme)
        port = own.get("endpoint_port", "8082")
        if not port.isdecimal() or not 0 < int(port) <= 65_535:
            raise SettingsError([f"AUTOCONNECT__ENDPOINT_PORT is {port!r}: expected a port"])
        host = bracketed(own.get("endpoint_hostname", "localhost"))
        changes["endpoint"] = {"url": origin(scheme, host, int(port))}
    return replaced(settings, changes)


def _log_form(own: Mapping[str, str]) -> dict[str, str]:
    return {"form": "text"} if _switched_on(own.get("human_logs", "")) else {}


def _known_scheme(name: str, scheme: str) -> None:
    if scheme not in ("http", "https"):
        raise SettingsError([f"{name} is {scheme!r}: expected http or https"])


def _switched_on(text: str) -> bool:
    return text.strip().lower() in ("true", "1", "yes", "on")
