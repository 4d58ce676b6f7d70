"""Log lines of a process: configured from settings, with structlog loaded late."""

from typing import TYPE_CHECKING

from .settings import Settings

if TYPE_CHECKING:
    from structlog.typing import FilteringBoundLogger


class LazyLog:
    """Loads structlog with the first line: most supervisors never write one."""

    def __init__(self, settings: Settings, role: str) -> None:
        self._settings = settings
        self._role = role
        self._log: FilteringBoundLogger | None = None

    def load(self) -> None:
        """Loads structlog now, so that the first line opens no file."""
        self._logger()

    def _logger(self) -> "FilteringBoundLogger":
        if self._log is None:
            self._log = configure_logs(self._settings, role=self._role)
        return self._log

    def info(self, event: str, /, **fields: object) -> None:
        self._logger().info(event, **fields)

    def warning(self, event: str, /, **fields: object) -> None:
        self._logger().warning(event, **fields)

    def error(self, event: str, /, **fields: object) -> None:
        self._logger().error(event, **fields)

    def critical(self, event: str, /, **fields: object) -> None:
        self._logger().critical(event, **fields)


def configure_logs(
    settings: Settings, *, role: str, name: str = "waystation", tag_key: bytes | None = None
) -> "FilteringBoundLogger":
    """Configures the log lines of this process and returns the logger of `role`."""
    from waystation.app import structlog_without_rich  # noqa: F401  # pyright: ignore[reportUnusedImport]
    from waystation.telemetry import logs  # isort: skip

    from waystation.app.version import build

    logs.configure(
        form=None if settings.log.form == "auto" else settings.log.form,
        level=settings.log.level,
        name=name,
        version=build().version,
        tag_key=tag_key,
    )
    return logs.get(role)
