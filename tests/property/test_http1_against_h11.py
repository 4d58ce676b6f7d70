"""Our reader of HTTP/1.1 requests beside h11: both accept and read the same.

Where they differ by intent, the difference is named here with its reason; anything else fails.
"""

import random
import re
from collections.abc import Callable

import h11
import pytest

from waystation.net.http1.limits import HttpLimits
from waystation.net.http1.message import Request
from waystation.net.http1.reader import RequestReader

Read = tuple[bytes, bytes, dict[bytes, bytes], bytes]  # method, target, headers, body

METHODS = (b"POST", b"GET", b"PUT", b"DELETE", b"OPTIONS")
TARGETS = (b"/", b"/wpush/v1/abc", b"/a?b=c", b"/%41", b"http://h/x", b"*")
VERSIONS = (*[b"HTTP/1.1"] * 8, b"HTTP/1.0", b"HTTP/1.2")
LINES = (
    b"Host: a",
    b"TTL: 60",
    b"Content-Length: 5",
    b"Content-Length: 0",
    b"Transfer-Encoding: chunked",
    b"Connection: close",
    b"Connection: keep-alive",
    b"Topic: abc",
    b"Authorization: vapid t=a.b.c, k=d",
    b"X-A:  b  ",
    b"Crypto-Key: a",
    b"Crypto-Key: b",
    b"Content-Encoding: aes128gcm",
    b"Urgency:",
)
CHUNKS = (
    b"5\r\nhello\r\n0\r\n\r\n",
    b"3\r\nabc\r\n2;x=y\r\nde\r\n0\r\n\r\n",
    b"0\r\n\r\n",
    b"0\r\nT: x\r\n\r\n",
)
PIECES = (
    b"\r\n",
    b"\n",
    b" ",
    b"\r",
    b"Content-Length: 3\r\n",
    b"Transfer-Encoding: identity\r\n",
    b"+",
    b"0",
)


def has_odd_first_line(data: bytes) -> bool:
    """httptools takes registered methods only (RFC 9110, section 16.1), and targets in one of the
    forms of RFC 9112, section 3.2."""
    return any(
        method.removeprefix(b"hello") not in METHODS or not re.match(rb"/|\*$|[A-Za-z]+://", target)
        for method, target in re.findall(rb"([^\s]*) +([^\s]*) +HTTP/", data)
    )


# What we refuse and h11 takes, by the bytes that show it.
STRICTER: tuple[Callable[[bytes], object], ...] = (
    re.compile(
        rb"(?<!\r)\n"
    ).search,  # RFC 9112, section 2.2: a line may end with LF alone; ours not
    re.compile(rb"\r(?!\n)").search,
    has_odd_first_line,
    re.compile(rb"://[/\s]").search,  # RFC 9110, section 4.2.1: a URL without a host
    re.compile(rb"://[^/\s]*[^/\s\w.:-]").search,  # the authority of an absolute target
    re.compile(rb"(?i)\r\n[0-9a-f]+[ \t]+\r|chunked[ \t]").search,  # blanks around a chunk's size
    re.compile(rb"HTTP/(?!1\.[01]\r)").search,  # 1.2 and the like: nobody sends them
    re.compile(rb"\r\n[ \t]").search,  # RFC 9112, section 5.2: folded lines are obsolete
    # RFC 9112, section 6.1: both together are how requests are smuggled.
    lambda data: (
        re.search(rb"(?i)transfer-encoding", data) and re.search(rb"(?i)content-length", data)
    ),
    lambda data: (
        len(re.findall(rb"(?i)\r\n(authorization|host):", data)) > 1
    ),  # the reader's rule 3
    lambda data: re.search(
        rb"[;\x00-\x08\x0e-\x1f\x7f-\xff]", data
    ),  # in chunk extensions, targets
)
# What we take and h11 refuses, by what h11 says.
LAXER = (
    "Missing mandatory Host: header",  # autopush-rs takes such requests as well
    "no request line received",  # RFC 9112, section 2.2: an empty line before a request is ignored
    "illegal request line",  # RFC 9112, section 3: more than one blank between the three words
)


class Taken:
    """The sink of a reader."""

    upgrades: frozenset[bytes] = frozenset()

    def __init__(self) -> None:
        self.ended = False
        self.refused = False
        self.requests: list[Read] = []

    def began(self) -> None: ...

    def expects(self) -> None: ...

    def accept(self, request: Request) -> None:
        target = request.path + (b"?" + request.query if request.query else b"")
        headers = dict(request.headers)
        if b"transfer-encoding" in headers:  # as h11 spells it
            headers[b"transfer-encoding"] = headers[b"transfer-encoding"].lower()
        self.requests.append((request.method, target, headers, request.body))
        self.ended = not request.keep_alive

    def cut_short(self, request: Request) -> None:
        self.ended = True

    def refuse(self, status: int) -> None:
        self.ended = self.refused = True


def ours(data: bytes) -> tuple[list[Read], bool]:
    """The requests, and whether what follows them was refused."""
    taken = Taken()
    reader = RequestReader(taken, HttpLimits(), lambda _: 100_000)
    more = reader.feed(data)
    while isinstance(more, bytes) and not taken.ended:
        more = reader.feed(more)
    return taken.requests, taken.refused


def theirs(data: bytes) -> tuple[list[Read], str]:
    """As `ours`; h11 says why."""
    connection = h11.Connection(h11.SERVER, max_incomplete_event_size=65_536)
    connection.receive_data(data)
    requests: list[Read] = []
    request: h11.Request | None = None
    body = b""
    try:
        while True:
            match connection.next_event():
                case h11.Request() as request:
                    body = b""
                case h11.Data() as part:
                    body += bytes(part.data)
                case h11.EndOfMessage():
                    assert request is not None
                    requests.append(
                        (request.method, _path_of(request.target), _joined(request), body)
                    )
                    connection.send(
                        h11.Response(status_code=200, headers=[("content-length", "0")])
                    )
                    connection.send(h11.EndOfMessage())
                    if (
                        connection.our_state is not h11.DONE
                        or connection.their_state is not h11.DONE
                    ):
                        return requests, ""
                    connection.start_next_cycle()
                case _:
                    return requests, ""
    except h11.RemoteProtocolError as error:
        return requests, str(error)


def _joined(request: h11.Request) -> dict[bytes, bytes]:
    headers: dict[bytes, bytes] = {}
    for name, value in request.headers:
        headers[name] = headers[name] + b", " + value if name in headers else value
    return headers


def _path_of(target: bytes) -> bytes:
    """Ours are paths; an empty query is none."""
    if not target.startswith(b"/") and b"://" in target:
        _, slash, path = target.partition(b"://")[2].partition(b"/")
        target = slash + path or b"/"
    return target.removesuffix(b"?")


def case(chance: random.Random) -> bytes:
    """A few requests as senders write them, with up to two mistakes."""
    parts: list[bytes] = []
    for _ in range(chance.choice([1, 1, 2, 3])):
        lines = chance.sample(LINES, chance.randrange(1, 6))
        if chance.random() < 0.9 and LINES[0] not in lines:
            lines.insert(0, LINES[0])
        words = chance.choice(METHODS), chance.choice(TARGETS), chance.choice(VERSIONS)
        parts.append(b"\r\n".join([b" ".join(words), *lines]) + b"\r\n\r\n")
        if b"Transfer-Encoding: chunked" in lines:
            parts.append(chance.choice(CHUNKS))
        elif b"Content-Length: 5" in lines:
            parts.append(b"hello")
    data = bytearray(b"".join(parts))
    for _ in range(chance.choice([0, 0, 1, 1, 2])):
        at = chance.randrange(len(data) + 1)
        match chance.randrange(5):
            case 0:
                data[at : at + 1] = bytes((chance.randrange(256),))
            case 1:
                del data[at : at + 1]
            case 2:
                data.insert(at, chance.choice(b"\t\n\r 0:,"))
            case 3:
                del data[at:]
            case _:
                data[at:at] = chance.choice(PIECES)
    return bytes(data)


def difference(data: bytes) -> str:
    """What one accepts or reads and the other does not; empty if that is as it should be."""
    (mine, refused), (other, reason) = ours(data), theirs(data)
    both = min(len(mine), len(other))
    if mine[:both] != other[:both]:
        return "the same request is read differently"
    if refused and not reason:
        # h11 judges a line when it is complete, httptools byte by byte.
        other, reason = theirs(data + b"\r\n\r\n")
    if (refused and not reason) or len(other) > len(mine):
        strange = any(method not in METHODS for method, *_ in other)
        meant = strange or any(shows(data) for shows in STRICTER)
        return "" if meant else "refused by us alone"
    if (reason and not refused) or len(mine) > len(other):
        return "" if reason.startswith(LAXER) else f"refused by h11 alone: {reason}"
    return ""


def found(seed: int, cases: int) -> list[tuple[bytes, str]]:
    chance = random.Random(seed)
    drawn = (case(chance) for _ in range(cases))
    return [(data, what) for data in drawn if (what := difference(data))]


def test_requests_with_mistakes_are_accepted_and_read_as_by_h11() -> None:
    assert found(seed=1, cases=10_000) == []


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(2, 12))
def test_a_million_requests_with_mistakes_are_accepted_and_read_as_by_h11(seed: int) -> None:
    assert found(seed, cases=100_000) == []


@pytest.mark.parametrize(
    "line",
    [
        b"Transfer-Encoding: ,chunked",
        b"Transfer-Encoding: identity, chunked",
        b"Transfer-Encoding: gzip",
        b"Transfer-Encoding: identity",
    ],
)
def test_a_transfer_encoding_other_than_chunked_is_refused(line: bytes) -> None:
    assert ours(b"POST / HTTP/1.1\r\nHost: a\r\n" + line + b"\r\n\r\n0\r\n\r\n") == ([], True)


def test_a_request_line_without_a_version_is_refused() -> None:
    assert ours(b"GET /aHTTP/1.1\r\nHost: a\r\n\r\n") == ([], True)
