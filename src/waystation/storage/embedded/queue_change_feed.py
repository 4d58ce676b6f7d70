"""Sends committed queue changes to a sink before the caller gets its result.

Rule 1: the sink receives committed changes in commit order: each operation runs through a
        transaction that records its changes, which are sent after the commit.
Rule 2: changes are sent even if their caller was cancelled.
Rule 3: the caller gets its result when the sink has confirmed.
"""

import asyncio
from collections.abc import Awaitable
from functools import partial
from typing import Any, TypeVar, cast

from waystation.queue.model import Slot
from waystation.queue.store import Row, Sink
from waystation.storage.embedded.environment import Environment
from waystation.storage.embedded.queue_slots import RecordedTransaction
from waystation.storage.embedded.writer import Operation, Writer, WriteTransaction

T = TypeVar("T")
_Told = tuple[Any, list[tuple[Slot, Row]]]


class ChangeFeed:
    def __init__(self, env: Environment, writer: Writer) -> None:
        self._env = env
        self._writer = writer

    async def submit(self, operation: Operation[T], sink: Sink, *, grows: bool) -> T:
        written = self._writer.submit(partial(self._run, operation), grows=grows)
        told: asyncio.Future[list[Awaitable[None]]] = asyncio.get_running_loop().create_future()
        # Callbacks of futures run in the order of their resolution, which is commit order.
        written.add_done_callback(partial(_tell, sink, told))
        waits = await asyncio.shield(told)
        for wait in waits:
            await wait
        return written.result()[0]

    def _run(self, operation: Operation[T], txn: WriteTransaction) -> _Told:
        recorded = RecordedTransaction(txn, self._env)
        result = operation(cast("WriteTransaction", recorded))
        return result, recorded.changes


def _tell(
    sink: Sink,
    told: "asyncio.Future[list[Awaitable[None]]]",
    written: "asyncio.Future[_Told]",
) -> None:
    error = written.exception()
    if error is not None:
        told.set_exception(error)
        return
    by_slot: dict[Slot, list[Row]] = {}
    for slot, row in written.result()[1]:
        by_slot.setdefault(slot, []).append(row)
    waits: list[Awaitable[None]] = []
    for slot, rows in by_slot.items():
        wait = sink(slot, rows)
        if wait is not None:
            waits.append(wait)
    told.set_result(waits)
