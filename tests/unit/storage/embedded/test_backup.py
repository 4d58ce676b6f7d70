"""A backup is whole or refused, and what comes back is what was there."""

import stat
from collections.abc import Iterator
from pathlib import Path

import lmdb
import pytest

from tests.unit.storage.embedded.test_check import ROWS, SETTINGS, fill
from waystation.base.clock import ManualClock
from waystation.base.errors import StoreUnavailableError
from waystation.base.ids import new_uuid4
from waystation.push.model import Uaid, UserAgent
from waystation.storage.embedded import backup, check
from waystation.storage.embedded.backup import backup_stores, restore_stores
from waystation.storage.embedded.check import Report
from waystation.storage.embedded.environment import Environment
from waystation.storage.embedded.push import EmbeddedPushStore
from waystation.storage.settings import Store
from waystation.testing.conformance.push_store import (
    fetch_all,
    new_channel,
    timed_notification,
    topic_notification,
)


def backup_store(env: Environment, target: Path) -> Report:
    return backup_stores([("push", env)], target)["push"]


def restore_store(source: Path, directory: Path, *, settings: Store, force: bool = False) -> Report:
    return restore_stores(source, {"push": directory}, settings=settings, force=force)["push"]


async def open_store(path: Path, clock: ManualClock) -> EmbeddedPushStore:
    return await EmbeddedPushStore.open(path, settings=SETTINGS, clock=clock)


async def made_backup(folder: Path) -> Path:
    store = await open_store(folder / "push", ManualClock())
    await fill(store, ManualClock())
    report = backup_store(store.env, folder / "saved")
    await store.close()
    assert report.rows["payloads"] == 6
    return folder / "saved"


async def test_what_comes_back_is_what_was_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(check, "CHUNK_ROWS", 2)
    monkeypatch.setattr(backup, "CHUNK_ROWS", 4)
    clock = ManualClock()
    store = await open_store(tmp_path / "push", clock)
    uaid, channel_id = Uaid(new_uuid4()), new_channel()
    record = UserAgent(uaid=uaid, connected_at_ms=clock.now_ms(), node_id="http://n")
    await store.add_user_agent(record)
    await store.add_channel(uaid, channel_id, channels_max=10)
    rows = [
        timed_notification(channel_id, accepted_at_ms=clock.now_ms(), n=n, data="x" * 900 * n)
        for n in range(9)
    ]
    for row in rows:
        await store.save(uaid, row)
    backup_store(store.env, tmp_path / "saved")
    await store.close()

    report = restore_store(tmp_path / "saved", tmp_path / "back", settings=SETTINGS)
    back = await open_store(tmp_path / "back", clock)
    assert report.problems == []
    assert await back.get_user_agent(uaid) == record
    assert await back.get_channels(uaid) == {channel_id}
    assert await fetch_all(back, uaid, now_ms=clock.now_ms()) == rows
    await back.save(uaid, timed_notification(channel_id, accepted_at_ms=clock.now_ms(), n="new"))
    assert len(await fetch_all(back, uaid, now_ms=clock.now_ms())) == 10
    await back.close()


async def test_every_table_comes_back(tmp_path: Path) -> None:
    saved = await made_backup(tmp_path)

    report = restore_store(saved, tmp_path / "back", settings=SETTINGS)
    assert report.rows == ROWS
    assert report.problems == []


async def test_only_the_owner_may_read_a_backup(tmp_path: Path) -> None:
    saved = await made_backup(tmp_path)

    assert stat.S_IMODE(saved.stat().st_mode) == 0o600
    assert sorted(path.name for path in tmp_path.iterdir()) == ["push", "saved"]


async def test_a_backup_overwrites_nothing(tmp_path: Path) -> None:
    saved = await made_backup(tmp_path)
    before = saved.read_bytes()
    store = await open_store(tmp_path / "push", ManualClock())

    with pytest.raises(StoreUnavailableError, match="never overwrites a file"):
        backup_store(store.env, saved)
    await store.close()
    assert saved.read_bytes() == before


async def test_a_backup_makes_no_folder(tmp_path: Path) -> None:
    """The folder may be the place of a volume that is not mounted."""
    missing = tmp_path / "volume"
    store = await open_store(tmp_path / "push", ManualClock())

    with pytest.raises(StoreUnavailableError, match=f"the folder {missing} does not exist"):
        backup_store(store.env, missing / "saved")
    await store.close()
    assert not missing.exists()


async def test_a_store_that_is_there_is_replaced_only_by_force(tmp_path: Path) -> None:
    saved = await made_backup(tmp_path)
    store = await open_store(tmp_path / "push", ManualClock())
    await store.publish_broadcast("test/later", "v2")
    await store.close()

    with pytest.raises(StoreUnavailableError, match="--force"):
        restore_store(saved, tmp_path / "push", settings=SETTINGS)
    store = await open_store(tmp_path / "push", ManualClock())
    assert "test/later" in await store.get_broadcasts()
    await store.close()

    restore_store(saved, tmp_path / "push", settings=SETTINGS, force=True)
    store = await open_store(tmp_path / "push", ManualClock())
    assert dict(await store.get_broadcasts()) == {"test/broadcast": "v1"}
    await store.close()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["push", "saved"]


async def test_a_damaged_backup_changes_nothing(tmp_path: Path) -> None:
    saved = await made_backup(tmp_path)
    whole = saved.read_bytes()
    middle = len(whole) // 2
    damaged = {
        "not a backup": b"something else" + whole,
        "cut off": whole[:-1],
        "is cut off": whole[:middle],
        "damaged|cut off": whole[:middle] + bytes([whole[middle] ^ 1]) + whole[middle + 1 :],
    }

    for reason, content in damaged.items():
        saved.write_bytes(content)
        with pytest.raises(StoreUnavailableError, match=reason):
            restore_store(saved, tmp_path / "back", settings=SETTINGS)
    with pytest.raises(StoreUnavailableError, match="cannot be read"):
        restore_store(tmp_path / "nowhere", tmp_path / "back", settings=SETTINGS)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["push", "saved"]


async def test_a_topic_replaced_while_the_backup_runs_comes_back_once_and_newest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both messages are in the backup: the old one was read before the new one was written."""
    clock = ManualClock()
    store = await open_store(tmp_path / "push", clock)
    uaid, channel_id = Uaid(new_uuid4()), new_channel()
    await store.add_user_agent(UserAgent(uaid=uaid, connected_at_ms=clock.now_ms()))
    await store.add_channel(uaid, channel_id, channels_max=10)
    old = topic_notification(channel_id, "t", accepted_at_ms=clock.now_ms(), ttl_s=60)
    new = topic_notification(channel_id, "t", accepted_at_ms=clock.now_ms() + 1, ttl_s=600)
    await store.save(uaid, new)
    original = backup.chunks

    def chunks(
        env: Environment, table: str
    ) -> "Iterator[tuple[lmdb.Transaction[bytes], list[tuple[bytes, bytes]]]]":
        if table == "payloads":
            key = check.layout.notification_key(uaid, old.sort_key)
            place = check.layout.place_of(old.expires_at_ms // 1000, 1, 1)
            with env.lmdb.begin() as txn:
                yield txn, [(place, check.layout.encode_payload(key, old))]
        yield from original(env, table)

    monkeypatch.setattr(backup, "chunks", chunks)
    backup_store(store.env, tmp_path / "saved")
    await store.close()
    report = restore_store(tmp_path / "saved", tmp_path / "back", settings=SETTINGS)
    back = await open_store(tmp_path / "back", clock)

    assert report.problems == []
    assert await fetch_all(back, uaid, now_ms=clock.now_ms()) == [new]
    await back.close()
