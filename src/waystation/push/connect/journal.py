"""The in-flight journal: direct notifications survive the process that holds them.

Rule 1: a direct notification counts as taken only after its record has been written. With
        `fsync`, all that arrive while the disk is busy share one write and one flush; without,
        a record is written at once: that takes 2 us, and to keep its request waiting until the
        end of the turn takes 10.
Rule 2: a record is settled when the notification is acked, saved or dropped. Settling is
        not waited for: what a kill forgets of it may be delivered again, never lost.
Rule 3: the file is held under a lock. Whoever gets the lock of a dead worker replays it:
        what is neither settled nor over is handed back to the store, and the node where
        the user agent is now is told.
Rule 4: a write error or the size limit refuses direct notifications; the endpoint stores.
        After an error they are refused for a moment before anything is sent, since what was
        sent and yet stored comes twice.

Each record is a four-byte length, a CRC-32 of the body, and the body: `a` and a msgpack
array for an accepted notification, `s` and the sequence number for a settled one. A torn
record at the end was never answered and is ignored.
"""

import asyncio
import fcntl
import os
import struct
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import msgspec

from waystation.push.model import Notification, Uaid, Update

Mode = Literal["write", "fsync", "off"]

_HEAD = struct.Struct(">II")
_ACCEPTED = struct.Struct(">IIc")
_SETTLED = struct.Struct(">IIcQ")
_CRC_OF_A = zlib.crc32(b"a")  # a checksum goes on where another ended
_CRC_OF_S = zlib.crc32(b"s")
_COMPACT_BYTES = 4 * 2**20
_REFUSE_S = 1.0  # after a write error; then one more is tried


class Accepted(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One unacked direct notification."""

    sequence: int
    uaid: bytes
    notification: Notification | None = None
    update: Update | None = None


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(Accepted)


def key_of(uaid: Uaid, notification: Notification | Update) -> str | tuple[bytes, bytes, int]:
    """How a notification is named when it is settled; message ids are unique by themselves."""
    if isinstance(notification, Notification):
        return notification.message_id
    return (uaid, notification.channel_id, notification.version)


class JournalHeldError(Exception):
    """Another process holds this journal."""


class JournalOwesError(Exception):
    """A journal is opened for appending although nobody has replayed it."""


class Journal:
    """The journal of one worker, open for appending."""

    def __init__(self, path: Path, *, mode: Mode, bytes_max: int) -> None:
        self._path = path
        self._mode = mode
        self._bytes_max = bytes_max
        self._fd = _lock(path)
        _begin(self._fd, path)
        if mode == "fsync":
            _sync_folder(path)
        self._size = 0
        self._damaged = False  # the file cannot be appended to; only a new one helps
        self._sequence = 0
        self._live: dict[object, tuple[Accepted, int]] = {}  # with the length of its record
        self._live_bytes = 0
        self._turn: list[bytes] = []
        self._waiters: list[asyncio.Future[bool]] = []
        self._armed = False  # for the end of this turn
        self._syncing = False
        self._failing = False

    @property
    def unsettled(self) -> int:
        return len(self._live)

    def accept(
        self, uaid: Uaid, notification: Notification | Update
    ) -> "bool | asyncio.Future[bool]":
        """Whether the record is written; with `fsync`, as soon as that is known."""
        self._sequence += 1
        if isinstance(notification, Notification):
            key = notification.message_id
            entry = Accepted(self._sequence, uaid, notification)
        else:
            key = key_of(uaid, notification)
            entry = Accepted(self._sequence, uaid, None, notification)
        before = self._release(key)
        record = _record(entry)
        self._live[key] = (entry, len(record))
        self._live_bytes += len(record)
        self._turn.append(record)
        if before is not None:  # the same again: one record stands for it, and it comes first
            self._turn.append(_settled(before))
        if self._mode == "write":
            return self._write()
        # A future each: one for all of the turn would be cancelled for all with any of them.
        waiter: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self._waiters.append(waiter)
        self._arm()
        return waiter

    def settle(self, uaid: Uaid, notification: Notification | Update) -> None:
        sequence = self._release(key_of(uaid, notification))
        if sequence is not None:
            self._turn.append(_settled(sequence))
            self._arm()

    def _release(self, key: object) -> int | None:
        live = self._live.pop(key, None)
        if live is None:
            return None
        self._live_bytes -= live[1]
        return live[0].sequence

    @property
    def full(self) -> bool:
        """No direct notification may be sent now."""
        return self._failing or self._live_bytes >= self._bytes_max

    def _arm(self) -> None:
        if not self._armed and not self._syncing:
            self._armed = True
            asyncio.get_running_loop().call_soon(self._end_of_turn)

    def _end_of_turn(self) -> None:
        self._armed = False
        self._write()

    def _write(self) -> bool:
        """One write for all that is here; settled records go with the next accepted one."""
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
        self._damaged |= not ok  # the kernel may have dropped what it could not write
        self._answer(waiters, ok)
        self._write()  # what came while the disk was busy goes together

    def _answer(self, waiters: "list[asyncio.Future[bool]]", ok: bool) -> None:
        _resolve(waiters, ok)
        if not ok and not self._failing:
            self._failing = True
            asyncio.get_running_loop().call_later(_REFUSE_S, self._try_again)

    def _try_again(self) -> None:
        self._failing = False

    def _append(self, data: bytes) -> bool:
        if self._fd < 0:
            return False
        if self._damaged or self._size + len(data) > max(_COMPACT_BYTES, 2 * self._live_bytes):
            return self._compact()
        try:
            written = os.write(self._fd, data)
            if written < len(data):  # the disk is full: take the torn end back
                self._damaged = True
                os.ftruncate(self._fd, self._size)
                self._damaged = False
                return False
        except OSError:
            return False
        self._size += written
        return True

    def _compact(self) -> bool:
        """Most of the file is settled: keep what is live, which includes this turn's records.

        The new file takes the old one's name, and its lock, in one step."""
        data = b"".join(_record(entry) for entry, _ in self._live.values())
        fresh = self._path.with_suffix(".new")
        try:
            fd = os.open(fresh, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND, 0o600)
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if os.write(fd, data) != len(data):
                    raise OSError("the disk is full")
                if self._mode == "fsync":
                    os.fdatasync(fd)
                os.rename(fresh, self._path)
            except OSError:
                os.close(fd)
                raise
        except OSError:
            return False
        os.close(self._fd)
        self._fd = fd
        self._size = len(data)
        self._damaged = False
        try:
            if self._mode == "fsync":
                _sync_folder(self._path)  # or a loss of power brings the old file back
        except OSError:
            self._damaged = True
            return False
        return True

    def close(self) -> None:
        """What is unsettled stays in the file for whoever replays it."""
        self._append(b"".join(self._turn))
        self._turn = []
        _resolve(self._waiters, ok=False)
        if not self._live:
            os.ftruncate(self._fd, 0)
        os.close(self._fd)
        self._fd = -1  # a descriptor's number is soon somebody else's


def _record(entry: Accepted) -> bytes:
    body = _encoder.encode(entry)
    return _ACCEPTED.pack(len(body) + 1, zlib.crc32(body, _CRC_OF_A), b"a") + body


def _settled(sequence: int) -> bytes:
    return _SETTLED.pack(9, zlib.crc32(sequence.to_bytes(8), _CRC_OF_S), b"s", sequence)


def _resolve(waiters: "list[asyncio.Future[bool]]", ok: bool) -> None:
    for waiter in waiters:
        if not waiter.done():
            waiter.set_result(ok)


def read_unsettled(data: bytes) -> list[Accepted]:
    """What a journal's bytes still owe, in the order of acceptance."""
    accepted: dict[int, Accepted] = {}
    for body in _bodies(data):
        if body[:1] == b"a":
            entry = _decoder.decode(body[1:])
            accepted[entry.sequence] = entry
        else:
            accepted.pop(int.from_bytes(body[1:]), None)
    return list(accepted.values())


def _bodies(data: bytes) -> Iterator[bytes]:
    position = 0
    while position + _HEAD.size <= len(data):
        length, crc = _HEAD.unpack_from(data, position)
        body = data[position + _HEAD.size : position + _HEAD.size + length]
        if len(body) < length or zlib.crc32(body) != crc:
            return  # torn: written by a process that died before it answered
        yield body
        position += _HEAD.size + length


def _begin(fd: int, path: Path) -> None:
    """Start with an empty file: sequence numbers begin anew and would settle old records."""
    if read_unsettled(os.pread(fd, os.fstat(fd).st_size, 0)):
        os.close(fd)
        raise JournalOwesError(f"{path} still owes notifications: replay it first")
    os.ftruncate(fd, 0)


def _sync_folder(path: Path) -> None:
    """Make the file's name as durable as its content."""
    fd = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def _lock(path: Path) -> int:
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    while True:
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600)
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
        os.close(fd)  # it was replaced between our opening and our lock


class Abandoned:
    """A journal whose worker is gone, under our lock until it has been replayed."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._fd = _lock(path)

    def unsettled(self) -> list[Accepted]:
        with open(self._fd, "rb", closefd=False) as file:
            file.seek(0)
            return read_unsettled(file.read())

    def done(self) -> None:
        os.ftruncate(self._fd, 0)
        os.fsync(self._fd)

    def remove(self) -> None:
        """Nobody will use it again; while we hold the lock, so nobody does now."""
        self._path.unlink(missing_ok=True)

    def close(self) -> None:
        os.close(self._fd)
