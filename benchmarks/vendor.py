"""FCM's double in a process of its own, so that its CPU is not the server's.

`python -m benchmarks.vendor` says its address and credentials as JSON, then obeys lines on stdin:
`hang` and `answer` change what it does, `count` tells how many connections it has seen.
"""

import asyncio
import contextlib
import json
import subprocess
import sys
from collections.abc import Iterator

import msgspec

from .load import ROOT


class Vendor:
    """The parent's side."""

    def __init__(self, child: "subprocess.Popen[str]") -> None:
        self._child = child
        said = json.loads(self._line())
        self.url: str = said["url"]
        self.credentials: str = said["credentials"]

    def hang(self) -> None:
        self._tell("hang")

    def answer(self) -> None:
        self._tell("answer")

    def connections_seen(self) -> int:
        return int(self._tell("count"))

    def _tell(self, word: str) -> str:
        assert self._child.stdin is not None
        self._child.stdin.write(word + "\n")
        self._child.stdin.flush()
        return self._line()

    def _line(self) -> str:
        assert self._child.stdout is not None
        return self._child.stdout.readline().strip()


@contextlib.contextmanager
def vendor() -> Iterator[Vendor]:
    child = subprocess.Popen(
        [sys.executable, "-m", "benchmarks.vendor"],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        yield Vendor(child)
    finally:
        child.kill()
        child.wait()


async def main() -> None:
    from tests.servers.http2_double import Fault
    from tests.servers.vendors import FcmDouble

    async with FcmDouble(streams_max=100) as double:
        said = {"url": double.url, "credentials": double.credentials()}
        print(msgspec.json.encode(said).decode(), flush=True)
        while line := (await asyncio.to_thread(sys.stdin.readline)).strip():
            match line:
                case "hang":
                    double.fault = lambda _: Fault.HANG
                case "answer":
                    double.fault = lambda _: None
                case _:
                    pass
            double.taken.clear()
            print(double.http.connections_seen, flush=True)


if __name__ == "__main__":
    asyncio.run(main())
