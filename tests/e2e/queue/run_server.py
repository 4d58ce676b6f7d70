"""The main program of a queue server for tests: the worker of `waystation serve`, by itself."""

import waystation.app.quick_start  # noqa: F401, I001 first: it makes the imports below quick

import asyncio
import sys
from pathlib import Path

import msgspec
import structlog
import uvloop

from waystation.app.data_dir import DataDir
from waystation.app.lifecycle import live
from waystation.app.queue_worker import QueueWorker
from waystation.queue.settings import Queue
from waystation.storage.settings import Store

READY = "the queue server is ready"


class TestSettings(msgspec.Struct, frozen=True):
    data_dir: str
    host: str = "127.0.0.1"
    queue: Queue = Queue()
    store: Store = Store(map_bytes=1 << 30)


class _View:
    """With a path for a path."""

    def __init__(self, settings: TestSettings) -> None:
        self.host = settings.host
        self.data_dir = Path(settings.data_dir)
        self.queue = settings.queue
        self.store = settings.store


def main() -> None:
    view = _View(msgspec.json.decode(sys.argv[1], type=TestSettings))
    DataDir(view.data_dir).make()
    log = structlog.get_logger()
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        worker = QueueWorker(view, log)
        runner.run(
            live(worker, drain_s=view.queue.drain_s, on_ready=lambda: print(READY, flush=True))
        )


if __name__ == "__main__":
    main()
