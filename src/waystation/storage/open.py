"""Opens stores by URL, and looks up the capabilities of a URL's backend.

The record of a backend is found by the URL's scheme: first among those of this package, then among
the entry points of other packages (group `waystation.backends`, the name is the scheme).
"""

import asyncio
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from importlib.metadata import entry_points
from pathlib import Path
from typing import Protocol, TypeGuard, runtime_checkable

import msgspec

from waystation.base.clock import Clock, SystemClock
from waystation.base.settings import SettingsError
from waystation.presence.settings import Presence
from waystation.presence.store import PresenceStore, SharedPresenceStore
from waystation.push.store import PushStore
from waystation.queue.cluster.cluster_store import ClusterStore
from waystation.queue.store import QueueStore
from waystation.storage.backend import Backend, Opening
from waystation.storage.bigtable.backend import BACKEND as BIGTABLE
from waystation.storage.bulk import BulkStore, StoreConfig, read_store_config
from waystation.storage.dual.backend import BACKEND as DUAL
from waystation.storage.dynamodb.backend import BACKEND as DYNAMODB
from waystation.storage.embedded.backend import BACKEND as EMBEDDED
from waystation.storage.memory.backend import BACKEND as MEMORY
from waystation.storage.postgres.backend import BACKEND as POSTGRES
from waystation.storage.redis.backend import BACKEND as REDIS
from waystation.storage.settings import Store

BACKENDS = (EMBEDDED, MEMORY, DYNAMODB, REDIS, POSTGRES, BIGTABLE, DUAL)
ENTRY_POINTS = "waystation.backends"

_BY_SCHEME = {scheme: backend for backend in BACKENDS for scheme in backend.schemes}
_DEFAULT_QUEUE_URL = "embedded:./store"
_DEFAULT_PRESENCE_URL = "embedded:./presence"


# Lookups


def scheme_of(url: str) -> str:
    return url.strip().partition(":")[0]


def find_backend(url: str) -> Backend:
    """Raises `SettingsError` if no installed backend has the URL's scheme."""
    scheme, colon, _ = url.strip().partition(":")
    backend = _BY_SCHEME.get(scheme)
    if backend is None and colon:
        for entry_point in entry_points(group=ENTRY_POINTS, name=scheme):
            backend = entry_point.load()
            if not isinstance(backend, Backend):
                raise SettingsError(
                    [f"store.url: the entry point {entry_point.value} is not a storage Backend"]
                )
    if backend is not None and (colon or backend.scheme_alone):
        return backend
    named = f"`{scheme}:` is not a known store" if colon else "this is not a store URL"
    forms = ", ".join(form for known in BACKENDS for form in known.url_forms)
    raise SettingsError([f"store.url: {named}; use one of {forms}"])


def _backend_or_none(url: str) -> Backend | None:
    try:
        return find_backend(url)
    except SettingsError:
        return None


def parse_store_url(url: str, db_settings: str = "") -> object:
    """The URL as its backend parses it. Raises `SettingsError` for an invalid URL."""
    return find_backend(url).parse(url, db_settings)


def backends_of(url: str, db_settings: str = "") -> Sequence[Backend]:
    """The backends of a URL: one, or both of a dual store. Empty for an invalid URL, which is
    reported when the store is opened."""
    try:
        return [find_backend(part) for part in _parts(url, db_settings)]
    except SettingsError:
        return ()


def _parts(url: str, db_settings: str) -> Sequence[str]:
    parts = find_backend(url).parts
    return (url,) if parts is None else [part for part, _ in parts(url, db_settings)]


def shared_by_machines(url: str, db_settings: str = "") -> bool:
    """Whether other machines can open the store; of a dual store, both."""
    found = [backend.capabilities for backend in backends_of(url, db_settings)]
    return all(one is None or one.shared_by_machines for one in found)


def shared_by_processes(url: str, db_settings: str = "") -> bool:
    """Whether several processes of this machine can open the store; of a dual store, both."""
    found = [backend.capabilities for backend in backends_of(url, db_settings)]
    return all(one is None or one.shared_by_processes for one in found)


def has_autopush_layout(url: str, db_settings: str = "") -> bool:
    """Whether Autopush's nodes could read the rows; of a dual store, either."""
    try:
        parts = _parts(url, db_settings)
        return any(scheme_of(part) in find_backend(part).autopush_schemes for part in parts)
    except SettingsError:
        return False


def local_directory(url: str, data_dir: Path) -> Path | None:
    """Local directory of the store's rows; None for a server store."""
    find = find_backend(url).directory
    return None if find is None else find(url, data_dir)


def shown_url(url: str, db_settings: str = "") -> str:
    """The URL without credentials and options, for output and logs."""
    scheme, colon, rest = url.partition(":")
    backend = _BY_SCHEME.get(scheme)
    if backend is not None and backend.parts is not None:
        try:
            shown = [shown_url(part) for part, _ in backend.parts(url, db_settings)]
        except SettingsError:
            return f"{scheme}:"
        return f"{scheme}: {' and '.join(shown)}"
    if not rest.startswith("//"):
        return f"{scheme}{colon}{rest.partition('?')[0]}"
    return f"{scheme}://{rest[2:].partition('?')[0].rpartition('@')[2]}"


# Push


async def open_push_store(
    url: str, *, data_dir: Path, settings: Store, clock: Clock, serves: bool = False
) -> PushStore:
    """Open the push store at `url`; call once per process, after it has started. With `serves`,
    missing tables are created if the store's URL allows it."""
    backend = find_backend(url)
    backend.parse(url, settings.db_settings)
    if backend.open_push is None:
        raise _no_store("store.url", url, "push store", "open_push")
    opening = Opening(
        url=url, settings=settings, data_dir=data_dir, clock=clock, create_missing=serves
    )
    with _needs_driver(backend):
        return await backend.open_push(opening)


async def init_push_store(url: str, settings: Store) -> list[str]:
    """Create missing tables, families and indexes. Returns sentences that report each change."""
    backend = find_backend(url)
    backend.parse(url, settings.db_settings)
    if backend.init is None:
        return []
    with _needs_driver(backend):
        return await backend.init(url, settings)


async def rotate_push_store(
    url: str, settings: Store, clock: Clock, *, dry_run: bool
) -> Sequence[str] | None:
    """Create and drop monthly tables. Returns sentences that report each change, or None if the
    store has no monthly tables."""
    backend = find_backend(url)
    backend.parse(url, settings.db_settings)
    if backend.rotate is None:
        return None
    with _needs_driver(backend):
        return await backend.rotate(url, settings, clock, dry_run=dry_run)


@runtime_checkable
class Warns(Protocol):
    """A store that reports risks to the operator."""

    async def warnings(self) -> Sequence[str]: ...


async def store_warnings(store: PushStore) -> Sequence[str]:
    """Warnings about an open store, for start-up and `doctor`. Raises errors of its reads."""
    return await store.warnings() if isinstance(store, Warns) else ()


# Jobs over a whole push store


def bulk_backend(config: StoreConfig) -> Backend:
    """Raises `SettingsError` if the store has no bulk reader."""
    parse_store_url(config.url, config.settings.db_settings)
    backend = find_backend(config.url)
    if backend.open_bulk is None:
        shown = shown_url(config.url, config.settings.db_settings)
        raise SettingsError([f"jobs cannot read {shown}: set store.url to a persistent store"])
    return backend


def open_bulk(path: str, runner: asyncio.Runner | None = None) -> BulkStore:
    """Open the store whose configuration `write_store_config` has written to `path`. Stores that
    share a runner are closed by the caller that created it."""
    config = read_store_config(path)
    backend = bulk_backend(config)
    assert backend.open_bulk is not None
    with _needs_driver(backend):
        return backend.open_bulk(config, runner or asyncio.Runner())


# Queues and their cluster


def queue_store_url(own: str, shared: str) -> str:
    """The URL of the queue store, from `queue.store` and `store.url`."""
    if own:
        return own
    backend = _backend_or_none(shared)
    return _DEFAULT_QUEUE_URL if backend is None or backend.open_queue is None else shared


async def open_queue_store(url: str, *, data_dir: Path, settings: Store) -> QueueStore:
    """Open the queue store at `url`; call once per process, after it has started."""
    backend, opening = _alone(url, settings, data_dir, SystemClock())
    if backend.open_queue is None:
        raise _no_store("queue.store", url, "queue store", "open_queue")
    with _needs_driver(backend):
        return await backend.open_queue(opening)


async def open_cluster_store(url: str, *, data_dir: Path, settings: Store) -> ClusterStore:
    """Open the store of a queue cluster's slot map; once per process, after it has started."""
    backend, opening = _alone(url, settings, data_dir, SystemClock())
    if backend.open_cluster is None:
        raise _no_store("the store of the cluster", url, "store of slot maps", "open_cluster")
    with _needs_driver(backend, "the store of the cluster"):
        return await backend.open_cluster(opening)


# Presence


def presence_store_url(own: str, shared: str) -> str:
    """The URL of the presence store, from `presence.store` and `store.url`. Machines that share
    the push store also share presence."""
    if own:
        return own
    backend = _backend_or_none(shared)
    fits = backend is not None and backend.open_presence is not None and shared_by_machines(shared)
    return shared if fits else _DEFAULT_PRESENCE_URL


def check_presence_url(url: str) -> Backend:
    """Raises `SettingsError` for a URL whose backend has no presence store."""
    try:
        parse_store_url(url)
        backend = find_backend(url)
    except SettingsError as exc:
        raise SettingsError(
            [problem.replace("store.url", "presence.store") for problem in exc.problems]
        ) from exc
    if backend.open_presence is None:
        raise _no_store("presence.store", url, "presence store", "open_presence")
    return backend


async def open_presence_store(
    presence: Presence, *, data_dir: Path, settings: Store, clock: Clock
) -> PresenceStore:
    """Open the presence store; once per process, after it has started."""
    url = presence_store_url(presence.store, settings.url)
    check_presence_url(url)
    backend, opening = _alone(url, settings, data_dir, clock)
    assert backend.open_presence is not None
    with _needs_driver(backend, "presence.store"):
        return await backend.open_presence(opening, presence)


def is_shared(store: PresenceStore) -> TypeGuard[SharedPresenceStore]:
    """Whether several nodes may open the store at once."""
    return hasattr(store, "heartbeat")


def _alone(url: str, settings: Store, data_dir: Path, clock: Clock) -> tuple[Backend, Opening]:
    """For stores other than push: `db_settings` belong to `store.url` only."""
    backend = find_backend(url)
    backend.parse(url, "")
    own = msgspec.structs.replace(settings, db_settings="")
    return backend, Opening(url=url, settings=own, data_dir=data_dir, clock=clock)


def _no_store(setting: str, url: str, what: str, opener: str) -> SettingsError:
    able = " or ".join(known.name for known in BACKENDS if getattr(known, opener) is not None)
    return SettingsError([f"{setting}: {shown_url(url)} has no {what}; use {able}"])


@contextmanager
def _needs_driver(backend: Backend, setting: str = "store.url") -> Generator[None]:
    """Raises `SettingsError` with the package to install if a backend's driver is missing."""
    try:
        yield
    except ImportError as exc:
        if not backend.install:
            raise
        raise SettingsError(
            [f"{setting}: its driver is not installed: pip install '{backend.install}' ({exc})"]
        ) from exc
