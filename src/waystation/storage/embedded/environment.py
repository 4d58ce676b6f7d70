"""Opens LMDB environments that several processes share.

Rule 1: a process opens an environment once, after it has started: locks belong to a process and
        do not survive a fork.
Rule 2: the environment is on a local disk. Its locks and shared memory do not work across machines.
Rule 3: only the owner can read it: directory 0700, files 0600.
Rule 4: the environment stores its format; another format is refused.
Rule 5: LMDB writes its lock file through shared memory. A page without disk space then kills the
        process, so the lock file is allocated completely before it is used.
Rule 6: entries of killed processes in the reader table are cleared at open and periodically;
        they would prevent the reuse of pages freed since.
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
)  # raised by reads and writes

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
        """Open or create; raises `SettingsError` if the place can never work and
        `StoreUnavailableError` if it does not work now."""
        try:
            path.mkdir(mode=0o700, parents=True, exist_ok=True)
            _refuse_network_file_system(path)
            # lmdb needs one size in all processes; a larger existing file keeps its size.
            file = path / "data.mdb"
            map_bytes = max(settings.map_bytes, file.stat().st_size if file.exists() else 0)
            _reserve_lock_file(path / "lock.mdb", settings.readers_max)
            env = lmdb.open(
                str(path),
                map_size=map_bytes,
                mode=0o600,
                max_dbs=len(tables) + 1,
                max_readers=settings.readers_max,
                max_spare_txns=4,  # keeps reader slots between reads: 0.5 µs instead of 2
                sync=settings.sync,
                metasync=settings.sync,
                readahead=False,  # keys are random, so neighbouring pages are not read next
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
        """Pages that hold rows; apart from little metadata, the rest of the map is free."""
        used = 0
        for table in self.tables.values():
            stat = txn.stat(table)
            used += stat["branch_pages"] + stat["leaf_pages"] + stat["overflow_pages"]
        return used

    def file_bytes(self) -> int:
        """Size of the file; free pages in it are reused before it grows."""
        return (self.lmdb.info()["last_pgno"] + 1) * self.page_bytes

    def close(self) -> None:
        self.lmdb.close()


def _reserve_lock_file(path: Path, readers_max: int) -> None:
    """Runs before LMDB opens the file: closing a descriptor later would release LMDB's own lock.

    An existing file keeps its size, because other processes may have mapped it."""
    with contextlib.suppress(OSError):  # disk full: the existing pages must do
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
    """Maps errors of LMDB and of decoding to the store's errors; the only place that does."""
    if is_full(exc):
        return StoreFullError(str(exc))
    if isinstance(exc, msgspec.MsgspecError | struct.error):
        return StoreUnavailableError(f"a row of the store cannot be decoded: {exc}")
    if isinstance(exc, lmdb.MapResizedError):
        return StoreUnavailableError(
            "another process has grown the store beyond this one's store.map_bytes: start all of"
            " them with the same setting"
        )
    return StoreUnavailableError(str(exc) or type(exc).__name__)


def is_full(exc: Exception) -> bool:
    return isinstance(exc, lmdb.MapFullError) or errno_of(exc) in _FULL_ERRNOS


def errno_of(exc: Exception) -> int:
    """The system's error number, or 0; some lmdb errors have none."""
    return getattr(exc, "code", 0) if isinstance(exc, lmdb.Error) else 0


def _refuse_network_file_system(path: Path) -> None:
    try:
        mountinfo = Path("/proc/self/mountinfo").read_text()
    except OSError:
        return  # not Linux, or no /proc: the file system is unknown
    kind = file_system_of(os.path.realpath(path), mountinfo)
    if kind.removeprefix("fuse.") in _NETWORK_FILE_SYSTEMS:
        raise SettingsError(
            [
                f"store.url: {path} is on a network file system ({kind}), where the embedded"
                f" store's locks do not work; choose a local disk"
            ]
        )
