"""The main program of a single worker, a queue server or an edge, for tests."""

import waystation.app.structlog_without_rich  # noqa: F401, I001 first: it makes the imports below quick

import asyncio
import sys

import structlog
import uvloop

from waystation.app.data_dir import DataDir
from waystation.app.lifecycle import live
from waystation.app.wiring.edge_worker import EdgeWorker
from waystation.app.wiring.queue_worker import QueueWorker
from waystation.app.settings import decode_settings

READY = "the worker is ready"


def main() -> None:
    role, config = sys.argv[1:]
    settings = decode_settings(config)
    data = DataDir(settings.data_dir)
    data.make()
    data.reports("serve").mkdir(exist_ok=True)
    log = structlog.wrap_logger(
        structlog.PrintLogger(sys.stderr),
        processors=[structlog.processors.format_exc_info, structlog.processors.JSONRenderer()],
    )
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        if role == "queue":
            worker, drain_s = QueueWorker(settings, log), settings.queue.drain_s
        else:
            worker, drain_s = EdgeWorker(settings, log), settings.edge.drain_s
        runner.run(live(worker, drain_s=drain_s, on_ready=lambda: print(READY, flush=True)))


if __name__ == "__main__":
    main()
