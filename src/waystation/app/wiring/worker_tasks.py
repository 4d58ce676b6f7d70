"""Background tasks of a worker: what one of them fails with stands in its log."""

from structlog.typing import FilteringBoundLogger

from waystation.base.tasks import Tasks


def worker_tasks(log: FilteringBoundLogger) -> Tasks:
    def failed(name: str, error: BaseException) -> None:
        log.error("task.failed", task=name, exc_info=error)

    return Tasks(failed)
