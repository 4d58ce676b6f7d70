"""The data directory: its layout, its permissions and its locks.

    keys/       secrets, one file each, readable by the owner alone
    store/      the embedded store
    inflight/   K.log, the in-flight journal of worker K; K.N.owed, earlier ones until replayed
    events/     event segments
    run/        locks, sockets and numbers of workers, serve.json with the addresses in force
    part-N/     inflight/ and run/ of the N-th process of a daemon that uses this directory

The directory is created with mode 0700; one that others may write to is refused.

A role is locked while any of its processes runs, so that a second server on the same directory is
refused instead of breaking the store. A lock held by workers of a server that was just killed is
waited for; a running server is reported at once.

Several processes of a daemon may use one directory: keys, store and events are common; inflight/
and run/ are per process. A process takes the first free part, so each journal gets a successor.
"""

import contextlib
import errno
import fcntl
import os
import shutil
import stat
import time
from pathlib import Path

PARTS_MAX = 64  # processes of one daemon on one data directory
TAKE_OVER_S = 3.0  # workers of a killed server may take this long to end
NO_ROOM = (errno.ENOSPC, errno.EDQUOT)
SOCKET_PATH_MAX_BYTES = 100  # sockaddr_un holds 108 on Linux; some room for a suffix


class DataDirError(Exception):
    """The data directory cannot be used; the message says why and what to do."""


class DataDir:
    """Paths of one data directory, for the process that uses `part` of it."""

    def __init__(self, root: Path, part: int = 1) -> None:
        self.root = root.absolute()
        self.part = part
        self.keys = self.root / "keys"
        self.store = self.root / "store"
        self.events = self.root / "events"
        self._own = self.root if part == 1 else self.root / f"part-{part}"
        self.inflight = self._own / "inflight"
        self.run = self._own / "run"
        self._run_fd: int | None = None

    def make(self) -> None:
        """Create missing folders; refuse unsafe permissions."""
        try:
            self.root.mkdir(mode=0o700, parents=True, exist_ok=True)
            for path in (self.keys, self.events, self.root / "run", self.inflight, self.run):
                path.mkdir(mode=0o700, parents=True, exist_ok=True)
            for path in (self.root, self.keys, self._own, self.run):
                mode = stat.S_IMODE(path.stat().st_mode)
                if mode & 0o022:
                    raise DataDirError(
                        f"{path} can be written to by others (mode {mode:04o}); it holds keys."
                        f" Run: chmod go-w {path}"
                    )
            probe = self.run / f".probe.{os.getpid()}"
            try:
                probe.touch(mode=0o600)
                probe.unlink()
            except OSError as exc:
                if exc.errno not in NO_ROOM:  # a full disk: serve what can be served
                    raise
        except PermissionError as exc:
            raise DataDirError(
                f"no permission to use {exc.filename or self.root}: run as its owner, or choose"
                " another with --data-dir"
            ) from exc
        except (FileExistsError, NotADirectoryError) as exc:
            raise DataDirError(f"{exc.filename or self.root} is not a directory") from exc
        except OSError as exc:
            raise DataDirError(
                f"cannot use {exc.filename or self.root}: {exc.strerror}; choose another with"
                " --data-dir"
            ) from exc

    def journal(self, index: int) -> Path:
        return self.inflight / f"{index}.log"

    def journals(self) -> dict[int, Path]:
        """Journals of this part, by worker index."""
        return _journals(self.inflight)

    def journals_of_other_parts(self) -> list[Path]:
        """Includes journals of running processes, which hold locks on them."""
        folders = {self.root / "inflight", *self.root.glob("part-*/inflight")} - {self.inflight}
        return [path for folder in sorted(folders) for path in _journals(folder).values()]

    def parts(self) -> "list[DataDir]":
        """All parts of this directory, in order."""
        numbers = sorted(
            int(path.name.removeprefix("part-"))
            for path in self.root.glob("part-*")
            if path.name.removeprefix("part-").isdecimal()
        )
        return [DataDir(self.root), *(DataDir(self.root, number) for number in numbers)]

    @property
    def sweeper_lock(self) -> Path:
        """Held by the one process on this directory that sweeps the store."""
        return self.root / "run" / "sweeper.lock"

    def socket(self, name: str) -> str:
        """A path for a unix socket in run/, short enough for a socket address.

        A path that is too long is addressed through a descriptor of run/ instead.
        """
        path = str(self.run / name)
        if len(os.fsencode(path)) <= SOCKET_PATH_MAX_BYTES:
            return path
        if self._run_fd is None:
            self._run_fd = os.open(self.run, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        return f"/proc/self/fd/{self._run_fd}/{name}"

    def reports(self, service: str) -> Path:
        """Status and metrics files of the workers of `serve`, `autoconnect` or `autoendpoint`."""
        return self.run / f"reports-{service}"

    def begin_reports(self, service: str) -> Path:
        """Remove the reports of an earlier run: counters start at zero."""
        folder = self.reports(service)
        shutil.rmtree(folder, ignore_errors=True)
        with contextlib.suppress(OSError):  # a full disk: the workers make it when there is room
            folder.mkdir(mode=0o700, exist_ok=True)
        return folder

    def numbers(self, service: str, kind: str) -> Path:
        """Reports of the workers of one kind; one port serves them together."""
        return self.reports(service) / kind

    @property
    def serve_file(self) -> Path:
        return self.run / "serve.json"


def _journals(folder: Path) -> dict[int, Path]:
    """By worker index: existing journals, and those with files waiting for replay."""
    stems = {
        path.name.partition(".")[0]
        for pattern in ("*.log", "*.owed")
        for path in folder.glob(pattern)
    }
    indexes = sorted(int(stem) for stem in stems if stem.isdecimal())
    return {index: folder / f"{index}.log" for index in indexes}


class Lock:
    """An exclusive flock; the kernel releases it when its process ends."""

    def __init__(self, fd: int, path: Path) -> None:
        self._fd = fd
        self.path = path

    @classmethod
    def take(cls, path: Path) -> "Lock | None":
        """None if another process holds it. The file contains the holder's pid."""
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as exc:
            os.close(fd)
            if exc.errno in (errno.EWOULDBLOCK, errno.EACCES):
                return None
            raise
        with contextlib.suppress(OSError):  # on a full disk the pid is missing
            os.ftruncate(fd, 0)
            os.pwrite(fd, f"{os.getpid()}\n".encode(), 0)
        return cls(fd, path)

    def fileno(self) -> int:
        """For a child process: an inherited descriptor holds the lock too."""
        return self._fd

    def release(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


def lock_roles(data: DataDir, roles: tuple[str, ...]) -> list[Lock]:
    """Lock all roles, or raise `DataDirError` and lock none."""
    taken: list[Lock] = []
    for role in roles:
        lock = _take_over(data.run / f"{role}.lock")
        if lock is None:
            for one in taken:
                one.release()
            raise DataDirError(
                f"{data.root} is in use: process {_holder(data, role)} already runs the role"
                f" {role} on it. Stop that one, or give this one its own --data-dir"
            )
        taken.append(lock)
    return taken


def lock_all(data: DataDir, roles: tuple[str, ...]) -> list[Lock]:
    """As `lock_roles`, on every part: raises if any process uses the directory."""
    taken: list[Lock] = []
    for part in data.parts():
        part.make()
        try:
            taken += lock_roles(part, roles)
        except DataDirError:
            for one in taken:
                one.release()
            raise
    return taken


def take_part(root: Path, roles: tuple[str, ...]) -> tuple[DataDir, list[Lock]]:
    """The first part of a directory on which these roles are not locked."""
    refused: DataDirError | None = None
    for part in range(1, PARTS_MAX + 1):
        data = DataDir(root, part)
        data.make()
        try:
            return data, lock_roles(data, roles)
        except DataDirError as exc:
            refused = refused or exc
    assert refused is not None
    raise refused


def _take_over(path: Path) -> Lock | None:
    """None if a running process holds it. Workers of a killed server may hold it for a moment
    longer, so those are waited for."""
    deadline = time.monotonic() + TAKE_OVER_S
    while (lock := Lock.take(path)) is None:
        if _runs(path) or time.monotonic() >= deadline:
            return None
        time.sleep(0.05)
    return lock


def _holder(data: DataDir, role: str) -> str:
    with contextlib.suppress(OSError):
        return (data.run / f"{role}.lock").read_text().strip() or "unknown"
    return "unknown"


def _runs(path: Path) -> bool:
    """Whether the process named by a lock file runs; true if the file names none."""
    try:
        os.kill(int(path.read_text()), 0)
    except ProcessLookupError:
        return False
    except (OSError, ValueError):
        return True
    return True
