"""Events of the queue service: counts per slot of the last ten seconds.

Rule 1: an event has the counts of one slot, without queues or clients (design, *Queue privacy*).
        Only with `trace`, in tests, there is an event for each command, with a keyed hash of its
        queue; there are no totals then, so that sums stay right.
Rule 2: commands without a slot, such as a NEW that was refused, are counted by the metrics alone.
"""

from typing import Final

from waystation.base.clock import Clock
from waystation.queue.errors import Blocked, Code, Fault
from waystation.queue.model import Slot
from waystation.queue.store import SlotLoad
from waystation.telemetry import events
from waystation.telemetry.events import Event, EventSink
from waystation.telemetry.hashes import EventHashes

DONE: Final = 0
_OTHER: Final = 9
_CODES: Final[dict[Fault, int]] = {Code.AUTH: 1, Code.QUOTA: 2, Code.LARGE_MSG: 3}

# Kinds whose code tells success from failure; of the others only successes are counted.
_CODED: Final = (events.QueueNew, events.QueueSend, events.QueueNotifierNew, events.QueueNotify)
_SIZED: Final = (events.QueueSend, events.QueueDeliver)


def code_of(fault: Fault | None) -> int:
    """By the event contract: 0 done, 1 AUTH, 2 QUOTA, 3 LARGE, 4 BLOCKED."""
    if fault is None:
        return DONE
    if isinstance(fault, Blocked):
        return 4
    return _CODES.get(fault, _OTHER) if isinstance(fault, Code) else _OTHER


class SlotTotals:
    def __init__(self, sink: EventSink, clock: Clock, *, trace: EventHashes | None = None) -> None:
        self._sink = sink
        self._clock = clock
        self._trace = trace
        # (kind, slot, code) -> count, bytes, microseconds. At most 4096 slots of a dozen kinds.
        self._totals: dict[tuple[type[Event], int, int], list[int]] = {}
        self._changed: dict[int, list[int]] = {}  # since `take_changed`: commands in, messages out

    def add(
        self,
        kind: type[Event],
        slot: Slot | int,
        *,
        code: int = DONE,
        size: int = 0,
        dur_us: int = 0,
        queue_id: bytes | None = None,
    ) -> None:
        operations = self._changed.setdefault(slot, [0, 0])
        operations[kind is events.QueueDeliver] += 1
        if self._trace is not None:
            qh = None
            if queue_id is not None:
                qh = self._trace.qh(queue_id, self._clock.now_ms())
            self._sink.emit(_event(kind, slot, code, [1, size, dur_us], qh))
            return
        key = (kind, slot, code)
        total = self._totals.get(key)
        if total is None:
            self._totals[key] = [1, size, dur_us]
        else:
            total[0] += 1
            total[1] += size
            total[2] += dur_us

    def expired(self, slot: Slot, count: int) -> None:
        self._sink.emit(events.QueueExpired(slot=slot, n=count))

    def take_changed(self) -> dict[int, list[int]]:
        """Slots with activity since the last call: commands received, messages delivered."""
        changed, self._changed = self._changed, {}
        return changed

    def emit_load(self, slot: int, load: SlotLoad, operations: list[int]) -> None:
        """Emits the load of a slot, for planning moves."""
        ops_in, ops_out = operations
        attrs = events.SlotLoadAttrs(messages=load.messages, ops_in=ops_in, ops_out=ops_out)
        self._sink.emit(
            events.SlotLoad(slot=slot, n=load.queues, size=load.stored_bytes, attrs=attrs)
        )

    def tell(self) -> None:
        """Emits the totals and begins anew."""
        totals, self._totals = self._totals, {}
        for (kind, slot, code), total in totals.items():
            self._sink.emit(_event(kind, slot, code, total, None))


def _event(kind: type[Event], slot: int, code: int, total: list[int], qh: int | None) -> Event:
    count, size, dur_us = total
    columns: dict[str, int] = {"slot": slot}
    if count != 1:
        columns["n"] = count
    if qh is not None:
        columns["qh"] = qh
    if kind in _SIZED:
        columns["size"] = size
    if kind in _CODED or code:
        columns["code"] = code
    if kind is events.QueueAck:
        columns["dur"] = dur_us // count
    return kind(**columns)
