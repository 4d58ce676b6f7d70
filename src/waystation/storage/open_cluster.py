"""From a URL to the store of a cluster's map: `embedded:…`, `postgres://…`, `redis://…`."""

from pathlib import Path

from waystation.base.clock import SystemClock
from waystation.base.settings import SettingsError
from waystation.queue.cluster.cluster_store import ClusterStore
from waystation.storage.open import (
    EmbeddedUrl,
    MemoryUrl,
    import_extra,
    parse_store_url,
    shown_url,
)
from waystation.storage.postgres.url import PostgresUrl
from waystation.storage.redis.url import RedisUrl
from waystation.storage.settings import Store

_FOLDER = "cluster"


async def open_cluster_store(url: str, *, data_dir: Path, settings: Store) -> ClusterStore:
    """Once per process, after it has started."""
    match parse_store_url(url):
        case EmbeddedUrl() as embedded:
            from waystation.storage.embedded.cluster import EmbeddedClusterStore  # noqa: PLC0415

            directory = embedded.directory(data_dir) / _FOLDER
            return await EmbeddedClusterStore.open(directory, settings=settings)
        case PostgresUrl() as postgres:
            with import_extra("postgres", "the store of the cluster"):
                from waystation.storage.postgres.cluster import (  # noqa: PLC0415
                    PostgresClusterStore,
                )

            return await PostgresClusterStore.open(postgres, settings=settings)
        case RedisUrl() as redis:
            with import_extra("redis", "the store of the cluster"):
                from waystation.storage.redis.cluster_map import RedisClusterStore  # noqa: PLC0415

            return await RedisClusterStore.open(redis, settings=settings)
        case MemoryUrl():
            from waystation.storage.memory.cluster import MemoryClusterStore  # noqa: PLC0415

            return MemoryClusterStore(SystemClock())
        case _:
            raise SettingsError(
                [
                    f"the map of a cluster cannot live in {shown_url(url)}: PostgreSQL, Redis or,"
                    " on one machine, the embedded store hold it"
                ]
            )
