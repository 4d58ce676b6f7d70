"""The Redis backend: push, presence and slot maps on Redis, Valkey or a Redis Cluster."""

import asyncio

from waystation.presence.settings import Presence
from waystation.presence.store import PresenceStore
from waystation.push.store import PushStore
from waystation.queue.cluster.cluster_store import ClusterStore
from waystation.storage.backend import Backend, Opening
from waystation.storage.bulk import BulkStore, StoreConfig
from waystation.storage.capabilities import Capabilities
from waystation.storage.redis.url import RedisUrl, parse_redis_url
from waystation.storage.settings import Store

CAPABILITIES = Capabilities(
    name="redis",
    durable=True,
    power_safe=False,  # unless the server has `appendfsync always`
    shared_by_processes=True,
    shared_by_machines=True,
    native_expiry=False,
    row_versions=False,
    clears_with_channel=True,
)


def _parse(opening: Opening) -> RedisUrl:
    return parse_redis_url(opening.url, opening.settings.db_settings)


async def _open_push(opening: Opening) -> PushStore:
    from waystation.storage.redis.push import RedisPushStore

    return await RedisPushStore.open(
        _parse(opening), settings=opening.settings, clock=opening.clock
    )


async def _open_presence(opening: Opening, presence: Presence) -> PresenceStore:
    from waystation.storage.redis.presence import RedisPresenceStore

    return await RedisPresenceStore.open(
        _parse(opening),
        settings=opening.settings,
        prefix=presence.redis.prefix,
        log_max=presence.party_log,
        linger_s=presence.party_linger_s,
        min_replicas=presence.redis.min_replicas,
    )


async def _open_cluster(opening: Opening) -> ClusterStore:
    from waystation.storage.redis.cluster_store import RedisClusterStore

    return await RedisClusterStore.open(_parse(opening), settings=opening.settings)


def _open_bulk(config: StoreConfig, runner: asyncio.Runner) -> BulkStore:
    from waystation.storage.redis.bulk import RedisBulk

    return RedisBulk(parse_redis_url(config.url, config.settings.db_settings), config, runner)


async def _init(url: str, settings: Store) -> list[str]:
    from waystation.storage.redis.init import init_store

    return await init_store(url, settings)


BACKEND = Backend(
    name="redis",
    schemes=("redis", "rediss", "redis+cluster"),
    url_forms=(
        "redis://HOST:PORT/DB",
        "rediss://HOST:PORT/DB",
        "redis+cluster://HOST:PORT,HOST:PORT",
    ),
    install="waystation[redis]",
    capabilities=CAPABILITIES,
    autopush_schemes=("redis", "rediss"),  # Autopush does not support Redis Cluster
    parse=parse_redis_url,
    open_push=_open_push,
    open_presence=_open_presence,
    open_cluster=_open_cluster,
    open_bulk=_open_bulk,
    init=_init,
)
