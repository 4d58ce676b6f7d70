"""Group commit: one thread per process writes, and many operations share one flush to disk.

Rule 1: operations that arrive in one turn of the loop, or during a commit, share a transaction.
Rule 2: each operation has its own result. If one raises, the transaction is aborted and the others
        run again without it. So an operation may run more than once and changes only its
        transaction.
Rule 3: results are delivered after the commit, all in one call into the loop.
Rule 4: at most `queue_max` operations wait; one more is refused at once.
Rule 5: while there is no room, operations that make the store grow are refused; others continue.

Several processes may write to one environment; LMDB's writer lock serialises them.
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

# lmdb releases the GIL in every call that reads or writes a row, and in begin and commit. With
# CPython's default switch interval of 5 ms the writer would wait that long after each row while the
# loop is busy: 256 rows were measured to take 200 ms.
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
    """Counters since the start, read by telemetry."""

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
        self._turn: list[_Waiting] = []  # submitted in this turn of the loop
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
        """Returns the operation's result after the commit, or raises its error."""
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
        """Waits until submitted operations are written."""
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
                continue  # its caller was cancelled; the write stays
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
        with contextlib.suppress(RuntimeError):  # loop closed: no caller is left
            self._loop.call_soon_threadsafe(callback, *args)

    def _perform(self, group: list[_Waiting]) -> list[_Outcome]:
        """Runs the group; returns each operation with its outcome, in any order."""
        outcomes: list[_Outcome] = []
        left = group
        while left:
            try:
                left = self._attempt(left, outcomes)
            except Exception as exc:  # the thread must survive, or all callers wait for ever
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
        """One transaction. Appends final outcomes, returns operations that must run again."""
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
        """Returns the operations that succeeded, and the error of the next one, if any."""
        done: list[_Outcome] = []
        try:
            for one in left:
                # One by one: when an operation raises, the length of `done` is its position.
                done.append(_Outcome(one.future, one.operation(txn), None))  # noqa: PERF401
        except Exception as exc:  # any error belongs to this operation only
            return done, exc
        return done, None

    def _without(
        self, left: list[_Waiting], at: int, exc: Exception, outcomes: list[_Outcome]
    ) -> list[_Waiting]:
        """The operation at `at` raised: decides what runs again, and which operations fail."""
        self.stats.groups_run_again += 1
        culprit = left[at]
        if is_full(exc):
            # Operations before it may still fit; later ones that grow the store do not.
            full = cast("StoreFullError", store_error(exc))
            after = _refuse_growth(left[at:], outcomes, full)
            if after and after[0] is culprit:
                # A delete found no free page: drop growing operations, then use smaller commits.
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
        """The commit failed as a whole. Operations that do not grow the store run again alone,
        because a full disk causes many different errors."""
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
            # The next write or read reports the error to its caller.
            with contextlib.suppress(lmdb.Error):
                self._env.lmdb.reader_check()


def _refuse_growth(
    left: list[_Waiting], outcomes: list[_Outcome], error: StoreUnavailableError
) -> list[_Waiting]:
    # A separate error object for each, because each is raised in another task.
    refused = [one for one in left if one.grows]
    outcomes += [_Outcome(one.future, None, type(error)(*error.args)) for one in refused]
    return [one for one in left if not one.grows]
