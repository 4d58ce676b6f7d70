"""`waystation serve`: checks settings, plans the processes and runs their supervisor.

Bad settings, an unusable data directory, bad keys and taken ports are reported before the first
process starts, each with a sentence that says what to do.
"""

import sys
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

from waystation.base.settings import SettingsError

from .addresses import PortTakenError, reserve_ports, settle
from .data_dir import DataDir, DataDirError, lock_roles
from .keys import KeyFormatError, ensure_secrets
from .ready_report import ReadyReport
from .roles import DEFAULT_ROLES, PUSH_ROLES, RETIRED_ROLES, ROLES, Role
from .settings import Settings, encode_settings
from .supervisor import EXIT_CONFIG, EXIT_FAILED, Job, Lines, Supervisor
from .supervisor_protocol import Service, WorkerKind
from .tls import load_tls

if TYPE_CHECKING:
    from .process_log import LazyLog

# OpenSSL reads it when a process starts, for the whole process: queue and edge have their own.
OPENSSL_CONF = str(Path(__file__).parents[1] / "queue" / "server" / "openssl.cnf")


class RoleError(ValueError):
    """A role that cannot be started."""


def parse_roles(names: Iterable[str]) -> tuple[Role, ...]:
    """The named roles in the order of `ROLES`; without names, `DEFAULT_ROLES`."""
    wanted = set(names)
    for name in sorted(wanted):
        if name in RETIRED_ROLES:
            raise RoleError(f"role {name!r} was renamed: use {RETIRED_ROLES[name]!r}")
        if name not in ROLES:
            raise RoleError(f"unknown role {name!r}; known roles: {', '.join(ROLES)}")
    return tuple(role for role in ROLES if role in wanted) or DEFAULT_ROLES


def plan_jobs(
    roles: tuple[Role, ...],
    workers: int,
    *,
    parties: int = 1,
    service: Service = "serve",
    part: int = 1,
) -> list[Job]:
    """Push workers share the roles connect and endpoint; the others have a process each."""
    push: tuple[Role, ...] = tuple(role for role in roles if role in PUSH_ROLES)
    indices = range(workers if push else 0)
    jobs = [Job("push", index, workers, push, service, part) for index in indices]
    if "queue" in roles:
        jobs.append(Job("queue", 0, 1, ("queue",), environment=(("OPENSSL_CONF", OPENSSL_CONF),)))
    if "edge" in roles:
        jobs.append(Job("edge", 0, 1, ("edge",), environment=(("OPENSSL_CONF", OPENSSL_CONF),)))
    if "presence" in roles:
        jobs.extend(Job("presence", i, parties, ("presence",)) for i in range(parties))
    if "controller" in roles:
        jobs.append(Job("controller", 0, 1, ("controller",)))
    if "console" in roles:
        jobs.append(Job("console", 0, 1, ("console",)))
    return jobs


def serve(
    settings: Settings,
    roles: tuple[Role, ...],
    *,
    lines: "LazyLog",
    say: Callable[[str], None],
    complain: Callable[[str], None],
) -> int:
    """Run until a signal; returns the exit code."""
    if sys.platform != "linux":
        complain(
            f"`waystation serve` needs Linux (epoll, SO_REUSEPORT, parent-death signals); this is"
            f" {sys.platform}. The container image runs anywhere"
        )
        return EXIT_FAILED
    data = DataDir(settings.data_dir)
    with ExitStack() as held:  # given back in reverse
        try:
            load_tls(settings.tls)
            data.make()
            locks = lock_roles(data, roles)
            for lock in locks:
                held.callback(lock.release)
            _, made = ensure_secrets(
                data,
                crypto_keys=settings.push.crypto_keys,
                auth_keys=settings.push.auth_keys,
                cluster_secret=settings.cluster.secret,
                operator_token=settings.console.operator_token,
                metrics_token=settings.metrics.token,
            )
            if made:
                say(f"First start: made {', '.join(path.name for path in made)} in {data.keys}")
            reservations = reserve_ports(settings, roles)
        except (SettingsError, DataDirError, KeyFormatError) as exc:
            complain(str(exc))
            return EXIT_CONFIG
        except PortTakenError as exc:
            complain(str(exc))
            return EXIT_FAILED
        for reservation in reservations:
            held.callback(reservation.release)
        held.callback(data.serve_file.unlink, missing_ok=True)
        ports = {one.setting: one.port for one in reservations}
        settings = settle(settings, ports)
        jobs = plan_jobs(roles, settings.worker_count, parties=settings.presence.workers)
        announcement = ReadyReport(data, settings, roles, ports, say=say)
        files = WorkerFiles(data, lines)

        def ready() -> None:
            announcement.ready()
            lines.load()  # now: when a worker has died, no descriptor may be left to load it

        return Supervisor(
            jobs,
            encode_settings(settings),
            lines=lines,
            on_ready=ready,
            on_failure=complain,
            on_died=files.set_aside,
            tidy=files.tidy,
            inherited=tuple(lock.fileno() for lock in locks),
            stall_limit_s=settings.stall_limit_s,
            drain_s=max(drain_s(settings, job.kind) for job in jobs),
        ).run()


class WorkerFiles:
    """Files of ended workers: metric snapshots and open event segments."""

    def __init__(self, data: DataDir, lines: Lines) -> None:
        self._events = data.events
        self._lines = lines
        self._data = data
        self._reports = data.begin_reports("serve")

    def tidy(self) -> None:
        # Imported at the start, while workers import: later no descriptor may be left.
        from waystation.telemetry.segments import seal_abandoned  # noqa: PLC0415
        from waystation.telemetry.snapshots import fold  # noqa: PLC0415

        for folder in self._reports.glob("*/"):
            fold(folder)
        for path in seal_abandoned(self._events):
            self._lines.info("events.sealed", segment=path.name)

    def set_aside(self, victim: Job) -> None:
        from waystation.telemetry.snapshots import set_aside  # noqa: PLC0415 as above

        set_aside(self._data.numbers("serve", victim.kind), victim.name)


def drain_s(settings: Settings, kind: WorkerKind) -> float:
    """The time over which a stopping process of this kind spreads its closes."""
    match kind:
        case "push":
            return settings.connect.drain_s
        case "queue":
            return settings.queue.drain_s
        case "edge":
            return settings.edge.drain_s
        case "presence":
            others = settings.presence_shared or settings.presence.peers
            return settings.presence.drain_timeout_s if others else 0.0
        case "controller" | "console":
            return 0.0
