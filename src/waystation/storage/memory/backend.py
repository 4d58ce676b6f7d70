"""The memory backend: stores that end with their process, for tests and trials."""

import msgspec

from waystation.base.settings import SettingsError
from waystation.presence.settings import Presence
from waystation.presence.store import PresenceStore
from waystation.push.store import PushStore
from waystation.queue.cluster.cluster_store import ClusterStore
from waystation.queue.store import QueueStore
from waystation.storage.backend import Backend, Opening
from waystation.storage.capabilities import Capabilities

CAPABILITIES = Capabilities(
    name="memory",
    durable=False,
    power_safe=False,
    shared_by_processes=False,
    shared_by_machines=False,
    native_expiry=False,
    row_versions=False,
    clears_with_channel=True,
)


class MemoryUrl(msgspec.Struct, frozen=True):
    """`memory:` has no options."""


def parse_memory_url(url: str, _db_settings: str = "") -> MemoryUrl:
    if url.strip().partition(":")[2].strip("/"):
        raise SettingsError([f"store.url: {url!r}: `memory:` has no options"])
    return MemoryUrl()


async def _open_push(opening: Opening) -> PushStore:
    from waystation.storage.memory.push import MemoryPushStore

    return MemoryPushStore(opening.clock)


async def _open_queue(_opening: Opening) -> QueueStore:
    from waystation.storage.memory.queue import MemoryQueueStore

    return MemoryQueueStore()


async def _open_presence(opening: Opening, presence: Presence) -> PresenceStore:
    from waystation.storage.memory.presence import MemoryPresenceStore

    return MemoryPresenceStore(
        opening.clock, log_max=presence.party_log, linger_s=presence.party_linger_s
    )


async def _open_cluster(opening: Opening) -> ClusterStore:
    from waystation.storage.memory.cluster_store import MemoryClusterStore

    return MemoryClusterStore(opening.clock)


BACKEND = Backend(
    name="memory",
    schemes=("memory",),
    url_forms=("memory:",),
    scheme_alone=True,
    capabilities=CAPABILITIES,
    parse=parse_memory_url,
    open_push=_open_push,
    open_queue=_open_queue,
    open_presence=_open_presence,
    open_cluster=_open_cluster,
)
