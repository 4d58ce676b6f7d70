"""Verifies proofs in threads: a signature takes longer than the rest of a command.

Rule 1: the proofs of one batch are one job of one thread. The jobs of one loop turn are passed to
        the threads together, and their results come back together: waking a thread and the loop
        costs more than a signature.
Rule 2: an unknown queue, a wrong key and a key of another kind take the same code path and the same
        time (§5.9); `auth.check` ensures the latter.
"""

import asyncio
import contextlib
import queue
import threading
from collections import deque
from collections.abc import Callable, Sequence
from typing import NamedTuple

from waystation.queue import auth
from waystation.queue.model import AuthKey, CorrId, DhPrivateKey


class Proof(NamedTuple):
    """A proof, and the keys that may have made it; no keys count as wrong ones."""

    keys: Sequence[AuthKey]
    proof: bytes
    authorized: bytes
    corr_id: CorrId
    session_key: DhPrivateKey | None
    prefix: bytes = b""  # signed before the rest: the fingerprint of a service
    service: tuple[AuthKey, bytes] | None = None  # the service's own key and proof


Proven = bool | None  # whether it is valid; None: the service's proof is not


class _Job(NamedTuple):
    proofs: list[Proof]
    answered: "asyncio.Future[list[Proven]]"


class Checks:
    def __init__(self, *, threads: int, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._turn: list[_Job] = []  # of this loop turn
        self._handed: queue.SimpleQueue[list[_Job] | None] = queue.SimpleQueue()
        self._done: deque[tuple[_Job, list[Proven] | Exception]] = deque()
        self._delivering = False
        self.waiting = 0
        self._threads = [
            threading.Thread(target=self._run, name=f"queue-check-{k}", daemon=True)
            for k in range(threads)
        ]
        for thread in self._threads:
            thread.start()

    # In the event loop

    def ask(self, proofs: list[Proof]) -> "asyncio.Future[list[Proven]]":
        """For each proof, whether it is valid."""
        answered: asyncio.Future[list[Proven]] = self._loop.create_future()
        self.waiting += 1
        if not self._turn:
            self._loop.call_soon(self._hand_over)
        self._turn.append(_Job(proofs, answered))
        return answered

    def close(self) -> None:
        for _ in self._threads:
            self._handed.put(None)
        for thread in self._threads:
            thread.join(timeout=5.0)

    def _hand_over(self) -> None:
        jobs, self._turn = self._turn, []
        shares = len(self._threads)
        for k in range(min(shares, len(jobs))):
            self._handed.put(jobs[k::shares])

    def _deliver_results(self) -> None:
        self._delivering = False  # first: results from here on need another call
        while self._done:
            job, answer = self._done.popleft()
            self.waiting -= 1
            if job.answered.done():
                continue  # its connection is closed
            if isinstance(answer, Exception):
                job.answered.set_exception(answer)
            else:
                job.answered.set_result(answer)

    # In the threads

    def _run(self) -> None:
        check: Callable[..., bool] = auth.check
        while (jobs := self._handed.get()) is not None:
            for job in jobs:
                try:
                    answer: list[Proven] | Exception = [prove(one, check) for one in job.proofs]
                except Exception as exc:  # the thread must live on, or all clients hang
                    answer = exc
                self._done.append((job, answer))
            if not self._delivering:
                self._delivering = True
                with contextlib.suppress(RuntimeError):  # the loop is closed
                    self._loop.call_soon_threadsafe(self._deliver_results)


def prove(asked: Proof, check: Callable[..., bool] = auth.check) -> Proven:
    """Checks both proofs of a service, whatever the result of the first."""
    keys, proof, authorized, corr_id, session_key, prefix, service = asked
    holds = check(keys, proof, prefix + authorized, corr_id, session_key)
    if service is None:
        return holds
    key, service_proof = service
    return holds if check((key,), service_proof, authorized, corr_id, session_key) else None
