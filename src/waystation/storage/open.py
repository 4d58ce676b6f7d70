"""From a store's URL to a store.

`embedded:./relative` (to the data directory), `embedded:///absolute`, `embedded` alone (the
default place), `memory:`, and servers (docs/guides/stores/). A backend is imported only when its
URL is named, because its driver is an extra of the package.
"""

from collections.abc import Generator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol, runtime_checkable

import msgspec

from waystation.base.clock import Clock
from waystation.base.settings import SettingsError
from waystation.push.store import PushStore
from waystation.queue.store import QueueStore
from waystation.storage.bigtable.url import BigtableUrl, parse_bigtable_url
from waystation.storage.dual.url import DualUrl, StorePlace, parse_dual_url
from waystation.storage.dynamodb.url import DynamoUrl, parse_dynamodb_url
from waystation.storage.postgres.url import PostgresUrl, parse_postgres_url
from waystation.storage.redis.url import RedisUrl, parse_redis_url
from waystation.storage.settings import Store

DEFAULT_EMBEDDED_PATH = "store"

_KNOWN_FORMS = (
    "embedded",
    "embedded:./relative",
    "embedded:///absolute",
    "memory:",
    "dynamodb://REGION/PREFIX?rotation=monthly",
    "redis://HOST:PORT/DB",
    "rediss://HOST:PORT/DB",
    "redis+cluster://HOST:PORT,HOST:PORT",
    "postgres://USER@HOST:PORT/DATABASE",
    "bigtable://PROJECT/INSTANCE/TABLE",
    "grpc://HOST",
    "dual:?primary=URL&secondary=URL",
)


class EmbeddedUrl(msgspec.Struct, frozen=True, tag="embedded"):
    """A directory on a local disk; relative paths are relative to the data directory."""

    path: str

    def directory(self, data_dir: Path) -> Path:
        return data_dir / self.path  # an absolute path wins, as pathlib has it


class MemoryUrl(msgspec.Struct, frozen=True, tag="memory"):
    """One process, gone with it."""


StoreUrl = EmbeddedUrl | MemoryUrl | DynamoUrl | RedisUrl | PostgresUrl | BigtableUrl | DualUrl


@runtime_checkable
class Warns(Protocol):
    """A store that has something to say before it is trusted."""

    async def warnings(self) -> Sequence[str]: ...


async def store_warnings(store: PushStore) -> Sequence[str]:
    """What start-up and `doctor` should tell of an open store; raises what its reads raise."""
    return await store.warnings() if isinstance(store, Warns) else ()


def shown_url(url: str, db_settings: str = "") -> str:
    """The URL as people and logs may see it: without credentials and options."""
    scheme, colon, rest = url.partition(":")
    if scheme == "dual":
        try:
            dual = parse_dual_url(url, db_settings)
        except SettingsError:
            return "dual:"
        return f"dual: {shown_url(dual.primary.url)} and {shown_url(dual.secondary.url)}"
    if not rest.startswith("//"):
        return f"{scheme}{colon}{rest.partition('?')[0]}"
    return f"{scheme}://{rest[2:].partition('?')[0].rpartition('@')[2]}"


def store_schemes(url: str, db_settings: str = "") -> tuple[str, ...]:
    """How the URLs of the stores behind a URL begin: one, or of a dual store both."""
    scheme = url.strip().partition(":")[0]
    if scheme == "dual":
        try:
            dual = parse_dual_url(url, db_settings)
        except SettingsError:
            return (scheme,)  # whoever opens it says what is wrong
        return tuple(place.url.partition(":")[0] for place in (dual.primary, dual.secondary))
    return (scheme,)


async def init_push_store(url: str, settings: Store) -> list[str]:
    """Make what a server store lacks (tables, families, indexes); what was done, in sentences."""
    match parse_store_url(url, settings.db_settings):
        case DynamoUrl():
            with import_extra("dynamodb"):
                from waystation.storage.dynamodb.upkeep import init_store

            return await init_store(url, settings)
        case RedisUrl():
            with import_extra("redis"):
                from waystation.storage.redis.upkeep import init_store

            return await init_store(url, settings)
        case PostgresUrl():
            with import_extra("postgres"):
                from waystation.storage.postgres.schema import init_store

            return await init_store(url, settings)
        case BigtableUrl():
            with import_extra("bigtable"):
                from waystation.storage.bigtable.init import init_store

            return await init_store(url, settings)
        case DualUrl() as dual:
            done: list[str] = []
            for name, place in (("primary", dual.primary), ("secondary", dual.secondary)):
                own = await init_push_store(place.url, _settings_of(place, settings))
                done += [f"{name}: {sentence}" for sentence in own]
            return done
        case _:
            return []


async def rotate_push_store(
    url: str, settings: Store, clock: Clock, *, dry_run: bool
) -> Sequence[str] | None:
    """The upkeep of monthly tables: what is done, in sentences; None of a store without months."""
    match parse_store_url(url, settings.db_settings):
        case DynamoUrl(rotation="monthly"):
            with import_extra("dynamodb"):
                from waystation.storage.dynamodb.rotate import rotate_store

            steps = await rotate_store(url, settings, clock, dry_run=dry_run)
            return [str(step) for step in steps]
        case DualUrl() as dual:
            done: list[str] | None = None
            for place in (dual.primary, dual.secondary):
                own = _settings_of(place, settings)
                steps = await rotate_push_store(place.url, own, clock, dry_run=dry_run)
                if steps is not None:
                    done = [*(done or ()), *steps]
            return done
        case _:
            return None


def parse_store_url(url: str, db_settings: str = "") -> StoreUrl:
    """Raises `SettingsError` for anything but a URL of a backend that is here."""
    scheme, colon, rest = url.strip().partition(":")
    match scheme:
        case "embedded":
            return EmbeddedUrl(_embedded_path(url, rest))
        case "memory" if not rest.strip("/"):
            return MemoryUrl()
        case "memory":
            raise SettingsError([f"store.url: {url!r}: `memory:` takes nothing after the colon"])
        case "dynamodb" if colon:
            return parse_dynamodb_url(url, db_settings)
        case "redis" | "rediss" | "redis+cluster" if colon:
            return parse_redis_url(url, db_settings)
        case "postgres" | "postgresql" if colon:
            return parse_postgres_url(url, db_settings)
        case "bigtable" | "grpc" if colon:
            return parse_bigtable_url(url, db_settings)
        case "dual":
            dual = parse_dual_url(url, db_settings)
            for place in (dual.primary, dual.secondary):
                parse_store_url(place.url, place.db_settings)
            return dual
        case _:
            named = f"`{scheme}:` is no store that we know" if colon else "this is not a store URL"
            raise SettingsError([f"store.url: {named}; use one of {', '.join(_KNOWN_FORMS)}"])


def _embedded_path(url: str, rest: str) -> str:
    if not rest:
        return DEFAULT_EMBEDDED_PATH
    if "?" in rest or "#" in rest:
        raise SettingsError(
            [f"store.url: {url!r}: `embedded:` takes a path only, without `?` and `#`"]
        )
    if not rest.startswith("//"):
        return rest
    if not rest.startswith("///"):
        raise SettingsError(
            [
                f"store.url: {url!r} names a host; the embedded store is a local directory:"
                f" embedded:./relative or embedded:///absolute"
            ]
        )
    return rest[2:]


async def open_push_store(
    url: str, *, data_dir: Path, settings: Store, clock: Clock, serves: bool = False
) -> PushStore:
    """Open the push store at `url`; call once per process, after it has started. One that `serves`
    makes what is missing where the store's URL allows it; commands only look."""
    match parse_store_url(url, settings.db_settings):
        case MemoryUrl():
            from waystation.storage.memory.push import MemoryPushStore

            return MemoryPushStore(clock)
        case EmbeddedUrl() as embedded:
            from waystation.storage.embedded.push import EmbeddedPushStore

            directory = embedded.directory(data_dir) / "push"
            return await EmbeddedPushStore.open(directory, settings=settings, clock=clock)
        case DynamoUrl() as dynamodb:
            with import_extra("dynamodb"):
                from waystation.storage.dynamodb.push import DynamoPushStore

            return await DynamoPushStore.open(
                dynamodb, settings=settings, clock=clock, make_tables=serves
            )
        case RedisUrl() as redis:
            with import_extra("redis"):
                from waystation.storage.redis.push import RedisPushStore

            return await RedisPushStore.open(redis, settings=settings, clock=clock)
        case PostgresUrl() as postgres:
            with import_extra("postgres"):
                from waystation.storage.postgres.push import PostgresPushStore

            return await PostgresPushStore.open(postgres, settings=settings, clock=clock)
        case BigtableUrl() as bigtable:
            with import_extra("bigtable"):
                from waystation.storage.bigtable.push import BigtablePushStore

            return await BigtablePushStore.open(bigtable, settings=settings, clock=clock)
        case DualUrl() as dual:
            return await _open_dual(
                dual, data_dir=data_dir, settings=settings, clock=clock, serves=serves
            )


async def open_queue_store(url: str, *, data_dir: Path, settings: Store) -> QueueStore:
    """Open the queue store at `url`; call once per process, after it has started."""
    match parse_store_url(url):
        case MemoryUrl():
            from waystation.storage.memory.queue import MemoryQueueStore

            return MemoryQueueStore()
        case EmbeddedUrl() as embedded:
            from waystation.storage.embedded.queue import EmbeddedQueueStore

            directory = embedded.directory(data_dir) / "queue"
            return await EmbeddedQueueStore.open(directory, settings=settings)
        case PostgresUrl() as postgres:
            with import_extra("postgres"):
                from waystation.storage.postgres.queue import PostgresQueueStore

            return await PostgresQueueStore.open(postgres, settings=settings)
        case _:
            raise SettingsError([f"queue.store: queues do not live in {shown_url(url)}"])


def queue_store_url(own: str, shared: str) -> str:
    """Where queues live, if `queue.store` and `store.url` say this."""
    if own:
        return own
    keeps = shared.partition(":")[0] in ("embedded", "memory", "postgres", "postgresql")
    return shared if keeps else f"embedded:./{DEFAULT_EMBEDDED_PATH}"


async def _open_dual(
    url: DualUrl, *, data_dir: Path, settings: Store, clock: Clock, serves: bool
) -> PushStore:
    from waystation.storage.dual.push import DualPushStore

    async def opened(place: StorePlace) -> PushStore:
        own = _settings_of(place, settings)
        return await open_push_store(
            place.url, data_dir=data_dir, settings=own, clock=clock, serves=serves
        )

    primary = await opened(url.primary)
    try:
        return DualPushStore(primary, await opened(url.secondary), url, clock)
    except BaseException:
        await primary.close()
        raise


def _settings_of(place: StorePlace, settings: Store) -> Store:
    return msgspec.structs.replace(settings, url=place.url, db_settings=place.db_settings)


@contextmanager
def import_extra(name: str, setting: str = "store.url") -> Generator[None]:
    """Importing a backend whose driver may not be installed."""
    try:
        yield
    except ImportError as exc:
        raise SettingsError(
            [f"{setting}: its driver is not installed: pip install 'waystation[{name}]' ({exc})"]
        ) from exc
