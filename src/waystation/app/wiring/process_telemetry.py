"""Event log, metrics and status of one worker process.

`node.start` is the first event of a process, `node.stop` the last: a missing `node.stop` means a
crash. Events and log lines that are dropped are counted in metrics. Each metric is served by one
port: a worker's `/metrics` has those of all workers of its kind on this machine, and no others.
"""

import asyncio
import time
from collections.abc import Callable

from waystation.app.data_dir import DataDir
from waystation.app.roles import Role
from waystation.app.settings import Events, Settings
from waystation.app.version import build
from waystation.base.clock import Clock
from waystation.base.settings import SettingsError
from waystation.base.tasks import Tasks
from waystation.ops.process_status import LoopLag, StatusFiles, event_node, rss_bytes
from waystation.telemetry import events, logs
from waystation.telemetry.eventlog import EventLog
from waystation.telemetry.metrics import Metrics
from waystation.telemetry.segments import folder_bytes
from waystation.telemetry.sink import LineSink
from waystation.telemetry.snapshots import read_snapshots

NODE_STATS_INTERVAL_S = 10.0


class ProcessTelemetry:
    """Created with the worker, started before its store opens, closed last."""

    def __init__(
        self,
        settings: Settings,
        data: DataDir,
        clock: Clock,
        *,
        name: str,
        roles: tuple[Role, ...],
        service: str = "serve",
        connections: Callable[[], int] = lambda: 0,
        counts: Callable[[], dict[str, int]] = dict,
    ) -> None:
        self._clock = clock
        self._name = name
        self._connections = connections
        self._spool = data.events
        self._numbers = data.numbers(service, name.rpartition(".")[0])
        self.node = event_node(settings.cluster.node, name)
        self.boot_us = clock.now_us()
        self.metrics = Metrics()
        self.lag = LoopLag(clock)
        self.events = EventLog(
            data.events,
            self.node,
            self.boot_us,
            clock,
            spool_bytes_max=settings.events.max_bytes,
            sink=_kafka(settings.events, self.node, clock),
            on_failure=_events_failed,
        )
        self._status_files = StatusFiles(
            self._numbers,
            name,
            roles,
            metrics=self.metrics,
            lag=self.lag,
            clock=clock,
            connections=connections,
            counts=counts,
        )
        self._count_lines()

    def start(self, tasks: Tasks) -> None:
        self.events.start(asyncio.get_running_loop())
        self.events.emit(events.NodeStart(attrs=events.NodeStartAttrs(version=build().version)))
        for name, duty in (
            ("loop lag", self.lag.run),
            ("reports", self._status_files.run),
            ("node stats", self._tell_stats),
        ):
            tasks.keep(name, duty)

    async def close(self) -> None:
        self.events.emit(events.NodeStop(code=0))
        await self.events.close()

    def exposition(self) -> bytes:
        """Metrics of all workers of this kind; those of other workers are a second old."""
        from waystation.telemetry.exposition import expose  # noqa: PLC0415 slow to load

        now_ms = self._clock.now_ms()
        others = [one for one in read_snapshots(self._numbers) if one.worker != self._name]
        ours = self.metrics.snapshot(self._name, now_ms)
        return expose([*others, ours], now_ms=now_ms)

    def _count_lines(self) -> None:
        log = self.events
        written = self.metrics.counter("events_written")
        lost = self.metrics.counter("events_lost")
        dropped = self.metrics.counter("log_lines_dropped")

        def fill() -> None:
            written.value = sum(log.counts.values())
            lost.value = log.lost_total
            dropped.value = logs.dropped_total()

        self.metrics.on_read(fill)

    async def _tell_stats(self) -> None:
        while True:
            await asyncio.sleep(NODE_STATS_INTERVAL_S)
            # Built when the log writes it, so that its counters cover exactly the lines before it
            # and the pipeline can compare them with its own.
            self.events.defer(self._stats)

    def _stats(self) -> events.NodeStats:
        return events.NodeStats(
            attrs=events.NodeStatsAttrs(
                connections=self._connections(),
                rss=rss_bytes(),
                cpu=time.process_time(),
                loop_lag=self.lag.worst_recent_s,
                spool_bytes=folder_bytes(self._spool),
                counters={str(code): count for code, count in self.events.counts.items()},
            )
        )


def _events_failed(error: Exception) -> None:
    logs.get("events").error("events.lost", exc_info=error)


def _kafka(settings: Events, node: str, clock: Clock) -> LineSink | None:
    """The Kafka sink if `events.sink` says so; its client is an optional extra."""
    if settings.sink != "kafka":
        return None
    try:
        from waystation.telemetry.kafka_sink import KafkaSink  # noqa: PLC0415 an extra
    except ImportError as exc:
        raise SettingsError([f"events.sink: pip install 'waystation[kafka]' ({exc})"]) from exc
    try:
        return KafkaSink(settings.topic, node, clock)
    except (OSError, ValueError) as exc:
        raise SettingsError([f"events.kafka_config: {exc}"]) from exc
