"""The server that is measured: one that we start, or any that speaks the protocol, by its URLs."""

import contextlib
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path

import msgspec

from waystation.client.local_server import LocalServer

from .process_tree import Usage, usage

OWN_COMMAND = (sys.executable, "-m", "waystation.cli.main")


class Target(msgspec.Struct, frozen=True):
    ws_url: str
    endpoint_url: str
    pids: tuple[int, ...] = ()  # roots of its process tree; empty: CPU and memory stay unknown
    count: Callable[[Iterable[int]], Usage] = usage

    def look(self) -> Usage | None:
        return self.count(self.pids) if self.pids else None


class Scale(msgspec.Struct, frozen=True, kw_only=True):
    """How much of everything."""

    seconds: float = 5.0
    agents: int = 200
    senders: int = 32
    stored_agents: int = 200
    stored_senders: int = 128
    app_servers: int = 8
    latency_posts: int = 2000
    hellos: int = 4000
    idle: int = 10_000
    broadcast_agents: int = 4000
    broadcasts: int = 5  # ticks of each, and messages of nchan
    store_agents: int = 256
    party_guests: int = 200
    party_idle: int = 2000
    tokens_per_s: int = 8000  # prepared for a run in which every token is new


QUICK = Scale(
    seconds=1.5,
    latency_posts=500,
    hellos=1000,
    idle=2000,
    broadcast_agents=1000,
    broadcasts=3,
    party_idle=1000,
)
SMOKE = Scale(
    seconds=0.3,
    agents=10,
    senders=4,
    stored_agents=10,
    stored_senders=8,
    app_servers=2,
    latency_posts=20,
    hellos=20,
    idle=50,
    broadcast_agents=10,
    broadcasts=2,
    store_agents=64,
    party_guests=20,
    party_idle=40,
)


def per_operation_us(before: Usage | None, after: Usage | None, operations: int) -> float | None:
    if before is None or after is None or not operations:
        return None
    return (after.cpu_s - before.cpu_s) * 1e6 / operations


@contextlib.contextmanager
def serving(
    *roles: str,
    options: Sequence[str] = (),
    settings: Mapping[str, str] | None = None,
    command: Sequence[str] = OWN_COMMAND,
    start_timeout_s: float = 20.0,
) -> Iterator[LocalServer]:
    """`waystation serve ROLES` in a temporary directory. Settings are named as in the environment,
    without the prefix; `command` may be that of another checkout."""
    with tempfile.TemporaryDirectory(
        prefix="waystation-bench-", ignore_cleanup_errors=True
    ) as where:
        server = LocalServer(
            Path(where) / "data",
            roles=roles,
            options=(*options, "--log-level", "warning"),
            env={f"WAYSTATION_{name}": value for name, value in (settings or {}).items()},
            command=command,
        )
        try:
            server.start(start_timeout_s)
            yield server
        finally:
            server.close()


@contextlib.contextmanager
def own_server(
    workers: str = "auto",
    *,
    store: str = "",
    settings: Mapping[str, str] | None = None,
    command: Sequence[str] = OWN_COMMAND,
) -> Iterator[Target]:
    options = ("--workers", workers, *(("--store", store) if store else ()))
    with serving(
        "connect", "endpoint", options=options, settings=settings, command=command
    ) as server:
        yield Target(server.ws_url, server.endpoint_url, (server.pid,))
