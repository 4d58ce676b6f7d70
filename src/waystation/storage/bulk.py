"""A push store as a whole, for jobs: read in parts, and removed from with conditions.

Rule 1: a part is a word of the backend's own (a range of keys, a segment of a table); whoever asks
        carries it, perhaps to another machine, and hands it back. Parts of one table cover it once.
Rule 2: memory is bounded by a page. No page is held open on a server: each is a read of its own.
Rule 3: a removal names the row as it was read, by its version; a user agent that came back
        meanwhile has another one and stays.
Rule 4: a place is a file, since it may hold passwords and options are shown in plans.

Raw ids are in these batches. They stay in the process that asked.
"""

import asyncio
from collections.abc import AsyncIterator, Coroutine, Iterator, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from waystation.base.settings import SettingsError
from waystation.push.model import MessageId, Route, Uaid, UserAgent
from waystation.push.store import PushStore
from waystation.storage import dossier
from waystation.storage.bigtable.url import BigtableUrl
from waystation.storage.dossier import Bounds, Dossier, Subscriptions, Waiting
from waystation.storage.dynamodb.url import DynamoUrl
from waystation.storage.open import (
    EmbeddedUrl,
    StoreUrl,
    import_extra,
    parse_store_url,
    shown_url,
)
from waystation.storage.postgres.url import PostgresUrl
from waystation.storage.redis.url import RedisUrl
from waystation.storage.settings import Store

PAGE_ROWS = 2000
ANY_NUMBER = 1_000_000  # of channels: the limit was kept where they were added
PATIENCE_S = 60.0  # a page of a busy store may take longer than what a server would wait for

T = TypeVar("T")

_BACKENDS: dict[type[StoreUrl], str] = {
    EmbeddedUrl: "embedded",
    PostgresUrl: "postgres",
    RedisUrl: "redis",
    DynamoUrl: "dynamodb",
    BigtableUrl: "bigtable",
}


class Place(msgspec.Struct, frozen=True, kw_only=True):
    """Which store, as a file tells it."""

    url: str
    data_dir: str = "."
    settings: Store = Store()

    @property
    def patient(self) -> Store:
        waits_s = max(self.settings.operation_timeout_s, PATIENCE_S)
        return msgspec.structs.replace(self.settings, url=self.url, operation_timeout_s=waits_s)

    @property
    def shown(self) -> str:
        return shown_url(self.url, self.settings.db_settings)

    def parsed(self) -> StoreUrl:
        return parse_store_url(self.url, self.settings.db_settings)


def read_place(path: str) -> Place:
    return msgspec.json.decode(Path(path).read_bytes(), type=Place)


def write_place(path: Path, place: Place) -> None:
    """Readable by its owner alone."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.unlink(missing_ok=True)
    path.touch(mode=0o600)
    path.write_bytes(msgspec.json.encode(place))


def job_backend(place: Place) -> str:
    """The name of its backend. Raises `SettingsError` for a store that no job works on."""
    name = _BACKENDS.get(type(place.parsed()))
    if name is None:
        raise SettingsError([f"jobs do not work on {place.shown}: name a store that keeps rows"])
    return name


def open_bulk(place: str, runner: asyncio.Runner | None = None) -> "PagedBulk":
    """`place` is the path of a file that `write_place` has written. Several that share a runner
    are closed by whoever has made it."""
    told = read_place(place)
    name = job_backend(told)
    with import_extra(name):
        module: Any = import_module(f"waystation.storage.{name}.bulk")
    return module.open_bulk(told, runner or asyncio.Runner())


class PagedBulk:
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

    def dossiers(
        self, part: bytes, bounds: Bounds, *, whole: bool
    ) -> AsyncIterator[Sequence[Dossier]]:
        """Pages of user agents; `whole` ones have subscriptions and updates."""
        raise AssertionError("each backend has its own")

    def subscriptions(self, part: bytes) -> AsyncIterator[Sequence[Subscriptions]]:
        raise AssertionError("each backend has its own")

    def waiting(
        self, part: bytes, bounds: Bounds, *, whole: bool
    ) -> AsyncIterator[Sequence[Waiting]]:
        """Pages of notifications; those that are not `whole` have a key, a channel and an end."""
        raise AssertionError("each backend has its own")

    async def look(self, uaids: Sequence[Uaid]) -> Sequence[Dossier]:
        """Those of them whose time is not over, whole, in any order."""
        raise AssertionError("each backend has its own")

    async def begin(self, store: PushStore, dossiers: Sequence[Dossier]) -> Sequence[bool]:
        """Write whole user agents that are not there yet, each as its record says; which were new.
        `store` is the same store as servers know it."""
        return await asyncio.gather(*(_begin(store, one) for one in dossiers))

    async def settle(
        self, store: PushStore, begun: Sequence[UserAgent], records: Sequence[UserAgent]
    ) -> None:
        """Replace the routes of records that were begun by those that they shall have."""
        await asyncio.gather(*(_settle(store, *pair) for pair in zip(begun, records, strict=True)))

    async def kept_until(
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

    async def remove_if_nobodys(self, uaids: Sequence[Uaid]) -> int:
        raise AssertionError("each backend has its own")

    async def part_with(self) -> None:
        """Close connections."""

    # What jobs call

    def scan(self, table: str, part: bytes, *, now_ms: int, bounds: Bounds) -> Iterator[Any]:
        """Arrow batches of `router`, `channels`, `messages`, or, in the form that two stores are
        compared by, of `records` and `notifications`. Rows outside of `bounds` may be left out."""
        for page in self._walk(self._pages(table, part, bounds)):
            if page:
                month = self.month_of(part) if table == "messages" else None
                yield dossier.batch(self._arrow, table, page, now_ms, month=month)

    def remove_unchanged(self, agents: Sequence[tuple[bytes, int]]) -> int:
        """User agents (uaid, version) with all that is theirs, each only if its row is still the
        one that was seen. How many were."""
        return self.run(self.remove_if_same([(Uaid(uaid), seen) for uaid, seen in agents]))

    def remove_orphans(self, uaids: Sequence[bytes]) -> int:
        """Subscriptions and notifications of user agents of whom there is no record; of how many
        there still was none."""
        return self.run(self.remove_if_nobodys([Uaid(uaid) for uaid in uaids]))

    def close(self) -> None:
        try:
            self.run(self.part_with())
        finally:
            self._runner.close()

    def _pages(self, table: str, part: bytes, bounds: Bounds) -> AsyncIterator[Sequence[Any]]:
        match table:
            case "router" | "records":
                return self.dossiers(part, bounds, whole=table == "records")
            case "channels":
                return self.subscriptions(part)
            case "messages" | "notifications":
                return self.waiting(part, bounds, whole=table == "notifications")
            case _:
                raise AssertionError(f"no table {table}")

    def _walk(self, pages: AsyncIterator[T]) -> Iterator[T]:
        async def step() -> T | None:
            return await anext(pages, None)

        while (page := self.run(step())) is not None:
            yield page

    def run(self, call: Coroutine[Any, Any, T]) -> T:
        return self._runner.run(call)


async def _begin(store: PushStore, one: Dossier) -> bool:
    if not await store.add_user_agent(one.record):
        return False
    for channel_id in one.channels:
        await store.add_channel(one.record.uaid, channel_id, channels_max=ANY_NUMBER)
    for update in one.updates:
        await store.save_update(one.record.uaid, update)
    return True


async def _settle(store: PushStore, begun: UserAgent, record: UserAgent) -> None:
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
