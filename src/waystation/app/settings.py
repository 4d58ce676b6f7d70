"""All settings of the platform: composed from those of its services, loaded and cross-checked.

Precedence: defaults < TOML file < environment (`WAYSTATION_CONNECT__PORT`) < flags. Settings that
depend on each other are checked after loading, and all problems are reported together. A port that
is set keeps its number when `port_base` is set too.
"""

import os
import socket
import tomllib
from collections.abc import Callable, Mapping, Sequence
from ipaddress import ip_address
from pathlib import Path
from typing import Annotated, Any, Literal
from urllib.parse import urlsplit

import msgspec
from msgspec import Meta

from waystation.base.settings import SettingsError, doc, load
from waystation.console.settings import Console
from waystation.pipeline.settings import Pipeline
from waystation.presence.settings import Presence, contradictions
from waystation.push.settings import Apns, Connect, Endpoint, Fcm, Push, Stub
from waystation.queue.cluster.settings import Controller
from waystation.queue.edge.settings import Edge
from waystation.queue.settings import Queue
from waystation.storage.open import (
    parse_store_url,
    presence_store_url,
    scheme_of,
    shared_by_machines,
    shared_by_processes,
)
from waystation.storage.settings import Store
from waystation.telemetry.kafka_topic import TOPIC, KafkaTopic

from .roles import DEFAULT_ROLES, PORT_OFFSET_MAX, PORTS, Role, number_of, ports_of

PREFIX = "WAYSTATION_"
# Command options whose name differs from the last part of their setting.
FLAG_NAMES = {"store.url": "--store", "log.level": "--log-level"}

_EDGE_NAMES = (
    "port",
    "ops_port",
    "drain_s",
    "refs_max",
    "map_interval_s",
    "upstream_mode",
    "upstream_links_max",
    "new_per_min",
    "new_per_address_per_min",
)
# Retired setting -> what to do instead.
RETIRED = {
    "proxy": "the front of a queue cluster is an edge; rename the section to `edge`",
    **{
        f"proxy.{name}": f"the front of a queue cluster is an edge; set `edge.{name}`"
        for name in _EDGE_NAMES
    },
    "presence.transport": "presence serves HTTP/2 itself, as `native` did; remove the setting",
}
# Environment variables with our prefix that are not settings: read by CLI, tests, benchmarks.
ENV_BESIDE = (
    "WAYSTATION_CONFIG",
    "WAYSTATION_COMMIT",
    "WAYSTATION_BUILD",
    "WAYSTATION_JAVA_HOME",
    "WAYSTATION_SOAK",
    "WAYSTATION_TEST_*",
    "WAYSTATION_BENCH_*",
)
PORT_BASE_MAX = 65_535 - PORT_OFFSET_MAX
WORKERS_MAX = 256


class Log(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Log lines on stderr."""

    level: Annotated[
        Literal["debug", "info", "warning", "error"], doc("The least severe line that is written.")
    ] = "info"
    form: Annotated[
        Literal["auto", "text", "json", "mozlog"],
        doc(
            "`auto` is coloured text on a terminal and JSON lines elsewhere; `mozlog` is the JSON"
            " of Autopush."
        ),
    ] = "auto"


class Tls(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """TLS on the public ports; read again on SIGHUP."""

    cert: Annotated[str, doc("Certificate chain, PEM.")] = ""
    key: Annotated[str, doc("Its private key, PEM.")] = ""

    @property
    def on(self) -> bool:
        return bool(self.cert)


class Metrics(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The Prometheus exposition."""

    public: Annotated[bool, doc("Serve `/metrics` to everybody, on the public ports as well.")] = (
        False
    )
    token: Annotated[
        str,
        doc(
            "Bearer token for `/metrics` and the ops ports where they do not listen on loopback."
            " Empty: made at first start and kept in the data directory.",
            secret=True,
        ),
    ] = ""


class Ops(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The ports for operators: `queue.ops_port`, `edge.ops_port`, `presence.ops_port`,
    `controller.port`."""

    host: Annotated[
        str,
        doc(
            "Address on which the ops ports listen, whatever `host` is. On another address than"
            " loopback every page but `/__lbheartbeat__` and `/healthz` needs `metrics.token`."
        ),
    ] = "127.0.0.1"


class Events(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The event log: facts for the pipeline, in segment files below the data directory."""

    sink: Annotated[
        Literal["segments", "kafka"],
        doc("Where events go, and where `pipeline ingest` takes them from."),
    ] = "segments"
    kafka_servers: Annotated[str, doc("Brokers of Kafka: `HOST:PORT`, several with commas.")] = ""
    kafka_topic: Annotated[
        str, Meta(pattern=r"^[A-Za-z0-9._-]{1,249}$"), doc("The topic that carries events.")
    ] = TOPIC
    kafka_config: Annotated[
        str,
        doc(
            "File with more settings for clients of Kafka, `name = value` lines with librdkafka's"
            " names: TLS, user, password."
        ),
    ] = ""
    keep_s: Annotated[
        float,
        Meta(ge=86_400),
        doc("Sealed segments are removed after this, whether or not a pipeline has read them."),
    ] = 7 * 86_400.0
    max_bytes: Annotated[
        int,
        Meta(ge=64 * 2**20),
        doc("Segments of one worker; beyond, events are dropped and counted."),
    ] = 2**30

    @property
    def topic(self) -> KafkaTopic:
        return KafkaTopic(self.kafka_servers, self.kafka_topic, self.kafka_config)


class Cluster(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Settings that all nodes of one cluster share."""

    secret: Annotated[
        str,
        doc(
            "Authenticates links between nodes; the same on all of them. Empty: made at first"
            " start and kept in the data directory.",
            secret=True,
        ),
    ] = ""
    node: Annotated[
        str,
        Meta(pattern=r"^[a-z0-9.-]{0,40}$"),
        doc("This machine's name in events; empty: its host name."),
    ] = ""


class Settings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """All settings."""

    host: Annotated[str, doc("Address on which public ports listen.")] = "127.0.0.1"
    data_dir: Annotated[Path, doc("Keys, store, journals and events live here.")] = Path(
        "waystation-data"
    )
    workers: Annotated[
        Literal["auto"] | Annotated[int, Meta(ge=1, le=WORKERS_MAX)],
        doc("Push processes; `auto` is one per core."),
    ] = "auto"
    worker_stall_s: Annotated[
        float,
        Meta(ge=0),
        doc(
            "A worker process whose event loop has not run for `endpoint.request_timeout_s` and so"
            " long beyond is killed and started again; 0 is off."
        ),
    ] = 15.0
    port_base: Annotated[
        int,
        Meta(ge=0, le=PORT_BASE_MAX),
        doc(
            "Gives all ports at once: connect N, relay N+1, endpoint N+2, console N+3, queue N+4,"
            " presence N+5, and the internal ones up to N+13; 0 is off."
        ),
    ] = 0
    log: Log = Log()
    tls: Tls = Tls()
    metrics: Metrics = Metrics()
    ops: Ops = Ops()
    events: Events = Events()
    cluster: Cluster = Cluster()
    store: Store = Store()
    push: Push = Push()
    connect: Connect = Connect()
    endpoint: Endpoint = Endpoint()
    fcm: Fcm = Fcm()
    apns: Apns = Apns()
    stub: Stub = Stub()
    queue: Queue = Queue()
    edge: Edge = Edge()
    controller: Controller = Controller()
    presence: Presence = Presence()
    console: Console = Console()
    pipeline: Pipeline = Pipeline()

    @property
    def stall_limit_s(self) -> float:
        """Silence after which a worker is killed; 0 is off. Longer than endpoint nodes wait for an
        answer, so a pause that they tolerate kills no worker."""
        if not self.worker_stall_s:
            return 0.0
        return self.endpoint.request_timeout_s + self.worker_stall_s

    @property
    def worker_count(self) -> int:
        if self.workers == "auto":
            return min(len(os.sched_getaffinity(0)), WORKERS_MAX)
        return self.workers

    @property
    def in_cluster(self) -> bool:
        """Whether the data directory belongs to a member of a queue cluster."""
        return (self.data_dir / "keys" / "cluster" / "member.json").exists()

    @property
    def console_host(self) -> str:
        return self.console.host or self.host

    @property
    def presence_host(self) -> str:
        return self.presence.host or self.host

    @property
    def ops_host(self) -> str:
        return self.ops.host

    @property
    def presence_shared(self) -> bool:
        """Whether other processes may serve the same parties."""
        return shared_by_machines(presence_store_url(self.presence.store, self.store.url))

    @property
    def presence_peer_host(self) -> str:
        """Where the peer port listens: on the client host if there are other nodes, otherwise on
        loopback, for operators on this machine."""
        others = self.presence_shared or bool(self.presence.peers)
        return self.presence_host if others else "127.0.0.1"


def load_settings(
    *,
    config: Path | None = None,
    env: Mapping[str, str] | None = None,
    flags: Mapping[str, Any] | None = None,
    on_unknown: Callable[[str], None] | None = None,
    roles: Sequence[Role] = DEFAULT_ROLES,
) -> Settings:
    """Load all layers and check them. Raises `SettingsError` with all problems."""
    toml: Mapping[str, Any] = {} if config is None else read_toml(config)
    settings = load(
        Settings,
        toml=toml,
        toml_path=str(config) if config else "the settings file",
        env=env,
        prefix=PREFIX,
        flags=flags,
        flag_names=FLAG_NAMES,
        allow_env=ENV_BESIDE,
        retired=RETIRED,
        on_unknown=on_unknown,
    )
    if settings.port_base:
        settings = _with_port_base(settings, toml, env or {}, flags or {})
    problems = cross_check(settings, roles)
    if problems:
        raise SettingsError(problems)
    return settings


def read_toml(path: Path) -> dict[str, Any]:
    try:
        with path.open("rb") as file:
            return tomllib.load(file)
    except FileNotFoundError:
        raise SettingsError([f"there is no settings file {path}"]) from None
    except OSError as exc:
        raise SettingsError([f"cannot read settings file {path}: {exc.strerror}"]) from exc
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as exc:
        raise SettingsError([f"{path} is not TOML: {exc}"]) from exc


def _with_port_base(
    settings: Settings,
    toml: Mapping[str, Any],
    env: Mapping[str, str],
    flags: Mapping[str, Any],
) -> Settings:
    env_names = {name.upper() for name in env}
    ports: dict[str, Any] = {}
    for port in PORTS:
        given = (
            port.leaf in toml.get(port.section, {})
            or f"{PREFIX}{port.section}__{port.leaf}".upper() in env_names
            or flags.get(port.setting) is not None
        )
        if not given and number_of(settings, port) is not None:
            ports.setdefault(port.section, {})[port.leaf] = settings.port_base + port.offset
    return replaced(settings, ports)


def replaced(settings: Settings, changes: Mapping[str, Mapping[str, Any]]) -> Settings:
    """A copy of the settings with some values of some sections replaced."""
    return msgspec.structs.replace(
        settings,
        **{
            section: msgspec.structs.replace(getattr(settings, section), **values)
            for section, values in changes.items()
        },
    )


def cross_check(settings: Settings, roles: Sequence[Role] = DEFAULT_ROLES) -> list[str]:
    """Problems of settings that depend on each other, as far as they concern `roles`."""
    problems: list[str] = []
    if bool(settings.tls.cert) != bool(settings.tls.key):
        problems.append("tls.cert and tls.key must be set together")
    if settings.connect.relay_tls and not settings.tls.on:
        problems.append("connect.relay_tls needs tls.cert and tls.key")
    if settings.events.sink == "kafka" and not settings.events.kafka_servers:
        problems.append("events.sink is kafka: events.kafka_servers must name its brokers")
    problems.extend(_port_clashes(settings, roles))
    problems.extend(_unnamed_public_ports(settings, roles))
    for name, url, schemes in (
        ("connect.url", settings.connect.url, ("ws", "wss")),
        ("connect.relay_url", settings.connect.relay_url, ("http", "https")),
        ("endpoint.url", settings.endpoint.url, ("http", "https")),
        ("connect.megaphone_api_url", settings.connect.megaphone_api_url, ("http", "https")),
        ("fcm.base_url", settings.fcm.base_url, ("http", "https")),
        ("apns.base_url", settings.apns.base_url, ("http", "https")),
    ):
        problem = _bad_url(name, url, schemes)
        if problem:
            problems.append(problem)
    advertises = False
    try:
        parse_store_url(settings.store.url, settings.store.db_settings)
        shared = shared_by_machines(settings.store.url, settings.store.db_settings)
        advertises = "connect" in roles and shared
    except SettingsError as exc:
        problems.extend(exc.problems)
    if advertises and not settings.connect.relay_url and is_any_host(settings.host):
        problems.append(
            f"connect.relay_url must be set: {scheme_of(settings.store.url)} is a store that other"
            " machines share, and they need an address that leads to this one's relay port"
            " (for example http://10.0.0.5:8081)"
        )
    several = shared_by_processes(settings.store.url, settings.store.db_settings)
    if not several and settings.worker_count > 1:
        problems.append(
            "the memory store belongs to one process: set workers = 1, or use the embedded store"
        )
    if "presence" in roles:
        problems.extend(contradictions(settings.presence))
        if settings.presence.workers > 1 and not settings.presence_shared:
            problems.append(
                "presence.workers is above 1: several processes need presence.store to be a"
                " Redis, for the embedded store of presence belongs to one"
            )
    if settings.connect.send_buffer_high_bytes > settings.connect.send_buffer_max_bytes:
        problems.append("connect.send_buffer_high_bytes is above connect.send_buffer_max_bytes")
    if settings.fcm.min_ttl_s > settings.fcm.max_ttl_s:
        problems.append("fcm.min_ttl_s is above fcm.max_ttl_s")
    return problems


def _unnamed_public_ports(settings: Settings, roles: Sequence[Role]) -> list[str]:
    """Problems of a wildcard host (0.0.0.0): clients need a URL or name to connect to."""
    if not is_any_host(settings.host):
        return []
    problems: list[str] = []
    why = f"host is {settings.host!r}, which is no address that others can connect to"
    if "endpoint" in roles and not settings.endpoint.url:
        problems.append(
            f"endpoint.url must be set: {why}. It is the address that app servers post to, for"
            " example https://updates.example.org"
        )
    serves_clients = "edge" in roles or ("queue" in roles and not settings.in_cluster)
    if serves_clients and not settings.queue.hosts:
        problems.append(
            f"queue.hosts must be set: {why}. It names this server in queue addresses, for"
            " example smp.example.org"
        )
    return problems


def open_node_api(settings: Settings) -> str | None:
    """A warning for start-up and `doctor` if other machines can reach the node API."""
    if is_loopback_host(settings.host):
        return None
    return (
        f"the node API (connect.relay_port) listens on {settings.host or '0.0.0.0'} and asks for no"
        " token: whoever reaches it can send to connected user agents. Let a firewall admit your"
        " own nodes only"
    )


def loopback_relay(settings: Settings) -> str | None:
    """A warning for start-up and `doctor` if the relay URL works on this machine only."""
    url = settings.connect.relay_url
    here = is_loopback(url) if url else is_loopback_host(settings.host)
    if not (here and shared_by_machines(settings.store.url, settings.store.db_settings)):
        return None
    return (
        f"connect.relay_url is {url or 'a loopback address'}, which is right while this is the only"
        f" machine on its {scheme_of(settings.store.url)} store. With a second one set it to an"
        " address of this machine: the other would look for our user agents on itself"
    )


def relay_out_of_reach(settings: Settings) -> str | None:
    """A warning for start-up and `doctor` if the relay URL is public but the relay port listens on
    loopback only; a reverse proxy on this machine may still forward to it."""
    url = settings.connect.relay_url
    shared = shared_by_machines(settings.store.url, settings.store.db_settings)
    if not (shared and url and is_loopback_host(settings.host)) or is_loopback(url):
        return None
    return (
        f"other nodes are told to reach us at {url}, but connect.relay_port listens on"
        f" {settings.host} only: set host, unless something on this machine leads there"
    )


def presence_out_of_reach(settings: Settings) -> str | None:
    """A warning for start-up and `doctor` if presence gives other nodes a loopback address."""
    host = settings.presence_host
    if not (settings.presence_shared and is_any_host(host)) or settings.presence.peer_endpoint:
        return None
    return (
        f"presence listens on {host or '0.0.0.0'} and tells other nodes on its Redis to reach it on"
        " loopback, which is right while this is the only machine. With a second one set"
        " presence.peer_endpoint to HOST:PORT of this machine's presence.peer_port"
    )


def _port_clashes(settings: Settings, roles: Sequence[Role]) -> list[str]:
    problems: list[str] = []
    seen: dict[int, str] = {}
    for port, number in ports_of(settings, roles):
        if number and number in seen:
            problems.append(
                f"{port.setting} and {seen[number]} are both {number}; each needs a port of its own"
            )
        seen[number] = port.setting
    return problems


def _bad_url(name: str, url: str, schemes: Sequence[str]) -> str | None:
    if not url:
        return None
    wanted = f"{name} is {url!r}: expected {' or '.join(f'{s}://HOST[:PORT]' for s in schemes)}"
    try:
        parts = urlsplit(url)
        _ = parts.port  # raises for what is no port
    except ValueError:
        return wanted
    if parts.scheme not in schemes or not parts.hostname:
        return wanted
    return None


def is_any_host(host: str) -> bool:
    """Whether it is a wildcard address, in any notation (0, ::0)."""
    try:
        address = ip_address(host or "::")
    except ValueError:
        try:
            return not any(socket.inet_aton(host))
        except OSError:
            return False
    return (getattr(address, "ipv4_mapped", None) or address).is_unspecified


def is_loopback(url: str) -> bool:
    return is_loopback_host(urlsplit(url).hostname or "")


def is_loopback_host(host: str) -> bool:
    if host == "localhost" or host.endswith(".localhost"):
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False


def encode_settings(settings: Settings) -> bytes:
    """Encode for a worker process. Contains secrets: send it through a socket pair only."""
    return msgspec.json.encode(settings, enc_hook=_encode_path)


def decode_settings(data: bytes | str) -> Settings:
    return msgspec.json.decode(data, type=Settings, dec_hook=_decode_path)


def _encode_path(value: Any) -> Any:
    if isinstance(value, Path):
        return str(value)
    raise TypeError(f"a setting of type {type(value).__name__} cannot be handed over")


def _decode_path(type_: type, value: Any) -> Any:
    if type_ is Path:
        return Path(value)
    raise TypeError(f"a setting of type {type_.__name__} cannot be taken over")
