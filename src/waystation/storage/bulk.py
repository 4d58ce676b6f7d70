"""Reads a whole push store for jobs of the pipeline, and removes rows from it with conditions.

A table is read in parts. A part is a string of the backend's own (a range of keys, a segment of a
table) that a job may send to another machine; the parts of a table cover it exactly once. Memory is
bounded by one page, and each page is a read of its own: no cursor stays open on a server.

A removal names the version of the row that was read. A user agent that reconnected meanwhile has
another version and stays.

`StoreConfig` travels as a file: URLs may hold passwords, and Spark shows options in its plans.
Batches hold raw ids, which stay in the process that asked.
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
UNLIMITED = 1_000_000  # channels: the limit was checked when they were registered
TIMEOUT_MIN_S = 60.0  # a page of a busy store may take longer than a server would wait

T = TypeVar("T")


class StoreConfig(msgspec.Struct, frozen=True, kw_only=True):
    """A push store's URL and settings, as written to a file for jobs."""

    url: str
    data_dir: str = "."
    settings: Store = Store()

    @property
    def patient(self) -> Store:
        """Settings for reading whole tables beside busy servers."""
        timeout_s = max(self.settings.operation_timeout_s, TIMEOUT_MIN_S)
        return msgspec.structs.replace(self.settings, url=self.url, operation_timeout_s=timeout_s)


def read_store_config(path: str) -> StoreConfig:
    return msgspec.json.decode(Path(path).read_bytes(), type=StoreConfig)


def write_store_config(path: Path, config: StoreConfig) -> None:
    """Readable by its owner alone."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.unlink(missing_ok=True)
    path.touch(mode=0o600)
    path.write_bytes(msgspec.json.encode(config))


class BulkStore:
    """What backends share: a loop for their driver, and pages made into batches."""

    def __init__(self, arrow: Any, runner: asyncio.Runner) -> None:
        self._arrow = arrow
        self._runner = runner

    # What a backend has to write

    def ranges(self, table: str, count: int) -> list[bytes]:
        """The parts of a table, about `count`."""
        raise AssertionError("each backend has its own")

    def away_ranges(self, count: int) -> list[bytes]:
        """Parts of `router` that lead by an index to those who have not connected for long, so
        that the others need not be read; none if the store has no such index."""
        return []

    def month_of(self, part: bytes) -> str | None:
        """The table of a part of what waits, in a store with a table for each month."""
        return None

    def user_agents(
        self, part: bytes, bounds: Bounds, *, whole: bool
    ) -> AsyncIterator[Sequence[UserAgentSnapshot]]:
        """Pages of user agents; `whole` ones have subscriptions and updates."""
        raise AssertionError("each backend has its own")

    def subscriptions(self, part: bytes) -> AsyncIterator[Sequence[Subscriptions]]:
        raise AssertionError("each backend has its own")

    def notifications(
        self, part: bytes, bounds: Bounds, *, whole: bool
    ) -> AsyncIterator[Sequence[StoredNotification]]:
        """Pages of notifications; those that are not `whole` have a key, a channel and an end."""
        raise AssertionError("each backend has its own")

    async def read_user_agents(self, uaids: Sequence[Uaid]) -> Sequence[UserAgentSnapshot]:
        """Those of them whose time is not over, whole, in any order."""
        raise AssertionError("each backend has its own")

    async def add_user_agents(
        self, store: PushStore, snapshots: Sequence[UserAgentSnapshot]
    ) -> Sequence[bool]:
        """Write whole user agents that are not there yet, each as its record says; which were new.
        `store` is the same store as servers know it."""
        return await asyncio.gather(*(_add_user_agent(store, one) for one in snapshots))

    async def set_routes(
        self, store: PushStore, begun: Sequence[UserAgent], records: Sequence[UserAgent]
    ) -> None:
        """Replace the routes of records that were begun by those that they shall have."""
        await asyncio.gather(
            *(_set_route(store, *pair) for pair in zip(begun, records, strict=True))
        )

    async def statuses_kept_until(
        self, store: PushStore, ids: Sequence[MessageId], now_ms: int
    ) -> Mapping[MessageId, int]:
        """Until when statuses are kept, of those messages that have one."""
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
        """Close connections."""

    # What jobs call

    def scan(self, table: str, part: bytes, *, now_ms: int, bounds: Bounds) -> Iterator[Any]:
        """Arrow batches of `router`, `channels`, `messages`, or, in the form that two stores are
        compared by, of `records` and `notifications`. Rows outside of `bounds` may be left out."""
        for page in self._walk(self._pages(table, part, bounds)):
            if page:
                month = self.month_of(part) if table == "messages" else None
                yield bulk_rows.batch(self._arrow, table, page, now_ms, month=month)

    def remove_unchanged(self, agents: Sequence[tuple[bytes, int]]) -> int:
        """User agents (uaid, version) with all that is theirs, each only if its row is still the
        one that was seen. How many were."""
        return self.run(self.remove_if_same([(Uaid(uaid), seen) for uaid, seen in agents]))

    def remove_orphans(self, uaids: Sequence[bytes]) -> int:
        """Subscriptions and notifications of user agents of whom there is no record; of how many
        there still was none."""
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
    assert begun.node_id is not None, "what is not begun need not be settled"
    if record.node_id is None or not record.connected_at_ms:
        await store.clear_route(begun.uaid, Route(begun.node_id, begun.connected_at_ms))
    else:
        await store.claim_route(record)


# Ranges of hex digits, for stores that keep uaids in order and as text


def hex_ranges(count: int) -> list[bytes]:
    """`first-end`, of equal width: uaids are random. The last one has no end."""
    marks = [f"{(number << 16) // count:04x}" for number in range(1, max(1, min(count, 4096)))]
    cuts = ["", *marks]
    return [f"{first}-{end}".encode() for first, end in zip(cuts, [*marks, ""], strict=True)]


def hex_range(part: bytes) -> tuple[str, str]:
    """Least and end of a range; `g` stands behind every digit."""
    first, _, end = part.decode().partition("-")
    return first, end or "g"
