"""A supervisor over plain workers, as a program of its own: signals need a main thread.

While the file exists that PLAIN_TROUBLE names, the calls that the supervisor makes fail whose names
are its lines.
"""

import errno
import os
import sys
import time
from pathlib import Path

from tests.e2e import plain_worker
from waystation.app.supervisor import Job, Supervisor


def fail_if_told(name: str) -> None:
    trouble = Path(os.environ["PLAIN_TROUBLE"])
    if trouble.exists() and name in trouble.read_text().split():
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def say(name: str, *words: str) -> None:
    fail_if_told(name)
    print(*words, flush=True)


class Printed:
    def info(self, event: str, /, **fields: object) -> None:
        fail_if_told("lines")
        time.sleep(float(os.environ.get("PLAIN_LINE_S", "0")))
        print("info", event, fields, flush=True)

    warning = error = info


def main() -> None:
    count = int(sys.argv[1])
    supervisor = Supervisor(
        [Job("push", index, count, ("connect",)) for index in range(count)],
        b"null",
        lines=Printed(),
        on_ready=lambda: say("ready", "all ready"),
        on_failure=lambda reason: say("failure", "failed:", reason),
        on_died=lambda job: say("died", "died:", job.name),
        tidy=lambda: say("tidy", "tidied up"),
        drain_s=float(os.environ.get("PLAIN_DRAIN_S", "0")),
        stall_limit_s=float(os.environ.get("PLAIN_STALL_S", "0")),
        command=lambda fd: [sys.executable, "-m", plain_worker.__name__, "--control", str(fd)],
    )
    raise SystemExit(supervisor.run())


if __name__ == "__main__":
    main()
