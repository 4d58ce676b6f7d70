"""Real store servers for jobs: a fresh store of each kind, and how it is opened on both sides."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import pytest

from tests.pipeline.store_population import StorePopulation
from tests.servers.bigtable import BigtableEmulator
from tests.servers.dynamodb import DynamoServer
from tests.servers.postgres import PostgresServer
from tests.servers.redis import RedisServer
from tools.prepare_tests import skipped
from waystation.base.clock import SystemClock
from waystation.pipeline.sources.store import StoreHandle
from waystation.push.store import PushStore
from waystation.storage.bulk import BulkStore, StoreConfig, write_store_config
from waystation.storage.open import init_push_store, open_bulk, open_push_store
from waystation.storage.settings import Store

T = TypeVar("T")

MASTER = bytes(range(32))
OPENER = "waystation.storage.open:open_bulk"
PATIENT = Store(operation_timeout_s=60.0, map_bytes=1 << 30)

KINDS = [
    pytest.param(kind, marks=getattr(pytest.mark, kind), id=kind)
    for kind in ("postgres", "redis", "dynamodb", "bigtable")
]


def fresh_url(kind: str, request: pytest.FixtureRequest) -> str:
    """A store of a server that is already running, or started now; nobody has used it."""
    # These are started by a fork, which must come before gRPC has threads in this process.
    request.getfixturevalue("spark")
    if "dynamodb" not in skipped():
        request.getfixturevalue("dynamodb_server")
    match kind:
        case "postgres":
            server: PostgresServer = request.getfixturevalue("postgres_server")
            return server.new_url()
        case "redis":
            redis: RedisServer = request.getfixturevalue("redis_server")
            return redis.new_url()
        case "dynamodb":
            dynamo: DynamoServer = request.getfixturevalue("dynamodb_server")
            return dynamo.new_url()
        case "bigtable":
            emulator: BigtableEmulator = request.getfixturevalue("bigtable_emulator")
            table = emulator.unmade_table().table
            return f"bigtable://test/test/{table}?emulator=127.0.0.1:{emulator.port}"
        case _:
            return "embedded:./store"


class StoreUnderTest:
    def __init__(self, url: str, folder: Path) -> None:
        self.url = url
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        key_file = folder / "event_key"
        key_file.write_text(MASTER.hex())
        path = folder / "place.json"
        write_store_config(path, StoreConfig(url=url, data_dir=str(folder), settings=PATIENT))
        self.place = StoreHandle(OPENER, str(path), key_file)
        asyncio.run(init_push_store(url, PATIENT))

    def use(self, work: Callable[[PushStore], Awaitable[T]]) -> T:
        async def with_store() -> T:
            store = await open_push_store(
                self.url, data_dir=self.folder, settings=PATIENT, clock=SystemClock()
            )
            try:
                return await work(store)
            finally:
                await store.close()

        return asyncio.run(with_store())


Everything = tuple[set[bytes], set[tuple[bytes, bytes]], set[tuple[bytes, str]]]


def everything(store: StoreUnderTest) -> Everything:
    """All that a store holds, by its own scan."""
    bulk = open_bulk(store.place.place)
    try:
        rows = {
            table: list(rows_of(bulk, table)) for table in ("router", "channels", "notifications")
        }
    finally:
        bulk.close()
    agents = [row["uaid"] for row in rows["router"]]
    channels = [(row["uaid"], row["channel_id"]) for row in rows["channels"]]
    messages = [(row["uaid"], row["message_id"]) for row in rows["notifications"]]
    for found in (agents, channels, messages):
        assert len(set(found)) == len(found), "a part was read twice"
    return set(agents), set(channels), set(messages)


def rows_of(bulk: BulkStore, table: str) -> Iterator[dict[str, Any]]:
    now_ms = int(time.time() * 1000)
    for part in bulk.ranges(table, 3):
        for batch in bulk.scan(table, part, now_ms=now_ms, bounds={}):
            yield from batch.to_pylist()


def truth(population: StorePopulation, numbers: list[int]) -> Everything:
    members = [population.member(number) for number in numbers]
    return (
        {member.record.uaid for member in members},
        {(member.record.uaid, channel) for member in members for channel in member.channels},
        {(member.record.uaid, one.message_id) for member in members for one in member.messages},
    )
