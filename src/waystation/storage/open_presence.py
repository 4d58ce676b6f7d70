"""From a URL to a presence store: `embedded:…`, `memory:`, `redis://…`; empty for the default."""

from pathlib import Path
from typing import TypeGuard

from waystation.base.clock import Clock
from waystation.base.settings import SettingsError
from waystation.presence.settings import Presence
from waystation.presence.store import PresenceStore, SharedPresenceStore
from waystation.storage.open import EmbeddedUrl, MemoryUrl, import_extra, parse_store_url
from waystation.storage.redis.url import RedisUrl
from waystation.storage.settings import Store

DEFAULT_PATH = "presence"


def parse_presence_url(url: str) -> EmbeddedUrl | MemoryUrl | RedisUrl:
    """Raises `SettingsError` for a store that cannot hold parties."""
    if not url:
        return EmbeddedUrl(DEFAULT_PATH)
    try:
        parsed = parse_store_url(url)
    except SettingsError as exc:
        raise SettingsError(
            [problem.replace("store.url", "presence.store") for problem in exc.problems]
        ) from exc
    if isinstance(parsed, EmbeddedUrl | MemoryUrl | RedisUrl):
        return parsed
    scheme = url.partition(":")[0]
    raise SettingsError([f"presence.store: parties cannot live in `{scheme}:`"])


async def open_presence_store(
    presence: Presence, *, data_dir: Path, settings: Store, clock: Clock
) -> PresenceStore:
    """Once per process, after it has started."""
    url = presence.store
    if not url and settings.url.startswith("redis"):
        url = settings.url  # what other machines share for push, they share for presence
    match parse_presence_url(url):
        case MemoryUrl():
            from waystation.storage.memory.presence import MemoryPresenceStore  # noqa: PLC0415

            return MemoryPresenceStore(
                clock, log_max=presence.party_log, linger_s=presence.party_linger_s
            )
        case EmbeddedUrl() as embedded:
            from waystation.storage.embedded.presence import EmbeddedPresenceStore  # noqa: PLC0415

            return await EmbeddedPresenceStore.open(
                embedded.directory(data_dir),
                settings=settings,
                clock=clock,
                log_max=presence.party_log,
                linger_s=presence.party_linger_s,
                restart_ttl_min_s=presence.restart_ttl_min_s,
            )
        case RedisUrl() as redis:
            with import_extra("redis", "presence.store"):
                from waystation.storage.redis.presence import RedisPresenceStore  # noqa: PLC0415

            return await RedisPresenceStore.open(
                redis,
                settings=settings,
                prefix=presence.redis.prefix,
                log_max=presence.party_log,
                linger_s=presence.party_linger_s,
                min_replicas=presence.redis.min_replicas,
            )


def is_shared(store: PresenceStore) -> TypeGuard[SharedPresenceStore]:
    """Whether several nodes may have it open at once."""
    return hasattr(store, "heartbeat")
