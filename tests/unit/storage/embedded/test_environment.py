"""Opening LMDB: who may read it, where it may lie, what it says it is."""

import errno
import stat
from pathlib import Path

import lmdb
import pytest

from waystation.base.errors import StoreFullError, StoreUnavailableError
from waystation.base.settings import SettingsError
from waystation.storage.embedded import environment
from waystation.storage.embedded.environment import Environment, file_system_of, store_error
from waystation.storage.settings import Store

SETTINGS = Store(map_bytes=1 << 24)
MOUNTS = """\
22 1 254:0 / / rw,relatime shared:1 - ext4 /dev/vda rw
40 22 0:35 / /srv rw shared:2 - nfs4 server:/export rw,vers=4.2
41 40 0:36 / /srv/local\\040disk rw shared:3 - xfs /dev/vdb rw
42 22 0:37 / /mnt rw - ext4 /dev/vdc rw
43 22 0:38 / /mnt rw - fuse.sshfs host: rw
malformed line
"""


def open_at(path: Path, form: str = "test/1", settings: Store = SETTINGS) -> Environment:
    return Environment.open(path, form=form, tables=("one", "two"), settings=settings)


def test_only_the_owner_may_read_it(tmp_path: Path) -> None:
    env = open_at(tmp_path / "deep" / "push")
    env.close()

    assert stat.S_IMODE((tmp_path / "deep" / "push").stat().st_mode) == 0o700
    for name in ("data.mdb", "lock.mdb"):
        assert stat.S_IMODE((tmp_path / "deep" / "push" / name).stat().st_mode) == 0o600


def test_the_file_takes_what_is_in_use_and_not_what_it_may_grow_to(tmp_path: Path) -> None:
    env = open_at(tmp_path, settings=Store())
    env.close()

    assert env.map_bytes == 64 << 30
    assert (tmp_path / "data.mdb").stat().st_blocks * 512 < 1 << 20


def test_the_lock_file_is_reserved_whole_before_it_is_used(tmp_path: Path) -> None:
    """LMDB writes to it through memory: a page without room on the disk would kill the process."""
    lock_file = tmp_path / "lock.mdb"
    env = open_at(tmp_path)
    readers = env.lmdb.info()["max_readers"]
    env.close()
    fresh = lock_file.stat()
    lock_file.unlink()
    with lock_file.open("wb") as sparse:  # as LMDB alone leaves it
        sparse.truncate(fresh.st_size)
    open_at(tmp_path).close()
    again = lock_file.stat()

    assert readers == SETTINGS.readers_max
    assert fresh.st_blocks * 512 >= fresh.st_size
    assert (again.st_size, again.st_blocks * 512 >= again.st_size) == (fresh.st_size, True)


def test_what_was_written_is_there_when_it_is_opened_again(tmp_path: Path) -> None:
    env = open_at(tmp_path)
    with env.lmdb.begin(env.tables["two"], write=True) as txn:
        txn.put(b"k", b"v")
    env.close()
    env = open_at(tmp_path)
    with env.lmdb.begin(env.tables["two"]) as txn:
        found = txn.get(b"k")
    env.close()

    assert found == b"v"


def test_another_format_is_refused(tmp_path: Path) -> None:
    open_at(tmp_path, "test/1").close()

    with pytest.raises(StoreUnavailableError, match="'test/1'; this version reads 'test/2'"):
        open_at(tmp_path, "test/2")
    open_at(tmp_path, "test/1").close()


def test_it_is_opened_once_per_process(tmp_path: Path) -> None:
    env = open_at(tmp_path)

    with pytest.raises(StoreUnavailableError, match="already open"):
        open_at(tmp_path)
    env.close()


def test_a_place_that_is_no_directory_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")

    with pytest.raises(StoreUnavailableError, match="cannot be opened"):
        open_at(tmp_path / "file")


@pytest.mark.parametrize(
    "path,kind",
    [
        ("/", "ext4"),
        ("/data/store", "ext4"),
        ("/srv", "nfs4"),
        ("/srv/store", "nfs4"),
        ("/srvice", "ext4"),
        ("/srv/local disk/store", "xfs"),
        ("/mnt/x", "fuse.sshfs"),
    ],
)
def test_the_innermost_and_latest_mount_tells_the_file_system(path: str, kind: str) -> None:
    assert file_system_of(path, MOUNTS) == kind


def test_of_no_mounts_nothing_is_known() -> None:
    assert file_system_of("/data", "") == ""


@pytest.mark.parametrize("kind", ["nfs4", "cifs", "fuse.sshfs", "9p"])
def test_a_network_file_system_is_refused(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def everything_lies_there(path: str, mountinfo: str) -> str:
        return kind

    monkeypatch.setattr(environment, "file_system_of", everything_lies_there)

    with pytest.raises(SettingsError, match=f"network file system .{kind}."):
        open_at(tmp_path / "push")


class DiskError(lmdb.Error):
    def __init__(self, code: int) -> None:
        super().__init__("mdb_txn_commit")
        setattr(self, "code", code)  # noqa: B010  # declared final, yet set by lmdb after making it


def test_a_full_map_and_a_full_disk_are_one_error() -> None:
    assert isinstance(store_error(lmdb.MapFullError("x")), StoreFullError)
    assert isinstance(store_error(DiskError(errno.ENOSPC)), StoreFullError)
    assert not isinstance(store_error(DiskError(errno.EIO)), StoreFullError)
    assert not isinstance(store_error(lmdb.Error("x")), StoreFullError)
    assert "store.map_bytes" in str(store_error(lmdb.MapResizedError("x")))


@pytest.mark.parametrize("sync", [True, False])
def test_commits_are_flushed_unless_told_otherwise(sync: bool, tmp_path: Path) -> None:
    env = open_at(tmp_path, settings=Store(map_bytes=1 << 24, sync=sync))
    flags = env.lmdb.flags()
    env.close()

    assert Store().sync
    assert (flags["sync"], flags["metasync"]) == (sync, sync)
