"""What the console shows and whom it asks. The app hands over the real ones."""

from collections.abc import Awaitable, Callable, Mapping
from typing import Protocol

import msgspec

from waystation.net.http1.message import Request, Response


class WorkerStatus(msgspec.Struct, frozen=True, kw_only=True):
    """One process of this server, as it describes itself."""

    name: str
    roles: tuple[str, ...]
    pid: int
    started_at_ms: int
    reported_at_ms: int
    rss_bytes: int = 0
    connections: int = 0
    loop_lag_ms: float = 0.0
    counts: dict[str, int] = {}


class ServerStatus(msgspec.Struct, frozen=True, kw_only=True):
    """The whole server at one moment."""

    version: str
    now_ms: int
    started_at_ms: int
    workers: tuple[WorkerStatus, ...]
    missing: tuple[str, ...] = ()  # workers that have not reported lately
    rates: dict[str, float] = {}  # per second, since the look before
    store_url: str = ""
    store_bytes: int = 0
    store_ok: bool = True
    disk_free_bytes: int = 0
    addresses: tuple[tuple[str, str], ...] = ()  # what, where
    broadcasts: int = 0

    def connections(self, role: str) -> int:
        """Open connections of the workers that have this role."""
        return sum(worker.connections for worker in self.workers if role in worker.roles)


class BroadcastStore(Protocol):
    """The part of `PushStore` that publishing needs."""

    async def publish_broadcast(self, broadcast_id: str, version: str) -> bool: ...

    async def get_broadcasts(self) -> Mapping[str, str]: ...


class Tokens(msgspec.Struct, frozen=True):
    """Who may do what."""

    operator: str
    reader: str
    publishers: dict[str, str]  # broadcaster, or `*` -> token


class Sources(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that the console asks others for."""

    store: BroadcastStore
    status: Callable[[], Awaitable[ServerStatus]]
    metrics: Callable[[], bytes]  # of the console's own process
    health: Callable[[Request], Response | None]
