"""A supervisor over plain workers, as a program of its own: signals need a main thread."""

import os
import sys
import time

from tests.e2e import plain_worker
from waystation.app.supervisor import Job, Supervisor


class Printed:
    def info(self, event: str, /, **fields: object) -> None:
        time.sleep(float(os.environ.get("PLAIN_LINE_S", "0")))
        print("info", event, fields, flush=True)

    warning = error = info


def main() -> None:
    count = int(sys.argv[1])
    supervisor = Supervisor(
        [Job("push", index, count, ("connect",)) for index in range(count)],
        b"null",
        lines=Printed(),
        on_ready=lambda: print("all ready", flush=True),
        on_failure=lambda reason: print("failed:", reason, flush=True),
        on_died=lambda job: print("died:", job.name, flush=True),
        drain_s=float(os.environ.get("PLAIN_DRAIN_S", "0")),
        command=lambda fd: [sys.executable, "-m", plain_worker.__name__, "--control", str(fd)],
    )
    raise SystemExit(supervisor.run())


if __name__ == "__main__":
    main()
