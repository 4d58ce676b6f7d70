"""A worker without a server, for tests of the supervisor: it says it is ready and waits.

What it does is the text in the file PLAIN_WORKER_PLAN names, read anew at each start:
`ready` (default), `crash` (exit 3 before ready), `refuse` (a failure with a sentence), `stubborn`
(ready, and deaf to SIGTERM). It writes its pid to the file PLAIN_WORKER_PIDS.
"""

import argparse
import os
import select
import signal
import sys
from pathlib import Path

from waystation.app.supervisor_protocol import Failed, Ready, SupervisorLine, end_with_parent


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--control", type=int, required=True)
    line = SupervisorLine.inherited(parser.parse_args().control)
    order = line.receive_order()
    end_with_parent(order.supervisor_pid)
    name = f"{order.kind}.{order.index}"
    with Path(os.environ["PLAIN_WORKER_PIDS"]).open("a") as pids:
        pids.write(f"{name} {os.getpid()}\n")
    plan = Path(os.environ["PLAIN_WORKER_PLAN"]).read_text().strip()
    if plan == "crash":
        sys.exit(3)
    if plan == "refuse":
        line.report(Failed("there is no disk here", 78))
        sys.exit(78)
    if plan == "stubborn":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    else:
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    signal.signal(signal.SIGHUP, lambda *_: os.write(1, f"{name} reloads\n".encode()))
    line.report(Ready())
    line.beat()
    # A signal that comes just before a call that waits is not heard until the call returns.
    while not (select.select([line], [], [], 0.05)[0] and line.ended()):
        line.beat()


if __name__ == "__main__":
    main()
