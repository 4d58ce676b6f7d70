import asyncio
import os
from pathlib import Path

import pytest

from tests.unit.push.connect.talk import CHANNEL, UAID, notification, update
from waystation.push.connect import journal as module
from waystation.push.connect.journal import (
    Abandoned,
    Accepted,
    Journal,
    JournalHeldError,
    JournalOwesError,
    Mode,
    read_unsettled,
)
from waystation.push.connect.journal_records import accepted_body, record, settled_body
from waystation.push.model import Notification, Uaid, Update

OTHER_UAID = Uaid(b"\x22" * 16)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "inflight" / "0.log"


def opened(path: Path, mode: Mode = "write", bytes_max: int = 2**20) -> Journal:
    """Written by calls, as with `fsync` and on some file systems; for the others see
    `test_journal_map`."""
    return Journal(path, mode=mode, bytes_max=bytes_max, mapped=False)


def owed(path: Path) -> list[Notification | Update | None]:
    return [entry.notification or entry.update for entry in read_unsettled(path.read_bytes())]


async def turn() -> None:
    for _ in range(3):  # what is asked for later begins a turn after it was asked for
        await asyncio.sleep(0)


class TestRecords:
    async def test_what_is_accepted_is_in_the_file_before_it_is_answered(self, path: Path) -> None:
        journal = opened(path)

        assert await journal.accept(UAID, notification(1))
        assert owed(path) == [notification(1)]
        journal.close()

    async def test_all_of_a_turn_share_one_write_and_one_flush(
        self, path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        writes: list[int] = []
        journal = opened(path, mode="fsync")
        write = os.write
        monkeypatch.setattr(os, "write", lambda fd, data: writes.append(1) or write(fd, data))
        waiters = [journal.accept(UAID, notification(n)) for n in range(20)]

        assert all(await asyncio.gather(*waiters))
        assert len(writes) == 1
        monkeypatch.undo()
        journal.close()

    async def test_settlements_wait_for_the_next_record_or_the_end_of_the_turn(
        self, path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        journal = opened(path)
        for n in range(3):
            await journal.accept(UAID, notification(n))
        writes: list[int] = []
        write = os.write
        monkeypatch.setattr(os, "write", lambda fd, data: writes.append(1) or write(fd, data))
        journal.settle(UAID, notification(0))
        journal.settle(UAID, notification(1))
        assert writes == []
        await journal.accept(UAID, notification(3))
        assert len(writes) == 1
        journal.settle(UAID, notification(2))
        await turn()

        assert len(writes) == 2
        assert owed(path) == [notification(3)]
        monkeypatch.undo()
        journal.close()

    async def test_what_is_settled_is_owed_no_more(self, path: Path) -> None:
        journal = opened(path)
        for n in range(3):
            await journal.accept(UAID, notification(n))
        journal.settle(UAID, notification(1))
        await turn()

        assert owed(path) == [notification(0), notification(2)]
        assert journal.unsettled == 2
        journal.close()

    async def test_accepted_and_settled_in_one_turn_is_written_and_not_owed(
        self, path: Path
    ) -> None:
        journal = opened(path)
        assert await journal.accept(UAID, notification(1))
        journal.settle(UAID, notification(1))
        await turn()

        assert owed(path) == []
        journal.close()

    async def test_settling_what_was_never_accepted_writes_nothing(self, path: Path) -> None:
        journal = opened(path)
        journal.settle(UAID, notification(1))
        await turn()

        assert path.read_bytes() == b""
        journal.close()

    async def test_the_same_accepted_twice_is_settled_by_one_ack(self, path: Path) -> None:
        journal = opened(path)
        await journal.accept(UAID, notification(1))
        await journal.accept(UAID, notification(1))
        assert journal.unsettled == 1
        journal.settle(UAID, notification(1))
        await turn()

        assert owed(path) == []
        journal.close()

    async def test_versions_of_simplepush_belong_to_their_user_agent(self, path: Path) -> None:
        journal = opened(path)
        await journal.accept(UAID, update(5, data="hi"))
        await journal.accept(OTHER_UAID, update(5))
        journal.settle(UAID, update(5))
        await turn()

        (left,) = read_unsettled(path.read_bytes())
        assert (left.uaid, left.update) == (OTHER_UAID, Update(CHANNEL, 5))
        journal.close()

    async def test_everything_of_a_notification_comes_back(self, path: Path) -> None:
        journal = opened(path)
        full = Notification(
            **{
                name: getattr(notification(1, topic="t"), name)
                for name in ("channel_id", "message_id", "sort_key", "accepted_at_ms", "ttl_s")
            },
            topic="t",
            data="AbC_",
            headers={"encoding": "aesgcm", "crypto_key": "dh=x"},
            sender=b"\x00" * 32,
            reliability_id="r",
        )
        await journal.accept(UAID, full)

        assert owed(path) == [full]
        journal.close()

    async def test_a_waiter_that_is_cancelled_does_not_disturb_the_others(self, path: Path) -> None:
        journal = opened(path, mode="fsync")
        first, second = (asyncio.create_task(journal.accept(UAID, notification(n))) for n in (1, 2))
        await asyncio.sleep(0)
        first.cancel()

        assert await second
        assert owed(path) == [notification(1), notification(2)]
        journal.close()


class TestFile:
    def test_only_one_process_holds_it(self, path: Path) -> None:
        journal = opened(path)

        with pytest.raises(JournalHeldError):
            opened(path)
        with pytest.raises(JournalHeldError):
            Abandoned(path)
        journal.close()
        opened(path).close()

    def test_nobody_else_may_read_it(self, path: Path) -> None:
        opened(path).close()

        assert path.stat().st_mode & 0o777 == 0o600
        assert path.parent.stat().st_mode & 0o777 == 0o700

    async def test_a_journal_that_still_owes_must_be_replayed_before_it_is_used(
        self, path: Path
    ) -> None:
        """Sequence numbers begin anew: new records would settle the old ones."""
        journal = opened(path)
        await journal.accept(UAID, notification(1))
        journal.close()

        with pytest.raises(JournalOwesError):
            opened(path)
        abandoned = Abandoned(path)
        assert [entry.notification for entry in abandoned.unsettled()] == [notification(1)]
        abandoned.done()
        abandoned.close()
        opened(path).close()

    async def test_what_is_torn_or_settled_does_not_hinder_a_new_beginning(
        self, path: Path
    ) -> None:
        journal = opened(path)
        await journal.accept(UAID, notification(1))
        record = path.read_bytes()
        journal.settle(UAID, notification(1))
        await turn()
        journal.close()
        path.write_bytes(record[:-1])
        journal = opened(path)
        await journal.accept(UAID, notification(2))

        assert owed(path) == [notification(2)]
        journal.close()

    async def test_with_nothing_owed_it_is_left_empty(self, path: Path) -> None:
        journal = opened(path)
        await journal.accept(UAID, notification(1))
        journal.settle(UAID, notification(1))
        journal.close()

        assert path.read_bytes() == b""

    async def test_what_is_unsettled_at_the_end_stays_in_the_file(self, path: Path) -> None:
        journal = opened(path, mode="fsync")
        await journal.accept(UAID, notification(1))
        last = asyncio.create_task(journal.accept(UAID, notification(2)))
        await asyncio.sleep(0)
        journal.settle(UAID, notification(1))
        journal.close()

        assert not await last  # the endpoint stores it as well; better twice than never
        assert owed(path) == [notification(2)]

    async def test_after_the_end_it_takes_nothing_and_touches_no_descriptor(
        self, path: Path, tmp_path: Path
    ) -> None:
        """A closed descriptor's number is soon somebody else's."""
        journal = opened(path)
        journal.close()
        with (tmp_path / "innocent").open("wb", buffering=0) as innocent:
            assert not await journal.accept(UAID, notification(1))
            journal.settle(UAID, notification(1))
            await turn()

            assert os.fstat(innocent.fileno()).st_size == 0


class TestCompaction:
    @pytest.fixture(autouse=True)
    def _small(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(module, "_COMPACT_BYTES", 2000)

    @pytest.mark.parametrize("mode", ["write", "fsync"])
    async def test_a_file_that_is_mostly_settled_is_written_anew(
        self, path: Path, mode: Mode
    ) -> None:
        journal = opened(path, mode)
        kept = notification("kept")
        await journal.accept(UAID, kept)
        for n in range(100):
            assert await journal.accept(UAID, notification(n))
            journal.settle(UAID, notification(n))
        await turn()

        assert path.stat().st_size <= 2000
        assert owed(path) == [kept]
        with pytest.raises(JournalHeldError):
            Abandoned(path)
        journal.close()
        assert not path.with_suffix(".new").exists()

    async def test_records_and_settlements_of_the_same_turn_are_in_the_new_file(
        self, path: Path
    ) -> None:
        journal = opened(path)
        for n in range(8):
            await journal.accept(UAID, notification(n))
        size = path.stat().st_size
        for n in range(8):
            journal.settle(UAID, notification(n))
        for n in range(10, 20):
            assert await journal.accept(UAID, notification(n))
        journal.settle(UAID, notification(15))
        await turn()

        assert path.stat().st_size < size * 3 // 2  # it was compacted
        assert owed(path) == [notification(n) for n in range(10, 20) if n != 15]
        journal.close()

    async def test_a_file_full_of_live_records_may_grow(self, path: Path) -> None:
        journal = opened(path)
        for n in range(50):
            assert await journal.accept(UAID, notification(n))

        assert len(owed(path)) == 50
        journal.close()


class TestTrouble:
    async def test_at_its_size_limit_it_is_full_until_something_is_settled(
        self, path: Path
    ) -> None:
        journal = opened(path, bytes_max=300)
        count = 0
        while not journal.full:
            await journal.accept(UAID, notification(count))
            count += 1
        assert count > 1
        journal.settle(UAID, notification(0))

        assert not journal.full
        journal.close()

    async def test_a_write_error_refuses_that_turn_and_the_next_moment(
        self, path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(module, "_REFUSE_S", 0.01)
        journal = opened(path)
        await journal.accept(UAID, notification(1))

        def failing(fd: int, data: bytes) -> int:
            raise OSError("no")

        with monkeypatch.context() as patch:
            patch.setattr(os, "write", failing)
            assert not await journal.accept(UAID, notification(2))
        assert journal.full
        await asyncio.sleep(0.1)

        assert not journal.full
        assert await journal.accept(UAID, notification(3))
        assert owed(path) == [notification(1), notification(3)]
        journal.close()

    @pytest.mark.parametrize("truncates", [True, False])
    async def test_a_torn_write_never_hides_what_comes_after_it(
        self, path: Path, monkeypatch: pytest.MonkeyPatch, truncates: bool
    ) -> None:
        """If the torn end cannot be taken back, the next write makes a new file."""
        journal = opened(path)
        await journal.accept(UAID, notification(1))
        write = os.write

        def failing(fd: int, size: int) -> None:
            raise OSError("no")

        with monkeypatch.context() as patch:
            patch.setattr(os, "write", lambda fd, data: write(fd, data[:20]))
            if not truncates:
                patch.setattr(os, "ftruncate", failing)
            assert not await journal.accept(UAID, notification(2))

        assert owed(path) == [notification(1)]
        assert await journal.accept(UAID, notification(3))
        journal.settle(UAID, notification(2))
        await turn()
        assert owed(path) == [notification(1), notification(3)]
        journal.close()

    async def test_a_compaction_that_fails_keeps_the_old_file(
        self, path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(module, "_COMPACT_BYTES", 200)
        journal = opened(path)
        await journal.accept(UAID, notification(1))

        def failing(source: Path, target: Path) -> None:
            raise OSError("no")

        with monkeypatch.context() as patch:
            patch.setattr(os, "rename", failing)
            journal.settle(UAID, notification(1))
            assert not await journal.accept(UAID, notification(2))
        assert owed(path) == [notification(1)]

        assert await journal.accept(UAID, notification(3))
        assert notification(3) in owed(path)
        journal.close()


class TestFsync:
    async def test_it_answers_after_the_disk_has_it(
        self, path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        order: list[str] = []
        journal = opened(path, "fsync")
        sync, write = os.fdatasync, os.write
        monkeypatch.setattr(os, "write", lambda fd, data: order.append("write") or write(fd, data))
        monkeypatch.setattr(os, "fdatasync", lambda fd: order.append("sync") or sync(fd))
        assert await journal.accept(UAID, notification(1))
        order.append("answer")

        assert order == ["write", "sync", "answer"]
        monkeypatch.undo()
        journal.close()

    async def test_what_comes_while_the_disk_is_busy_goes_together_after_it(
        self, path: Path
    ) -> None:
        journal = opened(path, "fsync")
        first = asyncio.ensure_future(journal.accept(UAID, notification(0)))
        await turn()
        later = [asyncio.ensure_future(journal.accept(UAID, notification(n))) for n in range(1, 5)]
        await turn()
        journal.settle(UAID, notification(2))

        assert all(await asyncio.gather(first, *later))
        assert owed(path) == [notification(n) for n in (0, 1, 3, 4)]
        journal.close()

    async def test_a_disk_that_does_not_confirm_refuses_and_gets_a_new_file(
        self, path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """After a failed fsync the kernel may call pages clean that were never written."""
        journal = opened(path, "fsync")
        await journal.accept(UAID, notification(1))
        file = path.stat().st_ino

        def failing(fd: int) -> None:
            raise OSError("no")

        with monkeypatch.context() as patch:
            patch.setattr(os, "fdatasync", failing)
            assert not await journal.accept(UAID, notification(2))

        assert await journal.accept(UAID, notification(3))
        assert path.stat().st_ino != file
        assert owed(path) == [notification(1), notification(2), notification(3)]
        journal.close()

    async def test_closing_while_the_disk_is_busy_loses_nothing(self, path: Path) -> None:
        journal = opened(path, "fsync")
        first = asyncio.create_task(journal.accept(UAID, notification(1)))
        await turn()
        second = asyncio.create_task(journal.accept(UAID, notification(2)))
        await asyncio.sleep(0)
        journal.close()
        await asyncio.wait([first, second], timeout=10)

        assert owed(path) == [notification(1), notification(2)]


def test_a_journal_of_an_earlier_version_is_read() -> None:
    """A letter stood before what was accepted."""
    entries = [Accepted(n, UAID, notification(n)) for n in (1, 2)]
    bodies = [b"a" + accepted_body(entry) for entry in entries]

    data = b"".join(record(body) for body in [*bodies, settled_body(1)])
    assert read_unsettled(data) == entries[1:]


def test_a_tail_of_zeros_after_a_loss_of_power_owes_nothing() -> None:
    assert read_unsettled(bytes(4096)) == []
