"""Finds and keeps the archive of Spark's loaded classes, which halves the start of a session.

Rule 1: an archive fits one Java and one set of jars. Its name is a hash of both, so a new version
        gets a new archive; the archives unused for longest are deleted.
Rule 2: a background process at the lowest priority writes it after a session has found none
        (`class_training`). A lock that ends with that process keeps it to one at a time, and it is
        tried once an hour. No session waits for it.
Rule 3: an archive is complete or absent: it is written elsewhere, flushed, then renamed. Its name
        contains its length, since Java 17 crashes on a shorter file. The JVM finds other damage by
        its checksums and starts without the archive, silently.
Rule 4: the archive is code that the JVM runs, so it is never read from a folder that other users
        can write to. Without a private folder, with a path that JVM options cannot carry, or with
        a Java that lacks the archive of its own classes, sessions start without one.
"""

import contextlib
import fcntl
import hashlib
import os
import re
import shutil
import stat
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path

import msgspec

from waystation.pipeline.java import Java

FORM = 1  # incremented when changed training makes old archives useless
KEPT = 2  # archives of about 190 MB each
RETRY_AFTER_S = 3600.0
AOT_SINCE = 25  # since this Java: an AOT cache, which needs no base archive
BELOW = Path("lib", "server", "classes.jsa")
TRAINING = "waystation.pipeline.class_training"

_PLAIN = re.compile(r"[\w./+@~-]+")  # no blank, and no colon, which separates paths


class ClassArchive(msgspec.Struct, frozen=True):
    """The path of one archive, which may not exist; see `file`."""

    folder: Path
    java: Java
    jars: Path
    key: str

    @property
    def configuration(self) -> Path:
        """An empty folder, first on Spark's class path, which must be constant."""
        return self.folder / "conf"

    @property
    def unfinished(self) -> Path:
        """Folder of an archive that is being written, and of its writer's temporary files."""
        return self.folder / f"{self.key}.unfinished"

    @property
    def lock(self) -> Path:
        return self.folder / "lock"

    def file(self) -> Path | None:
        """The archive, if it exists with its full length."""
        for found in self.folder.glob(f"{self.key}.*.archive"):
            length = found.name.split(".")[1]
            if length.isdigit() and found.stat().st_size == int(length):
                return found
        return None

    def reading(self) -> list[str]:
        """Java options of a session that uses the archive; none without an archive."""
        with contextlib.suppress(OSError):
            found = self.file()
            if found is not None:
                os.utime(found)  # `keep` deletes the oldest
                return self._options("AOTCache", "SharedArchiveFile", found)
        return []

    def writing(self, path: Path) -> list[str]:
        """Java options of a session that writes one when it ends."""
        return self._options("AOTCacheOutput", "ArchiveClassesAtExit", path)

    def _options(self, aot: str, classic: str, path: Path) -> list[str]:
        new = self.java.version >= AOT_SINCE
        # The JVM would print messages about an archive to stdout, among results.
        quiet = ["-Xlog:disable", f"-Xlog:all=error{',aot*=off' if new else ''}:stderr"]
        return [f"-XX:{aot if new else classic}={path}", "-XX:+VerifySharedSpaces", *quiet]

    def write_later(self) -> bool:
        """Starts the process of rule 2 unless an archive exists or was tried recently; returns
        whether it did."""
        with contextlib.suppress(OSError):
            lock = os.open(self.lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if self.file() is None and not self._tried_lately():
                    self._start(lock)
                    return True
            finally:
                os.close(lock)
        return False

    def _tried_lately(self) -> bool:
        tried = self.folder / f"{self.key}.tried"
        with contextlib.suppress(FileNotFoundError):
            if 0 <= time.time() - tried.stat().st_mtime < RETRY_AFTER_S:
                return True
        tried.touch()
        return False

    def _start(self, lock: int) -> None:
        """The shell ends at once, so this process has no child to wait for; the background process
        inherits the lock."""
        for left in self.folder.glob("*.unfinished"):  # of a killed writer
            shutil.rmtree(left, ignore_errors=True)
        self.unfinished.mkdir()
        subprocess.run(  # noqa: S603 our own module
            [
                *("/bin/sh", "-c", '"$@" &', "sh"),
                *(sys.executable, "-P", "-m", TRAINING, str(self.java.home)),
            ],
            pass_fds=[lock],
            env=dict(os.environ) | {"TMPDIR": str(self.unfinished)},
            cwd=self.folder,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
            check=False,
        )

    def keep(self, written: Path) -> None:
        """Installs the written archive (rule 3), and deletes older ones."""
        with written.open("rb") as file:
            os.fsync(file.fileno())
        written.rename(self.folder / f"{self.key}.{written.stat().st_size}.archive")
        mine = self.file()
        by_use = sorted(self.folder.glob("*.archive"), key=lambda one: one.stat().st_mtime)
        others = [one for one in by_use if one != mine]
        for old in others[: max(0, len(others) - KEPT + 1)]:
            old.unlink(missing_ok=True)


def find(java: Java, jars: Path, env: Mapping[str, str]) -> ClassArchive | None:
    """The archive's path in the user's cache folder; None if none is possible (rule 4)."""
    with contextlib.suppress(OSError, RuntimeError):  # no home is a RuntimeError
        caches = Path(env["XDG_CACHE_HOME"]) if env.get("XDG_CACHE_HOME") else _caches()
        folder = caches / "waystation" / "spark"
        archive = ClassArchive(folder, java, jars, _key(java, jars, folder))
        if not _PLAIN.fullmatch(str(folder)) or not folder.is_absolute():
            return None
        if java.version < AOT_SINCE and not (java.home / BELOW).exists():
            return None
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        archive.configuration.mkdir(mode=0o700, exist_ok=True)
        if _ours(folder) and not any(archive.configuration.iterdir()):
            return archive
    return None


def _caches() -> Path:
    return Path.home() / ".cache"


def _ours(folder: Path) -> bool:
    found = folder.stat()
    others = stat.S_IWGRP | stat.S_IWOTH
    return found.st_uid == os.geteuid() and not found.st_mode & others


def _key(java: Java, jars: Path, folder: Path) -> str:
    """Includes time and size of each jar, because the JVM compares them."""
    told = [str(FORM), str(java.home), str(jars), str(folder)]
    for path in (java.home / "release", java.home / "lib" / "modules", *sorted(jars.iterdir())):
        with contextlib.suppress(FileNotFoundError):
            found = path.stat()
            told.append(f"{path.name} {found.st_size} {found.st_mtime_ns}")
    return hashlib.blake2s("\n".join(told).encode(), digest_size=10).hexdigest()
