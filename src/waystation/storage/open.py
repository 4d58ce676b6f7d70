"""From a store's URL to a store.

`embedded:./relative` (to the data directory), `embedded:///absolute`, `embedded` alone (the
default place), `memory:`, and the servers of docs/storage/. A backend is imported only when its
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
from waystation.storage.bigtable.url import BigtableUrl, parse_bigtable_url
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
)

# Schemes of the design whose backend this build does not have, and what each stands for.
_ABSENT_BACKENDS = {
    "dual": "the dual store",
}


class EmbeddedUrl(msgspec.Struct, frozen=True, tag="embedded"):
    """A directory on a local disk; relative paths are relative to the data directory."""

    path: str

    def directory(self, data_dir: Path) -> Path:
        return data_dir / self.path  # an absolute path wins, as pathlib has it


class MemoryUrl(msgspec.Struct, frozen=True, tag="memory"):
    """One process, gone with it."""


StoreUrl = EmbeddedUrl | MemoryUrl | DynamoUrl | RedisUrl | PostgresUrl | BigtableUrl


@runtime_checkable
class Warns(Protocol):
    """A store that has something to say before it is trusted."""

    async def warnings(self) -> Sequence[str]: ...


async def store_warnings(store: PushStore) -> Sequence[str]:
    """What start-up and `doctor` should tell of an open store; raises what its reads raise."""
    return await store.warnings() if isinstance(store, Warns) else ()


def shown_url(url: str) -> str:
    """The URL as people and logs may see it: without credentials and options."""
    scheme, colon, rest = url.partition(":")
    if not rest.startswith("//"):
        return f"{scheme}{colon}{rest.partition('?')[0]}"
    return f"{scheme}://{rest[2:].partition('?')[0].rpartition('@')[2]}"


async def init_push_store(url: str, settings: Store) -> list[str]:
    """Make what a server store lacks (tables, families, indexes); what was done, in sentences."""
    match parse_store_url(url, settings.db_settings):
        case DynamoUrl():
            with _extra("dynamodb"):
                from waystation.storage.dynamodb.upkeep import init_store

            return await init_store(url, settings)
        case RedisUrl():
            with _extra("redis"):
                from waystation.storage.redis.upkeep import init_store

            return await init_store(url, settings)
        case PostgresUrl():
            with _extra("postgres"):
                from waystation.storage.postgres.schema import init_store

            return await init_store(url, settings)
        case BigtableUrl():
            with _extra("bigtable"):
                from waystation.storage.bigtable.init import init_store

            return await init_store(url, settings)
        case _:
            return []


async def rotate_push_store(
    url: str, settings: Store, clock: Clock, *, dry_run: bool
) -> Sequence[str] | None:
    """The upkeep of monthly tables: what is done, in sentences; None of a store without months."""
    match parse_store_url(url, settings.db_settings):
        case DynamoUrl(rotation="monthly"):
            with _extra("dynamodb"):
                from waystation.storage.dynamodb.rotate import rotate_store

            steps = await rotate_store(url, settings, clock, dry_run=dry_run)
            return [str(step) for step in steps]
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
        case _ if colon and scheme in _ABSENT_BACKENDS:
            # What follows the scheme may hold a password, so it is not repeated.
            raise SettingsError(
                [
                    f"store.url: `{scheme}:` means {_ABSENT_BACKENDS[scheme]}, whose backend is not"
                    f" part of this build; use one of {', '.join(_KNOWN_FORMS)}"
                ]
            )
        case _:
            named = f"`{scheme}:` is no store that we know" if colon else "this is not a store URL"
            raise SettingsError(
                [
                    f"store.url: {named}; use one of {', '.join(_KNOWN_FORMS)}"
                    f" (known, but not part of this build: {', '.join(_ABSENT_BACKENDS)})"
                ]
            )


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


async def open_push_store(url: str, *, data_dir: Path, settings: Store, clock: Clock) -> PushStore:
    """Open the push store at `url`; call once per process, after it has started."""
    match parse_store_url(url, settings.db_settings):
        case MemoryUrl():
            from waystation.storage.memory.push import MemoryPushStore

            return MemoryPushStore(clock)
        case EmbeddedUrl() as embedded:
            from waystation.storage.embedded.push import EmbeddedPushStore

            directory = embedded.directory(data_dir) / "push"
            return await EmbeddedPushStore.open(directory, settings=settings, clock=clock)
        case DynamoUrl() as dynamodb:
            with _extra("dynamodb"):
                from waystation.storage.dynamodb.push import DynamoPushStore

            return await DynamoPushStore.open(dynamodb, settings=settings, clock=clock)
        case RedisUrl() as redis:
            with _extra("redis"):
                from waystation.storage.redis.push import RedisPushStore

            return await RedisPushStore.open(redis, settings=settings, clock=clock)
        case PostgresUrl() as postgres:
            with _extra("postgres"):
                from waystation.storage.postgres.push import PostgresPushStore

            return await PostgresPushStore.open(postgres, settings=settings, clock=clock)
        case BigtableUrl() as bigtable:
            with _extra("bigtable"):
                from waystation.storage.bigtable.push import BigtablePushStore

            return await BigtablePushStore.open(bigtable, settings=settings, clock=clock)


@contextmanager
def _extra(name: str) -> Generator[None]:
    """Importing a backend whose driver may not be installed."""
    try:
        yield
    except ImportError as exc:
        raise SettingsError(
            [f"store.url: its driver is not installed: pip install waystation[{name}] ({exc})"]
        ) from exc
