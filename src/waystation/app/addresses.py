"""Ports and URLs of a server: reserves ports and fills in the URLs that settings leave empty.

A port is probed without SO_REUSEPORT before workers share it, so that a port held by another
program, or by a second server, is refused with its number and its setting. The supervisor keeps
every port bound, without listening, while it runs: no port is lost while a worker restarts, and
port 0 becomes one number for all workers. `endpoint.url` is the only source for endpoint URLs,
`Location` and the VAPID audience; its default is built from host, port and TLS.
"""

import errno
import os
import socket
from ipaddress import ip_address

from .roles import Port, Role, host_of, ports_of
from .server_info import ListenAddress
from .settings import Settings, is_any_host, replaced

LISTEN_BACKLOG = 4096


class PortTakenError(Exception):
    """The port is in use, or this process may not bind it."""


class Reservation:
    """A bound port, held until it is released."""

    def __init__(self, held: socket.socket, setting: str) -> None:
        self._held = held
        self.setting = setting
        self.port: int = held.getsockname()[1]

    def release(self) -> None:
        self._held.close()


def reserve(host: str, port: int, setting: str) -> Reservation:
    """Probe, then hold. Port 0 takes a free one."""
    family, address = _resolve(host, port, setting)
    with _socket(family) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # pass over TIME_WAIT only
        try:
            probe.bind(address)  # never listens: a client would be accepted and cut off
        except OSError as exc:
            raise PortTakenError(_why(exc, host, port, setting)) from exc
    held = _socket(family)
    try:
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        held.bind(address)
    except OSError as exc:
        held.close()
        raise PortTakenError(_why(exc, host, port, setting)) from exc
    return Reservation(held, setting)


def listen(host: str, port: int, setting: str, *, backlog: int = LISTEN_BACKLOG) -> socket.socket:
    """The listening socket of one worker on a port that all workers of the machine share."""
    family, address = _resolve(host, port, setting)
    listener = _socket(family)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.setblocking(False)
        listener.bind(address)
        listener.listen(backlog)
    except OSError as exc:
        listener.close()
        raise PortTakenError(_why(exc, host, port, setting)) from exc
    return listener


def open_listening_sockets(settings: Settings, roles: tuple[Role, ...]) -> dict[str, socket.socket]:
    """Listening sockets by setting, opened before the process can answer.

    A host name may stand for several addresses; the server of the role resolves and binds those.
    """
    listening_sockets: dict[str, socket.socket] = {}
    for port, number in ports_of(settings, roles):
        host = host_of(settings, port)
        if is_address(host):
            listening_sockets[port.setting] = listen(host, number, port.setting)
    return listening_sockets


def _socket(family: int) -> socket.socket:
    """A TCP socket; `::` also accepts IPv4, whatever the machine's default is."""
    made = socket.socket(family, socket.SOCK_STREAM)
    if family == socket.AF_INET6:
        made.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
    return made


def is_address(host: str) -> bool:
    try:
        ip_address(host)
    except ValueError:
        return False
    return True


def _resolve(host: str, port: int, setting: str) -> tuple[int, tuple[str, int]]:
    try:
        found = socket.getaddrinfo(
            host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )
    except socket.gaierror as exc:
        raise PortTakenError(
            f"cannot listen for {setting}: {host!r} is not an address of this machine ({exc})"
        ) from exc
    family, _, _, _, address = found[0]
    return family, (str(address[0]), port)


def _why(exc: OSError, host: str, port: int, setting: str) -> str:
    where = f"{bracketed(host)}:{port}"
    match exc.errno:
        case errno.EADDRINUSE:
            return (
                f"{where} ({setting}) is taken by another program. Stop it, set {setting} to"
                " another port, or move all ports at once with --port-base N"
            )
        case errno.EACCES:
            return (
                f"no permission to listen on {where} ({setting}): ports below 1024 need"
                " CAP_NET_BIND_SERVICE; use a higher one behind a reverse proxy"
            )
        case errno.EADDRNOTAVAIL:
            return f"{host} (host, for {setting}) is not an address of this machine"
        case _:
            return f"cannot listen on {where} ({setting}): {os.strerror(exc.errno or 0)}"


def bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host and not host.startswith("[") else host


def reachable(host: str) -> str:
    """The host part of a URL that leads to where `host` listens."""
    if is_any_host(host):
        return bracketed("::1") if ":" in host else "127.0.0.1"
    return bracketed(host)


def origin(scheme: str, host: str, port: int) -> str:
    """Ports that the scheme implies are left out (webpush §8.4)."""
    default = {"http": 80, "ws": 80, "https": 443, "wss": 443}[scheme]
    return f"{scheme}://{host}" if port == default else f"{scheme}://{host}:{port}"


def reserve_ports(settings: Settings, roles: tuple[Role, ...]) -> list[Reservation]:
    held: list[Reservation] = []
    try:
        for port, number in ports_of(settings, roles):
            held.append(reserve(host_of(settings, port), number, port.setting))
    except PortTakenError:
        for one in held:
            one.release()
        raise
    return held


def settle(settings: Settings, ports: dict[str, int]) -> Settings:
    """The settings with the ports that were found and every URL filled in."""
    changes: dict[str, dict[str, object]] = {}
    for setting, port in ports.items():
        section, _, leaf = setting.partition(".")
        changes.setdefault(section, {})[leaf] = port
    settings = replaced(settings, changes)
    secure = settings.tls.on
    host = reachable(settings.host)
    return replaced(
        settings,
        {
            "connect": {
                "url": settings.connect.url
                or origin("wss" if secure else "ws", host, settings.connect.port) + "/",
                "relay_url": settings.connect.relay_url.rstrip("/")
                or origin(
                    "https" if settings.connect.relay_tls else "http",
                    host,
                    settings.connect.relay_port,
                ),
            },
            "endpoint": {
                "url": settings.endpoint.url.rstrip("/")
                or origin("https" if secure else "http", host, settings.endpoint.port)
            },
        },
    )


def listening(settings: Settings, roles: tuple[Role, ...]) -> tuple[ListenAddress, ...]:
    """The rows of the address table that `serve` prints, from settled settings."""
    rows: list[ListenAddress] = []
    for port, number in ports_of(settings, roles):
        relay = port.setting == "connect.relay_port"
        secure = settings.connect.relay_tls if relay else settings.tls.on
        where = f"{bracketed(host_of(settings, port))}:{number}"
        rows.append(
            ListenAddress(port.what, f"{_shown_scheme(port, secure)}://{where}/", port.setting)
        )
    return tuple(rows)


def _shown_scheme(port: Port, secure: bool) -> str:
    match port.scheme:
        case "ws":
            return "wss" if secure else "ws"
        case "http":
            return "https" if secure else "http"
        case "plain":
            return "http"
        case "lines":
            return "tcp"
        case "smp" | "grpc":
            return port.scheme


def node_id(settings: Settings, index: int, count: int) -> str:
    """The node id that a route records: the relay URL of worker `index` of this node."""
    relay_url = settings.connect.relay_url
    return relay_url if count == 1 else f"{relay_url}/w/{index}"
