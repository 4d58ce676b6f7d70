"""Creates the background tasks of a worker; a failed task is logged."""

from structlog.typing import FilteringBoundLogger

from waystation.base.tasks import Tasks


def worker_tasks(log: FilteringBoundLogger) -> Tasks:
    def failed(name: str, error: BaseException) -> None:
        log.error("task.failed", task=name, exc_info=error)

    return Tasks(failed)
