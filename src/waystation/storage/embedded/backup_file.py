"""The format of a backup file: rows of several stores with one checksum.

A file begins with a line that names the format. Frames of table, key and value follow; a frame with
the store's name precedes the rows of each store. The last frame is the SHA-256 of everything before
it. Version 1 of the format contained push only and no store names; it can still be read.
"""

import hashlib
import os
import struct
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import BinaryIO, Final

from waystation.base.errors import StoreUnavailableError

Entry = tuple[str, bytes, bytes]  # table, key, value
Saved = Mapping[str, tuple[str, ...]]  # store -> its saved tables; new ones go last

_MAGIC: Final = b"waystation backup 2\n"
_MAGIC_OF_PUSH: Final = b"waystation backup 1\n"
_FRAME: Final = struct.Struct(">BHI")  # table, lengths of key and value
_END: Final = 255
_STORE: Final = 254
_PORTION_BYTES: Final = 1 << 20


def write_archive(
    target: Path, stores: Iterable[tuple[str, Iterator[Entry]]], saved: Saved
) -> dict[str, dict[str, int]]:
    """Returns the number of rows written, by store and table."""
    if target.exists():
        raise StoreUnavailableError(f"{target} exists; a backup never overwrites a file")
    if not target.parent.is_dir():  # must not create the mount point of a missing volume
        raise StoreUnavailableError(f"the folder {target.parent} does not exist; create it first")
    partial = target.with_name(f".{target.name}.partial")
    descriptor = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    written: dict[str, dict[str, int]] = {}
    try:
        with os.fdopen(descriptor, "wb") as file:
            hashed = _Hashed(file)
            hashed.write(_MAGIC)
            for name, rows in stores:
                hashed.write(_FRAME.pack(_STORE, len(name), 0) + name.encode())
                numbers = {table: number for number, table in enumerate(saved[name])}
                counts = written[name] = dict.fromkeys(saved[name], 0)
                for table, key, value in rows:
                    hashed.write(_FRAME.pack(numbers[table], len(key), len(value)) + key + value)
                    counts[table] += 1
            digest = hashed.digest()
            file.write(_FRAME.pack(_END, 0, len(digest)) + digest)
            file.flush()
            os.fsync(file.fileno())
        partial.rename(target)
    finally:
        partial.unlink(missing_ok=True)
    flush_directory(target.parent)
    return written


def read_archive(source: Path, saved: Saved) -> Iterator[tuple[str, Entry | None]]:
    """Yields each store with None, then each of its rows. Raises at the end if the file is
    incomplete or damaged."""
    try:
        with source.open("rb") as file:
            yield from _read(file, source, saved)
    except OSError as exc:
        raise StoreUnavailableError(f"{source} cannot be read: {exc}") from exc


def _read(file: BinaryIO, source: Path, saved: Saved) -> Iterator[tuple[str, Entry | None]]:
    digest = hashlib.sha256()
    magic = file.read(len(_MAGIC))
    if magic not in (_MAGIC, _MAGIC_OF_PUSH):
        raise StoreUnavailableError(f"{source} is not a backup file of a supported version")
    digest.update(magic)
    store = ""
    if magic == _MAGIC_OF_PUSH:
        store = "push"
        yield store, None
    while True:
        head = file.read(_FRAME.size)
        if len(head) < _FRAME.size:
            raise StoreUnavailableError(f"{source} is cut off")
        number, key_length, value_length = _FRAME.unpack(head)
        body = file.read(key_length + value_length)
        if len(body) < key_length + value_length:
            raise StoreUnavailableError(f"{source} is cut off")
        if number == _END:
            if body != digest.digest():
                raise StoreUnavailableError(f"{source} is damaged: its checksum does not match")
            return
        digest.update(head)
        digest.update(body)
        if number == _STORE:
            store = body.decode(errors="replace")
            if store not in saved:
                raise StoreUnavailableError(f"{source} is damaged: unknown store")
            yield store, None
        elif number >= len(saved.get(store, ())):
            raise StoreUnavailableError(f"{source} is damaged: unknown table")
        else:
            yield store, (saved[store][number], body[:key_length], body[key_length:])


class _Hashed:
    """Buffered writer that also computes the SHA-256."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._digest = hashlib.sha256()
        self._waiting = bytearray()

    def write(self, data: bytes) -> None:
        self._waiting += data
        if len(self._waiting) >= _PORTION_BYTES:
            self._flush()

    def _flush(self) -> None:
        self._digest.update(self._waiting)
        self._file.write(self._waiting)
        self._waiting.clear()

    def digest(self) -> bytes:
        self._flush()
        return self._digest.digest()


def flush_directory(directory: Path) -> None:
    """Makes a rename durable by syncing its directory."""
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
