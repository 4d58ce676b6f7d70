"""The main program of a process that the supervisor started: `python -m waystation.app.worker`."""

import waystation.app.structlog_without_rich  # noqa: F401, I001 first: saves a third of the start  # pyright: ignore[reportUnusedImport]

import argparse
import asyncio

import uvloop

from waystation.base.errors import WaystationError
from waystation.base.settings import SettingsError
from waystation.telemetry import logs

from .addresses import PortTakenError
from waystation.app.wiring.compose import build_runtime
from .supervisor_protocol import Failed, Order, SupervisorLine, end_with_parent
from .data_dir import DataDirError
from .descriptor_limits import raise_limit
from .keys import KeyFormatError
from .lifecycle import live
from .serve import drain_s
from .settings import decode_settings
from .supervisor import EXIT_CONFIG, EXIT_FAILED
from .watchdog import beat_s


def main() -> None:
    raise_limit()  # before the loop: libuv aborts the process if it finds no descriptor
    parser = argparse.ArgumentParser(
        description="A worker of `waystation serve`; the supervisor starts it."
    )
    parser.add_argument(
        "--control", type=int, required=True, help="descriptor of the socket to the supervisor"
    )
    line = SupervisorLine.inherited(parser.parse_args().control)
    try:
        order = line.receive_order()
    except EOFError:
        raise SystemExit(0) from None
    end_with_parent(order.supervisor_pid)
    raise SystemExit(run(order, line))


def run(order: Order, line: SupervisorLine) -> int:
    settings = decode_settings(bytes(order.settings))
    try:
        runtime = build_runtime(order, settings)
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(
                live(
                    runtime,
                    drain_s=drain_s(settings, order.kind),
                    line=line,
                    beat_s=beat_s(settings.stall_limit_s),
                )
            )
    except (SettingsError, DataDirError, KeyFormatError) as exc:
        line.report(Failed(str(exc), EXIT_CONFIG))
        return EXIT_CONFIG
    except (PortTakenError, WaystationError, OSError) as exc:
        line.report(Failed(str(exc) or type(exc).__name__, EXIT_FAILED))
        return EXIT_FAILED
    except Exception as exc:
        logs.get("worker").error("worker.failed", exc_info=True)
        line.report(Failed(f"{type(exc).__name__}: {exc}", EXIT_FAILED))
        return EXIT_FAILED
    return 0


if __name__ == "__main__":
    main()
