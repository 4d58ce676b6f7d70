"""The stores that can be had here: in the process, on servers that we start, or by their URLs.

The servers are those of the tests: on loopback, in folders of their own, gone afterwards. How
durable each is stands in the notes, because a server that flushes less is quicker.
"""

import asyncio
import contextlib
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager

import msgspec

from waystation.base.clock import SystemClock
from waystation.storage.open import init_push_store, rotate_push_store, shown_url
from waystation.storage.settings import Store

from .wire import LoadError

# A server on a busy machine may take its time; that is slow, not gone.
SETTINGS = Store(operation_timeout_s=60.0, connect_timeout_s=30.0)


class Place(msgspec.Struct, frozen=True):
    name: str
    url: str
    notes: str = ""
    months: bool = False  # user agents of an earlier month are measured too


@contextmanager
def _memory() -> Iterator[Place]:
    yield Place("memory", "memory:")


@contextmanager
def _embedded() -> Iterator[Place]:
    with tempfile.TemporaryDirectory(prefix="waystation-bench-") as folder:
        yield Place("embedded", f"embedded://{folder}", "flushed")


@contextmanager
def _redis() -> Iterator[Place]:
    from tests.servers.redis import running_redis

    with running_redis("--appendonly", "yes") as server:
        yield _made(Place("redis", server.new_url(), "appendonly, flushed every second"))


@contextmanager
def _postgres() -> Iterator[Place]:
    from tests.servers.postgres import running_postgres

    with running_postgres() as server:
        yield _made(Place("postgres", server.new_url(), "fsync off"))


@contextmanager
def _dynamodb() -> Iterator[Place]:
    from tests.servers.dynamodb import running_dynamodb

    with running_dynamodb() as server:
        yield _made(Place("dynamodb", server.new_url(), "DynamoDB Local, in memory"))


@contextmanager
def _dynamodb_monthly() -> Iterator[Place]:
    from tests.servers.dynamodb import running_dynamodb

    with running_dynamodb() as server:
        url = server.new_url("rotation=monthly")
        place = _made(Place("dynamodb-monthly", url, "DynamoDB Local, in memory", months=True))
        asyncio.run(rotate_push_store(url, SETTINGS, SystemClock(), dry_run=False))
        yield place


@contextmanager
def _bigtable() -> Iterator[Place]:
    from tests.servers.bigtable import running_emulator

    with running_emulator() as emulator:
        url = f"bigtable://bench/bench?emulator=127.0.0.1:{emulator.port}"
        yield _made(Place("bigtable", url, "emulator, in memory"))


OWN: dict[str, Callable[[], AbstractContextManager[Place]]] = {
    "memory": _memory,
    "embedded": _embedded,
    "redis": _redis,
    "postgres": _postgres,
    "dynamodb": _dynamodb,
    "dynamodb-monthly": _dynamodb_monthly,
    "bigtable": _bigtable,
}


def places(wanted: Sequence[str], stack: contextlib.ExitStack) -> list[Place]:
    """By name or URL; nothing wanted: all that this machine has, with a line for each missing."""
    found: list[Place] = []
    for name in wanted or OWN:
        if ":" in name:
            found.append(Place(shown_url(name), name))
        elif name not in OWN:
            raise LoadError(f"{name} is neither the URL of a store nor one of {', '.join(OWN)}")
        else:
            try:
                found.append(stack.enter_context(OWN[name]()))
            except (
                OSError,
                RuntimeError,
                AssertionError,
                KeyError,
                subprocess.SubprocessError,
            ) as exc:
                if wanted:
                    raise LoadError(f"{name} cannot be had here: {exc}") from exc
                print(
                    f"not measured, because it cannot be had here: {name} ({exc})", file=sys.stderr
                )
    return found


def _made(place: Place) -> Place:
    asyncio.run(init_push_store(place.url, SETTINGS))
    return place
