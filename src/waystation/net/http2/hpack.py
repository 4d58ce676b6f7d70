"""Header compression (RFC 7541): a decoder with its table, and literals for what we send.

Rule 1: a block that cannot be decoded is `HpackError`; the table is then in doubt, so the
        connection ends (section 4.3 of RFC 9113).
Rule 2: the table never holds more than `table_bytes_max`, whatever the peer announces.
Rule 3: the fields of a block together stay within `list_bytes_max`, counted as section 6.5.2 of
        RFC 9113 does (name + value + 32); more is `TooManyHeadersError`. The block is decoded to
        its end all the same, because the table must stay in step with the peer's; but a block that
        unpacks to more than `unpacked_bytes_max` is `HpackBombError`, and the connection ends.

What we send is made of literals without indexing: our table stays empty, and the bytes of a
response are the same on every connection, made once.
"""

from functools import lru_cache

from .huffman import HuffmanError
from .huffman import decode as huffman_decode

ENTRY_BYTES = 32  # what an entry costs beyond its name and value (section 4.1)
_CACHED_BYTES_MAX = 48  # longer strings may be tokens: those are not kept

Field = tuple[bytes, bytes]

_STATIC_TEXT = """\
:authority
:method GET
:method POST
:path /
:path /index.html
:scheme http
:scheme https
:status 200
:status 204
:status 206
:status 304
:status 400
:status 404
:status 500
accept-charset
accept-encoding gzip, deflate
accept-language
accept-ranges
accept
access-control-allow-origin
age
allow
authorization
cache-control
content-disposition
content-encoding
content-language
content-length
content-location
content-range
content-type
cookie
date
etag
expect
expires
from
host
if-match
if-modified-since
if-none-match
if-range
if-unmodified-since
last-modified
link
location
max-forwards
proxy-authenticate
proxy-authorization
range
referer
refresh
retry-after
server
set-cookie
strict-transport-security
transfer-encoding
user-agent
vary
via
www-authenticate
"""


def _static_table() -> list[Field]:
    """Appendix A; index 0 is not used."""
    table: list[Field] = [(b"", b"")]
    for line in _STATIC_TEXT.splitlines():
        name, _, value = line.partition(" ")
        table.append((name.encode(), value.encode()))
    return table


STATIC = _static_table()
STATIC_COUNT = len(STATIC) - 1
assert STATIC_COUNT == 61


class HpackError(ValueError):
    """The block breaks the rules; the connection cannot go on."""


class TooManyHeadersError(ValueError):
    """The block is fine but says more than we listen to; its stream is refused."""


class HpackBombError(ValueError):
    """A few bytes stand for very many."""


@lru_cache(maxsize=1024)
def _short_text(coded: bool, raw: bytes) -> bytes:
    """Clients of one kind say the same words: their strings are decoded once and shared."""
    return huffman_decode(raw) if coded else raw


class Decoder:
    """One peer's table; `decode` takes whole blocks in the order they were sent."""

    __slots__ = (
        "_entries",
        "_list_bytes_max",
        "_size",
        "_size_max",
        "_table_bytes_max",
        "_unpacked_bytes_max",
    )

    def __init__(
        self,
        *,
        table_bytes_max: int = 4096,
        list_bytes_max: int = 16_384,
        unpacked_bytes_max: int = 131_072,
    ) -> None:
        self._table_bytes_max = table_bytes_max
        self._list_bytes_max = list_bytes_max
        self._unpacked_bytes_max = unpacked_bytes_max
        self._size_max = table_bytes_max
        self._size = 0
        self._entries: list[Field] = []  # the newest last

    def decode(self, block: bytes) -> list[Field]:
        try:
            return self._decode(block)
        except IndexError:
            raise HpackError("the block ends within a field") from None
        except HuffmanError as exc:
            raise HpackError(str(exc)) from None

    def _decode(self, block: bytes) -> list[Field]:
        fields: list[Field] = []
        left = self._list_bytes_max
        least = left - self._unpacked_bytes_max
        at = 0
        end = len(block)
        while at < end:
            first = block[at]
            if first & 0x80:  # section 6.1: an entry of the table
                index, at = _integer(block, at, 0x7F)
                field = self._entry(index)
            elif first & 0xC0 == 0x40:  # section 6.2.1: a literal that enters the table
                field, at = self._literal(block, at, 0x3F)
                self._add(field)
            elif first & 0xE0 == 0x20:  # section 6.3: a new size of the table
                if fields:
                    raise HpackError("a change of the table's size after a field")
                size, at = _integer(block, at, 0x1F)
                if size > self._table_bytes_max:
                    raise HpackError("a table larger than we allow")
                self._size_max = size
                self._shrink(size)
                continue
            else:  # sections 6.2.2 and 6.2.3
                field, at = self._literal(block, at, 0x0F)
            left -= len(field[0]) + len(field[1]) + ENTRY_BYTES
            if left >= 0:
                fields.append(field)
            elif left < least:
                raise HpackBombError(f"headers of more than {self._unpacked_bytes_max} bytes")
        if left < 0:
            raise TooManyHeadersError(f"headers of more than {self._list_bytes_max} bytes")
        return fields

    def _entry(self, index: int) -> Field:
        if 0 < index <= STATIC_COUNT:
            return STATIC[index]
        age = index - STATIC_COUNT
        if not 0 < age <= len(self._entries):
            raise HpackError(f"no entry {index} in the table")
        return self._entries[-age]

    def _literal(self, block: bytes, at: int, mask: int) -> tuple[Field, int]:
        index, at = _integer(block, at, mask)
        if index:
            name = self._entry(index)[0]
        else:
            name, at = _string(block, at)
        value, at = _string(block, at)
        return (name, value), at

    def _add(self, field: Field) -> None:
        size = len(field[0]) + len(field[1]) + ENTRY_BYTES
        if size > self._size_max:  # section 4.4: it empties the table and is not kept
            self._entries.clear()
            self._size = 0
            return
        self._shrink(self._size_max - size)
        self._entries.append(field)
        self._size += size

    def _shrink(self, size: int) -> None:
        gone = 0
        entries = self._entries
        while self._size > size:
            name, value = entries[gone]
            self._size -= len(name) + len(value) + ENTRY_BYTES
            gone += 1
        del entries[:gone]


def _integer(block: bytes, at: int, mask: int) -> tuple[int, int]:
    """Section 5.1; `mask` covers the prefix. Longer than four further bytes is a mistake."""
    value = block[at] & mask
    at += 1
    if value < mask:
        return value, at
    shift = 0
    while True:
        byte = block[at]
        at += 1
        value += (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7
        if shift > 21:
            raise HpackError("an integer out of all proportion")


def _string(block: bytes, at: int) -> tuple[bytes, int]:
    coded = block[at] >= 0x80
    length, at = _integer(block, at, 0x7F)
    end = at + length
    if end > len(block):
        raise HpackError("a string longer than its block")
    raw = block[at:end]
    if length <= _CACHED_BYTES_MAX:
        return _short_text(coded, raw), end
    return (huffman_decode(raw) if coded else raw), end


def _length(length: int, prefix_bits: int, first: int = 0) -> bytes:
    limit = (1 << prefix_bits) - 1
    if length < limit:
        return bytes((first | length,))
    out = bytearray((first | limit,))
    length -= limit
    while length >= 0x80:
        out.append(length & 0x7F | 0x80)
        length >>= 7
    out.append(length)
    return bytes(out)


def literal(name: bytes, value: bytes) -> bytes:
    """A field that enters nobody's table (section 6.2.2), in plain bytes."""
    for index in range(1, STATIC_COUNT + 1):
        if STATIC[index] == (name, value):
            return bytes((0x80 | index,))
    for index in range(1, STATIC_COUNT + 1):
        if STATIC[index][0] == name:
            return _length(index, 4) + _length(len(value), 7) + value
    return b"\x00" + _length(len(name), 7) + name + _length(len(value), 7) + value
