"""What a person's queues are, kept in a file between two commands.

Rule 1: the file holds private keys: mode 0600, replaced as a whole (write beside, fsync, rename).
Rule 2: a change reads, changes and writes under a lock, so that two commands at once lose nothing.
Rule 3: a file that cannot be read is an error that names it; it is never overwritten silently.
"""

import contextlib
import fcntl
import os
import re
from collections.abc import Generator
from pathlib import Path

import msgspec

from waystation.base.errors import RejectedError
from waystation.base.unreadable import UNREADABLE

from .address import QueueAddress
from .deliveries import REMEMBERED_MAX
from .keys import PrivateKey
from .parties import RecipientQueue, SenderQueue

FORMAT = 1
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


class KeepingError(RejectedError):
    """The file is not one of ours, or does not have what was asked for."""

    label = "queue_keeping"


class KeptQueue(msgspec.Struct, frozen=True):
    """A queue that we receive from."""

    queue: RecipientQueue
    acked: tuple[bytes, ...] = ()  # the last messages that were handled

    def handled(self, message_id: bytes) -> "KeptQueue":
        return KeptQueue(self.queue, (*self.acked, message_id)[-REMEMBERED_MAX:])


class KeptSender(msgspec.Struct, frozen=True):
    """A queue that we send to."""

    address: QueueAddress
    sender: SenderQueue
    sealing_key: PrivateKey  # X25519
    secured: bool = False  # whether the server has confirmed our key


class Kept(msgspec.Struct):
    queues: dict[str, KeptQueue] = {}  # msgspec copies the defaults
    senders: dict[str, KeptSender] = {}
    opening: dict[str, PrivateKey] = {}  # short links that we have begun to open, and with what
    format: int = FORMAT

    def free_name(self, prefix: str) -> str:
        number = 1
        while f"{prefix}{number}" in self.queues or f"{prefix}{number}" in self.senders:
            number += 1
        return f"{prefix}{number}"

    def claim(self, name: str) -> str:
        """`name`, if it may be given to something new."""
        if not NAME.fullmatch(name):
            raise KeepingError(f"{name!r} is no name: letters, digits, `.`, `_` and `-`, up to 64")
        if name in self.queues or name in self.senders:
            raise KeepingError(f"{name} is there already")
        return name

    def queue(self, name: str) -> KeptQueue:
        kept = self.queues.get(name)
        if kept is None:
            known = ", ".join(self.queues) or "none"
            raise KeepingError(f"no queue is called {name} (there are: {known})")
        return kept

    def sender_to(self, address: QueueAddress) -> str | None:
        """Under which name we send there already."""
        for name, kept in self.senders.items():
            known = kept.address
            if (known.server.fingerprint, known.sender_id) == (
                address.server.fingerprint,
                address.sender_id,
            ):
                return name
        return None


class KeptFile:
    def __init__(self, path: Path) -> None:
        self.path = path

    def load(self) -> Kept:
        """Empty if there is no file yet."""
        try:
            kept = msgspec.json.decode(self.path.read_bytes(), type=Kept)
        except FileNotFoundError:
            return Kept()
        except UNREADABLE as exc:
            raise KeepingError(f"{self.path} does not hold queues: {exc}") from exc
        if kept.format != FORMAT:
            raise KeepingError(f"{self.path} was written by another version")
        return kept

    @contextlib.contextmanager
    def changing(self) -> Generator[Kept]:
        """What is changed inside is written at its end, unless something is raised."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        lock = os.open(f"{self.path}.lock", os.O_WRONLY | os.O_CREAT, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX)
            kept = self.load()
            yield kept
            self._write(kept)
        finally:
            os.close(lock)

    def _write(self, kept: Kept) -> None:
        beside = self.path.with_name(f"{self.path.name}.new")  # the lock makes it ours
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC
        with os.fdopen(os.open(beside, flags, 0o600), "wb") as file:
            os.fchmod(file.fileno(), 0o600)  # should it have been there with another mode
            file.write(msgspec.json.format(msgspec.json.encode(kept)))
            file.flush()
            os.fsync(file.fileno())
        beside.replace(self.path)
