"""The PostgreSQL backend: push, queues and slot maps."""

import asyncio

from waystation.push.store import PushStore
from waystation.queue.cluster.cluster_store import ClusterStore
from waystation.queue.store import QueueStore
from waystation.storage.backend import Backend, Opening
from waystation.storage.bulk import BulkStore, StoreConfig
from waystation.storage.capabilities import Capabilities
from waystation.storage.postgres.url import PostgresUrl, parse_postgres_url
from waystation.storage.settings import Store

CAPABILITIES = Capabilities(
    name="postgres",
    durable=True,
    power_safe=True,
    shared_by_processes=True,
    shared_by_machines=True,
    native_expiry=False,
    row_versions=False,
    cursor=True,
    clears_with_channel=True,
)


def _parse(opening: Opening) -> PostgresUrl:
    return parse_postgres_url(opening.url, opening.settings.db_settings)


async def _open_push(opening: Opening) -> PushStore:
    from waystation.storage.postgres.push import PostgresPushStore

    return await PostgresPushStore.open(
        _parse(opening), settings=opening.settings, clock=opening.clock
    )


async def _open_queue(opening: Opening) -> QueueStore:
    from waystation.storage.postgres.queue import PostgresQueueStore

    return await PostgresQueueStore.open(_parse(opening), settings=opening.settings)


async def _open_cluster(opening: Opening) -> ClusterStore:
    from waystation.storage.postgres.cluster_store import PostgresClusterStore

    return await PostgresClusterStore.open(_parse(opening), settings=opening.settings)


def _open_bulk(config: StoreConfig, runner: asyncio.Runner) -> BulkStore:
    from waystation.storage.postgres.bulk import PostgresBulk

    return PostgresBulk(parse_postgres_url(config.url, config.settings.db_settings), config, runner)


async def _init(url: str, settings: Store) -> list[str]:
    from waystation.storage.postgres.schema import init_store

    return await init_store(url, settings)


BACKEND = Backend(
    name="postgres",
    schemes=("postgres", "postgresql"),
    url_forms=("postgres://USER@HOST:PORT/DATABASE",),
    install="waystation[postgres]",
    capabilities=CAPABILITIES,
    autopush_schemes=("postgres", "postgresql"),
    parse=parse_postgres_url,
    open_push=_open_push,
    open_queue=_open_queue,
    open_cluster=_open_cluster,
    open_bulk=_open_bulk,
    init=_init,
)
