"""Load runs in processes of its own: `python -m benchmarks.load MODULE` is one of them.

The job comes as JSON in a line on stdin. When everything is prepared the process says `ready`,
waits for `go`, works, says `done` as soon as the work is finished, and then the result. The parent
looks at the server's CPU at `go` and at `done`.
"""

import asyncio
import contextlib
import gc
import importlib
import json
import select
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from .wire import LoadError

ROOT = Path(__file__).resolve().parents[1]
TIMEOUT_S = 180.0


class Phases:
    """The child's side."""

    async def ready(self) -> None:
        gc.collect()
        gc.freeze()
        gc.disable()
        _say("ready")
        line = await asyncio.to_thread(sys.stdin.readline)
        if line.strip() != "go":
            raise LoadError("the parent is gone")

    def done(self) -> None:
        _say("done")

    async def step(self, name: str) -> None:
        """A further point at which the parent looks or acts; goes on when told."""
        _say(name)
        await asyncio.to_thread(sys.stdin.readline)


def _say(word: str) -> None:
    print(word, flush=True)


class LoadProcesses:
    """The parent's side: one or more of them, moving from phase to phase together."""

    def __init__(self, module: str, jobs: Sequence[Mapping[str, Any]]) -> None:
        self._children = [
            subprocess.Popen(
                [sys.executable, "-m", "benchmarks.load", module],
                cwd=ROOT,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
            for _ in jobs
        ]
        for child, job in zip(self._children, jobs, strict=True):
            assert child.stdin is not None
            child.stdin.write(json.dumps(job) + "\n")
            child.stdin.flush()

    def __enter__(self) -> "LoadProcesses":
        return self

    def __exit__(self, *_: object) -> None:
        for child in self._children:
            child.kill()
            child.wait()
            for stream in (child.stdin, child.stdout):
                if stream is not None:
                    with contextlib.suppress(OSError):
                        stream.close()

    def expect(self, word: str) -> None:
        """Until all of them have said it."""
        for child in self._children:
            said = self._read(child)
            if said != word:
                raise LoadError(f"a load process said {said!r} instead of {word!r}")

    def go(self) -> None:
        for child in self._children:
            assert child.stdin is not None
            child.stdin.write("go\n")
            child.stdin.flush()

    def results(self) -> list[dict[str, Any]]:
        results = [json.loads(self._read(child)) for child in self._children]
        for child in self._children:
            child.wait(30)
        return results

    @staticmethod
    def _read(child: "subprocess.Popen[str]") -> str:
        assert child.stdout is not None
        # One line at a time is under way, so nothing hides in the reader's buffer.
        if not select.select([child.stdout], [], [], TIMEOUT_S)[0]:
            raise LoadError("a load process is silent")
        line = child.stdout.readline()
        if not line:
            raise LoadError(f"a load process ended with code {child.wait()}; its words are above")
        return line.strip()


def measured(
    module: str, jobs: Sequence[Mapping[str, Any]], look: Callable[[], Any]
) -> tuple[list[dict[str, Any]], Any, Any]:
    """The plain case: results, and what `look` saw at `go` and at `done`."""
    with LoadProcesses(module, jobs) as load:
        load.expect("ready")
        before = look()
        load.go()
        load.expect("done")
        after = look()
        return load.results(), before, after


def main() -> None:
    import uvloop

    module = importlib.import_module(sys.argv[1])
    job = json.loads(sys.stdin.readline())
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        result = runner.run(module.load(job, Phases()))
    # With PYTHONUNBUFFERED, print cuts a line that is longer than the pipe.
    with open(sys.stdout.fileno(), "w", closefd=False) as out:
        print(json.dumps(result), file=out)


if __name__ == "__main__":
    main()
