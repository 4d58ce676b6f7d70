"""Metrics of an edge of a queue cluster."""

from collections.abc import Callable

from waystation.queue.edge.driver import EdgeDriver
from waystation.queue.edge.refs import RefCache
from waystation.queue.edge.upstreams import Upstreams
from waystation.queue.wire.commands import Command, New, Send
from waystation.telemetry.metrics import Metrics


class EdgeMetrics:
    """An `EdgeObserver`."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics
        self._new, self._sends, self._others = (
            metrics.counter("edge_commands", kind=kind) for kind in ("new", "send", "other")
        )
        self._bytes = metrics.counter("edge_command_bytes")
        self._auth, self._errors = (
            metrics.counter("edge_refusals", kind=kind) for kind in ("auth", "other")
        )
        self._later, self._cut = (
            metrics.counter("edge_unserved", outcome=outcome)
            for outcome in ("later", "disconnected")
        )
        self._held = metrics.histogram("edge_held_seconds")

    def took(self, command: Command, size_bytes: int) -> None:
        self._bytes.value += size_bytes
        if isinstance(command, Send):
            self._sends.value += 1
        elif isinstance(command, New):
            self._new.value += 1
        else:
            self._others.value += 1

    def refused(self, response: bytes) -> None:
        cell = self._auth if response == b"ERR AUTH" else self._errors
        cell.value += 1

    def unserved(self, *, disconnected: bool) -> None:
        cell = self._cut if disconnected else self._later
        cell.value += 1

    def waited(self, held_s: float) -> None:
        self._held.observe(held_s)

    def watch(
        self, driver: EdgeDriver, links: Upstreams, refs: RefCache, connections: Callable[[], int]
    ) -> None:
        """Register gauges that are computed on each read."""
        metrics = self._metrics
        clients = metrics.gauge("edge_connections")
        shared, own = (metrics.gauge("edge_links", kind=kind) for kind in ("shared", "own"))
        under_way, held, requests = (
            metrics.gauge("edge_waiting", kind=kind) for kind in ("under_way", "held", "requests")
        )
        remembered = metrics.gauge("edge_refs")
        known, unknown = (
            metrics.counter("edge_homes", outcome=outcome) for outcome in ("known", "unknown")
        )
        epoch = metrics.gauge("edge_epoch")

        def fill() -> None:
            clients.value = connections()
            shared.value, own.value = len(links), len(links.own)
            edge = driver.edge
            under_way.value, held.value, requests.value = edge.in_flight, edge.held, edge.requests
            remembered.value = len(refs)
            known.value, unknown.value = refs.hits, refs.misses
            epoch.value = edge.epoch

        metrics.on_read(fill)
