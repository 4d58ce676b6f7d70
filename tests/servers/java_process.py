"""A Java program as a server of the tests."""

import subprocess
import time
from collections.abc import Callable, Sequence
from pathlib import Path


class JavaProcess:
    """`name` is what people call it; what it says is kept in its folder."""

    def __init__(self, name: str, folder: Path) -> None:
        self._name = name
        self._said = folder / "said.log"
        self._process: subprocess.Popen[bytes] | None = None

    def start(
        self,
        command: Sequence[str],
        answers: Callable[[], bool],
        *,
        within_s: float,
        cwd: Path | None = None,
    ) -> None:
        with self._said.open("ab") as log:
            self._process = subprocess.Popen(command, cwd=cwd, stdout=log, stderr=log)
        deadline = time.monotonic() + within_s
        while not answers():
            if time.monotonic() > deadline or self._process.poll() is not None:
                raise RuntimeError(f"{self._name} did not start:\n{self._said.read_text()}")
            time.sleep(0.1)

    def stop(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.wait(10)
