"""The file in which the `waystation queue` commands keep queues and their keys.

Rule 1: the file holds private keys: mode 0600, replaced as a whole (new file, fsync, rename).
Rule 2: a change reads, changes and writes under a lock, so that two commands at once lose nothing.
Rule 3: an unreadable file is an error that names it; it is never overwritten.
"""

import contextlib
import fcntl
import os
import re
from collections.abc import Generator
from pathlib import Path

import msgspec

from waystation.base.decode_errors import DECODE_ERRORS
from waystation.base.errors import RejectedError

from .address import QueueAddress
from .deliveries import REMEMBERED_MAX
from .keys import PrivateKey
from .queue_secrets import RecipientQueue, SenderQueue

FORMAT = 1
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


class QueueFileError(RejectedError):
    """The file is unreadable, or does not contain the queue that was asked for."""

    label = "queue_keeping"


class SavedQueue(msgspec.Struct, frozen=True):
    """A queue from which this user receives."""

    queue: RecipientQueue
    acked: tuple[bytes, ...] = ()  # ids of the last messages acknowledged

    def handled(self, message_id: bytes) -> "SavedQueue":
        return SavedQueue(self.queue, (*self.acked, message_id)[-REMEMBERED_MAX:])


class SavedSender(msgspec.Struct, frozen=True):
    """A queue to which this user sends."""

    address: QueueAddress
    sender: SenderQueue
    sealing_key: PrivateKey  # X25519
    secured: bool = False  # the server has confirmed our key


class SavedQueues(msgspec.Struct):
    queues: dict[str, SavedQueue] = {}  # msgspec copies the defaults
    senders: dict[str, SavedSender] = {}
    opening: dict[str, PrivateKey] = {}  # short links that are being opened -> key
    format: int = FORMAT

    def free_name(self, prefix: str) -> str:
        number = 1
        while f"{prefix}{number}" in self.queues or f"{prefix}{number}" in self.senders:
            number += 1
        return f"{prefix}{number}"

    def claim(self, name: str) -> str:
        """Returns `name` if it is valid and not in use."""
        if not NAME.fullmatch(name):
            raise QueueFileError(
                f"{name!r} is not a valid name: use up to 64 letters, digits, `.`, `_` and `-`"
            )
        if name in self.queues or name in self.senders:
            raise QueueFileError(f"{name} is in use already; choose another name")
        return name

    def queue(self, name: str) -> SavedQueue:
        kept = self.queues.get(name)
        if kept is None:
            known = ", ".join(self.queues) or "none"
            raise QueueFileError(f"there is no queue {name} (queues: {known})")
        return kept

    def sender_to(self, address: QueueAddress) -> str | None:
        """The name of the sender for this address, if there is one."""
        for name, kept in self.senders.items():
            known = kept.address
            if (known.server.fingerprint, known.sender_id) == (
                address.server.fingerprint,
                address.sender_id,
            ):
                return name
        return None


class QueueFile:
    def __init__(self, path: Path) -> None:
        self.path = path

    def load(self) -> SavedQueues:
        """The contents; empty if there is no file."""
        try:
            kept = msgspec.json.decode(self.path.read_bytes(), type=SavedQueues)
        except FileNotFoundError:
            return SavedQueues()
        except DECODE_ERRORS as exc:
            raise QueueFileError(f"{self.path} is not a file of queues: {exc}") from exc
        if kept.format != FORMAT:
            raise QueueFileError(
                f"{self.path} has format {kept.format}, this version reads {FORMAT}"
            )
        return kept

    @contextlib.contextmanager
    def changing(self) -> Generator[SavedQueues]:
        """Locks the file and writes changes at the end, unless an exception is raised."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        lock = os.open(f"{self.path}.lock", os.O_WRONLY | os.O_CREAT, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX)
            kept = self.load()
            yield kept
            self._write(kept)
        finally:
            os.close(lock)

    def _write(self, kept: SavedQueues) -> None:
        beside = self.path.with_name(f"{self.path.name}.new")  # protected by the lock
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC
        with os.fdopen(os.open(beside, flags, 0o600), "wb") as file:
            os.fchmod(file.fileno(), 0o600)  # a file left over with another mode
            file.write(msgspec.json.format(msgspec.json.encode(kept)))
            file.flush()
            os.fsync(file.fileno())
        beside.replace(self.path)
