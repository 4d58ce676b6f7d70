"""The data directory: what lies where, and who may use it.

    keys/       secrets, one file each, readable by the owner alone
    store/      the embedded store
    inflight/   K.log, the in-flight journal of worker K
    events/     event segments
    run/        locks, sockets and numbers of workers, serve.json with the addresses in force

Rule 1: the directory is made with mode 0700; one that others may write to is refused.
Rule 2: a role is locked while any process of it runs, so that a second server on the same
        directory is refused with a sentence instead of a broken store.
"""

import errno
import fcntl
import os
import stat
import time
from pathlib import Path

import msgspec

from waystation.base.unreadable import UNREADABLE

SOCKET_PATH_MAX_BYTES = 100  # sockaddr_un holds 108 on Linux; some room for a suffix


class DataDirError(Exception):
    """The data directory cannot be used; the text says why and what to do."""


class DataDir:
    """Paths of one data directory."""

    def __init__(self, root: Path) -> None:
        self.root = root.absolute()
        self.keys = self.root / "keys"
        self.store = self.root / "store"
        self.inflight = self.root / "inflight"
        self.events = self.root / "events"
        self.run = self.root / "run"
        self._run_fd: int | None = None

    def make(self) -> None:
        """Create what is missing; refuse what is not safe."""
        try:
            self.root.mkdir(mode=0o700, parents=True, exist_ok=True)
            for part in (self.keys, self.inflight, self.events, self.run):
                part.mkdir(mode=0o700, exist_ok=True)
            for path in (self.root, self.keys, self.run):
                mode = stat.S_IMODE(path.stat().st_mode)
                if mode & 0o022:
                    raise DataDirError(
                        f"{path} can be written to by others (mode {mode:04o}); it holds keys."
                        f" Run: chmod go-w {path}"
                    )
            probe = self.run / f".probe.{os.getpid()}"
            probe.touch(mode=0o600)
            probe.unlink()
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
        """Every worker index that ever left a journal here."""
        found = {
            int(path.stem): path for path in self.inflight.glob("*.log") if path.stem.isdecimal()
        }
        return dict(sorted(found.items()))

    def socket(self, name: str) -> str:
        """A path for a unix socket in run/ that fits into an address.

        Deep directories do not fit; then the same place is named through a descriptor of run/.
        """
        path = str(self.run / name)
        if len(os.fsencode(path)) <= SOCKET_PATH_MAX_BYTES:
            return path
        if self._run_fd is None:
            self._run_fd = os.open(self.run, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        return f"/proc/self/fd/{self._run_fd}/{name}"

    def reports(self, service: str) -> Path:
        """Where the workers of `serve`, `autoconnect` or `autoendpoint` leave their numbers."""
        return self.run / f"reports-{service}"

    @property
    def serve_file(self) -> Path:
        return self.run / "serve.json"


class Lock:
    """An exclusive flock; the system releases it when its process ends, however it ends."""

    def __init__(self, fd: int, path: Path) -> None:
        self._fd = fd
        self.path = path

    @classmethod
    def take(cls, path: Path) -> "Lock | None":
        """None if somebody else holds it. The holder's pid is the file's content."""
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as exc:
            os.close(fd)
            if exc.errno in (errno.EWOULDBLOCK, errno.EACCES):
                return None
            raise
        os.ftruncate(fd, 0)
        os.pwrite(fd, f"{os.getpid()}\n".encode(), 0)
        return cls(fd, path)

    def fileno(self) -> int:
        """For a child: whoever inherits the descriptor holds the lock too."""
        return self._fd

    def release(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


def lock_roles(data: DataDir, roles: tuple[str, ...], *, patience_s: float = 3.0) -> list[Lock]:
    """Lock each role, or raise and hold none.

    A little patience, because the workers of a server that was just killed still put their
    things away.
    """
    deadline = time.monotonic() + patience_s
    taken: list[Lock] = []
    for role in roles:
        path = data.run / f"{role}.lock"
        while (lock := Lock.take(path)) is None:
            if time.monotonic() >= deadline:
                for one in taken:
                    one.release()
                holder = path.read_text().strip() or "unknown"
                raise DataDirError(
                    f"{data.root} is in use: process {holder} already runs the role {role} on it."
                    " Stop that one, or give this one its own --data-dir"
                )
            time.sleep(0.05)
        taken.append(lock)
    return taken


class Listening(msgspec.Struct, frozen=True):
    """One line of the table: what listens where."""

    what: str
    url: str
    setting: str


class Serving(msgspec.Struct, frozen=True, kw_only=True):
    """run/serve.json: what is in force, for tests and tools. Holds no secret."""

    pid: int
    version: str
    roles: tuple[str, ...]
    workers: int
    connect_url: str = ""
    endpoint_url: str = ""
    relay_url: str = ""
    console_url: str = ""
    queue_address: str = ""
    ports: dict[str, int] = {}
    listening: tuple[Listening, ...] = ()


def write_serving(data: DataDir, serving: Serving) -> None:
    fresh = data.serve_file.with_suffix(".new")
    fresh.write_bytes(msgspec.json.format(msgspec.json.encode(serving), indent=2) + b"\n")
    fresh.replace(data.serve_file)


def read_serving(data: DataDir) -> Serving | None:
    """What runs there now; None if nothing does, whatever an ended server left behind."""
    try:
        serving = msgspec.json.decode(data.serve_file.read_bytes(), type=Serving)
    except (OSError, *UNREADABLE):
        return None
    try:
        os.kill(serving.pid, 0)
    except ProcessLookupError:
        return None
    except PermissionError:
        pass  # somebody else's process, but there
    return serving
