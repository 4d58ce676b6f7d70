"""The DynamoDB backend: push, on Autopush's tables."""

import asyncio
from collections.abc import Sequence

from waystation.base.clock import Clock
from waystation.base.settings import SettingsError
from waystation.push.store import PushStore
from waystation.storage.backend import Backend, Opening
from waystation.storage.bulk import BulkStore, StoreConfig
from waystation.storage.capabilities import Capabilities
from waystation.storage.dynamodb.url import parse_dynamodb_url
from waystation.storage.settings import Store

CAPABILITIES = Capabilities(
    name="dynamodb",
    durable=True,
    power_safe=True,
    shared_by_processes=True,
    shared_by_machines=True,
    native_expiry=True,
    row_versions=False,
    cursor=True,
    clears_with_channel=True,
)


async def _open_push(opening: Opening) -> PushStore:
    from waystation.storage.dynamodb.push import DynamoPushStore

    return await DynamoPushStore.open(
        parse_dynamodb_url(opening.url, opening.settings.db_settings),
        settings=opening.settings,
        clock=opening.clock,
        make_tables=opening.create_missing,
    )


def _open_bulk(config: StoreConfig, runner: asyncio.Runner) -> BulkStore:
    from waystation.storage.dynamodb.bulk import DynamoBulk

    url = parse_dynamodb_url(config.url, config.settings.db_settings)
    if url.key_hash:
        raise SettingsError(["store.url: with key_hash DynamoDB holds no ids that a job could use"])
    return DynamoBulk(url, config, runner)


async def _init(url: str, settings: Store) -> list[str]:
    from waystation.storage.dynamodb.init import init_store

    return await init_store(url, settings)


async def _rotate(
    url: str, settings: Store, clock: Clock, *, dry_run: bool
) -> Sequence[str] | None:
    if parse_dynamodb_url(url, settings.db_settings).rotation != "monthly":
        return None
    from waystation.storage.dynamodb.rotate import rotate_store

    return [str(step) for step in await rotate_store(url, settings, clock, dry_run=dry_run)]


BACKEND = Backend(
    name="dynamodb",
    schemes=("dynamodb",),
    url_forms=("dynamodb://REGION/PREFIX?rotation=monthly",),
    install="waystation[dynamodb]",
    capabilities=CAPABILITIES,
    autopush_schemes=("dynamodb",),
    parse=parse_dynamodb_url,
    open_push=_open_push,
    open_bulk=_open_bulk,
    init=_init,
    rotate=_rotate,
)
