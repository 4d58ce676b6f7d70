"""A membership change in the engine alone: a party of twenty, without any transport.

CPU of this process per join or leave, in units of `int(time.time() * 1000)` as well, and how often
an announcement is serialised (it must be once, whatever the size of the party). The engine hands
what its events are made of to the event log, whose thread makes them; what that takes is told too.
"""

import asyncio
import gc
import statistics
import time
from collections import deque
from collections.abc import Callable
from typing import Any

import structlog
import uvloop

from benchmarks.measurement import Measurement
from benchmarks.target import Scale
from waystation.app.lifecycle import GC_THRESHOLDS
from waystation.base.clock import SystemClock
from waystation.base.tasks import Tasks
from waystation.net.http2.port import GrpcStatus
from waystation.presence.broker import Broker
from waystation.presence.reports import Reports
from waystation.presence.settings import Presence
from waystation.presence.store import Owner
from waystation.presence.wire import party_presence_pb2 as pb
from waystation.presence.wire.party_presence_pb2 import ClientMessage
from waystation.storage.memory.presence import MemoryPresenceStore
from waystation.telemetry.events import Event, NoEvents
from waystation.telemetry.hashes import EventHashes
from waystation.telemetry.metrics import Metrics

PARTY = 20
PROBES = 20_000  # readings of the clock after each portion of changes
PORTION_S = 0.1


class HandedEvents(NoEvents):
    """Takes what the engine hands to the event log, and makes events of it when it is asked to."""

    def __init__(self) -> None:
        self._handed: list[tuple[Callable[..., Event], tuple[object, ...]]] = []

    def defer(self, make: Callable[..., Event], *args: object) -> None:
        self._handed.append((make, args))

    def make_all(self) -> None:
        for make, args in self._handed:
            make(*args)
        self._handed.clear()


class NoStream(deque[bytes]):
    """A stream whose peer takes everything at once, at no cost: `send` is a method that is written
    in C and keeps nothing, `writable` is found where a call has it. A method of ours
    would be a sixth of what each delivery is seen to take, attributes of the class as much."""

    __slots__ = ("holder", "writable")
    peer = "127.0.0.1:1"
    authorization = None
    send = deque.append

    def __init__(self) -> None:
        super().__init__(maxlen=0)
        self.holder: Any = None
        self.writable = True

    def finish(self, status: GrpcStatus, detail: str = "", *, discard_unsent: bool = False) -> None:
        self.holder = None

    def pause_reading(self) -> None: ...

    def resume_reading(self) -> None: ...


def run(scale: Scale) -> Measurement:
    thresholds = gc.get_threshold()
    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            return runner.run(_measure(scale))
    finally:
        gc.set_threshold(*thresholds)
        gc.unfreeze()


async def _measure(scale: Scale) -> Measurement:
    """Portions of changes, the clock read after each: what disturbs one disturbs the other."""
    engine = Engine()
    await engine.broker.start()
    engine.settle()
    gc.collect()
    gc.freeze()  # as a node does when it has started
    gc.set_threshold(*GC_THRESHOLDS)
    changes, cpu_s = 0, 0.0
    alone: list[float] = []
    with_events: list[float] = []
    before = engine.broker.serialisations
    began = time.perf_counter()
    while time.perf_counter() - began < scale.seconds or not alone:
        done, spent_s, events_s = engine.portion(min(PORTION_S, scale.seconds))
        clock_s = _clock_s()
        alone.append(spent_s / done / clock_s)
        with_events.append((spent_s + events_s) / done / clock_s)
        changes += done
        cpu_s += spent_s
        await asyncio.sleep(0)
    seconds = time.perf_counter() - began
    serialised = (engine.broker.serialisations - before) / changes
    await engine.close()
    return Measurement(
        scenario="membership change, engine alone",
        operation="join or leave",
        operations=changes,
        seconds=seconds,
        cpu_us=cpu_s * 1e6 / changes,
        notes=f"{statistics.median(alone):.0f} × int(time.time() * 1000), "
        f"{statistics.median(with_events):.0f} × with its events made; "
        f"{serialised:.2f} serialisations each",
    )


def _clock_s() -> float:
    """What `int(time.time() * 1000)` takes."""
    began = time.process_time()
    for _ in range(PROBES):
        int(time.time() * 1000)
    return (time.process_time() - began) / PROBES


class Engine:
    """A broker and a party in it, without transport."""

    def __init__(self) -> None:
        clock = SystemClock()
        settings = Presence(
            join_rate_per_min=1e9, join_burst=10**9, rate_per_s=1e9, rate_burst=10**9
        )
        self._store = MemoryPresenceStore(
            clock, log_max=settings.party_log, linger_s=settings.party_linger_s
        )
        self._events = HandedEvents()
        self._tasks = Tasks(lambda name, error: print(f"{name}: {error!r}"))
        self.broker = Broker(
            settings,
            self._store,
            owner=Owner("bench", clock.now_us()),
            clock=clock,
            reports=Reports(
                sink=self._events,
                hashes=EventHashes(bytes(32)),
                metrics=Metrics(),
                clock=clock,
                log=structlog.get_logger(),
            ),
            tasks=self._tasks,
            loop=asyncio.get_running_loop(),
            authority=None,
        )
        self._streams: list[Any] = [NoStream() for _ in range(PARTY)]
        self._session_id = 1000

    def settle(self) -> None:
        for seat, join in enumerate(self._joins()):
            self._join(self._streams[seat], join)

    def portion(self, seconds: float) -> tuple[int, float, float]:
        """How many changes, their CPU, and that of making their events. What clients say is written
        beforehand: it is not the engine's work."""
        done, spent_s, events_s = 0, 0.0, 0.0
        leave = ClientMessage(message_type=pb.LEAVE, message_id=2).SerializeToString()
        broker = self.broker
        until = time.perf_counter() + seconds
        while time.perf_counter() < until or not done:
            joins = self._joins()
            began = time.process_time()
            for stream, join in zip(self._streams, joins, strict=True):
                broker.message(stream, leave)
                self._join(stream, join)
            ended = time.process_time()
            self._events.make_all()
            spent_s += ended - began
            events_s += time.process_time() - ended
            done += 2 * PARTY
        return done, spent_s, events_s

    def _joins(self) -> list[bytes]:
        said: list[bytes] = []
        for seat in range(PARTY):
            self._session_id += 1
            message = ClientMessage(
                message_type=pb.JOIN,
                message_id=1,
                session_id=self._session_id,
                client_id=seat + 1,
                party_id=7,
                session_ttl_ms=120_000,
            )
            said.append(message.SerializeToString())
        return said

    def _join(self, stream: Any, join: bytes) -> None:
        self.broker.opened(stream)
        self.broker.message(stream, join)

    async def close(self) -> None:
        await self._tasks.close()
        await self._store.close()
