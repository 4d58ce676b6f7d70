"""Reads a whole push store for jobs of the pipeline, and removes rows from it with conditions.

A table is read in parts. A part is a backend-specific string (a key range, a table segment) that a
job may send to another machine; the parts of a table cover it exactly once. Memory is bounded by
one page. Each page is a separate read: no cursor stays open on a server.

A removal states the row version that was read. A user agent that has reconnected since then has
another version and is kept.

`StoreConfig` is passed as a file: URLs may contain passwords, and Spark shows options in its plans.
Batches contain raw ids, which never leave the process that reads them.
"""

import asyncio
from collections.abc import AsyncIterator, Coroutine, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from waystation.push.model import MessageId, Route, Uaid, UserAgent
from waystation.push.store import PushStore
from waystation.storage import bulk_rows
from waystation.storage.bulk_rows import (
    Bounds,
    StoredNotification,
    Subscriptions,
    UserAgentSnapshot,
)
from waystation.storage.settings import Store

PAGE_ROWS = 2000
UNLIMITED = 1_000_000  # channels; registration has already checked the limit
TIMEOUT_MIN_S = 60.0  # a page of a busy store may take longer than a server's own timeout

T = TypeVar("T")


class StoreConfig(msgspec.Struct, frozen=True, kw_only=True):
    """URL and settings of a push store, written to a file for jobs."""

    url: str
    data_dir: str = "."
    settings: Store = Store()

    @property
    def bulk_settings(self) -> Store:
        """Settings for reading whole tables beside busy servers."""
        timeout_s = max(self.settings.operation_timeout_s, TIMEOUT_MIN_S)
        return msgspec.structs.replace(self.settings, url=self.url, operation_timeout_s=timeout_s)


def read_store_config(path: str) -> StoreConfig:
    return msgspec.json.decode(Path(path).read_bytes(), type=StoreConfig)


def write_store_config(path: Path, config: StoreConfig) -> None:
    """Creates a file that only its owner can read."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.unlink(missing_ok=True)
    path.touch(mode=0o600)
    path.write_bytes(msgspec.json.encode(config))


class BulkStore:
    """Base of the bulk readers: runs the driver's loop and converts pages to batches."""

    def __init__(self, arrow: Any, runner: asyncio.Runner) -> None:
        self._arrow = arrow
        self._runner = runner

    # Implemented by each backend

    def ranges(self, table: str, count: int) -> list[bytes]:
        """About `count` parts that cover the table."""
        raise AssertionError("each backend has its own")

    def away_ranges(self, count: int) -> list[bytes]:
        """Parts of `router` that read inactive user agents through an index, without the
        others; empty if the store has no such index."""
        return []

    def month_of(self, part: bytes) -> str | None:
        """The monthly table of a part of `messages`; None in a store without monthly tables."""
        return None

    def user_agents(
        self, part: bytes, bounds: Bounds, *, whole: bool
    ) -> AsyncIterator[Sequence[UserAgentSnapshot]]:
        """Pages of user agents; with `whole`, including subscriptions and updates."""
        raise AssertionError("each backend has its own")

    def subscriptions(self, part: bytes) -> AsyncIterator[Sequence[Subscriptions]]:
        raise AssertionError("each backend has its own")

    def notifications(
        self, part: bytes, bounds: Bounds, *, whole: bool
    ) -> AsyncIterator[Sequence[StoredNotification]]:
        """Pages of notifications; without `whole`, only key, channel and expiry."""
        raise AssertionError("each backend has its own")

    async def read_user_agents(self, uaids: Sequence[Uaid]) -> Sequence[UserAgentSnapshot]:
        """The unexpired ones, with subscriptions and updates, in any order."""
        raise AssertionError("each backend has its own")

    async def add_user_agents(
        self, store: PushStore, snapshots: Sequence[UserAgentSnapshot]
    ) -> Sequence[bool]:
        """Write user agents with subscriptions and updates if they are absent; returns which
        were new. `store` is the server's interface to the same store."""
        return await asyncio.gather(*(_add_user_agent(store, one) for one in snapshots))

    async def set_routes(
        self, store: PushStore, begun: Sequence[UserAgent], records: Sequence[UserAgent]
    ) -> None:
        """Replace the temporary routes in `begun` records by the final ones."""
        await asyncio.gather(
            *(_set_route(store, *pair) for pair in zip(begun, records, strict=True))
        )

    async def statuses_kept_until(
        self, store: PushStore, ids: Sequence[MessageId], now_ms: int
    ) -> Mapping[MessageId, int]:
        """Expiry times of the statuses; messages without a status are left out."""
        found = await asyncio.gather(*(store.get_status(one, now_ms=now_ms) for one in ids))
        return {
            one: status.keep_until_ms
            for one, status in zip(ids, found, strict=True)
            if status is not None
        }

    async def remove_if_same(self, agents: Sequence[tuple[Uaid, int]]) -> int:
        raise AssertionError("each backend has its own")

    async def remove_if_orphaned(self, uaids: Sequence[Uaid]) -> int:
        raise AssertionError("each backend has its own")

    async def close_connections(self) -> None:
        """Close the driver's connections; by default there are none."""

    # Called by jobs

    def scan(self, table: str, part: bytes, *, now_ms: int, bounds: Bounds) -> Iterator[Any]:
        """Arrow batches of `router`, `channels` or `messages`; of `records` or `notifications` in
        the canonical form that compares two stores. Rows outside `bounds` may be left out."""
        for page in self._walk(self._pages(table, part, bounds)):
            if page:
                month = self.month_of(part) if table == "messages" else None
                yield bulk_rows.batch(self._arrow, table, page, now_ms, month=month)

    def remove_unchanged(self, agents: Sequence[tuple[bytes, int]]) -> int:
        """Removes user agents (uaid, version) with all their rows, each only if its version is
        unchanged. Returns how many were removed."""
        return self.run(self.remove_if_same([(Uaid(uaid), seen) for uaid, seen in agents]))

    def remove_orphans(self, uaids: Sequence[bytes]) -> int:
        """Removes subscriptions and notifications of user agents without a record. Returns how
        many user agents still had none."""
        return self.run(self.remove_if_orphaned([Uaid(uaid) for uaid in uaids]))

    def close(self) -> None:
        try:
            self.run(self.close_connections())
        finally:
            self._runner.close()

    def _pages(self, table: str, part: bytes, bounds: Bounds) -> AsyncIterator[Sequence[Any]]:
        match table:
            case "router" | "records":
                return self.user_agents(part, bounds, whole=table == "records")
            case "channels":
                return self.subscriptions(part)
            case "messages" | "notifications":
                return self.notifications(part, bounds, whole=table == "notifications")
            case _:
                raise AssertionError(f"no table {table}")

    def _walk(self, pages: AsyncIterator[T]) -> Iterator[T]:
        async def step() -> T | None:
            return await anext(pages, None)

        while (page := self.run(step())) is not None:
            yield page

    def run(self, call: Coroutine[Any, Any, T]) -> T:
        return self._runner.run(call)


async def _add_user_agent(store: PushStore, one: UserAgentSnapshot) -> bool:
    if not await store.add_user_agent(one.record):
        return False
    for channel_id in one.channels:
        await store.add_channel(one.record.uaid, channel_id, channels_max=UNLIMITED)
    for update in one.updates:
        await store.save_update(one.record.uaid, update)
    return True


async def _set_route(store: PushStore, begun: UserAgent, record: UserAgent) -> None:
    assert begun.node_id is not None, "only a begun record needs its final route"
    if record.node_id is None or not record.connected_at_ms:
        await store.clear_route(begun.uaid, Route(begun.node_id, begun.connected_at_ms))
    else:
        await store.claim_route(record)


# Ranges of hex digits, for stores that keep uaids as text, in order


def hex_ranges(count: int) -> list[bytes]:
    """`first-end` ranges of equal width, because uaids are random. The last one has no end."""
    marks = [f"{(number << 16) // count:04x}" for number in range(1, max(1, min(count, 4096)))]
    cuts = ["", *marks]
    return [f"{first}-{end}".encode() for first, end in zip(cuts, [*marks, ""], strict=True)]


def hex_range(part: bytes) -> tuple[str, str]:
    """First and end of a range; `g` sorts after every hex digit."""
    first, _, end = part.decode().partition("-")
    return first, end or "g"
