"""The only place that wires: from settings to a process with its store, sockets and tasks.

A role imports only what it runs, so the imports of each stand in its own functions.
"""

from typing import TYPE_CHECKING

from .control import Order, Service
from .roles import Role
from .settings import Settings

if TYPE_CHECKING:
    from structlog.typing import FilteringBoundLogger

    from .lifecycle import Runtime


class LazyLog:
    """The supervisor's: most of its lives pass without a line, and structlog is slow to load."""

    def __init__(self, settings: Settings, role: str) -> None:
        self._settings = settings
        self._role = role
        self._log: FilteringBoundLogger | None = None

    def load(self) -> None:
        """Now, so that the first line needs no file to be opened."""
        self._made()

    def _made(self) -> "FilteringBoundLogger":
        if self._log is None:
            self._log = configure_logs(self._settings, role=self._role)
        return self._log

    def info(self, event: str, /, **fields: object) -> None:
        self._made().info(event, **fields)

    def warning(self, event: str, /, **fields: object) -> None:
        self._made().warning(event, **fields)

    def error(self, event: str, /, **fields: object) -> None:
        self._made().error(event, **fields)

    def critical(self, event: str, /, **fields: object) -> None:
        self._made().critical(event, **fields)


def configure_logs(
    settings: Settings, *, role: str, name: str = "waystation", tag_key: bytes | None = None
) -> "FilteringBoundLogger":
    """Sets up this process's lines; the logger of this role."""
    from . import quick_start  # noqa: F401  # pyright: ignore[reportUnusedImport]
    from waystation.telemetry import logs  # isort: skip

    from .version import build

    logs.configure(
        form=None if settings.log.form == "auto" else settings.log.form,
        level=settings.log.level,
        name=name,
        version=build().version,
        tag_key=tag_key,
    )
    return logs.get(role)


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
    from .data_dir import DataDir
    from .keys import ensure_secrets
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
