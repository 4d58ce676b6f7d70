"""Events of queues, edges and slots.

Totals per slot and 10 s; `qh` and `iph` appear only with `queue.trace_events`, in tests.
"""

from typing import ClassVar

from waystation.telemetry.events.base import Attrs, Event


class QueueNew(Event, frozen=True, kw_only=True):
    k: ClassVar[int] = 100
    slot: int
    code: int
    n: int | None = None
    size: int | None = None
    qh: int | None = None
    iph: int | None = None


class _QueueTotals(Event, frozen=True, kw_only=True):
    slot: int
    n: int | None = None
    size: int | None = None
    code: int | None = None
    qh: int | None = None
    iph: int | None = None


class QueueSub(_QueueTotals, frozen=True, kw_only=True):
    k: ClassVar[int] = 101


class QueueSecure(_QueueTotals, frozen=True, kw_only=True):
    k: ClassVar[int] = 102


class QueueSend(Event, frozen=True, kw_only=True):
    k: ClassVar[int] = 103
    slot: int
    size: int
    code: int
    n: int | None = None
    qh: int | None = None
    iph: int | None = None


class QueueDeliver(_QueueTotals, frozen=True, kw_only=True):
    k: ClassVar[int] = 104


class QueueAck(_QueueTotals, frozen=True, kw_only=True):
    k: ClassVar[int] = 105
    dur: int | None = None


class QueueGet(_QueueTotals, frozen=True, kw_only=True):
    k: ClassVar[int] = 106
    flag: bool | None = None


class QueueDelete(_QueueTotals, frozen=True, kw_only=True):
    k: ClassVar[int] = 107


class QueueSuspend(_QueueTotals, frozen=True, kw_only=True):
    k: ClassVar[int] = 108


class QueueExpired(Event, frozen=True, kw_only=True):
    k: ClassVar[int] = 109
    slot: int
    n: int
    size: int | None = None


class QueueNotifierNew(Event, frozen=True, kw_only=True):
    k: ClassVar[int] = 111
    slot: int
    code: int
    n: int | None = None
    qh: int | None = None
    iph: int | None = None


class QueueNotify(Event, frozen=True, kw_only=True):
    k: ClassVar[int] = 112
    slot: int
    code: int
    n: int | None = None
    qh: int | None = None
    iph: int | None = None


# Events of edges. Classes are named after the kinds in the contract, which are stored.


class ProxyRoute(Event, frozen=True, kw_only=True):
    k: ClassVar[int] = 120
    slot: int
    peer: str
    code: int
    dur: int | None = None
    n: int | None = None
    size: int | None = None


class ProxyRefSet(Event, frozen=True, kw_only=True):
    k: ClassVar[int] = 121
    slot: int
    peer: str
    code: int
    n: int | None = None


class ProxyRefGet(Event, frozen=True, kw_only=True):
    k: ClassVar[int] = 122
    slot: int
    peer: str
    code: int
    n: int | None = None


class SlotLoadAttrs(Attrs, frozen=True, kw_only=True):
    messages: int
    ops_in: int
    ops_out: int


class SlotLoad(Event, frozen=True, kw_only=True):
    k: ClassVar[int] = 130
    slot: int
    n: int
    size: int
    attrs: SlotLoadAttrs


class SlotMoveBegin(Event, frozen=True, kw_only=True):
    k: ClassVar[int] = 131
    slot: int
    peer: str
    size: int
    code: int


class SlotMoveEnd(Event, frozen=True, kw_only=True):
    k: ClassVar[int] = 132
    slot: int
    peer: str
    size: int
    code: int
