"""Builds the runtime of a process from its order and settings.

A role imports only what it runs, so the imports of each stand in its own functions.
"""

from typing import TYPE_CHECKING

from waystation.app.process_log import configure_logs
from waystation.app.roles import Role
from waystation.app.settings import Settings
from waystation.app.supervisor_protocol import Order, Service

if TYPE_CHECKING:
    from waystation.app.lifecycle import Runtime


def build_runtime(order: Order, settings: Settings) -> "Runtime":
    """What a supervised process runs."""
    match order.kind:
        case "console":
            from .console_worker import ConsoleWorker

            return ConsoleWorker(settings, configure_logs(settings, role="console"))
        case "queue":
            from .queue_worker import QueueWorker

            return QueueWorker(settings, configure_logs(settings, role="queue"))
        case "edge":
            from .edge_worker import EdgeWorker

            return EdgeWorker(settings, configure_logs(settings, role="edge"))
        case "controller":
            from .controller_worker import ControllerWorker

            return ControllerWorker(settings, configure_logs(settings, role="controller"))
        case "presence":
            from .presence_worker import PresenceWorker

            log = configure_logs(settings, role=f"presence.{order.index}")
            return PresenceWorker(settings, log, index=order.index)
        case "push":
            return build_push_worker(
                settings,
                order.index,
                order.count,
                roles=order.roles,
                service=order.service,
                part=order.part,
            )


def build_push_worker(
    settings: Settings,
    index: int,
    count: int,
    *,
    roles: tuple[Role, ...] = ("connect", "endpoint"),
    service: Service = "serve",
    part: int = 1,
) -> "Runtime":
    """Worker `index` of `count`. Settings are settled: every port and URL is filled in."""
    from waystation.app.data_dir import DataDir
    from waystation.app.keys import ensure_secrets

    from .push_worker import PushWorker

    secrets, _ = ensure_secrets(
        DataDir(settings.data_dir),
        crypto_keys=settings.push.crypto_keys,
        auth_keys=settings.push.auth_keys,
        cluster_secret=settings.cluster.secret,
    )
    role = f"push.{index}" if service == "serve" else service
    log = configure_logs(
        settings,
        role=role,
        name="waystation" if service == "serve" else service,
        tag_key=secrets.event_key,
    )
    return PushWorker(
        settings, secrets, log, roles=roles, index=index, count=count, service=service, part=part
    )
