"""A presence node alone, without a supervisor: `python -m benchmarks.presence_node`.

Settings come from the environment as for `waystation serve`. It prints one line when it is ready,
and ends at SIGTERM.
"""

import asyncio
import os

import uvloop

from waystation.app.data_dir import DataDir
from waystation.app.lifecycle import live
from waystation.app.process_log import configure_logs
from waystation.app.settings import load_settings
from waystation.app.wiring.presence_worker import PresenceWorker


def main() -> None:
    settings = load_settings(env=os.environ, roles=("presence",))
    DataDir(settings.data_dir).make()
    log = configure_logs(settings, role="presence", name="presence.0")
    worker = PresenceWorker(settings, log)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(live(worker, drain_s=0.0, on_ready=lambda: print("ready", flush=True)))


if __name__ == "__main__":
    main()
