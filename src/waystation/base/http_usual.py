"""The request that nearly every read is: one whole POST, its head and its body, and nothing else.

Rule 1: whatever is out of the ordinary is left to httptools: several requests, parts of one, bodies
        without a length, repeated names, upgrades, everything that might be a trick. None is then
        the answer, and nothing has been changed; so there is one judge of what is valid HTTP, and
        what is read here is read as that judge would read it.
Rule 2: what comes again is read once: first lines; other lines, because most are the same in every
        request of every sender; and all the lines of a head together, because a sender says the
        same to all its subscribers. Requests that have them share them, so nobody changes them.
        A first line and a head that come again together keep what was found of both.
Rule 3: a line or a head that comes once leaves nothing but a mark: a sender with a new token for
        every request would fill the memory with lines that are never seen again. (A first line is
        kept at once, as whoever asks where its path leads keeps that too.)
Rule 4: what an Authorization says is new with every request of some senders, and the rest of their
        heads is not; so a head is known without that line too, and what was found of it as well.

Five calls of bytes for a head take 3 us where httptools' callbacks, one for each header, take 7; a
head that came before takes 1.2, to the same path 0.8, one that came before with another
Authorization 3.4, to the same path 2.8.
"""

from collections.abc import Callable, Hashable, Mapping
from typing import Final, TypeVar

from waystation.base.http_message import Familiar, Meaning, Request, Rest, SharedHeaders

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
_Head = TypeVar("_Head", SharedHeaders, Rest)
# Pure: what a line or a head says depends on nothing else.
_lines: dict[bytes, tuple[bytes, bytes]] = {}
_firsts: dict[bytes, Familiar] = {}  # by their first lines
_heads: dict[bytes, SharedHeaders] = {}  # without their first line
_rests: dict[bytes, Rest] = {}  # without their Authorization as well
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
        if len(request.headers) > self._headers_max or len(request.body) > self.body_limit(request):
            return False
        if request.familiar is not None:
            request.familiar.fits = self.mark
        return True


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
            return request if familiar.fits is bounds.mark or bounds.hold(request) else None
        request = _read_anew(data, first_end, familiar)
        if request is not None:
            return request if familiar.fits is bounds.mark or bounds.hold(request) else None
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
        if familiar is not None:
            request.familiar = _firsts[first] = _with(familiar, headers)
    else:
        read = _read_head(head)
        if read is None or read.get(b"content-length") != b"%d" % len(body):
            return None
        request = Request(b"POST", path, read, b"", body)
    return request if bounds.hold(request) else None


def _read_anew(data: bytes, first_end: int, familiar: Familiar) -> Request | None:
    """A request that differs from the last with this first line in its Authorization and body."""
    rest = familiar.rest
    if rest is None or not data.startswith(rest.before, first_end):
        return None
    start = first_end + len(rest.before)
    end = data.find(b"\r", start)
    if not data.startswith(rest.after, end):
        return None
    body_start = end + len(rest.after)
    body = data[body_start:]
    if len(body) != rest.body_bytes:
        return None
    authorization = data[start:end]
    if _came_before((authorization, rest.before)):  # several senders by turns
        text = data[first_end:body_start]
        headers = _heads.get(text[2:-4]) or _signed(rest, authorization)
        if headers is None:
            return None
        if not headers.text:
            _remember_head(text, headers)
        if headers.text:  # it is not too long to be remembered
            familiar.headers = headers
    else:
        headers = _signed(rest, authorization)
        if headers is None:
            return None
    return Request(b"POST", familiar.path, headers, b"", body, familiar)


def _with(familiar: Familiar, headers: SharedHeaders) -> Familiar:
    """What is kept with its first line, from a request with these headers on."""
    rest = headers.rest
    if rest is None or familiar.rest is not rest:
        familiar = Familiar(familiar.path, rest)
    if headers.text:
        familiar.headers = headers
    return familiar


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
    rest = _rests.get(head[:start] + head[end + 2 :])
    if rest is None:
        return None
    authorization = head[start + _AUTHORIZATION_BYTES : end]
    headers = _signed(rest, authorization)
    if headers is not None and _came_before((authorization, rest.before)):
        _remember_head(b"\r\n" + head + b"\r\n\r\n", headers)
    return headers


def _signed(rest: Rest, authorization: bytes) -> SharedHeaders | None:
    value = authorization.strip(b" \t")
    if value.translate(_ONLY_VALUE) != value:
        return None
    headers = SharedHeaders(rest.headers)
    headers[b"authorization"] = value
    headers.body_bytes, headers.meaning, headers.rest = rest.body_bytes, rest.meaning, rest
    headers.proof, headers.text = None, b""
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
        rest = _read_rest(head, headers)
        if _came_before(head):
            headers = _shared(headers, rest)
            _remember_head(b"\r\n" + head + b"\r\n\r\n", headers)
    return headers


def _read_rest(head: bytes, headers: Mapping[bytes, bytes]) -> Rest | None:
    """Of a head that was read, if it came before but for its Authorization."""
    start, end = _find_authorization(head)
    if start < 0:
        return None
    unsigned = head[:start] + head[end + 2 :]
    if not _came_before(unsigned):
        return None
    rest = Rest(
        {name: headers[name] for name in headers if name != b"authorization"},
        b"\r\n" + head[: start + _AUTHORIZATION_BYTES],
        head[end:] + b"\r\n\r\n",
        _body_bytes(headers),
        Meaning(),
    )
    _remember(_rests, unsigned, rest)
    return rest


def _shared(headers: Mapping[bytes, bytes], rest: Rest | None) -> SharedHeaders:
    shared = SharedHeaders(headers)
    shared.body_bytes = _body_bytes(headers)
    shared.meaning = Meaning() if rest is None else rest.meaning
    shared.proof = None
    shared.rest = rest
    shared.text = b""
    return shared


def _body_bytes(headers: Mapping[bytes, bytes]) -> int:
    length = headers.get(b"content-length", b"")
    # As it is usually written, so that it can be compared as a number.
    return int(length) if length.isdigit() and b"%d" % int(length) == length else -1


def _remember_head(text: bytes, headers: SharedHeaders) -> None:
    if len(text) <= HEAD_BYTES_MAX:
        headers.text = text
        _remember(_heads, text[2:-4], headers)


def _remember(heads: dict[bytes, _Head], head: bytes, known: _Head) -> None:
    if len(heads) >= HEADS_MAX:
        heads.clear()
        _firsts.clear()  # which keep heads too, and none but these
    heads[head] = known


def _came_before(text: Hashable) -> bool:
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
