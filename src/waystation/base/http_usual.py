"""The request that nearly every read is: one whole POST, its head and its body, and nothing else.

Rule 1: whatever is out of the ordinary is left to httptools: several requests, parts of one, bodies
        without a length, repeated names, upgrades, everything that might be a trick. None is then
        the answer, and nothing has been changed; so there is one judge of what is valid HTTP, and
        what is read here is read as that judge would read it.
Rule 2: what comes again is read once: lines, because most are the same in every request of every
        sender, and all the lines of a head together, because a sender says the same to all its
        subscribers. They are shared by the requests that have them, so nobody changes them.
Rule 3: what comes once leaves nothing but a mark: a sender with a new token for every request would
        fill the memory with lines that are never seen again.

Five calls of bytes for a head take 3 us where httptools' callbacks, one for each header, take 7; a
head that came before takes 1.8.
"""

from collections.abc import Mapping
from typing import Final

from waystation.base.http_message import Request

LINES_MAX: Final = 1_024  # that are remembered
LINE_BYTES_MAX: Final = 512  # an Authorization is shorter; the same object is found by others too
HEADS_MAX: Final = 256
HEAD_BYTES_MAX: Final = 2_048
_MARKS: Final = 1_024

_TOKEN: Final = (  # RFC 9110, section 5.6.2
    b"!#$%&'*+-.^_`|~0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
)
_VALUE: Final = bytes(range(0x20, 0x7F))
_PATH: Final = b"-._~!$&'()*+,;=:@/%0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
_KEEP_ALIVE: Final = b"keep-alive"
# What changes how a request is read, or what is to be done before it is whole.
_UNUSUAL: Final = frozenset(
    {b"expect", b"proxy-connection", b"trailer", b"transfer-encoding", b"upgrade"}
)
# Pure: what a line or a head says depends on nothing else.
_lines: dict[bytes, tuple[bytes, bytes]] = {}
_heads: dict[bytes, Mapping[bytes, bytes]] = {}  # without their first line
_marks = [0] * _MARKS  # hashes of what came lately and is not remembered


def usual_post(data: bytes, headers_max: int) -> Request | None:
    """The request if `data` is one whole usual POST; its length of body has been checked."""
    first_end = data.find(b"\r\n")
    head_end = data.find(b"\r\n\r\n", first_end)
    if head_end < 0 or not data.startswith(b" HTTP/1.1", first_end - 9):
        return None
    path = data[5 : first_end - 9]
    if not data.startswith(b"POST /") or path.translate(None, _PATH):
        return None
    head = data[first_end + 2 : head_end]
    headers = _heads.get(head) or _read_head(head)
    body = data[head_end + 4 :]
    if (
        headers is None
        or len(headers) > headers_max
        or headers.get(b"content-length") != b"%d" % len(body)
    ):
        return None
    return Request(b"POST", path, headers, b"", body)


def _read_head(head: bytes) -> Mapping[bytes, bytes] | None:
    headers: dict[bytes, bytes] = {}
    lines = head.split(b"\r\n")
    known = _lines
    try:
        for line in lines:
            name, value = known.get(line) or _read(line)
            headers[name] = value
    except _UnusualLine:
        return None
    if len(headers) != len(lines):  # a name was repeated
        return None
    if len(head) <= HEAD_BYTES_MAX and _came_before(head):
        if len(_heads) >= HEADS_MAX:
            _heads.clear()
        _heads[head] = headers
    return headers


def _came_before(text: bytes) -> bool:
    """Lately, and has not been pushed out by others since; to be wrong costs a place in a memo."""
    mark = hash(text)
    place = mark % _MARKS
    if _marks[place] == mark:
        return True
    _marks[place] = mark
    return False


class _UnusualLine(Exception):  # noqa: N818 - no error: somebody else reads it
    pass


def _read(line: bytes) -> tuple[bytes, bytes]:
    name, colon, value = line.partition(b":")
    name, value = name.lower(), value.strip(b" \t")
    if (
        not colon
        or not name
        or name.translate(None, _TOKEN)
        or value.translate(None, _VALUE)
        or name in _UNUSUAL
        or (name == b"connection" and value.lower() != _KEEP_ALIVE)
    ):
        raise _UnusualLine
    if len(line) <= LINE_BYTES_MAX and _came_before(line):
        if len(_lines) >= LINES_MAX:
            _lines.clear()
        _lines[line] = name, value
    return name, value
