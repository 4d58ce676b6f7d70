"""In-flight journal: unacked direct notifications on disk, so that a crash does not lose them.

Rule 1: a direct notification is accepted only after its record is written. With `fsync`, all that
        arrive while the disk is busy share one write and one flush. Without, each record is written
        at once: into the mapped file where the file system allows it (0.5 us), else by a system
        call (2 us); batching the requests until the end of the loop turn would cost 10 us.
Rule 2: a record is settled when the notification is acked, saved or dropped. Nothing waits for
        the settling record: if a kill loses it, the notification may be delivered again.
Rule 3: the file is locked by its worker. The process that gets the lock of a dead worker's file
        renames it to `K.N.owed` and replays it: notifications that are neither settled nor expired
        are handed back to the store, and the user agent's current node is told. The file is removed
        only after all of them are handed back.
Rule 4: after a write error, or at the size limit, direct notifications are refused and the endpoint
        stores them. After an error the refusal lasts `_REFUSE_S` and comes before anything is sent,
        because a notification that is sent and then stored is delivered twice.

The file format is in `journal_records`.
"""

import asyncio
import contextlib
import fcntl
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from waystation.base.file_systems import file_system
from waystation.push.connect.journal_map import MAPPABLE, JournalMap
from waystation.push.connect.journal_records import (
    HEAD,
    Accepted,
    Entry,
    accepted_body,
    read_unsettled,
    record,
    settled_body,
)
from waystation.push.model import Notification, Uaid, Update

__all__ = [
    "OWED_SUFFIX",
    "Abandoned",
    "Accepted",
    "Journal",
    "JournalHeldError",
    "Mode",
    "owed_files",
    "read_unsettled",
    "set_aside",
]

Mode = Literal["write", "fsync", "off"]

OWED_SUFFIX = ".owed"
_COMPACT_BYTES = 4 * 2**20
_HALF_BYTES = 2**19  # of a mapped file: both halves fit into the processor's cache
_REFUSE_S = 1.0  # after a write error; then the journal tries again


def key_of(uaid: Uaid, notification: Notification | Update) -> str | tuple[bytes, bytes, int]:
    """The key under which an unsettled notification is kept; message ids are unique alone."""
    if isinstance(notification, Notification):
        return notification.message_id
    return (uaid, notification.channel_id, notification.version)


class JournalHeldError(Exception):
    """Another process holds the lock of this journal."""


class JournalOwesError(Exception):
    """The journal still has unsettled notifications and must be replayed before it is opened."""


class Journal:
    """The journal of one worker, open for appending."""

    def __init__(
        self, path: Path, *, mode: Mode, bytes_max: int, mapped: bool | None = None
    ) -> None:
        """`mapped=None` maps the file where mode and file system allow it."""
        self._path = path
        self._mode = mode
        self._bytes_max = bytes_max
        self.bytes_open = bytes_max  # 0 while it fails
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._fd = _lock(path, os.O_CREAT | os.O_APPEND)
        _begin(self._fd, path)
        if mode == "fsync":
            _sync_folder(path)
        if mapped is None:
            mapped = mode == "write" and file_system(path) in MAPPABLE
        self._map: JournalMap | None = None
        if mapped:
            with contextlib.suppress(OSError):  # disk full: records are refused one by one
                self._map = JournalMap(self._fd, _half_bytes(()))
        self._size = 0
        self._damaged = False  # appending may corrupt the file; it must be rewritten first
        self._sequence = 0
        self._live: dict[object, tuple[Entry, int]] = {}  # unsettled: entry, length of its record
        self.live_bytes = 0  # of unsettled records
        self._turn: list[bytes] = []  # records of this loop turn, not written yet
        self._waiters: list[asyncio.Future[bool]] = []
        self._armed = False  # a write is scheduled for the end of this turn
        self._syncing = False

    @property
    def unsettled(self) -> int:
        return len(self._live)

    async def accept(self, uaid: Uaid, notification: Notification | Update) -> bool:
        """Write a record. Whether it is on disk; only `fsync` waits."""
        self._sequence = sequence = self._sequence + 1
        key = key_of(uaid, notification)
        if isinstance(notification, Notification):
            entry = (sequence, uaid, notification, None)
        else:
            entry = (sequence, uaid, None, notification)
        before = self._release(key)
        body = accepted_body(entry)
        self._live[key] = (entry, len(body))
        self.live_bytes += len(body)
        if self._map is not None:
            # The same notification again: write the new record before settling the old one.
            ok = self._append(body) and (before is None or self._append(settled_body(before)))
            if not ok:
                self._answer([], ok)
            return ok
        self._turn.append(record(body))
        if before is not None:
            self._turn.append(record(settled_body(before)))
        if self._mode == "write":
            return self._write()
        # One future per request: cancelling one request must not cancel the others of the turn.
        waiter: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self._waiters.append(waiter)
        self._arm()
        return await waiter

    def settle(self, uaid: Uaid, notification: Notification | Update) -> None:
        sequence = self._release(key_of(uaid, notification))
        if sequence is None:
            return
        if self._map is None:
            self._turn.append(record(settled_body(sequence)))
            self._arm()
        else:
            self._append(settled_body(sequence))

    def _release(self, key: object) -> int | None:
        live = self._live.pop(key, None)
        if live is None:
            return None
        self.live_bytes -= live[1]
        return live[0][0]

    @property
    def full(self) -> bool:
        """Whether direct notifications must be refused now."""
        return self.live_bytes >= self.bytes_open

    def _arm(self) -> None:
        if not self._armed and not self._syncing:
            self._armed = True
            asyncio.get_running_loop().call_soon(self._end_of_turn)

    def _end_of_turn(self) -> None:
        self._armed = False
        self._write()

    def _write(self) -> bool:
        """Write all records of this turn at once, settling ones included."""
        records = self._turn
        if not records:
            return True
        data = records[0] if len(records) == 1 else b"".join(records)
        records.clear()
        ok = self._append(data)
        if ok and self._mode == "write":
            return True
        waiters, self._waiters = self._waiters, []
        if ok and waiters:
            self._syncing = True
            loop = asyncio.get_running_loop()
            syncing = loop.run_in_executor(None, os.fdatasync, self._fd)
            syncing.add_done_callback(lambda done: self._synced(done, waiters))
        else:
            self._answer(waiters, ok)
        return ok

    def _synced(self, done: "asyncio.Future[None]", waiters: "list[asyncio.Future[bool]]") -> None:
        self._syncing = False
        ok = not done.cancelled() and done.exception() is None
        self._damaged |= not ok  # the kernel may have dropped pages that it could not write
        self._answer(waiters, ok)
        self._write()  # the records that arrived during the flush

    def _answer(self, waiters: "list[asyncio.Future[bool]]", ok: bool) -> None:
        _resolve(waiters, ok)
        if not ok and self.bytes_open:
            self.bytes_open = 0
            asyncio.get_running_loop().call_later(_REFUSE_S, self._try_again)

    def _try_again(self) -> None:
        self.bytes_open = self._bytes_max

    def _append(self, data: bytes) -> bool:
        if self._map is not None:
            return self._map.append(data) or self._compact()
        if self._fd < 0:
            return False
        if self._damaged or self._size + len(data) > max(_COMPACT_BYTES, 2 * self.live_bytes):
            return self._compact()
        try:
            written = os.write(self._fd, data)
            if written < len(data):  # the disk is full: cut the torn record off
                self._damaged = True
                os.ftruncate(self._fd, self._size)
                self._damaged = False
                return False
        except OSError:
            return False
        self._size += written
        return True

    def _compact(self) -> bool:
        """Rewrite the journal with unsettled records only, those of this turn included.

        A mapped file switches to its other half if that is large enough. Otherwise a new file,
        already locked, is renamed over the old one."""
        bodies = [accepted_body(entry) for entry, _ in self._live.values()]
        half_bytes = _half_bytes(bodies)
        if (
            self._map is not None
            and self._map.half_bytes <= 8 * half_bytes  # else shrink the file: a burst is over
            and self._map.renew(bodies)
        ):
            return True
        data = b"" if self._map is not None else b"".join(map(record, bodies))
        fresh = self._path.with_suffix(".new")
        mapped = None
        try:
            fd = os.open(fresh, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND, 0o600)
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if self._map is not None:
                    mapped = JournalMap(fd, half_bytes, bodies)
                elif os.write(fd, data) != len(data):
                    raise OSError("the disk is full")
                if self._mode == "fsync":
                    os.fdatasync(fd)
                os.rename(fresh, self._path)
            except OSError:
                if mapped is not None:
                    mapped.close()
                os.close(fd)
                raise
        except OSError:
            return False
        self._let_go()
        self._fd = fd
        self._map = mapped
        self._size = len(data)
        self._damaged = False
        try:
            if self._mode == "fsync":
                _sync_folder(self._path)  # else a power failure may bring the old file back
        except OSError:
            self._damaged = True
            return False
        return True

    def _let_go(self) -> None:
        """Release the lock: it ends with the last descriptor, and the map has its own."""
        if self._map is not None:
            self._map.close()
        os.close(self._fd)

    def close(self) -> None:
        """Unsettled records stay in the file for replay."""
        if self._map is None:
            self._append(b"".join(self._turn))
            self._turn = []
        _resolve(self._waiters, ok=False)
        if not self._live:
            os.ftruncate(self._fd, 0)
        self._let_go()
        self._map = None
        self._fd = -1  # the kernel may reuse the number for another file


def _half_bytes(bodies: Sequence[bytes]) -> int:
    """Size of a mapped half with room for three times these bodies."""
    return max(_HALF_BYTES, 3 * sum(len(body) + HEAD.size for body in bodies))


def _resolve(waiters: "list[asyncio.Future[bool]]", ok: bool) -> None:
    for waiter in waiters:
        if not waiter.done():
            waiter.set_result(ok)


def _begin(fd: int, path: Path) -> None:
    """Empty the file: sequence numbers restart, and would otherwise settle old records."""
    if read_unsettled(os.pread(fd, os.fstat(fd).st_size, 0)):
        os.close(fd)
        raise JournalOwesError(f"{path} has unsettled notifications: replay it first")
    os.ftruncate(fd, 0)


def _sync_folder(path: Path) -> None:
    """Flush the folder, so that the file's name is as durable as its content."""
    fd = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def _lock(path: Path, flags: int) -> int:
    while True:
        fd = os.open(path, os.O_RDWR | flags, 0o600)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(fd)
            raise JournalHeldError(f"{path} is held by a running worker") from None
        try:
            if os.fstat(fd).st_ino == path.stat().st_ino:
                return fd
        except FileNotFoundError:
            pass
        os.close(fd)  # the file was replaced between our `open` and our lock


class Abandoned:
    """A dead worker's journal, locked by us. Raises `FileNotFoundError` if there is none."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._fd = _lock(path, 0)

    def unsettled(self) -> list[Accepted]:
        with open(self._fd, "rb", closefd=False) as file:
            file.seek(0)
            return read_unsettled(file.read())

    def set_aside(self) -> None:
        """Rename the file, so that a new journal can use its name. Works on a full disk."""
        if not os.fstat(self._fd).st_size:
            self._path.unlink(missing_ok=True)
            return
        numbers = [_number_of(path) for path in owed_files(self._path)]
        number = max(numbers, default=0) + 1
        self._path.rename(self._path.with_suffix(f".{number}{OWED_SUFFIX}"))

    def done(self) -> None:
        """Remove the replayed file. It is emptied first, so that a power failure between the two
        does not replay it again."""
        os.ftruncate(self._fd, 0)
        os.fsync(self._fd)
        self._path.unlink(missing_ok=True)

    def close(self) -> None:
        os.close(self._fd)


def set_aside(path: Path) -> None:
    """Rename the journal at `path` to an owed file and so free the path. Raises `JournalHeldError`
    while its worker is alive."""
    with contextlib.suppress(FileNotFoundError):
        abandoned = Abandoned(path)
        try:
            abandoned.set_aside()
        finally:
            abandoned.close()


def owed_files(path: Path) -> list[Path]:
    """Files that were set aside from the journal at `path`, oldest first."""
    return sorted(path.parent.glob(f"{path.stem}.*{OWED_SUFFIX}"), key=_number_of)


def _number_of(path: Path) -> int:
    return int(path.suffixes[-2][1:])
