"""The request that nearly every read is: one whole POST, its head and its body, and nothing else.

Rule 1: whatever is out of the ordinary is left to httptools: several requests, parts of one, bodies
        without a length, repeated names, upgrades, everything that might be a trick. None is then
        the answer, and nothing has been changed; so there is one judge of what is valid HTTP, and
        what is read here is read as that judge would read it.
Rule 2: what comes again is read once: first lines; other lines, because most are the same in every
        request of every sender; and all the lines of a head together, because a sender says the
        same to all its subscribers. Requests that have them share them, so nobody changes them.
        A first line and a head that come again together keep what was found of them as well.
Rule 3: a line or a head that comes once leaves nothing but a mark: a sender with a new token for
        every request would fill the memory with lines that are never seen again. (A first line is
        kept at once, as whoever asks where its path leads keeps that too.)
Rule 4: what an Authorization says is new with every request of some senders, and the rest of their
        heads is not; so a head is known without that line too.

Five calls of bytes for a head take 3 us where httptools' callbacks, one for each header, take 7; a
head that came before takes 1.2, to the same path 0.8, one that came before with another
Authorization 3.4.
"""

from collections.abc import Callable, Mapping
from typing import Final

from waystation.base.http_message import Familiar, Meaning, Request, SharedHeaders

LINES_MAX: Final = 1_024  # that are remembered
LINE_BYTES_MAX: Final = 512  # an Authorization is shorter; the same object is found by others too
FIRSTS_MAX: Final = 8_192
HEADS_MAX: Final = 256
HEAD_BYTES_MAX: Final = 2_048
_MARKS: Final = 1_024

_TOKEN: Final = (  # RFC 9110, section 5.6.2
    b"!#$%&'*+-.^_`|~0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
)
_VALUE: Final = bytes(range(0x20, 0x7F))
_PATH: Final = b"-._~!$&'()*+,;=:@/%0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
_AUTHORIZATION: Final = b"uthorization: "  # and its first letter, of either case
_AUTHORIZATION_BYTES: Final = len(_AUTHORIZATION) + 1


def _only(letters: bytes) -> bytes:
    """A table by which `translate` changes everything else; it asks faster than by leaving out."""
    return bytes(byte if byte in letters else byte ^ 0xFF for byte in range(256))


_ONLY_VALUE: Final = _only(_VALUE)
_ONLY_PATH: Final = _only(_PATH)
_LINE_FEED: Final = ord("\n")
_KEEP_ALIVE: Final = b"keep-alive"
# What changes how a request is read, or what is to be done before it is whole.
_UNUSUAL: Final = frozenset(
    {b"expect", b"proxy-connection", b"trailer", b"transfer-encoding", b"upgrade"}
)
# Pure: what a line or a head says depends on nothing else.
_lines: dict[bytes, tuple[bytes, bytes]] = {}
_firsts: dict[bytes, Familiar] = {}  # by their first lines
_heads: dict[bytes, SharedHeaders] = {}  # without their first line
_unsigned: dict[bytes, SharedHeaders] = {}  # without their Authorization as well
_marks = [0] * _MARKS  # hashes of what came lately and is not remembered
_lengths = [0]  # from the end of its first line to the end of the last head


class Bounds:
    """What a server takes of a usual request; others are for httptools to refuse."""

    __slots__ = ("_headers_max", "body_limit", "mark")

    def __init__(self, headers_max: int, body_limit: Callable[[Request], int]) -> None:
        self._headers_max = headers_max
        self.body_limit = body_limit
        self.mark = object()  # stands for them where nothing may lead back to the server

    def hold(self, request: Request) -> bool:
        return len(request.headers) <= self._headers_max and len(request.body) <= self.body_limit(
            request
        )


def usual_post(data: bytes, bounds: Bounds) -> Request | None:
    """The request if `data` is one whole usual POST within these bounds."""
    first_end = data.find(b"\r")  # one letter is found much faster than two
    first = data[:first_end]
    familiar = _firsts.get(first)
    if familiar is None:
        path = _read_first(first)
        if path is None:
            return None
    else:
        path, headers = familiar.path, familiar.headers
        if headers is not None and data.startswith(headers.text, first_end):
            # A subscription has one sender, who mostly says the same to it: to compare that takes
            # a fraction of what it takes to find it.
            body = data[first_end + len(headers.text) :]
            if headers.body_bytes != len(body):
                return None
            request = Request(b"POST", path, headers, b"", body, familiar)
            if familiar.fits is not bounds.mark:
                if not bounds.hold(request):
                    return None
                familiar.fits = bounds.mark
            return request
    # Mostly as far as in the last request. Where there was an end before, the head has an empty
    # line, which no head that is known or read here has.
    head_end = first_end + _lengths[0]
    if data[head_end : head_end + 4] != b"\r\n\r\n":
        head_end = data.find(b"\r\n\r\n", first_end)
        if head_end < 0:
            return None
        _lengths[0] = head_end - first_end
    if data[first_end + 1] != _LINE_FEED:
        return None
    head = data[first_end + 2 : head_end]
    body = data[head_end + 4 :]
    headers = _heads.get(head) or _read_signed(head)
    if headers is not None:
        if headers.body_bytes != len(body):
            return None
        request = Request(b"POST", path, headers, b"", body)
        if headers.text and familiar is not None:
            _firsts[first] = request.familiar = Familiar(path, headers)
    else:
        read = _read_head(head)
        if read is None or read.get(b"content-length") != b"%d" % len(body):
            return None
        request = Request(b"POST", path, read, b"", body)
    return request if bounds.hold(request) else None


def _read_first(line: bytes) -> bytes | None:
    """The path in a first line. One that came once is remembered as well: whoever wants to know
    where it leads keeps it too, and finds it faster if it is the very same object."""
    path = line[5:-9]
    if (
        not line.startswith(b"POST /")
        or not line.endswith(b" HTTP/1.1")
        or path.translate(_ONLY_PATH) != path
    ):
        return None
    if len(line) <= LINE_BYTES_MAX:
        if len(_firsts) >= FIRSTS_MAX:
            _firsts.clear()
        _firsts[line] = Familiar(path)
    return path


def _read_signed(head: bytes) -> SharedHeaders | None:
    """A head of which all but the Authorization is known; None for any other."""
    start, end = _find_authorization(head)
    # Without its Authorization a head may end with the end of a line, if that was its last; what
    # ends so with it has an empty line, and is no head.
    if start < 0 or head.endswith(b"\r\n"):
        return None
    known = _unsigned.get(head[:start] + head[end + 2 :])
    value = head[start + _AUTHORIZATION_BYTES : end].strip(b" \t")
    if known is None or value.translate(_ONLY_VALUE) != value:
        return None
    headers = SharedHeaders(known)
    headers[b"authorization"] = value
    headers.body_bytes, headers.meaning, headers.proof = known.body_bytes, known.meaning, None
    headers.text = b""
    if len(head) <= HEAD_BYTES_MAX and _came_before(head):
        _remember(_heads, head, headers)
        headers.text = b"\r\n" + head + b"\r\n\r\n"
    return headers


def _find_authorization(head: bytes) -> tuple[int, int]:
    """Where its line starts and ends, if it is the first place that looks like one; else -1."""
    start = head.find(_AUTHORIZATION) - 1
    if (
        start < 0
        or not head.startswith((b"A", b"a"), start)
        or (start and not head.startswith(b"\r\n", start - 2))
    ):
        return -1, -1
    end = head.find(b"\r\n", start)
    return start, len(head) if end < 0 else end


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
    if len(head) <= HEAD_BYTES_MAX:
        start, end = _find_authorization(head)
        if start >= 0:
            unsigned = head[:start] + head[end + 2 :]
            if _came_before(unsigned):
                rest = {name: headers[name] for name in headers if name != b"authorization"}
                _remember(_unsigned, unsigned, _shared(rest))
        if _came_before(head):
            headers = _shared(headers)
            _remember(_heads, head, headers)
            headers.text = b"\r\n" + head + b"\r\n\r\n"
    return headers


def _shared(headers: Mapping[bytes, bytes]) -> SharedHeaders:
    shared = SharedHeaders(headers)
    length = headers.get(b"content-length", b"")
    # As it is usually written, so that it can be compared as a number.
    shared.body_bytes = int(length) if length.isdigit() and b"%d" % int(length) == length else -1
    shared.meaning = Meaning()
    shared.proof = None
    shared.text = b""
    return shared


def _remember(heads: dict[bytes, SharedHeaders], head: bytes, headers: SharedHeaders) -> None:
    if len(heads) >= HEADS_MAX:
        heads.clear()
        _firsts.clear()  # which keep heads too, and none but these
    heads[head] = headers


def _came_before(text: bytes) -> bool:
    """Lately, and has not been pushed out by others since; to be wrong costs a place in a memo."""
    mark = hash(text)
    place = mark % _MARKS
    beside = place ^ 1
    if _marks[place] == mark or _marks[beside] == mark:
        return True
    # Two that have one place and come by turns would push each other out for ever.
    _marks[beside] = _marks[place]
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
        or value.translate(_ONLY_VALUE) != value
        or name in _UNUSUAL
        or (name == b"connection" and value.lower() != _KEEP_ALIVE)
    ):
        raise _UnusualLine
    if len(line) <= LINE_BYTES_MAX and _came_before(line):
        if len(_lines) >= LINES_MAX:
            _lines.clear()
        _lines[line] = name, value
    return name, value
