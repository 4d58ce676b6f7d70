"""Runs `autoconnect` or `autoendpoint`: one worker in this process, several under a supervisor.

A daemon must listen within a second. So one worker needs no spawned process, and its ports are
opened before the store, whose client may take seconds to load; early connections, health checks
included, wait in the backlog. Both daemons of a machine may share a data directory with its keys
and embedded store: each locks only its own role. A second process of the same daemon takes another
part of the directory (see `data_dir`).
"""

import asyncio
import os
import signal
import socket
from collections.abc import Callable
from typing import NoReturn

import uvloop

from waystation.app.wiring.compose import build_push_worker
from waystation.base.errors import WaystationError
from waystation.base.settings import SettingsError

from .addresses import PortTakenError, Reservation, open_listening_sockets, reserve_ports, settle
from .autopush_settings import ROLE_OF, Daemon, DaemonSettings
from .data_dir import DataDirError, Lock, take_part
from .keys import KeyFormatError, ensure_secrets
from .lifecycle import Runtime, live
from .process_log import configure_logs
from .roles import Role
from .serve import plan_jobs
from .settings import Settings, encode_settings, loopback_relay
from .supervisor import EXIT_CONFIG, EXIT_FAILED, Job, Supervisor


def run(daemon: Daemon, loaded: DaemonSettings, *, complain: Callable[[str], None]) -> int:
    """Run until a signal; returns the exit code."""
    signal.signal(signal.SIGTERM, end_early)  # before the first port is bound
    settings = loaded.settings
    roles: tuple[Role, ...] = (ROLE_OF[daemon],)
    try:
        data, locks = take_part(settings.data_dir, roles)
        _, made = ensure_secrets(
            data, crypto_keys=settings.push.crypto_keys, auth_keys=settings.push.auth_keys
        )
        reservations = reserve_ports(settings, roles)
    except (DataDirError, KeyFormatError) as exc:
        complain(str(exc))
        return EXIT_CONFIG
    except PortTakenError as exc:
        complain(str(exc))
        return EXIT_FAILED
    settings = settle(settings, {one.setting: one.port for one in reservations})
    data.begin_reports(daemon)
    log = configure_logs(settings, role=daemon, name=daemon)
    if loaded.unknown:
        log.warning("settings.unknown", names=list(loaded.unknown), note="ignored")
    if loaded.without_effect:
        log.info("settings.without_effect", names=list(loaded.without_effect))
    for warning in loaded.warnings:
        log.warning("settings.doubtful", reason=warning)
    if daemon == "autoconnect" and (warning := loopback_relay(settings)):
        log.warning("settings.doubtful", reason=warning)
    if data.part > 1:
        log.info("data_dir.part", directory=str(data.run.parent), note=f"another {daemon} runs")
    if made:
        log.info("keys.made", directory=str(data.keys), files=[path.name for path in made])
    try:
        if settings.worker_count > 1:
            jobs = plan_jobs(roles, settings.worker_count, service=daemon, part=data.part)
            return _supervised(daemon, settings, jobs, locks, complain)
        return _alone(daemon, settings, roles, data.part, complain)
    finally:
        _release(reservations, locks)


def _alone(
    daemon: Daemon,
    settings: Settings,
    roles: tuple[Role, ...],
    part: int,
    complain: Callable[[str], None],
) -> int:
    listening_sockets = open_listening_sockets(settings, roles)
    worker = build_push_worker(settings, 0, 1, roles=roles, service=daemon, part=part)
    _hand_over(listening_sockets, worker)
    log = configure_logs(settings, role=daemon, name=daemon)
    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(
                live(
                    worker,
                    drain_s=settings.connect.drain_s,
                    on_ready=lambda: log.info("ready", **_addresses(daemon, settings)),
                )
            )
    except SettingsError as exc:
        complain(str(exc))
        return EXIT_CONFIG
    except (WaystationError, PortTakenError, OSError) as exc:
        complain(str(exc) or type(exc).__name__)
        return EXIT_FAILED
    return 0


def end_early(_number: int, _frame: object) -> NoReturn:
    """SIGTERM before the event loop runs: nothing to drain, and the kernel frees locks and ports.
    Does not raise: an exception in an interpreter callback is ignored, and with it the signal."""
    os._exit(0)


def _hand_over(listening_sockets: dict[str, socket.socket], worker: Runtime) -> None:
    from waystation.app.wiring.push_worker import PushWorker  # noqa: PLC0415 after ports are open: it is large

    assert isinstance(worker, PushWorker)
    worker.listening_sockets = listening_sockets


def _supervised(
    daemon: Daemon,
    settings: Settings,
    jobs: list[Job],
    locks: list[Lock],
    complain: Callable[[str], None],
) -> int:
    log = configure_logs(settings, role=daemon, name=daemon)
    return Supervisor(
        jobs,
        encode_settings(settings),
        lines=log,
        on_ready=lambda: log.info("ready", **_addresses(daemon, settings)),
        on_failure=complain,
        drain_s=settings.connect.drain_s,
        inherited=tuple(lock.fileno() for lock in locks),
        stall_limit_s=settings.stall_limit_s,
    ).run()


def _addresses(daemon: Daemon, settings: Settings) -> dict[str, object]:
    if daemon == "autoconnect":
        return {
            "host": settings.host,
            "port": settings.connect.port,
            "router_port": settings.connect.relay_port,
            "router_url": settings.connect.relay_url,
            "endpoint_url": settings.endpoint.url,
        }
    return {
        "host": settings.host,
        "port": settings.endpoint.port,
        "endpoint_url": settings.endpoint.url,
    }


def _release(reservations: list[Reservation], locks: list[Lock]) -> None:
    for reservation in reservations:
        reservation.release()
    for lock in locks:
        lock.release()
