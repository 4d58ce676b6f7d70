"""The Bigtable backend: push, on Autopush's table."""

import asyncio

from waystation.push.store import PushStore
from waystation.storage.backend import Backend, Opening
from waystation.storage.bigtable.url import parse_bigtable_url
from waystation.storage.bulk import BulkStore, StoreConfig
from waystation.storage.capabilities import Capabilities
from waystation.storage.settings import Store

CAPABILITIES = Capabilities(
    name="bigtable",
    durable=True,
    power_safe=True,
    shared_by_processes=True,
    shared_by_machines=True,
    native_expiry=True,
    row_versions=True,
    cursor=True,
    clears_with_channel=True,
)


async def _open_push(opening: Opening) -> PushStore:
    from waystation.storage.bigtable.push import BigtablePushStore

    url = parse_bigtable_url(opening.url, opening.settings.db_settings)
    return await BigtablePushStore.open(url, settings=opening.settings, clock=opening.clock)


def _open_bulk(config: StoreConfig, runner: asyncio.Runner) -> BulkStore:
    from waystation.storage.bigtable.bulk import BigtableBulk

    return BigtableBulk(parse_bigtable_url(config.url, config.settings.db_settings), config, runner)


async def _init(url: str, settings: Store) -> list[str]:
    from waystation.storage.bigtable.init import init_store

    return await init_store(url, settings)


BACKEND = Backend(
    name="bigtable",
    schemes=("bigtable", "grpc"),
    url_forms=("bigtable://PROJECT/INSTANCE/TABLE", "grpc://HOST"),
    install="waystation[bigtable]",
    capabilities=CAPABILITIES,
    autopush_schemes=("bigtable", "grpc"),
    parse=parse_bigtable_url,
    open_push=_open_push,
    open_bulk=_open_bulk,
    init=_init,
)
