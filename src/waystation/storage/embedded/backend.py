"""The embedded backend: LMDB on a local disk, shared by the processes of one machine."""

import asyncio
from pathlib import Path

from waystation.presence.settings import Presence
from waystation.presence.store import PresenceStore
from waystation.push.store import PushStore
from waystation.queue.cluster.cluster_store import ClusterStore
from waystation.queue.store import QueueStore
from waystation.storage.backend import Backend, Opening
from waystation.storage.bulk import BulkStore, StoreConfig
from waystation.storage.capabilities import Capabilities
from waystation.storage.embedded.url import parse_embedded_url

CAPABILITIES = Capabilities(
    name="embedded",
    durable=True,
    power_safe=True,
    shared_by_processes=True,
    shared_by_machines=False,
    native_expiry=False,
    row_versions=False,
    clears_with_channel=True,
)


def _directory(url: str, data_dir: Path) -> Path:
    return parse_embedded_url(url).directory(data_dir)


async def _open_push(opening: Opening) -> PushStore:
    from waystation.storage.embedded.push import EmbeddedPushStore

    directory = _directory(opening.url, opening.data_dir) / "push"
    return await EmbeddedPushStore.open(directory, settings=opening.settings, clock=opening.clock)


async def _open_queue(opening: Opening) -> QueueStore:
    from waystation.storage.embedded.queue import EmbeddedQueueStore

    directory = _directory(opening.url, opening.data_dir) / "queue"
    return await EmbeddedQueueStore.open(directory, settings=opening.settings)


async def _open_presence(opening: Opening, presence: Presence) -> PresenceStore:
    from waystation.storage.embedded.presence import EmbeddedPresenceStore

    return await EmbeddedPresenceStore.open(
        _directory(opening.url, opening.data_dir),
        settings=opening.settings,
        clock=opening.clock,
        log_max=presence.party_log,
        linger_s=presence.party_linger_s,
        restart_ttl_min_s=presence.restart_ttl_min_s,
    )


async def _open_cluster(opening: Opening) -> ClusterStore:
    from waystation.storage.embedded.cluster_store import EmbeddedClusterStore

    directory = _directory(opening.url, opening.data_dir) / "cluster"
    return await EmbeddedClusterStore.open(directory, settings=opening.settings)


def _open_bulk(config: StoreConfig, runner: asyncio.Runner) -> BulkStore:
    from waystation.storage.embedded.bulk import EmbeddedBulk

    directory = _directory(config.url, Path(config.data_dir)) / "push"
    return EmbeddedBulk(directory, config.bulk_settings, runner)


BACKEND = Backend(
    name="embedded",
    schemes=("embedded",),
    url_forms=("embedded", "embedded:./relative", "embedded:///absolute"),
    scheme_alone=True,
    capabilities=CAPABILITIES,
    parse=parse_embedded_url,
    directory=_directory,
    open_push=_open_push,
    open_queue=_open_queue,
    open_presence=_open_presence,
    open_cluster=_open_cluster,
    open_bulk=_open_bulk,
)
