import errno
import os
from pathlib import Path

import pytest

from tests.unit.push.connect.talk import UAID, notification
from waystation.push.connect import journal as module
from waystation.push.connect import journal_map
from waystation.push.connect.journal import Abandoned, Journal, JournalHeldError, read_unsettled
from waystation.push.connect.journal_map import JournalMap
from waystation.push.connect.journal_records import MAP_PAGE_BYTES, NOTHING, accepted_body
from waystation.push.model import Notification, Update


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "inflight" / "0.log"


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_HALF_BYTES", 2048)


def opened(path: Path, bytes_max: int = 2**20) -> Journal:
    return Journal(path, mode="write", bytes_max=bytes_max, mapped=True)


def owed(path: Path) -> list[Notification | Update | None]:
    return [entry.notification or entry.update for entry in read_unsettled(path.read_bytes())]


async def test_what_is_accepted_is_in_the_file_before_it_is_answered(path: Path) -> None:
    journal = opened(path)

    assert await journal.accept(UAID, notification(1))
    assert owed(path) == [notification(1)]
    journal.settle(UAID, notification(1))
    assert owed(path) == []
    journal.close()


async def test_no_call_to_the_kernel_is_made_for_a_record(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    journal = opened(path)
    calls: list[str] = []
    with monkeypatch.context() as patch:
        patch.setattr(os, "write", lambda fd, data: calls.append("write"))
        for n in range(10):
            assert await journal.accept(UAID, notification(n))

    assert calls == []
    assert len(owed(path)) == 10
    journal.close()


async def test_the_same_accepted_twice_is_settled_by_one_ack(path: Path) -> None:
    journal = opened(path)
    await journal.accept(UAID, notification(1))
    await journal.accept(UAID, notification(1))
    assert (journal.unsettled, owed(path)) == (1, [notification(1)])
    journal.settle(UAID, notification(1))

    assert owed(path) == []
    journal.close()


@pytest.mark.usefixtures("small")
async def test_a_full_half_goes_on_in_the_other_and_back_again(path: Path) -> None:
    journal = opened(path)
    kept = notification("kept")
    await journal.accept(UAID, kept)
    file = path.stat()
    for n in range(300):
        assert await journal.accept(UAID, notification(n))
        assert owed(path) == [kept, notification(n)]
        journal.settle(UAID, notification(n))
        assert owed(path) == [kept]

    assert (path.stat().st_ino, path.stat().st_size) == (file.st_ino, file.st_size)
    journal.close()


@pytest.mark.usefixtures("small")
async def test_a_file_full_of_live_records_gives_way_to_a_larger_one(path: Path) -> None:
    journal = opened(path)
    small = path.stat().st_size
    for n in range(60):
        assert await journal.accept(UAID, notification(n))
    large = path.stat().st_size
    assert (large > small, len(owed(path))) == (True, 60)
    with pytest.raises(JournalHeldError):
        Abandoned(path)
    for n in range(60):
        journal.settle(UAID, notification(n))
    for n in range(3000):
        await journal.accept(UAID, notification(n))
        journal.settle(UAID, notification(n))

    assert path.stat().st_size == small, "the burst is over"
    assert owed(path) == []
    assert not path.with_suffix(".new").exists()
    journal.close()


@pytest.mark.usefixtures("small")
async def test_a_disk_without_room_for_a_larger_file_refuses_and_keeps_the_old_one(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    journal = opened(path)

    def failing(fd: int, start: int, size: int) -> None:
        raise OSError("no")

    count = 0
    with monkeypatch.context() as patch:
        patch.setattr(os, "posix_fallocate", failing)
        while await journal.accept(UAID, notification(count)):
            count += 1

    assert journal.full
    assert owed(path) == [notification(n) for n in range(count)]
    journal._try_again()
    assert await journal.accept(UAID, notification("later"))
    assert notification("later") in owed(path)
    journal.close()


async def test_without_room_at_the_start_it_is_written_by_calls(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def failing(fd: int, start: int, size: int) -> None:
        raise OSError("no")

    with monkeypatch.context() as patch:
        patch.setattr(os, "posix_fallocate", failing)
        journal = opened(path)

    assert await journal.accept(UAID, notification(1))
    assert owed(path) == [notification(1)]
    journal.close()


@pytest.mark.parametrize(
    "kind, mapped", [("ext4", True), ("xfs", True), ("btrfs", False), ("", False)]
)
def test_it_is_mapped_where_a_reservation_of_room_holds(
    path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, mapped: bool
) -> None:
    monkeypatch.setattr(module, "file_system", lambda path: kind)
    journal = Journal(path, mode="write", bytes_max=2**20)

    assert (path.stat().st_size > 0) is mapped
    journal.close()


async def test_what_is_unsettled_at_the_end_stays_and_must_be_replayed(path: Path) -> None:
    journal = opened(path)
    await journal.accept(UAID, notification(1))
    await journal.accept(UAID, notification(2))
    journal.settle(UAID, notification(1))
    journal.close()

    abandoned = Abandoned(path)
    assert [entry.notification for entry in abandoned.unsettled()] == [notification(2)]
    abandoned.done()
    abandoned.close()
    journal = opened(path)
    journal.close()
    assert path.read_bytes() == b"", "with nothing owed it is left empty"


@pytest.mark.usefixtures("small")
async def test_a_kill_in_the_middle_of_a_record_leaves_those_before_it(path: Path) -> None:
    """Whatever lay there before: here, records of the same size of an older generation."""
    journal = opened(path)
    for n in range(100):
        await journal.accept(UAID, notification(n))
        journal.settle(UAID, notification(n))
    await journal.accept(UAID, notification("before"))
    before = path.read_bytes()
    await journal.accept(UAID, notification("torn"))
    after = path.read_bytes()
    journal.close()
    changed = [at for at in range(len(after)) if after[at] != before[at]]

    for cut in range(changed[0], changed[-1] - len(NOTHING)):
        torn = after[:cut] + before[cut:]
        found = [entry.notification for entry in read_unsettled(torn)]
        assert found == [notification("before")]


@pytest.mark.usefixtures("small")
async def test_a_kill_while_a_record_is_settled_settles_it_or_nothing(path: Path) -> None:
    journal = opened(path)
    for n in range(100):
        await journal.accept(UAID, notification(n))
        journal.settle(UAID, notification(n))
    kept, settled = notification("kept"), notification("settled")
    await journal.accept(UAID, kept)
    await journal.accept(UAID, settled)
    before = path.read_bytes()
    journal.settle(UAID, settled)
    after = path.read_bytes()
    journal.close()
    changed = [at for at in range(len(after)) if after[at] != before[at]]

    for cut in range(changed[0], changed[-1] + 2):
        found = [entry.notification for entry in read_unsettled(after[:cut] + before[cut:])]
        assert found in ([kept, settled], [kept])
    assert [entry.notification for entry in read_unsettled(after)] == [kept]


async def test_a_kill_between_the_new_half_and_the_page_leaves_the_old_half(
    tmp_path: Path,
) -> None:
    path = tmp_path / "map"
    fd = os.open(path, os.O_RDWR | os.O_CREAT)
    entry = module.Accepted(1, UAID, notification(1))
    journal = JournalMap(fd, 2048, [accepted_body(entry)])
    before = path.read_bytes()
    assert journal.renew([accepted_body(entry), accepted_body(module.Accepted(2, UAID))])
    after = path.read_bytes()
    journal.close()
    os.close(fd)

    halfway = before[:MAP_PAGE_BYTES] + after[MAP_PAGE_BYTES:]
    assert [one.sequence for one in read_unsettled(halfway)] == [1]
    assert [one.sequence for one in read_unsettled(after)] == [1, 2]


def test_a_file_that_was_being_made_owes_nothing() -> None:
    assert read_unsettled(journal_map.MAP_MAGIC + bytes(20)) == []
    assert read_unsettled(bytes(MAP_PAGE_BYTES * 3)) == []


async def test_room_that_was_reserved_in_part_is_given_back(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """ext4 keeps what it could reserve: records behind zeros would never be found."""

    def reserve_in_part(fd: int, _offset: int, size: int) -> None:
        os.ftruncate(fd, size // 2)
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "posix_fallocate", reserve_in_part)
    journal = opened(path)
    assert await journal.accept(UAID, notification(1))
    journal.close()

    assert owed(path) == [notification(1)]
