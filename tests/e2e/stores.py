"""The store of a running server, opened beside it: for rows that no client could bring about."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from tests.e2e.platform import Serve
from waystation.base.clock import SystemClock
from waystation.push.store import PushStore
from waystation.storage.open import open_push_store
from waystation.storage.settings import Store


@asynccontextmanager
async def opened(server: Serve) -> AsyncIterator[PushStore]:
    store = await open_push_store(
        server.store_url, data_dir=server.data_dir, settings=Store(), clock=SystemClock()
    )
    try:
        yield store
    finally:
        await store.close()
