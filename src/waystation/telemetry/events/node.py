"""Events of processes and of their stores."""

from typing import ClassVar

from waystation.telemetry.events.base import Attrs, Event


class StoreStatsAttrs(Attrs, frozen=True, kw_only=True):
    table: str
    op: str


class StoreStats(Event, frozen=True, kw_only=True):
    k: ClassVar[int] = 80
    n: int
    size: int
    dur: int
    code: int
    attrs: StoreStatsAttrs


class NodeStartAttrs(Attrs, frozen=True, kw_only=True):
    version: str


class NodeStart(Event, frozen=True, kw_only=True):
    k: ClassVar[int] = 300
    attrs: NodeStartAttrs


class NodeStop(Event, frozen=True, kw_only=True):
    k: ClassVar[int] = 301
    code: int


class NodeStatsAttrs(Attrs, frozen=True, kw_only=True, gc=True):
    connections: int
    rss: int
    cpu: float
    loop_lag: float
    spool_bytes: int
    counters: dict[str, int]


class NodeStats(Event, frozen=True, kw_only=True, gc=True):
    k: ClassVar[int] = 302
    attrs: NodeStatsAttrs


class LogGap(Event, frozen=True, kw_only=True):
    k: ClassVar[int] = 303
    n: int
