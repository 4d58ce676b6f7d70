"""File format of the in-flight journal.

A record is a four-byte length, a checksum of the body, and the body: a msgpack array for an
accepted notification, `s` and the sequence number for a settled one. (Earlier versions wrote `a`
before the array; that is still read.) A zero head or the end of the file ends the records. A torn
record at the end was never acknowledged to the endpoint and is ignored.

A plain file is a sequence of records with CRC-32. A mapped file has a page that names the active
one of two halves, each a sequence of records with CRC-32C and a seed (see `journal_map`).
"""

import struct
import zlib
from collections.abc import Callable, Iterator
from typing import Final, cast

import google_crc32c
import msgspec

from waystation.push.model import Notification, Update

HEAD: Final = struct.Struct(">II")  # length of the body, its checksum
NOTHING: Final = bytes(HEAD.size)
SETTLED: Final = struct.Struct(">sQ")

MAP_PAGE: Final = struct.Struct(">8sQQQ")  # magic, generation, salt, bytes of a half
MAP_MAGIC: Final = b"wsjmap1\n"
MAP_PAGE_BYTES: Final = 4096

# Implemented in C, ten times as fast as the Python fallback; the package has no type stubs.
crc32c = cast(Callable[[int, bytes], int], google_crc32c.extend)  # pyright: ignore[reportUnknownMemberType]


class Accepted(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One unacked direct notification."""

    sequence: int
    uaid: bytes
    notification: Notification | None = None
    update: Update | None = None


# `Accepted` as a plain tuple of the same fields: cheaper to make, and every message needs one.
Entry = tuple[int, bytes, Notification | None, Update | None]

_decode = msgspec.msgpack.Decoder(Accepted).decode
# No kind letter in front, which would cost a copy: no msgpack array begins with `a` or `s`.
accepted_body = cast(Callable[[Accepted | Entry], bytes], msgspec.msgpack.Encoder().encode)


def settled_body(sequence: int) -> bytes:
    return SETTLED.pack(b"s", sequence)


def record(body: bytes) -> bytes:
    """A record of a plain file."""
    return HEAD.pack(len(body), zlib.crc32(body)) + body


def seed_of(generation: int, salt: int) -> int:
    """Seed of a half's checksums; differs from that of the half's earlier contents."""
    return (generation * 0x9E3779B1 ^ salt) & 0xFFFF_FFFF


def read_unsettled(data: bytes) -> list[Accepted]:
    """The unsettled notifications in a journal's bytes, in the order of acceptance."""
    accepted: dict[int, Accepted] = {}
    for body in _bodies_of(data):
        if body.startswith(b"s"):
            accepted.pop(int.from_bytes(body[1:]), None)
        else:
            entry = _decode(body.removeprefix(b"a"))
            accepted[entry.sequence] = entry
    return list(accepted.values())


def _bodies_of(data: bytes) -> Iterator[bytes]:
    if not data.startswith(MAP_MAGIC):
        return _bodies(data, 0, len(data), zlib.crc32)
    if len(data) < MAP_PAGE_BYTES:
        return iter(())  # its creation was interrupted
    _, generation, salt, half_bytes = MAP_PAGE.unpack_from(data)
    start = MAP_PAGE_BYTES + generation % 2 * half_bytes
    seed = seed_of(generation, salt)
    return _bodies(data, start, start + half_bytes, lambda body: crc32c(seed, body))


def _bodies(
    data: bytes, position: int, end: int, checksum: Callable[[bytes], int]
) -> Iterator[bytes]:
    end = min(end, len(data))
    while position + HEAD.size <= end:
        length, expected = HEAD.unpack_from(data, position)
        position += HEAD.size
        body = data[position : position + length]
        if not length or len(body) < length or checksum(body) != expected:
            return  # the end, or a torn record of a process that died before it answered
        yield body
        position += length
