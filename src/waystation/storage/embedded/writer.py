"""Group commit: one thread per process writes, and many operations share one flush to the disk.

Rule 1: what arrives in one turn of the loop, or while the last commit runs, is one transaction.
Rule 2: each operation has its own result. One that raises leaves nothing behind: the transaction
        is given up and the others run again without it. So an operation may run more than once
        and touches nothing but the transaction it is given.
Rule 3: results are given out after the commit, all of them in one call into the loop.
Rule 4: at most `queue_max` operations wait; one more is refused at once.
Rule 5: when there is no room, operations that make the store grow are refused, the others go on.

Several processes may write to one environment; LMDB's writer lock puts them in line.
"""

import asyncio
import contextlib
import errno
import queue
import sys
import threading
import time
from collections.abc import Callable
from typing import Any, NamedTuple, TypeAlias, TypeVar, cast

import lmdb
import msgspec

from waystation.base.errors import StoreFullError, StoreUnavailableError, WaystationError
from waystation.storage.embedded.environment import (
    STORE_ERRORS,
    Environment,
    errno_of,
    is_full,
    store_error,
)
from waystation.storage.embedded.free_space import FreeSpace

T = TypeVar("T")
WriteTransaction: TypeAlias = "lmdb.Transaction[bytes]"  # generic in its stubs only
Operation = Callable[[WriteTransaction], T]

_READER_CHECK_INTERVAL_S = 60.0

# lmdb gives up Python's lock in every call that reads or writes a row, and for the begin and the
# commit of a write. With the usual 5 ms between switches the writer would wait that long after each
# row whenever the loop is busy: 256 rows were seen to take 200 ms.
_SWITCH_INTERVAL_S = 0.0005


class _Waiting(NamedTuple):
    operation: Operation[Any]
    grows: bool
    future: asyncio.Future[Any]


class _Outcome(NamedTuple):
    future: asyncio.Future[Any]
    result: Any
    error: Exception | None


class WriterStats(msgspec.Struct):
    """Counted since the start; read by telemetry."""

    operations: int = 0
    commits: int = 0
    groups_run_again: int = 0
    refused_full: int = 0
    refused_queue: int = 0
    failed: int = 0
    group_max: int = 0
    waiting: int = 0
    waiting_max: int = 0
    commit_s: float = 0.0  # in flush and commit
    full: bool = False


class Writer:
    def __init__(
        self,
        env: Environment,
        room: FreeSpace,
        *,
        commit_batch_max: int,
        queue_max: int,
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        self._env = env
        self._free_space = room
        self._commit_batch_max = commit_batch_max
        self._queue_max = queue_max
        self._loop = loop
        self.stats = WriterStats()
        self._turn: list[_Waiting] = []  # what this turn of the loop brought
        self._handed: queue.SimpleQueue[list[_Waiting] | None] = queue.SimpleQueue()
        self._closing = False
        self._ended: asyncio.Future[None] = loop.create_future()
        self._readers_checked_at = time.monotonic()
        self._thread: threading.Thread | None = None
        self._start()

    def _start(self) -> None:
        if sys.getswitchinterval() > _SWITCH_INTERVAL_S:
            sys.setswitchinterval(_SWITCH_INTERVAL_S)
        self._thread = threading.Thread(target=self._run, name="store-writer", daemon=True)
        self._thread.start()

    # In the loop

    def submit(self, operation: Operation[T], *, grows: bool) -> asyncio.Future[T]:
        """The operation's result once it is on disk, or its own error."""
        stats = self.stats
        if self._closing:
            raise StoreUnavailableError("the store is closed")
        if stats.waiting >= self._queue_max:
            stats.refused_queue += 1
            raise StoreUnavailableError(f"store.queue_max: {stats.waiting} writes are waiting")
        stats.waiting += 1
        stats.waiting_max = max(stats.waiting_max, stats.waiting)
        future: asyncio.Future[T] = self._loop.create_future()
        if not self._turn:
            self._loop.call_soon(self._hand_over)
        self._turn.append(_Waiting(operation, grows, future))
        return future

    async def close(self) -> None:
        """What was submitted is still written."""
        if not self._closing:
            self._closing = True
            self._hand_over()
            self._handed.put(None)
        await asyncio.shield(self._ended)

    def _hand_over(self) -> None:
        if self._turn:
            self._handed.put(self._turn)
            self._turn = []

    def _resolve(self, outcomes: list[_Outcome]) -> None:
        self.stats.waiting -= len(outcomes)
        for future, result, error in outcomes:
            if future.done():
                continue  # its caller was cancelled; what it wrote stays
            if error is None:
                future.set_result(result)
            else:
                future.set_exception(error)

    def _resolve_end(self) -> None:
        if not self._ended.done():
            self._ended.set_result(None)

    # In the thread

    def _run(self) -> None:
        group: list[_Waiting] = []
        ending = False
        while not ending or group:
            if not group:
                handed = self._handed.get()
                ending = handed is None
                group = handed or []
            while len(group) < self._commit_batch_max and not ending:
                try:
                    handed = self._handed.get_nowait()
                except queue.Empty:
                    break
                ending = handed is None
                group = group + (handed or [])
            now, group = group[: self._commit_batch_max], group[self._commit_batch_max :]
            if now:
                self._tell(self._resolve, self._perform(now))
            self._clear_stale_readers()
        self._tell(self._resolve_end)

    def _tell(self, callback: Callable[..., None], *args: object) -> None:
        with contextlib.suppress(RuntimeError):  # loop closed: nobody waits for the answer any more
            self._loop.call_soon_threadsafe(callback, *args)

    def _perform(self, group: list[_Waiting]) -> list[_Outcome]:
        """Every operation of the group with its outcome, in any order."""
        outcomes: list[_Outcome] = []
        left = group
        while left:
            try:
                left = self._attempt(left, outcomes)
            except Exception as exc:  # the thread must live on, or everybody waits for ever
                told = {id(outcome.future) for outcome in outcomes}
                left = [one for one in left if id(one.future) not in told]
                outcomes += [_Outcome(one.future, None, store_error(exc)) for one in left]
                break
        for outcome in outcomes:
            if isinstance(outcome.error, StoreFullError):
                self.stats.refused_full += 1
            elif outcome.error is not None and not isinstance(outcome.error, WaystationError):
                self.stats.failed += 1
        return outcomes

    def _attempt(self, left: list[_Waiting], outcomes: list[_Outcome]) -> list[_Waiting]:
        """One transaction. Appends the outcomes that are certain, returns what must run again."""
        stats = self.stats
        txn = self._env.lmdb.begin(write=True)
        now = time.monotonic()
        try:
            shortage = self._free_space.shortage(txn, now)
        except BaseException:
            txn.abort()
            raise
        stats.full = shortage is not None
        if shortage is not None:
            left = _refuse_growth(left, outcomes, StoreFullError(shortage))
        done, raised = self._operate(left, txn)
        if raised is not None:
            txn.abort()
            return self._without(left, len(done), raised, outcomes)
        ran = time.monotonic()
        try:
            txn.commit()
        except lmdb.Error as exc:
            return self._after_failed_commit(left, exc, outcomes)
        stats.operations += len(left)
        stats.commits += 1
        stats.group_max = max(stats.group_max, len(left))
        stats.commit_s += time.monotonic() - ran
        outcomes += done
        return []

    def _operate(
        self, left: list[_Waiting], txn: WriteTransaction
    ) -> tuple[list[_Outcome], Exception | None]:
        """What was done, and what the operation after that raised."""
        done: list[_Outcome] = []
        try:
            for one in left:
                # One by one: when an operation raises, `done` says which.
                done.append(_Outcome(one.future, one.operation(txn), None))  # noqa: PERF401
        except Exception as exc:  # whatever it is, it belongs to this operation alone
            return done, exc
        return done, None

    def _without(
        self, left: list[_Waiting], at: int, exc: Exception, outcomes: list[_Outcome]
    ) -> list[_Waiting]:
        """The operation at `at` raised: what to run again, and who gets which error."""
        self.stats.groups_run_again += 1
        culprit = left[at]
        if is_full(exc):
            # Those that were done before it may still fit; growth from here on does not.
            full = cast("StoreFullError", store_error(exc))
            after = _refuse_growth(left[at:], outcomes, full)
            if after and after[0] is culprit:
                # A delete found no page: give it those that growth took, then smaller commits.
                again = _refuse_growth(left[:at], outcomes, full) + after
                if len(again) < len(left):
                    return again
                return self._in_halves(again, full, outcomes)
            return left[:at] + after
        error = store_error(exc) if isinstance(exc, STORE_ERRORS) else exc
        outcomes.append(_Outcome(culprit.future, None, error))
        return left[:at] + left[at + 1 :]

    def _after_failed_commit(
        self, left: list[_Waiting], exc: Exception, outcomes: list[_Outcome]
    ) -> list[_Waiting]:
        """Nothing of it was done. What does not grow is tried again without the rest, because a
        full disk has many names."""
        self.stats.groups_run_again += 1
        error = store_error(exc)
        if errno_of(exc) == errno.EIO and self._free_space.disk_nearly_full():
            error = StoreFullError(str(exc))
        shrinking = _refuse_growth(left, outcomes, error)
        if len(shrinking) < len(left):
            return shrinking
        if isinstance(error, StoreFullError):
            return self._in_halves(left, error, outcomes)
        outcomes += [_Outcome(one.future, None, store_error(exc)) for one in left]
        return []

    def _in_halves(
        self, left: list[_Waiting], error: StoreFullError, outcomes: list[_Outcome]
    ) -> list[_Waiting]:
        if len(left) == 1:
            outcomes.append(_Outcome(left[0].future, None, error))
            return []
        half = len(left) // 2
        outcomes += self._perform(left[:half])
        return left[half:]

    def _clear_stale_readers(self) -> None:
        now = time.monotonic()
        if now - self._readers_checked_at >= _READER_CHECK_INTERVAL_S:
            self._readers_checked_at = now
            # What is wrong, the next write or read tells somebody who waits for it.
            with contextlib.suppress(lmdb.Error):
                self._env.lmdb.reader_check()


def _refuse_growth(
    left: list[_Waiting], outcomes: list[_Outcome], error: StoreUnavailableError
) -> list[_Waiting]:
    # An error of its own for each: they are raised in different places.
    refused = [one for one in left if one.grows]
    outcomes += [_Outcome(one.future, None, type(error)(*error.args)) for one in refused]
    return [one for one in left if not one.grows]
