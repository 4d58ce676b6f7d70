"""From a URL to a presence store: `embedded:…`, `memory:`, `redis://…`; empty for the default."""

from pathlib import Path

from waystation.base.clock import Clock
from waystation.base.settings import SettingsError
from waystation.presence.settings import Presence
from waystation.presence.store import PresenceStore
from waystation.storage.open import EmbeddedUrl, MemoryUrl, parse_store_url
from waystation.storage.settings import Store

DEFAULT_PATH = "presence"


def parse_presence_url(url: str) -> EmbeddedUrl | MemoryUrl:
    """Raises `SettingsError` for a store that cannot hold parties."""
    if not url:
        return EmbeddedUrl(DEFAULT_PATH)
    try:
        parsed = parse_store_url(url)
    except SettingsError as exc:
        raise SettingsError(
            [problem.replace("store.url", "presence.store") for problem in exc.problems]
        ) from exc
    if isinstance(parsed, EmbeddedUrl | MemoryUrl):
        return parsed
    scheme = url.partition(":")[0]
    raise SettingsError([f"presence.store: parties cannot live in `{scheme}:`"])


async def open_presence_store(
    presence: Presence, *, data_dir: Path, settings: Store, clock: Clock
) -> PresenceStore:
    """Once per process, after it has started."""
    match parse_presence_url(presence.store):
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
