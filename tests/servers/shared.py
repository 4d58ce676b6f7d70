"""One server for all test files of a process.

A fixture that several files import is several fixtures, and each would start a server of its own.
"""

from collections.abc import Callable, Generator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Generic, TypeVar

Server = TypeVar("Server")


class Shared(Generic[Server]):
    """Started for the first who wants it, stopped after the last."""

    def __init__(self, running: Callable[[], AbstractContextManager[Server]]) -> None:
        self._running = running
        self._holders = 0
        self._held = ExitStack()
        self._server: Server | None = None

    @contextmanager
    def held(self) -> Generator[Server]:
        if self._server is None:
            self._server = self._held.enter_context(self._running())
        self._holders += 1
        try:
            yield self._server
        finally:
            self._holders -= 1
            if not self._holders:
                self._server = None
                self._held.close()
