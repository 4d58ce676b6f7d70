"""What the Bigtable store promises beyond the contract: round trips, ends of rows, its table."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import timedelta
from itertools import cycle
from typing import Any

import msgspec
import pytest
import uvloop
from google.api_core.exceptions import ServiceUnavailable
from google.cloud.bigtable_admin_v2 import BaseBigtableTableAdminAsyncClient, GcRule, Table
from google.cloud.bigtable_admin_v2.services.bigtable_table_admin.transports import (
    BigtableTableAdminGrpcAsyncIOTransport,
)
from grpc.aio import insecure_channel

from tests.servers.bigtable import BigtableEmulator, bigtable_emulator, bigtable_url
from waystation.base.clock import ManualClock, SystemClock
from waystation.base.ids import new_uuid4
from waystation.push.model import (
    USER_AGENT_LIFETIME_S,
    ChannelId,
    Milestone,
    MilestoneNote,
    SavedUpdate,
    Uaid,
    Update,
    UserAgent,
)
from waystation.storage.bigtable import layout, tracking
from waystation.storage.bigtable.cells import replace_cell
from waystation.storage.bigtable.init import POLICIES, init_table
from waystation.storage.bigtable.notifications import TOPIC_TRIES_MAX
from waystation.storage.bigtable.push import BigtablePushStore
from waystation.storage.bigtable.url import BigtableUrl
from waystation.storage.open import init_push_store, open_push_store, store_warnings
from waystation.storage.settings import Store
from waystation.testing.conformance.push_store import (
    fetch_all,
    new_channel,
    new_message_id,
    timed_notification,
    topic_notification,
)

__all__ = ["bigtable_emulator", "bigtable_url"]

pytestmark = pytest.mark.bigtable

NODE = "http://a.example:8081"


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(now_ms=SystemClock().now_ms())


@pytest.fixture
async def store(clock: ManualClock, bigtable_url: BigtableUrl) -> AsyncIterator[BigtablePushStore]:
    store = await BigtablePushStore.open(bigtable_url, settings=Store(), clock=clock)
    yield store
    await store.close()


async def subscribed(store: BigtablePushStore, clock: ManualClock) -> tuple[Uaid, ChannelId]:
    uaid, channel_id = Uaid(new_uuid4()), new_channel()
    record = UserAgent(uaid=uaid, connected_at_ms=clock.now_ms(), node_id=NODE)
    assert await store.add_user_agent(record)
    assert await store.add_channel(uaid, channel_id, channels_max=10)
    return uaid, channel_id


async def raw_row(store: BigtablePushStore, key: bytes) -> dict[tuple[str, bytes], list[int]]:
    """(family, column) -> when its cells end, outdated ones too."""
    row = await store.session._tables[0].read_row(key)
    cells: dict[tuple[str, bytes], list[int]] = {}
    for cell in row.cells if row else ():
        cells.setdefault((cell.family, cell.qualifier), []).append(cell.timestamp_micros // 1000)
    return cells


# Round trips


async def test_every_operation_takes_the_round_trips_that_it_should(
    store: BigtablePushStore, clock: ManualClock
) -> None:
    uaid, channel_id = await subscribed(store, clock)
    now_ms = clock.now_ms()
    row = timed_notification(channel_id, accepted_at_ms=now_ms)
    new = timed_notification(channel_id, accepted_at_ms=now_ms, n=1)
    handed_back = timed_notification(channel_id, accepted_at_ms=now_ms, n=2)
    topic = topic_notification(channel_id, "t", accepted_at_ms=now_ms)
    newer = topic_notification(channel_id, "t", accepted_at_ms=now_ms)
    note = MilestoneNote(new_message_id(), bytes(32), Milestone.STORED, now_ms, now_ms + 9000)

    async def hello() -> object:
        record = await store.get_user_agent(uaid)
        assert record is not None
        claim = msgspec.structs.replace(record, connected_at_ms=record.connected_at_ms + 1)
        assert await store.claim_route(claim)
        return await store.fetch(uaid, now_ms=now_ms, after=None, limit=10)

    async def clear() -> bool:
        record = await store.get_user_agent(uaid)
        assert record is not None
        assert record.route is not None
        return await store.clear_route(uaid, record.route)

    operations: list[tuple[int, Callable[[], Awaitable[object]]]] = [
        (1, lambda: store.look_up(uaid, channel_id)),
        (1, lambda: store.save(uaid, row)),
        (2, lambda: store.save(uaid, topic)),
        (2, lambda: store.save(uaid, newer)),
        (1, lambda: store.forget(uaid, [(newer.sort_key, newer.message_id)])),
        (1, lambda: store.save_new(uaid, new)),
        (2, lambda: store.advance_cursor(uaid, now_ms)),
        (1, lambda: store.get_channels(uaid)),
        (1, lambda: store.fetch(uaid, now_ms=now_ms, after=None, limit=10)),
        (3, hello),
        (1, lambda: store.forget(uaid, [(row.sort_key, row.message_id)])),
        (2, lambda: store.save_if_newer(uaid, [handed_back])),
        (3, clear),
        (2, lambda: store.add_channel(uaid, new_channel(), channels_max=10)),
        (2, lambda: store.save_update(uaid, Update(channel_id, 1))),
        (1, lambda: store.fetch_updates(uaid, limit=10)),
        (1, lambda: store.forget_update(uaid, channel_id, 1)),
        (1, lambda: store.note_milestones([note])),
        (1, lambda: store.get_status(note.message_id, now_ms=now_ms)),
        (1, lambda: store.publish_broadcast("id", "v")),
        (1, store.get_broadcasts),
        (1, store.check),
        # The record, the keys of its messages, and the messages: here there are two.
        (3, lambda: store.remove_user_agent(uaid)),
    ]
    for n, (expected, operation) in enumerate(operations):
        before = store.stats().round_trips
        await operation()
        assert store.stats().round_trips - before == expected, f"operation {n}"


# Ends


async def test_cells_end_when_what_they_hold_does(
    store: BigtablePushStore, clock: ManualClock
) -> None:
    """The timestamp is the end, so that Bigtable collects by itself (§6.4)."""
    uaid, channel_id = await subscribed(store, clock)
    row = timed_notification(channel_id, accepted_at_ms=clock.now_ms() + 7, ttl_s=60)
    await store.save(uaid, row)

    record = await raw_row(store, layout.agent_key(uaid))
    lifetime_end = clock.now_ms() + USER_AGENT_LIFETIME_S * 1000
    assert record[("router", b"connected_at")] == [lifetime_end]
    assert record[("router", layout.channel_column(channel_id))] == [lifetime_end]
    message = await raw_row(store, layout.message_key(uaid, row.sort_key))
    assert {family for family, _ in message} == {"message"}
    assert set(map(tuple, message.values())) == {(row.expires_at_ms,)}


async def test_a_topics_shorter_lived_successor_leaves_nothing_of_the_first(
    store: BigtablePushStore, clock: ManualClock
) -> None:
    """Of two cells the one that ends later is the newer, for Bigtable and for Autopush."""
    uaid, channel_id = await subscribed(store, clock)
    now_ms = clock.now_ms()
    first = topic_notification(channel_id, "t", accepted_at_ms=now_ms, ttl_s=3600, data="QQ")
    second = topic_notification(channel_id, "t", accepted_at_ms=now_ms + 1, ttl_s=60)
    await store.save(uaid, first)
    await store.save(uaid, second)

    cells = await raw_row(store, layout.message_key(uaid, second.sort_key))
    assert ("message_topic", b"data") not in cells
    assert set(map(tuple, cells.values())) == {(second.expires_at_ms,)}


async def test_a_record_is_none_from_the_end_of_its_lifetime_on(
    store: BigtablePushStore, clock: ManualClock
) -> None:
    uaid, channel_id = await subscribed(store, clock)
    record = await store.get_user_agent(uaid)
    assert record is not None
    assert record.route is not None
    clock.advance(USER_AGENT_LIFETIME_S - 1)
    assert await store.look_up(uaid, channel_id) is not None
    clock.advance(1)

    assert await store.get_user_agent(uaid) is None
    assert await store.look_up(uaid, channel_id) is None
    assert await store.get_channels(uaid) == frozenset()
    assert not await store.clear_route(uaid, record.route)
    assert not await store.add_channel(uaid, new_channel(), channels_max=9)
    assert not await store.remove_channel(uaid, channel_id)
    assert not (await store.save_update(uaid, Update(channel_id, 1))).applied
    assert not await store.remove_user_agent(uaid)
    assert await store.add_user_agent(record)


async def test_a_claim_renews_record_and_channels_together(
    store: BigtablePushStore, clock: ManualClock
) -> None:
    uaid, channel_id = await subscribed(store, clock)
    clock.advance(USER_AGENT_LIFETIME_S - 1)
    claim = UserAgent(uaid=uaid, connected_at_ms=clock.now_ms(), node_id=NODE)
    assert await store.claim_route(claim)
    clock.advance(USER_AGENT_LIFETIME_S - 1)

    assert await store.get_channels(uaid) == {channel_id}
    cells = await raw_row(store, layout.agent_key(uaid))
    router = {max(ends) for (family, _), ends in cells.items() if family == "router"}
    assert len(router) == 1


async def test_who_comes_back_after_the_lifetime_starts_anew(
    store: BigtablePushStore, clock: ManualClock
) -> None:
    uaid, channel_id = await subscribed(store, clock)
    await store.save_update(uaid, Update(channel_id, 3))
    clock.advance(USER_AGENT_LIFETIME_S)

    claim = UserAgent(uaid=uaid, connected_at_ms=clock.now_ms() - 10**9, node_id=NODE)
    assert await store.claim_route(claim)
    assert await store.get_channels(uaid) == frozenset()
    assert await store.add_channel(uaid, channel_id, channels_max=1)
    assert not await store.fetch_updates(uaid, limit=10)


async def test_a_node_of_an_earlier_release_replaces_a_version_and_leaves_its_time(
    store: BigtablePushStore, clock: ManualClock
) -> None:
    uaid, channel_id = await subscribed(store, clock)
    key, column = layout.agent_key(uaid), layout.update_column(channel_id)
    now_ms = clock.now_ms()
    await store.save_update(uaid, Update(channel_id, 3, accepted_at_ms=now_ms))
    version = layout.encode_update_version(4)
    ends_at_ms = now_ms + USER_AGENT_LIFETIME_S * 1000
    await store.session.write(key, replace_cell(layout.OWN, column, version, ends_at_ms))

    assert list(await store.fetch_updates(uaid, limit=10)) == [Update(channel_id, 4)]
    newer = Update(channel_id, 5, accepted_at_ms=now_ms)
    assert await store.save_update(uaid, newer) == SavedUpdate(True)
    assert list(await store.fetch_updates(uaid, limit=10)) == [newer]
    assert await store.remove_channel(uaid, channel_id)
    own = {name for family, name in await raw_row(store, key) if family == layout.OWN}
    assert own == {layout.FENCE}


async def test_the_lifetime_is_autopushs_setting(
    bigtable_url: BigtableUrl, clock: ManualClock
) -> None:
    url = msgspec.structs.replace(bigtable_url, max_router_ttl=60)
    store = await BigtablePushStore.open(url, settings=Store(), clock=clock)
    uaid, _ = await subscribed(store, clock)
    clock.advance(60)

    assert await store.get_user_agent(uaid) is None
    await store.close()


async def test_a_status_is_none_from_its_end_on(
    store: BigtablePushStore, clock: ManualClock
) -> None:
    now_ms, message_id = clock.now_ms(), new_message_id()
    await store.note_milestones(
        [MilestoneNote(message_id, bytes(32), Milestone.RECEIVED, now_ms, now_ms + 5000)]
    )

    assert await store.get_status(message_id, now_ms=now_ms + 4999) is not None
    assert await store.get_status(message_id, now_ms=now_ms + 5000) is None


# Races


async def test_a_route_that_was_cleared_between_read_and_claim_is_claimed(
    store: BigtablePushStore, clock: ManualClock
) -> None:
    """A hello whose own clock is behind: what it read had a route, and has none any more."""
    uaid, _ = await subscribed(store, clock)
    read = await store.get_user_agent(uaid)
    assert read is not None
    assert read.route is not None
    assert await store.clear_route(uaid, read.route)

    claim = msgspec.structs.replace(read, connected_at_ms=read.connected_at_ms - 5)
    assert await store.claim_route(claim)


async def test_a_channel_that_is_removed_during_a_hello_does_not_come_back(
    store: BigtablePushStore, bigtable_url: BigtableUrl, clock: ManualClock
) -> None:
    other = await BigtablePushStore.open(bigtable_url, settings=Store(), clock=clock)
    uaid, channel_id = await subscribed(store, clock)
    read = await store.get_user_agent(uaid)
    assert read is not None
    assert await other.remove_channel(uaid, channel_id)

    claim = msgspec.structs.replace(read, connected_at_ms=read.connected_at_ms + 5)
    assert not await store.claim_route(claim)
    assert await store.get_channels(uaid) == frozenset()
    await other.close()


async def test_a_channel_that_is_added_during_a_hello_stays(
    store: BigtablePushStore, bigtable_url: BigtableUrl, clock: ManualClock
) -> None:
    other = await BigtablePushStore.open(bigtable_url, settings=Store(), clock=clock)
    uaid, channel_id = await subscribed(store, clock)
    read = await store.get_user_agent(uaid)
    assert read is not None
    added = new_channel()
    assert await other.add_channel(uaid, added, channels_max=9)

    claim = msgspec.structs.replace(read, connected_at_ms=read.connected_at_ms + 5)
    assert await store.claim_route(claim)
    assert await store.get_channels(uaid) == {channel_id, added}
    await other.close()


async def test_of_topics_that_are_saved_at_once_all_but_the_one_that_stays_are_told(
    store: BigtablePushStore, bigtable_url: BigtableUrl, clock: ManualClock
) -> None:
    """As many as can all be written before one of them has lost its last try."""
    other = await BigtablePushStore.open(bigtable_url, settings=Store(), clock=clock)
    uaid, channel_id = await subscribed(store, clock)
    now_ms = clock.now_ms()
    rows = [
        topic_notification(channel_id, "t", accepted_at_ms=now_ms) for _ in range(TOPIC_TRIES_MAX)
    ]

    nodes = cycle((store, other))
    told = await asyncio.gather(*(next(nodes).save(uaid, row) for row in rows))
    (left,) = await fetch_all(store, uaid, now_ms=now_ms)
    gone = {row.message_id for row in rows} - {left.message_id}
    assert sorted(one.message_id for one in told if one is not None) == sorted(gone)
    await other.close()


async def test_a_topic_whose_answer_was_lost_knows_its_own_row_and_what_it_replaced(
    store: BigtablePushStore, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    uaid, channel_id = await subscribed(store, clock)
    now_ms = clock.now_ms()
    first = topic_notification(channel_id, "t", accepted_at_ms=now_ms)
    second = topic_notification(channel_id, "t", accepted_at_ms=now_ms)
    await store.save(uaid, first)
    lost: list[bool] = []

    def losing(write: Callable[..., Awaitable[bool]]) -> Callable[..., Awaitable[bool]]:
        async def written(*args: Any, **kwargs: Any) -> bool:
            answer = await write(*args, **kwargs)
            if not lost:
                lost.append(answer)
                raise ServiceUnavailable("the answer was lost")
            return answer

        return written

    for rpc in store.session._rpcs:
        monkeypatch.setattr(rpc, "check_and_mutate_row", losing(rpc.check_and_mutate_row))
    replaced = await store.save(uaid, second)

    assert lost == [True], "it had been written"
    assert replaced == second.replaces(first)
    assert await fetch_all(store, uaid, now_ms=now_ms) == [second]


async def test_nodes_that_track_at_once_lose_no_count(
    store: BigtablePushStore, bigtable_url: BigtableUrl, clock: ManualClock
) -> None:
    other = await BigtablePushStore.open(bigtable_url, settings=Store(), clock=clock)
    at_ms = clock.now_ms()

    async def walk(n: int) -> None:
        for k, milestone in enumerate((Milestone.RECEIVED, Milestone.STORED, Milestone.DELIVERED)):
            node = (store, other)[(n + k) % 2]
            await node.track(f"r.{n}", milestone, at_ms=at_ms, expires_at_ms=at_ms + 60_000)

    await asyncio.gather(*(walk(n) for n in range(100)))
    assert await other.count_milestones(now_ms=at_ms) == {"delivered": 100}
    await other.close()


async def test_many_tracked_messages_expire_and_go_a_few_at_a_time(
    store: BigtablePushStore, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One write of a bucket has a limit; a pattern or a filter of all ids would have none."""
    monkeypatch.setattr(tracking, "DUE_AT_ONCE", 2)
    monkeypatch.setattr(layout, "TRACK_BUCKETS", 2)
    at_ms = clock.now_ms()
    for n in range(12):
        milestone = Milestone.DELIVERED if n % 3 == 0 else Milestone.STORED
        await store.track(f"r{n}", milestone, at_ms=at_ms, expires_at_ms=at_ms + 1000)

    later_ms = at_ms + 1000
    assert await store.count_milestones(now_ms=later_ms - 1) == {"delivered": 4, "stored": 8}
    assert await store.count_milestones(now_ms=later_ms) == {"delivered": 4, "expired": 8}
    assert await store.sweep(now_ms=later_ms, limit=100) == 0, "a day has not passed"
    later_ms += tracking.ENDED_KEEP_MS
    assert await store.sweep(now_ms=later_ms, limit=5) == 5
    assert await store.sweep(now_ms=later_ms, limit=100) == 7
    assert await store.count_milestones(now_ms=later_ms) == {"delivered": 4, "expired": 8}


async def test_the_log_of_a_tracked_message_is_autopushs(
    store: BigtablePushStore, clock: ManualClock
) -> None:
    at_ms = clock.now_ms()
    weird = "r/1 (ä).*|#"
    await store.track(weird, Milestone.STORED, at_ms=at_ms, expires_at_ms=at_ms + 60_000)
    row = await store.session._tables[0].read_row(weird.encode())

    assert row is not None
    (cell,) = row.cells
    assert (cell.family, cell.qualifier) == ("reliability", b"stored")
    assert int.from_bytes(cell.value, "big") == at_ms
    assert cell.timestamp_micros == (at_ms + 60 * 86_400_000) * 1000
    assert await store.count_milestones(now_ms=at_ms) == {"stored": 1}


async def test_a_row_that_nobody_understands_is_passed_over_and_counted(
    store: BigtablePushStore, clock: ManualClock
) -> None:
    uaid, channel_id = await subscribed(store, clock)
    good = timed_notification(channel_id, accepted_at_ms=clock.now_ms())
    await store.save(uaid, good)
    from waystation.storage.bigtable.cells import set_cell

    key = layout.agent_key(uaid) + b"#02:0:nonsense"
    await store.session.write(key, [set_cell("message", b"x", b"y", good.expires_at_ms)])

    assert await fetch_all(store, uaid, now_ms=clock.now_ms()) == [good]
    assert store.stats().undecodable == 1


# The table


async def test_an_emulator_is_not_to_be_trusted(store: BigtablePushStore) -> None:
    assert "ends with it" in (await store_warnings(store))[0]


async def described(url: BigtableUrl) -> Table:
    channel = insecure_channel(url.emulator)
    transport = BigtableTableAdminGrpcAsyncIOTransport(channel=channel)
    admin = BaseBigtableTableAdminAsyncClient(transport=transport)
    try:
        return await admin.get_table(name=url.table_name)
    finally:
        await channel.close()


async def test_init_makes_the_table_with_its_policies_and_then_nothing(
    bigtable_emulator: BigtableEmulator,
) -> None:
    url = bigtable_emulator.unmade_table()
    text = f"bigtable://{url.project}/{url.instance}/{url.table}?emulator={url.emulator}"

    assert "made the table" in (await init_push_store(text, Store()))[0]
    assert "has all its families" in (await init_push_store(text, Store()))[0]
    families = (await described(url)).column_families
    assert families.keys() == POLICIES.keys()
    assert families["message"].gc_rule == GcRule(max_age=timedelta(seconds=1))
    assert families["waystation_kept"].gc_rule.max_num_versions == 1
    assert len(families["router"].gc_rule.union.rules) == 2


async def test_init_gives_autopushs_table_what_is_missing_and_keeps_what_is_there(
    bigtable_emulator: BigtableEmulator,
) -> None:
    url = bigtable_emulator.unmade_table()
    channel = insecure_channel(url.emulator)
    transport = BigtableTableAdminGrpcAsyncIOTransport(channel=channel)
    admin = BaseBigtableTableAdminAsyncClient(transport=transport)
    one = {"gc_rule": GcRule(max_num_versions=1)}
    families = dict.fromkeys(("router", "message", "message_topic"), one)
    await admin.create_table(
        parent=url.instance_name, table_id=url.table, table=Table(column_families=families)
    )
    await channel.close()

    (said,) = await init_table(url)
    assert "reliability, waystation, waystation_kept" in said
    made = (await described(url)).column_families
    assert made["router"].gc_rule == GcRule(max_num_versions=1)


def test_it_runs_on_uvloop_and_again_on_the_next_loop(
    bigtable_url: BigtableUrl, clock: ManualClock, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """The driver's clients belong to the loop in which the store was opened."""
    url = f"bigtable://test/test/{bigtable_url.table}?emulator={bigtable_url.emulator}"

    async def walk() -> None:
        folder = tmp_path_factory.mktemp("unused")
        store = await open_push_store(url, data_dir=folder, settings=Store(), clock=clock)
        assert isinstance(store, BigtablePushStore)
        uaid, channel_id = await subscribed(store, clock)
        looked = await asyncio.gather(*(store.look_up(uaid, channel_id) for _ in range(300)))
        await store.close()
        assert all(found is not None and found.subscribed for found in looked)

    uvloop.run(walk())
    uvloop.run(walk())
    asyncio.run(walk())
