"""Roles of a server, and the ports of each role.

`PORTS` has one row per port, in the order of the table that `serve` prints. Reservation,
`--port-base`, the check for clashes and `doctor` all read these rows. A port set to "off" is left
out everywhere.
"""

from collections.abc import Iterable, Iterator
from typing import Any, Literal, Protocol

import msgspec

Role = Literal["connect", "endpoint", "queue", "edge", "presence", "controller", "console"]
ROLES: tuple[Role, ...] = (
    "connect",
    "endpoint",
    "queue",
    "edge",
    "presence",
    "controller",
    "console",
)
RETIRED_ROLES = {"proxy": "edge"}  # old name -> new name
DEFAULT_ROLES: tuple[Role, ...] = ("connect", "endpoint", "queue", "presence", "console")
PUSH_ROLES: tuple[Role, ...] = ("connect", "endpoint")

# `ws` and `http` use the settings `tls`; `plain` is HTTP for operators; others have their own TLS.
Scheme = Literal["ws", "http", "plain", "smp", "grpc", "lines"]


class Port(msgspec.Struct, frozen=True):
    """One port of a role."""

    setting: str  # `section.name`
    role: Role
    offset: int  # from `--port-base`
    what: str
    scheme: Scheme

    @property
    def section(self) -> str:
        return self.setting.partition(".")[0]

    @property
    def leaf(self) -> str:
        return self.setting.partition(".")[2]


PORTS = (
    Port("connect.port", "connect", 0, "user agents (WebSocket)", "ws"),
    Port("connect.relay_port", "connect", 1, "relay between nodes (internal)", "http"),
    Port("endpoint.port", "endpoint", 2, "app servers (Web Push)", "http"),
    Port("queue.port", "queue", 4, "simplex queues (SMP)", "smp"),
    Port("edge.port", "edge", 6, "front of a queue cluster (SMP)", "smp"),
    Port("presence.port", "presence", 5, "parties (gRPC)", "grpc"),
    Port("queue.link_port", "queue", 7, "links of a queue cluster (internal)", "smp"),
    Port("controller.port", "controller", 8, "cluster controller (internal)", "plain"),
    Port("presence.peer_port", "presence", 9, "presence, nodes and operators", "grpc"),
    Port("queue.control_port", "queue", 10, "queue control (internal)", "lines"),
    Port("queue.ops_port", "queue", 11, "queue health and metrics", "plain"),
    Port("edge.ops_port", "edge", 12, "front of a queue cluster, health", "plain"),
    Port("presence.ops_port", "presence", 13, "presence health and metrics", "plain"),
    Port("console.port", "console", 3, "console and broadcasts API", "http"),
)
PORT_OFFSET_MAX = 13  # the last port that `--port-base` assigns


class PortSettings(Protocol):
    """The settings that determine the host of a port."""

    @property
    def host(self) -> str: ...

    @property
    def console_host(self) -> str: ...

    @property
    def presence_host(self) -> str: ...

    @property
    def presence_peer_host(self) -> str: ...

    @property
    def ops_host(self) -> str: ...


def number_of(settings: Any, port: Port) -> int | None:
    """The configured number; None if the port is off."""
    number: Any = getattr(getattr(settings, port.section), port.leaf)
    # In a cluster, clients connect to an edge; a storage server has only its link port.
    if port.setting == ("queue.port" if settings.in_cluster else "queue.link_port"):
        return None
    return None if number == "off" else int(number)


def host_of(settings: PortSettings, port: Port) -> str:
    if port.scheme == "plain":
        return settings.ops_host
    match port.role:
        case "console":
            return settings.console_host
        case "presence" if port.setting == "presence.peer_port":
            return settings.presence_peer_host
        case "presence":
            return settings.presence_host
        case _:
            return "127.0.0.1" if port.scheme == "lines" else settings.host


def ports_of(settings: object, roles: Iterable[str]) -> Iterator[tuple[Port, int]]:
    """Ports of `roles` that are on, with their numbers."""
    wanted = {*roles}
    for port in PORTS:
        if port.role in wanted:
            number = number_of(settings, port)
            if number is not None:
                yield port, number
