"""Every presence store passes the contract."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from waystation.base.clock import ManualClock
from waystation.presence.model import Detached, Status
from waystation.presence.store import Attached, Joined, PresenceStore
from waystation.storage.embedded.presence import EmbeddedPresenceStore
from waystation.storage.memory.presence import MemoryPresenceStore
from waystation.storage.settings import Store
from waystation.testing.conformance.presence_races import PresenceStoreRaces
from waystation.testing.conformance.presence_store import (
    OWNER,
    Heard,
    PresenceStoreConformance,
    attach_spec,
    join_spec,
    new_party,
    session,
)

LOG_MAX = 64


class TestMemory(PresenceStoreConformance, PresenceStoreRaces):
    races = 10_000

    @pytest.fixture
    async def store(self, clock: ManualClock) -> PresenceStore:
        return MemoryPresenceStore(clock, log_max=LOG_MAX, linger_s=60)


async def open_embedded(path: Path, clock: ManualClock) -> EmbeddedPresenceStore:
    settings = Store(map_bytes=64 << 20, disk_reserve_bytes=0, sync=False)
    return await EmbeddedPresenceStore.open(path, settings=settings, clock=clock, log_max=LOG_MAX)


class TestEmbedded(PresenceStoreConformance, PresenceStoreRaces):
    @pytest.fixture
    async def store(self, clock: ManualClock, tmp_path: Path) -> AsyncIterator[PresenceStore]:
        store = await open_embedded(tmp_path / "presence", clock)
        yield store
        await store.close()

    async def test_a_start_finds_everything_and_nobody_with_a_stream(
        self, clock: ManualClock, tmp_path: Path
    ) -> None:
        """P-122"""
        party = new_party()
        before = await open_embedded(tmp_path / "again", clock)
        await before.start(OWNER, Heard())
        first = await before.join(session(party, 1), join_spec())
        await before.join(session(party, 2), join_spec(ttl_ms=40_000))
        await before.join(session(party, 3), join_spec(ttl_ms=40_000))
        await before.detach(session(party, 3), 1, cursor=3, cause=Detached.SLOW)
        await before.leave(session(party, 2), 1, Status.OK)
        await before.close()
        clock.advance(25)

        after = await open_embedded(tmp_path / "again", clock)
        lost = {int(record.key.client_id): record for record in await after.start(OWNER, Heard())}
        log = await after.read_log(party, after_seq=0, limit=100)
        resumed = await after.attach(session(party, 1), attach_spec(b"1" * 32))
        more = await after.join(session(party, 9), join_spec())
        await after.close()

        assert isinstance(first, Joined)
        assert set(lost) == {1, 3}
        assert lost[1].deadline_ms == clock.now_ms() + 120_000
        assert lost[3].deadline_ms == clock.now_ms() + 30_000, "15 s were left: not less than 30"
        assert Detached(lost[3].cause).leave_reason is Status.SLOW_CONSUMER
        assert log is not None
        assert [one.seq for one in log] == [1, 2, 3, 4]
        assert isinstance(resumed, Attached)
        assert (resumed.record.fence, resumed.epoch) == (2, first.epoch)
        assert isinstance(more, Joined)
        assert (more.seq, more.epoch) == (5, first.epoch)

    async def test_a_forgotten_party_leaves_no_rows(
        self, clock: ManualClock, tmp_path: Path
    ) -> None:
        store = await open_embedded(tmp_path / "empty", clock)
        await store.start(OWNER, Heard())
        key = session(new_party(), 1)
        await store.join(key, join_spec())
        await store.leave(key, 1, Status.OK)
        clock.advance(61)
        await store.expire_due(100)
        with store._env.lmdb.begin() as txn:
            rows = {name: txn.stat(table)["entries"] for name, table in store._env.tables.items()}
        await store.close()

        assert rows == {"parties": 0, "sessions": 0, "log": 0, "cursors": 0}

    async def test_what_the_disk_refused_did_not_happen(
        self, clock: ManualClock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Everybody in the lane is told, and the party is as it was."""
        store = await open_embedded(tmp_path / "broken", clock)
        heard = Heard()
        await store.start(OWNER, heard)
        party = new_party()
        await store.subscribe(party)
        await store.join(session(party, 1), join_spec())

        def refuse(*_args: object, **_more: object) -> None:
            raise OSError(28, "no space left")

        with monkeypatch.context() as patched:
            patched.setattr(store._tables, "write", refuse)
            with pytest.raises(Exception, match="space"):
                await store.join(session(party, 2), join_spec())
        second = await store.join(session(party, 2), join_spec())
        await store.close()

        assert isinstance(second, Joined)
        assert second.seq == 2
        assert [entry.seq for entry in heard.of(party)] == [1, 2]
