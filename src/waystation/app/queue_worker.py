"""The process of the role `queue`: one storage server, its ops port and its control port.

It logs that it started and that it stops, and what goes wrong in it; never a connection, never a
command (design, *Queue privacy*).
"""

from pathlib import Path
from typing import Protocol

from structlog.typing import FilteringBoundLogger

from waystation.base.clock import SystemClock
from waystation.base.tasks import Tasks
from waystation.queue.identity import address_card
from waystation.queue.settings import Queue as QueueSettings
from waystation.queue.store import QueueStore
from waystation.storage.open import open_queue_store, queue_store_url
from waystation.storage.settings import Store

from .addresses import listen
from .data_dir import DataDir
from .queue_part import QueuePart, own_address, own_identity


class WorkerSettings(Protocol):
    """The part of the platform's settings that this process reads."""

    @property
    def host(self) -> str: ...

    @property
    def data_dir(self) -> Path: ...

    @property
    def queue(self) -> QueueSettings: ...

    @property
    def store(self) -> Store: ...


class QueueWorker:
    """A `Runtime`."""

    def __init__(self, settings: WorkerSettings, log: FilteringBoundLogger) -> None:
        self._settings = settings
        self._log = log
        self._data = DataDir(settings.data_dir)
        self._clock = SystemClock()
        self._store: QueueStore | None = None
        self._tasks: Tasks | None = None
        self._part: QueuePart | None = None

    async def start(self) -> None:
        settings, queue = self._settings, self._settings.queue
        identity = own_identity(self._data.keys, queue, settings.host)
        self._tasks = tasks = Tasks(self._task_failed)
        url = queue_store_url(queue.store, settings.store.url)
        self._store = store = await open_queue_store(
            url, data_dir=self._data.root, settings=settings.store
        )
        self._part = part = QueuePart(
            settings=queue,
            store=store,
            identity=identity,
            tasks=tasks,
            clock=self._clock,
            log=self._log,
        )
        await part.start(listen(settings.host, queue.port, "queue.port"))

    async def drain(self, over_s: float) -> None:
        if self._part is not None:
            await self._part.drain(over_s)

    async def stop(self) -> None:
        if self._tasks is not None:
            await self._tasks.close()
        if self._part is not None:
            await self._part.stop()
        if self._store is not None:
            await self._store.close()

    def reload(self) -> None:
        if self._part is not None:
            try:
                self._part.reload()
            except ValueError as exc:
                self._log.error("queue.certificates_not_reloaded", reason=str(exc))

    def _task_failed(self, name: str, error: BaseException) -> None:
        self._log.error("task.failed", task=name, exc_info=error)


def queue_address(settings: WorkerSettings) -> str:
    """The server address for settled settings; makes the identity if there is none yet."""
    identity = own_identity(DataDir(settings.data_dir).keys, settings.queue, settings.host)
    return own_address(identity, settings.queue, settings.host).address


def queue_card(settings: WorkerSettings) -> str:
    """The same with its QR code, to be printed at the start."""
    return address_card(queue_address(settings))
