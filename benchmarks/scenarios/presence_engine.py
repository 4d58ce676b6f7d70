"""A membership change in the engine alone: a party of twenty, without any transport.

CPU of this process per join or leave, in units of `int(time.time() * 1000)` as well, and how often
an announcement is serialised (it must be once, whatever the size of the party).
"""

import asyncio
import time
from typing import Any

import structlog
import uvloop

from benchmarks.measurement import Measurement
from benchmarks.target import Scale
from waystation.base.clock import SystemClock
from waystation.base.tasks import Tasks
from waystation.presence.broker import Broker
from waystation.presence.reports import Reports
from waystation.presence.settings import Presence
from waystation.presence.store import Owner
from waystation.presence.transport.port import GrpcStatus
from waystation.presence.wire import party_presence_pb2 as pb
from waystation.presence.wire.party_presence_pb2 import ClientMessage
from waystation.storage.memory.presence import MemoryPresenceStore
from waystation.telemetry.events import RecordedEvents
from waystation.telemetry.hashes import EventHashes
from waystation.telemetry.metrics import Metrics

PARTY = 20
PROBES = 200_000


class NoStream:
    """A stream whose peer takes everything at once."""

    peer = "127.0.0.1:1"
    authorization = None
    writable = True

    def __init__(self) -> None:
        self.holder: Any = None
        self.sent = 0

    def send(self, message: bytes) -> None:
        self.sent += 1

    def finish(self, status: GrpcStatus, detail: str = "", *, discard_unsent: bool = False) -> None:
        self.holder = None

    def pause_reading(self) -> None: ...

    def resume_reading(self) -> None: ...


def run(scale: Scale) -> Measurement:
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        changes, cpu_s, seconds, serialised = runner.run(_go(scale))
    cpu_us = cpu_s * 1e6 / changes
    return Measurement(
        scenario="membership change, engine alone",
        operation="join or leave",
        operations=changes,
        seconds=seconds,
        cpu_us=cpu_us,
        notes=f"{cpu_us / _clock_us():.0f} × int(time.time() * 1000); "
        f"{serialised:.2f} serialisations each",
    )


def _clock_us() -> float:
    began = time.process_time()
    for _ in range(PROBES):
        int(time.time() * 1000)
    return (time.process_time() - began) * 1e6 / PROBES


async def _go(scale: Scale) -> tuple[int, float, float, float]:
    clock = SystemClock()
    settings = Presence(join_rate_per_min=1e9, join_burst=10**9, rate_per_s=1e9, rate_burst=10**9)
    store = MemoryPresenceStore(clock, log_max=settings.party_log, linger_s=settings.party_linger_s)
    tasks = Tasks(lambda name, error: print(f"{name}: {error!r}"))
    broker = Broker(
        settings,
        store,
        owner=Owner("bench", clock.now_us()),
        clock=clock,
        reports=Reports(
            sink=RecordedEvents(),
            hashes=EventHashes(bytes(32)),
            metrics=Metrics(),
            clock=clock,
            log=structlog.get_logger(),
        ),
        tasks=tasks,
        loop=asyncio.get_running_loop(),
        authority=None,
    )
    await broker.start()
    seats = [_join(broker, seat, seat + 1) for seat in range(PARTY)]
    changes = 0
    before = broker.serialisations
    began, cpu_began = time.perf_counter(), time.process_time()
    while time.perf_counter() - began < scale.seconds:
        for seat in range(PARTY):
            leave = ClientMessage(message_type=pb.LEAVE, message_id=2).SerializeToString()
            broker.message(seats[seat], leave)
            seats[seat] = _join(broker, seat, changes + 1000)
            changes += 2
        await asyncio.sleep(0)
    cpu_s, seconds = time.process_time() - cpu_began, time.perf_counter() - began
    serialised = (broker.serialisations - before) / changes
    await tasks.close()
    await store.close()
    return changes, cpu_s, seconds, serialised


def _join(broker: Broker, seat: int, session_id: int) -> Any:
    stream: Any = NoStream()
    broker.opened(stream)
    message = ClientMessage(
        message_type=pb.JOIN,
        message_id=1,
        session_id=session_id,
        client_id=seat + 1,
        party_id=7,
        session_ttl_ms=120_000,
    )
    broker.message(stream, message.SerializeToString())
    return stream
