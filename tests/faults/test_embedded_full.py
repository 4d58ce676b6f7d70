"""When there is no room, new rows are refused and everything that frees room goes on."""

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from pathlib import Path
from typing import TypeVar

import pytest

from waystation.base.clock import ManualClock
from waystation.base.errors import StoreFullError, StoreUnavailableError
from waystation.base.ids import new_uuid4
from waystation.presence.model import Status
from waystation.presence.store import Attached, Joined
from waystation.push.model import ChannelId, Notification, Uaid, UserAgent
from waystation.queue.errors import QueueStoreUnavailableError
from waystation.queue.store import PendingNotification
from waystation.storage.embedded.check import check_store
from waystation.storage.embedded.presence import EmbeddedPresenceStore
from waystation.storage.embedded.push import EmbeddedPushStore
from waystation.storage.embedded.queue import EmbeddedQueueStore
from waystation.storage.settings import Store
from waystation.testing.conformance.presence_store import (
    OWNER,
    Heard,
    attach_spec,
    join_spec,
    new_party,
    session,
)
from waystation.testing.conformance.push_store import (
    fetch_all,
    new_channel,
    sweep_all,
    timed_notification,
)
from waystation.testing.conformance.queue_samples import (
    NOW_S,
    drained,
    new_message,
    new_notifier,
    new_queue,
    send,
)

TINY = 2 << 20
T = TypeVar("T")


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
async def store(tmp_path: Path, clock: ManualClock) -> AsyncIterator[EmbeddedPushStore]:
    settings = Store(map_bytes=TINY, sync=False, disk_reserve_bytes=0)
    store = await EmbeddedPushStore.open(tmp_path / "push", settings=settings, clock=clock)
    yield store
    report = check_store(store.env)
    await store.close()
    assert report.problems == []


async def add(store: EmbeddedPushStore, clock: ManualClock) -> tuple[Uaid, ChannelId]:
    uaid, channel_id = Uaid(new_uuid4()), new_channel()
    assert await store.add_user_agent(UserAgent(uaid=uaid, connected_at_ms=clock.now_ms()))
    assert await store.add_channel(uaid, channel_id, channels_max=10)
    return uaid, channel_id


async def save_until_full(
    store: EmbeddedPushStore,
    owners: list[tuple[Uaid, ChannelId]],
    clock: ManualClock,
    *,
    group: int,
) -> list[tuple[Uaid, Notification]]:
    """What was acknowledged before the first refusal."""
    kept: list[tuple[Uaid, Notification]] = []
    for start in range(0, 100_000, group):
        rows = [
            (
                owners[n % len(owners)][0],
                timed_notification(
                    owners[n % len(owners)][1],
                    accepted_at_ms=clock.now_ms(),
                    n=n,
                    ttl_s=60 + n % 7,
                    data="x" * 1400,
                ),
            )
            for n in range(start, start + group)
        ]
        saved = await asyncio.gather(*(store.save(*row) for row in rows), return_exceptions=True)
        kept += [row for row, error in zip(rows, saved, strict=True) if error is None]
        refused = [error for error in saved if error is not None]
        if refused:
            assert all(isinstance(error, StoreFullError) for error in refused)
            return kept
    raise AssertionError("the store never became full")


@pytest.mark.parametrize("group", [1, 16, 200])
async def test_a_full_store_refuses_growth_keeps_what_it_has_and_can_be_emptied(
    group: int, store: EmbeddedPushStore, clock: ManualClock
) -> None:
    owners = [await add(store, clock) for _ in range(30)]
    kept = await save_until_full(store, owners, clock, group=group)
    known, channel_id = owners[0]

    # Nobody new, nothing new,
    newcomer = UserAgent(uaid=Uaid(new_uuid4()), connected_at_ms=clock.now_ms(), node_id="n")
    for growth in (
        store.add_user_agent(newcomer),
        store.claim_route(newcomer),
        store.add_channel(known, new_channel(), channels_max=10),
        store.publish_broadcast("test/one", "v1"),
    ):
        with pytest.raises(StoreFullError):
            await growth
    assert store.stats().full

    # but who is known comes and goes, and reads are as ever.
    back = UserAgent(uaid=known, connected_at_ms=clock.now_ms() + 1, node_id="http://n")
    assert await store.claim_route(back)
    assert back.route is not None
    assert await store.clear_route(known, back.route)
    for uaid, _ in owners:
        wanted = [row for owner, row in kept if owner == uaid]
        found = await fetch_all(store, uaid, now_ms=clock.now_ms())
        assert {row.sort_key for row in found} >= {row.sort_key for row in wanted}

    # Acks, removals and the sweep free room,
    acked = [(row.sort_key, row.message_id) for owner, row in kept if owner == known]
    assert await store.forget(known, acked) == len(acked)
    assert await store.remove_channel(known, channel_id)
    assert await store.remove_user_agent(owners[1][0])
    clock.advance(120)
    assert await sweep_all(store, now_ms=clock.now_ms(), limit=1000) > len(kept) // 2

    # and then it takes as much as before.
    assert await store.add_user_agent(newcomer)
    assert not store.stats().full
    again = await save_until_full(store, owners[2:], clock, group=group)
    assert len(again) >= len(kept) * 0.7


async def test_a_full_store_can_be_filled_and_emptied_again_and_again(
    store: EmbeddedPushStore, clock: ManualClock
) -> None:
    owners = [await add(store, clock) for _ in range(200)]
    sizes: list[int] = []
    for _ in range(8):
        kept = await save_until_full(store, owners, clock, group=64)
        sizes.append(len(kept))
        clock.advance(120)
        await sweep_all(store, now_ms=clock.now_ms(), limit=1000)

    assert min(sizes) >= 0.7 * sizes[0], sizes
    assert store.env.file_bytes() <= TINY


async def test_a_disk_with_less_room_than_its_reserve_takes_nothing_new(
    tmp_path: Path, clock: ManualClock
) -> None:
    roomy = Store(map_bytes=1 << 24, sync=False, disk_reserve_bytes=0)
    store = await EmbeddedPushStore.open(tmp_path / "push", settings=roomy, clock=clock)
    uaid, channel_id = await add(store, clock)
    row = timed_notification(channel_id, accepted_at_ms=clock.now_ms())
    await store.save(uaid, row)
    await store.close()
    short = Store(map_bytes=1 << 24, sync=False, disk_reserve_bytes=more_than_there_is(tmp_path))
    store = await EmbeddedPushStore.open(tmp_path / "push", settings=short, clock=clock)

    with pytest.raises(StoreFullError, match="disk_reserve_bytes"):
        await store.save(uaid, timed_notification(channel_id, accepted_at_ms=1))
    assert await store.forget(uaid, [(row.sort_key, row.message_id)]) == 1
    assert await store.remove_user_agent(uaid)
    await store.close()


def more_than_there_is(path: Path) -> int:
    disk = os.statvfs(path)
    return disk.f_blocks * disk.f_frsize * 2


async def test_a_queue_store_on_a_short_disk_opens_gives_out_and_takes_nothing_new(
    tmp_path: Path,
) -> None:
    roomy = Store(map_bytes=1 << 24, disk_reserve_bytes=0)
    store = await EmbeddedQueueStore.open(tmp_path / "queue", settings=roomy)
    queue, kept, waiting = new_queue(), new_message(), new_notifier().notifier_id
    assert await store.create(queue)
    await send(store, queue, kept)
    await store.save_pending([PendingNotification(waiting, b"n" * 24, b"meta", NOW_S)])
    await store.close()
    short = Store(map_bytes=1 << 24, disk_reserve_bytes=more_than_there_is(tmp_path))
    store = await EmbeddedQueueStore.open(tmp_path / "queue", settings=short)
    await store.check()

    with pytest.raises(QueueStoreUnavailableError, match="disk_reserve_bytes"):
        await send(store, queue, new_message())
    assert [one.notifier_id for one in await store.take_pending()] == [waiting]
    assert await drained(store, queue) == [kept]
    assert await store.delete(queue.recipient_id)
    await store.close()


async def test_a_presence_store_on_a_short_disk_starts_resumes_and_admits_nobody_new(
    tmp_path: Path, clock: ManualClock
) -> None:
    party = new_party()
    roomy = Store(map_bytes=1 << 24, disk_reserve_bytes=0)
    store = await EmbeddedPresenceStore.open(tmp_path / "p", settings=roomy, clock=clock)
    await store.start(OWNER, Heard())
    for client in (1, 2):
        assert isinstance(await store.join(session(party, client), join_spec()), Joined)
    await store.close()
    short = Store(map_bytes=1 << 24, disk_reserve_bytes=more_than_there_is(tmp_path))
    store = await EmbeddedPresenceStore.open(tmp_path / "p", settings=short, clock=clock)
    lost = await store.start(OWNER, Heard())
    await store.check()

    assert {record.key.client_id for record in lost} == {1, 2}
    with pytest.raises(StoreFullError, match="disk_reserve_bytes"):
        await store.join(session(party, 3), join_spec())
    back = await store.attach(session(party, 1), attach_spec(b"1" * 32))
    assert isinstance(back, Attached)
    assert await store.leave(session(party, 2), 0, Status.OK) is not None
    await store.close()


async def for_each(step: Callable[[T], Awaitable[object]], items: Iterable[T]) -> None:
    for item in items:
        await step(item)


async def test_a_presence_store_near_its_map_size_starts_resumes_and_lets_leave(
    tmp_path: Path, clock: ManualClock
) -> None:
    settings = Store(map_bytes=TINY // 2, sync=False, disk_reserve_bytes=0)
    store = await EmbeddedPresenceStore.open(tmp_path / "p", settings=settings, clock=clock)
    await store.start(OWNER, Heard())
    party = new_party()
    for client in (1, 2):
        assert isinstance(await store.join(session(party, client), join_spec()), Joined)
    newcomers = (session(new_party(), client) for client in range(3, 10_000))
    with pytest.raises(StoreFullError, match="map_bytes"):
        await for_each(lambda one: store.join(one, join_spec()), newcomers)
    await store.close()
    store = await EmbeddedPresenceStore.open(tmp_path / "p", settings=settings, clock=clock)
    lost = await store.start(OWNER, Heard())
    back = await store.attach(session(party, 1), attach_spec(b"1" * 32))

    assert {1, 2} <= {record.key.client_id for record in lost}
    assert isinstance(back, Attached)
    assert await store.leave(session(party, 2), 0, Status.OK) is not None
    await store.close()


async def test_a_queue_store_near_its_map_size_opens_and_gives_out(tmp_path: Path) -> None:
    settings = Store(map_bytes=TINY // 2, sync=False, disk_reserve_bytes=0)
    store = await EmbeddedQueueStore.open(tmp_path / "queue", settings=settings)
    queue, kept, waiting = new_queue(), new_message(), new_notifier().notifier_id
    assert await store.create(queue)
    await send(store, queue, kept)
    await store.save_pending([PendingNotification(waiting, b"n" * 24, b"meta", NOW_S)])
    more = (new_queue() for _ in range(10_000))
    with pytest.raises(QueueStoreUnavailableError, match="map_bytes"):
        await for_each(store.create, more)
    await store.close()
    store = await EmbeddedQueueStore.open(tmp_path / "queue", settings=settings)
    await store.check()

    assert [one.notifier_id for one in await store.take_pending()] == [waiting]
    assert await drained(store, queue) == [kept]
    assert await store.delete(queue.recipient_id)
    await store.close()


CHILD = """
import asyncio, json, resource, sys
from pathlib import Path
from waystation.base.clock import ManualClock
from waystation.base.ids import new_uuid4
from waystation.base.errors import StoreUnavailableError
from waystation.push.model import UserAgent
from waystation.storage.embedded.push import EmbeddedPushStore
from waystation.storage.embedded.check import check_store
from waystation.storage.settings import Store
from waystation.testing.conformance.push_store import (
    fetch_all, new_channel, save_many, timed_notification)

async def main():
    clock = ManualClock()
    settings = Store(map_bytes=1 << 26)
    store = await EmbeddedPushStore.open(Path(sys.argv[1]), settings=settings, clock=clock)
    uaid, channel = new_uuid4(), new_channel()
    await store.add_user_agent(UserAgent(uaid=uaid, connected_at_ms=1))
    await store.add_channel(uaid, channel, channels_max=10)
    rows = [timed_notification(channel, accepted_at_ms=clock.now_ms(), n=n, data="x" * 2000)
            for n in range(2000)]
    size = store.env.file_bytes() + 400_000
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))
    kept, errors = [], set()
    for start in range(0, 2000, 50):
        some = rows[start:start + 50]
        done = await asyncio.gather(*(store.save(uaid, row) for row in some),
                                    return_exceptions=True)
        kept += [row for row, error in zip(some, done) if error is None]
        errors |= {type(error).__mro__[1].__name__ for error in done if error is not None}
        forgotten = await store.forget(uaid, [(row.sort_key, row.message_id) for row in kept[:1]])
        kept = kept[1:] if forgotten else kept
    found = await fetch_all(store, uaid, now_ms=clock.now_ms(), limit=100)
    lost = len({row.sort_key for row in kept} - {row.sort_key for row in found})
    resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY,) * 2)
    await save_many(store, uaid, rows)
    report = check_store(store.env)
    await store.close()
    print(json.dumps({"kept": len(kept), "errors": sorted(errors), "lost": lost,
                      "after": report.rows["notifications"], "problems": report.problems}))

asyncio.run(main())
"""


def test_a_disk_that_takes_no_more_bytes_loses_nothing_that_was_acknowledged(
    tmp_path: Path,
) -> None:
    """A limit on the size of files stands for the full disk; commits fail half-written."""
    done = subprocess.run(
        [sys.executable, "-c", CHILD, str(tmp_path / "push")],
        capture_output=True,
        timeout=120,
        check=False,
        text=True,
    )

    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert 20 < told["kept"] < 1900
    assert set(told["errors"]) <= {"UnavailableError", StoreUnavailableError.__name__}
    assert told["errors"]
    assert told["lost"] == 0
    assert told["after"] == 2000
    assert told["problems"] == []
