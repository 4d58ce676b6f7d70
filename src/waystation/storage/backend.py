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
    """A server may make missing tables, if the URL allows it; commands only look."""


class Rotate(Protocol):
    async def __call__(
        self, url: str, settings: Store, clock: Clock, *, dry_run: bool
    ) -> Sequence[str] | None:
        """Make, lower and drop monthly tables; what was done, or None without such tables."""
        ...


class Backend(msgspec.Struct, frozen=True, kw_only=True):
    """A backend. A store that it does not have is None."""

    name: str
    schemes: tuple[str, ...]
    url_forms: tuple[str, ...]
    """Examples for the error about an unknown URL."""
    scheme_alone: bool = False
    """Whether the scheme without a colon is a URL too."""
    install: str = ""
    """What `pip install` needs when the driver is missing."""
    capabilities: Capabilities | None
    """None: those of the stores in `parts`."""

    autopush_schemes: tuple[str, ...] = ()
    """Schemes under which rows have Autopush's own layout."""

    parse: Callable[[str, str], object]
    """Checks a URL and Autopush's `db_settings`; raises `SettingsError`."""
    parts: Callable[[str, str], Sequence[tuple[str, str]]] | None = None
    """URL and `db_settings` of each store that a URL combines."""
    directory: Callable[[str, Path], Path] | None = None
    """Where on this machine the rows are, below which each store has a folder."""

    open_push: Callable[[Opening], Awaitable[PushStore]] | None = None
    open_queue: Callable[[Opening], Awaitable[QueueStore]] | None = None
    open_presence: Callable[[Opening, Presence], Awaitable[PresenceStore]] | None = None
    open_cluster: Callable[[Opening], Awaitable[ClusterStore]] | None = None
    """The store of a queue cluster's slot map."""
    open_bulk: Callable[[StoreConfig, asyncio.Runner], BulkStore] | None = None
    """The whole push store, for jobs of the pipeline."""

    init: Callable[[str, Store], Awaitable[list[str]]] | None = None
    """Make missing tables, families and indexes; what was done, in sentences."""
    rotate: Rotate | None = None
