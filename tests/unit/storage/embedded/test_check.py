"""The check finds what does not fit together."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from waystation.base.clock import ManualClock
from waystation.base.errors import StoreUnavailableError
from waystation.base.ids import new_uuid4
from waystation.push.model import Milestone, MilestoneNote, Uaid, Update, UserAgent
from waystation.storage.embedded import check
from waystation.storage.embedded.check import check_store, open_environment
from waystation.storage.embedded.push import EmbeddedPushStore
from waystation.storage.settings import Store
from waystation.testing.conformance.push_store import (
    new_channel,
    new_message_id,
    timed_notification,
    topic_notification,
)

SETTINGS = Store(map_bytes=64 << 20, sync=False)


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
async def store(tmp_path: Path, clock: ManualClock) -> AsyncIterator[EmbeddedPushStore]:
    store = await EmbeddedPushStore.open(tmp_path / "push", settings=SETTINGS, clock=clock)
    await fill(store, clock)
    yield store
    await store.close()


async def fill(store: EmbeddedPushStore, clock: ManualClock, user_agents: int = 3) -> None:
    """Something in every table."""
    now_ms = clock.now_ms()
    for n in range(user_agents):
        uaid, channel_id = Uaid(new_uuid4()), new_channel()
        await store.add_user_agent(UserAgent(uaid=uaid, connected_at_ms=now_ms, node_id="http://n"))
        await store.add_channel(uaid, channel_id, channels_max=10)
        await store.save(uaid, timed_notification(channel_id, accepted_at_ms=now_ms))
        await store.save(uaid, topic_notification(channel_id, "t", accepted_at_ms=now_ms))
        await store.save_update(uaid, Update(channel_id, n))
        note = MilestoneNote(
            new_message_id(), bytes(32), Milestone.RECEIVED, now_ms, now_ms + 60_000
        )
        await store.note_milestones([note])
        for name, milestone in (("open", Milestone.STORED), ("ended", Milestone.DELIVERED)):
            await store.track(f"{name}{n}", milestone, at_ms=now_ms, expires_at_ms=now_ms + 60_000)
    await store.publish_broadcast("test/broadcast", "v1")


ROWS = {
    "agents": 3,
    "notifications": 6,
    "payloads": 6,
    "updates": 3,
    "broadcasts": 1,
    "statuses": 3,
    "tracked": 6,
    "counts": 2,
    "expiry": 12,
}


async def test_a_sound_store_is_counted_and_has_no_problems(store: EmbeddedPushStore) -> None:
    report = check_store(store.env)

    assert report.rows == ROWS
    assert report.problems == []
    assert report.orphaned == 0
    assert 0 < report.used_bytes <= report.file_bytes <= report.map_bytes


async def test_small_chunks_see_the_same(
    store: EmbeddedPushStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(check, "CHUNK_ROWS", 2)

    assert check_store(store.env).rows == ROWS


@pytest.mark.parametrize(
    "table", [table for table in ROWS if table not in ("broadcasts", "counts")]
)
async def test_a_row_that_vanished_alone_is_noticed(table: str, store: EmbeddedPushStore) -> None:
    with store.env.lmdb.begin(store.env.tables[table], write=True) as txn, txn.cursor() as cursor:
        cursor.first()
        cursor.delete()
    report = check_store(store.env)

    if table == "updates":  # nothing leads to it but its own key
        assert report.rows["updates"] == 2
    else:
        assert report.problems_found >= 1


@pytest.mark.parametrize("table", list(ROWS))
async def test_a_row_that_is_garbage_is_noticed_and_named_without_its_id(
    table: str, store: EmbeddedPushStore
) -> None:
    with store.env.lmdb.begin(store.env.tables[table], write=True) as txn:
        with txn.cursor() as cursor:
            cursor.last()
            key = cursor.key()
        if table == "expiry":
            key = b"?" + key
        txn.put(key, b"" if table in ("updates", "counts") else b"\xff\xfe")
    report = check_store(store.env)

    assert report.problems_found >= 1
    assert key.hex() not in "".join(report.problems)


async def test_a_long_list_of_problems_is_cut_but_counted(
    store: EmbeddedPushStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(check, "PROBLEMS_MAX", 2)
    with store.env.lmdb.begin(write=True) as txn:
        txn.drop(store.env.tables["expiry"], delete=False)
    report = check_store(store.env)

    assert len(report.problems) == 2
    assert report.problems_found == 12


async def test_notifications_nobody_can_receive_are_counted_but_no_problem(
    store: EmbeddedPushStore, clock: ManualClock
) -> None:
    nobody = Uaid(new_uuid4())
    await store.save(nobody, timed_notification(new_channel(), accepted_at_ms=clock.now_ms()))
    report = check_store(store.env)

    assert report.orphaned == 1
    assert report.problems == []


def test_upkeep_makes_no_store(tmp_path: Path) -> None:
    with pytest.raises(StoreUnavailableError, match="no embedded store"):
        open_environment(tmp_path / "nothing", SETTINGS)

    assert not (tmp_path / "nothing").exists()
