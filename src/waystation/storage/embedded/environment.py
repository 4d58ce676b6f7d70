"""Opening LMDB so that several processes can live with it.

Rule 1: an environment is opened once per process, after the process has started: its locks
        belong to the process, and a fork would tear them.
Rule 2: it lies on a local disk. Its locks and its shared map do not work across machines.
Rule 3: only its owner may read it: directory 0700, files 0600.
Rule 4: it says what it is. Another format is refused, never guessed at.
Rule 5: LMDB writes to its lock file through memory, and a page for which the disk has no room then
        kills the process. So that file is reserved whole before it is used.
Rule 6: what a killed process left in the reader table is cleared at open and now and then;
        otherwise pages freed since could never be used again.
"""

import contextlib
import errno
import os
import struct
from collections.abc import Sequence
from pathlib import Path

import lmdb
import msgspec

from waystation.base.errors import StoreFullError, StoreUnavailableError
from waystation.base.file_systems import file_system_of
from waystation.base.settings import SettingsError
from waystation.storage.settings import Store

Database = lmdb._Database  # noqa: SLF001  # lmdb gives this type no other name

STORE_ERRORS = (
    lmdb.Error,
    msgspec.MsgspecError,
    struct.error,
    OSError,
)  # what reads and writes raise

_META = b"meta"
_LOCK_HEAD_BYTES = 128  # of lock.mdb, in front of its table of readers
_LOCK_READER_BYTES = 64
_FORMAT_KEY = b"format"
_FULL_ERRNOS = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
# fmt: off
_NETWORK_FILE_SYSTEMS = frozenset({
    "9p", "afs", "afpfs", "beegfs", "ceph", "cifs", "coda", "davfs", "gfs",
    "gfs2", "glusterfs", "gpfs", "lustre", "ncpfs", "nfs", "nfs4", "ocfs2", "orangefs",
    "pvfs2", "s3fs", "smb3", "smbfs", "sshfs",
})
# fmt: on


class Environment:
    """One LMDB directory with its named tables."""

    def __init__(
        self, lmdb_env: lmdb.Environment, tables: dict[str, Database], *, path: Path, map_bytes: int
    ) -> None:
        self.lmdb = lmdb_env
        self.tables = tables
        self.path = path
        self.map_bytes = map_bytes
        self.page_bytes = lmdb_env.stat()["psize"]

    @classmethod
    def open(
        cls, path: Path, *, form: str, tables: Sequence[str], settings: Store
    ) -> "Environment":
        """Open or create; raises `SettingsError` for a place that cannot work and
        `StoreUnavailableError` for one that does not work now."""
        try:
            path.mkdir(mode=0o700, parents=True, exist_ok=True)
            _refuse_network_file_system(path)
            # lmdb wants one size for all processes; a larger file than asked for is kept.
            file = path / "data.mdb"
            map_bytes = max(settings.map_bytes, file.stat().st_size if file.exists() else 0)
            _reserve_lock_file(path / "lock.mdb", settings.readers_max)
            env = lmdb.open(
                str(path),
                map_size=map_bytes,
                mode=0o600,
                max_dbs=len(tables) + 1,
                max_readers=settings.readers_max,
                max_spare_txns=4,  # a reader's slot is kept between reads: 0.5 µs instead of 2
                sync=settings.sync,
                metasync=settings.sync,
                readahead=False,  # keys are random, what lies beside a page is not asked for next
            )
        except lmdb.Error as exc:
            raise store_error(exc) from exc
        except OSError as exc:
            raise StoreUnavailableError(f"the store at {path} cannot be opened: {exc}") from exc
        try:
            env.reader_check()
            handles = _open_tables(env, path, form, tables)
        except lmdb.Error as exc:
            env.close()
            raise store_error(exc) from exc
        except BaseException:
            env.close()
            raise
        return cls(env, handles, path=path, map_bytes=map_bytes)

    def used_pages(self, txn: "lmdb.Transaction[bytes]") -> int:
        """Pages that hold rows; the rest of the map is free, apart from a little bookkeeping."""
        used = 0
        for table in self.tables.values():
            stat = txn.stat(table)
            used += stat["branch_pages"] + stat["leaf_pages"] + stat["overflow_pages"]
        return used

    def file_bytes(self) -> int:
        """How far the file has grown; free pages inside are used again before it grows on."""
        return (self.lmdb.info()["last_pgno"] + 1) * self.page_bytes

    def close(self) -> None:
        self.lmdb.close()


def _reserve_lock_file(path: Path, readers_max: int) -> None:
    """Before LMDB opens it: to close a descriptor of it later would give up LMDB's own lock.

    One that is there keeps its size, because other processes may have mapped it."""
    with contextlib.suppress(OSError):  # no room now: the pages in use are there, they must do
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            size = os.fstat(fd).st_size or _LOCK_HEAD_BYTES + readers_max * _LOCK_READER_BYTES
            os.posix_fallocate(fd, 0, size)
        finally:
            os.close(fd)


def _open_tables(
    env: lmdb.Environment, path: Path, form: str, tables: Sequence[str]
) -> dict[str, Database]:
    with env.begin(write=True) as txn:
        meta = env.open_db(_META, txn=txn)
        found = txn.get(_FORMAT_KEY, db=meta)
        if found is None:
            txn.put(_FORMAT_KEY, form.encode(), db=meta)
        elif found != form.encode():
            raise StoreUnavailableError(
                f"the store at {path} has the format {found.decode(errors='replace')!r};"
                f" this version reads {form!r}"
            )
        return {name: env.open_db(name.encode(), txn=txn) for name in tables}


def store_error(exc: Exception) -> StoreUnavailableError:
    """The one place where what LMDB and our rows say becomes what push says."""
    if is_full(exc):
        return StoreFullError(str(exc))
    if isinstance(exc, msgspec.MsgspecError | struct.error):
        return StoreUnavailableError(f"a row of the store does not decode: {exc}")
    if isinstance(exc, lmdb.MapResizedError):
        return StoreUnavailableError(
            "another process has grown the store beyond this one's store.map_bytes: start all of"
            " them with the same setting"
        )
    return StoreUnavailableError(str(exc) or type(exc).__name__)


def is_full(exc: Exception) -> bool:
    return isinstance(exc, lmdb.MapFullError) or errno_of(exc) in _FULL_ERRNOS


def errno_of(exc: Exception) -> int:
    """The system's number for what went wrong, or 0; lmdb leaves it out of some errors."""
    return getattr(exc, "code", 0) if isinstance(exc, lmdb.Error) else 0


def _refuse_network_file_system(path: Path) -> None:
    try:
        mountinfo = Path("/proc/self/mountinfo").read_text()
    except OSError:
        return  # no Linux, or no /proc: then we cannot know
    kind = file_system_of(os.path.realpath(path), mountinfo)
    if kind.removeprefix("fuse.") in _NETWORK_FILE_SYSTEMS:
        raise SettingsError(
            [
                f"store.url: {path} lies on a network file system ({kind}), where the embedded"
                f" store's locks do not work; choose a local disk"
            ]
        )
