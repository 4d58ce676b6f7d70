"""Describes one storage backend: its URLs, what it can do, and how each of its stores is opened.

Each folder below `storage/` has its record in `backend.py`. `open.py` finds the record by the
scheme of a URL; another package adds one as an entry point of the group `waystation.backends`
(docs/guides/write-a-backend.md). Functions of a record import the driver when they are called: the
driver is an extra, and loading it may take a second.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Protocol

import msgspec

from waystation.base.clock import Clock
from waystation.presence.settings import Presence
from waystation.presence.store import PresenceStore
from waystation.push.store import PushStore
from waystation.queue.cluster.cluster_store import ClusterStore
from waystation.queue.store import QueueStore
from waystation.storage.bulk import BulkStore, StoreConfig
from waystation.storage.capabilities import Capabilities
from waystation.storage.settings import Store


class Opening(msgspec.Struct, frozen=True, kw_only=True):
    """What every store is opened with."""

    url: str
    settings: Store
    data_dir: Path
    clock: Clock
    create_missing: bool = False
    """True for servers, which create missing tables if the URL allows it; False for commands."""


class Rotate(Protocol):
    async def __call__(
        self, url: str, settings: Store, clock: Clock, *, dry_run: bool
    ) -> Sequence[str] | None:
        """Create, scale down and drop monthly tables. Returns sentences that report each change,
        or None if the store has no monthly tables."""
        ...


class Backend(msgspec.Struct, frozen=True, kw_only=True):
    """One backend. A store that it does not implement is None."""

    name: str
    schemes: tuple[str, ...]
    url_forms: tuple[str, ...]
    """Examples for the error about an unknown URL."""
    scheme_alone: bool = False
    """Whether the scheme alone, without a colon, is a valid URL."""
    install: str = ""
    """Argument for `pip install` when the driver is missing."""
    capabilities: Capabilities | None
    """None: the capabilities of the stores in `parts` apply."""

    autopush_schemes: tuple[str, ...] = ()
    """Schemes whose rows have Autopush's layout."""

    parse: Callable[[str, str], object]
    """Checks a URL and Autopush's `db_settings`; raises `SettingsError`."""
    parts: Callable[[str, str], Sequence[tuple[str, str]]] | None = None
    """URL and `db_settings` of each store that a URL combines."""
    directory: Callable[[str, Path], Path] | None = None
    """Local directory of the rows; each store has a folder in it."""

    open_push: Callable[[Opening], Awaitable[PushStore]] | None = None
    open_queue: Callable[[Opening], Awaitable[QueueStore]] | None = None
    open_presence: Callable[[Opening, Presence], Awaitable[PresenceStore]] | None = None
    open_cluster: Callable[[Opening], Awaitable[ClusterStore]] | None = None
    """The store of a queue cluster's slot map."""
    open_bulk: Callable[[StoreConfig, asyncio.Runner], BulkStore] | None = None
    """Bulk reader of the push store, for pipeline jobs."""

    init: Callable[[str, Store], Awaitable[list[str]]] | None = None
    """Creates missing tables, families and indexes. Returns sentences that report each change."""
    rotate: Rotate | None = None
