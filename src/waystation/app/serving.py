"""`waystation serve`: from settings to processes that run, and back to an exit code.

Rule 1: whatever can be refused is refused before the first process starts: settings, data
        directory, keys, ports. Each refusal is a sentence that says what to do.
Rule 2: what a person sees on stdout is one table of what listens where, what Firefox needs,
        and the line `waystation is ready`. Everything else is a log line on stderr.
"""

import os
import shutil
import sys
from collections.abc import Callable, Iterable
from pathlib import Path

import msgspec

from waystation.queue.address import IDENTITY_FOLDER, address_card, own_address

from .addresses import PortTakenError, listening, reserve_ports, settle
from .control import Service, WorkerKind
from .data_dir import DataDir, DataDirError, Listening, Serving, lock_roles, write_serving
from .keys import KeyFormatError, ensure_secrets
from .roles import DEFAULT_ROLES, PUSH_ROLES, ROLES, Role
from .settings import Settings, encode_settings
from .supervisor import EXIT_CONFIG, EXIT_FAILED, Job, Lines, Supervisor
from .version import build

READY_LINE = "waystation is ready"
# Read by OpenSSL when a process starts and in force for all of it: hence a process of its own.
OPENSSL_CONF = str(Path(__file__).parents[1] / "queue" / "server" / "openssl.cnf")


class RoleError(ValueError):
    """A role that cannot be started."""


def parse_roles(names: Iterable[str]) -> tuple[Role, ...]:
    """In our order, each once; if none is named, all that one machine needs."""
    wanted = set(names)
    for name in sorted(wanted):
        if name not in ROLES:
            raise RoleError(f"there is no role {name!r}; there are {', '.join(ROLES)}")
    return tuple(role for role in ROLES if role in wanted) or DEFAULT_ROLES


def plan_jobs(
    roles: tuple[Role, ...], workers: int, *, parties: int = 1, service: Service = "serve"
) -> list[Job]:
    """Push workers share the roles connect and endpoint; the others have a process each."""
    push: tuple[Role, ...] = tuple(role for role in roles if role in PUSH_ROLES)
    jobs = [Job("push", index, workers, push, service) for index in range(workers)] if push else []
    if "queue" in roles:
        jobs.append(Job("queue", 0, 1, ("queue",), environment=(("OPENSSL_CONF", OPENSSL_CONF),)))
    if "proxy" in roles:
        jobs.append(Job("proxy", 0, 1, ("proxy",), environment=(("OPENSSL_CONF", OPENSSL_CONF),)))
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
    lines: Lines,
    say: Callable[[str], None],
    complain: Callable[[str], None],
) -> int:
    """Runs until a signal ends it. The exit code."""
    if sys.platform != "linux":
        complain(
            f"`waystation serve` needs Linux (epoll, SO_REUSEPORT, parent-death signals); this is"
            f" {sys.platform}. The container image runs anywhere"
        )
        return EXIT_FAILED
    data = DataDir(settings.data_dir)
    try:
        data.make()
        locks = lock_roles(data, roles)
        _, made = ensure_secrets(
            data,
            crypto_keys=settings.push.crypto_keys,
            cluster_secret=settings.cluster.secret,
            operator_token=settings.console.operator_token,
        )
    except (DataDirError, KeyFormatError) as exc:
        complain(str(exc))
        return EXIT_CONFIG
    if made:
        say(f"First start: made {', '.join(path.name for path in made)} in {data.keys}")
    try:
        reservations = reserve_ports(settings, roles)
    except PortTakenError as exc:
        complain(str(exc))
        return EXIT_FAILED
    settings = settle(settings, {one.setting: one.port for one in reservations})
    table = listening(settings, roles)
    workers = settings.worker_count
    serving = Serving(
        pid=os.getpid(),
        version=build().version,
        roles=roles,
        workers=workers,
        connect_url=settings.connect.url if "connect" in roles else "",
        relay_url=settings.connect.relay_url if "connect" in roles else "",
        endpoint_url=settings.endpoint.url if "endpoint" in roles else "",
        console_url=next((row.url for row in table if row.setting == "console.port"), ""),
        ports={one.setting: one.port for one in reservations},
        listening=table,
    )

    first_queue = not (data.keys / IDENTITY_FOLDER).exists()

    def ready() -> None:
        said = serving
        alone = "queue" in roles and not settings.in_cluster
        if "proxy" in roles or alone:  # its process has made the identity by now
            queue = settings.queue
            if "proxy" in roles:  # where clients come to, whoever else runs here
                queue = msgspec.structs.replace(queue, port=settings.proxy.port)
            address = own_address(data.keys, queue, settings.host)
            said = msgspec.structs.replace(serving, queue_address=address)
        try:
            write_serving(data, said)
        except OSError as exc:  # a full disk: serve what can be served
            lines.warning("serve_file.not_written", reason=str(exc))
        say(render_table(table))
        if "connect" in roles:
            say(firefox_settings(settings))
        if said.queue_address:
            shown = address_card(said.queue_address) if first_queue else said.queue_address
            say(f"Queue server address\n  {shown}")
        say(READY_LINE)

    reports = data.reports("serve")
    shutil.rmtree(reports, ignore_errors=True)  # of an earlier run; this one counts from zero
    reports.mkdir(mode=0o700)

    def seal_events() -> None:
        # At the start, while the workers import: loading this takes a moment too.
        from waystation.telemetry.segments import seal_abandoned  # noqa: PLC0415

        for path in seal_abandoned(data.events):
            lines.info("events.sealed", segment=path.name)

    def died(victim: Job) -> None:
        from waystation.telemetry.exposition import retire  # noqa: PLC0415 seldom needed

        retire(reports, [job.name for job in jobs if job is not victim])
        seal_events()

    jobs = plan_jobs(roles, workers, parties=settings.presence.workers)
    supervisor = Supervisor(
        jobs,
        encode_settings(settings),
        lines=lines,
        on_ready=ready,
        on_failure=complain,
        on_spawned=seal_events,
        on_died=died,
        inherited=tuple(lock.fileno() for lock in locks),
        drain_s=max(drain_s(settings, job.kind) for job in jobs),
    )
    try:
        return supervisor.run()
    finally:
        data.serve_file.unlink(missing_ok=True)
        for reservation in reservations:
            reservation.release()
        for lock in locks:
            lock.release()


def drain_s(settings: Settings, kind: WorkerKind) -> float:
    """Over how long such a process spreads its closes when it is told to stop."""
    match kind:
        case "push":
            return settings.connect.drain_s
        case "queue":
            return settings.queue.drain_s
        case "proxy":
            return settings.proxy.drain_s
        case "presence":
            others = settings.presence_shared or settings.presence.peers
            return settings.presence.drain_timeout_s if others else 0.0
        case "controller" | "console":
            return 0.0


def render_table(rows: tuple[Listening, ...]) -> str:
    width = max(len(row.what) for row in rows)
    reach = max(len(row.url) for row in rows)
    lines = [f"  {row.what:<{width}}  {row.url:<{reach}}  {row.setting}" for row in rows]
    return "\n".join(["Listening", *lines])


def firefox_settings(settings: Settings) -> str:
    """What to enter in about:config so that Firefox uses this server."""
    prefs = [("dom.push.serverURL", settings.connect.url)]
    if settings.connect.url.startswith("ws:"):
        prefs.append(("dom.push.testing.allowInsecureServerURL", "true"))
    prefs.append(("dom.push.userAgentID", "(reset it once, then restart)"))
    width = max(len(name) for name, _ in prefs)
    return "\n".join(["Firefox, in about:config", *(f"  {n:<{width}}  {v}" for n, v in prefs)])
