"""The short way to read a usual POST says what httptools says, or leaves it to httptools."""

import random
from unittest.mock import patch

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from waystation.base import http_usual
from waystation.base.http_limits import HttpLimits
from waystation.base.http_message import Request, SharedHeaders
from waystation.base.http_reader import RequestReader
from waystation.base.http_usual import HEAD_BYTES_MAX, HEADS_MAX, LINES_MAX, Bounds, usual_post

HEADERS_MAX = 10
BODY_MAX = 20
BOUNDS = Bounds(HEADERS_MAX, lambda _: 1_000)
USUAL = b"POST /wpush/v2/abc HTTP/1.1\r\nHost: h\r\nTTL: 60\r\nContent-Length: 3\r\n\r\nabc"


@pytest.fixture
def every_mark_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else one in some hundred runs has two texts with one place for their marks."""
    seen: set[bytes] = set()

    def came_before(text: bytes) -> bool:
        before = text in seen
        seen.add(text)
        return before

    monkeypatch.setattr(http_usual, "_came_before", came_before)


class Seen:
    """A sink that writes down what it is told."""

    upgrades = frozenset({b"link"})

    def __init__(self) -> None:
        self.ended = False
        self.told: list[object] = []

    def began(self) -> None:
        pass  # who sends a whole request at once is not waited for

    def expects(self) -> None:
        self.told.append("expects")

    def accept(self, request: Request) -> None:
        read = [name for name in Request.__struct_fields__ if name != "familiar"]
        self.told.append([getattr(request, name) for name in read])

    def cut_short(self, request: Request) -> None:
        self.told.append("cut short")
        self.accept(request)
        self.ended = True

    def refuse(self, status: int) -> None:
        self.told.append(status)
        self.ended = True


def told(pieces: list[bytes], *, quick: bool) -> list[object]:
    sink = Seen()
    limits = HttpLimits(headers_max=HEADERS_MAX, discarded_bytes_max=40)
    reader = RequestReader(sink, limits, Bounds(HEADERS_MAX, lambda _: BODY_MAX))
    with patch("waystation.base.http_reader.usual_post", usual_post if quick else lambda *_: None):
        for piece in pieces:
            if sink.ended:
                break
            more: object = piece
            while isinstance(more, bytes):
                more = reader.feed(more)
            sink.told.append((more is None, reader.in_message))
    return sink.told


NAMES = st.sampled_from(
    b"Host|TTL|ttl|Authorization|Content-Length|Connection|Expect|Transfer-Encoding|Upgrade|Topic"
    b"|X-\xe9|Bad Name|| Folded|Proxy-Connection|Trailer".split(b"|")
)
VALUES = st.sampled_from(
    b"60|3|03|+3|3 |\t3|close|keep-alive|Keep-Alive|link|h2c|Upgrade|chunked|100-continue"
    b"|vapid t=a.b.c, k=d||a\tb|a\rb|a\nb|a\0b|\x7f|\xff|21|41|close, keep-alive".split(b"|")
)
LINES = st.builds(
    lambda name, colon, value: name + colon + value,
    NAMES,
    st.sampled_from([b": ", b":", b" : ", b":  "]),
    VALUES,
)
TARGETS = st.sampled_from(
    [
        b"/wpush/v2/abc",
        b"/a%20b",
        b"/a?b=c",
        b"/a#b",
        b"*",
        b"http://h/x",
        b"/a b",
        b"/\xff",
        b"/\0",
    ]
)
REQUESTS = st.builds(
    lambda method, target, version, lines, length, end, body: (
        method
        + target
        + version
        + end
        + end.join([*lines, b"Content-Length: %d" % length])
        + end
        + end
        + body
    ),
    st.sampled_from([b"POST ", b"PUT ", b"post ", b"POST  ", b" POST ", b"\r\nPOST "]),
    TARGETS,
    st.sampled_from([b" HTTP/1.1", b" HTTP/1.0", b" HTTP/2.0", b"", b"  HTTP/1.1", b" http/1.1"]),
    st.lists(LINES, max_size=12),
    st.sampled_from([0, 3, 4, 21, 41]),
    st.sampled_from([b"\r\n", b"\r\n", b"\r\n", b"\n", b"\r"]),
    st.sampled_from([b"", b"abc", b"abcd", b"a\r\n\r\nb", b"x" * 21, USUAL]),
)


@settings(max_examples=150, deadline=None)
@given(st.lists(st.one_of(st.just(USUAL), REQUESTS), min_size=1, max_size=3), st.booleans())
@example([USUAL, b"\r", USUAL], False)
@example([USUAL[:40], USUAL[40:], USUAL], False)
@example([USUAL + USUAL], False)
@example([USUAL.replace(b"Host", b"Connection: Upgrade\r\nUpgrade: h2c\r\nHost")], False)
def test_what_is_read_is_what_httptools_reads(pieces: list[bytes], joined: bool) -> None:
    if joined:
        pieces = [b"".join(pieces)]
    assert told(pieces, quick=True) == told(pieces, quick=False)


def test_a_usual_post_is_read_without_httptools() -> None:
    request = usual_post(USUAL, BOUNDS)
    assert request is not None
    assert (request.method, request.path, request.body) == (b"POST", b"/wpush/v2/abc", b"abc")
    assert request.headers == {b"host": b"h", b"ttl": b"60", b"content-length": b"3"}
    assert request.keep_alive


@pytest.mark.parametrize(
    "line",
    b"Transfer-Encoding: chunked|Expect: 100-continue|Upgrade: h2c|Connection: close|TTL: 61"
    b"| folded: 1|X : 1|X|X: \x01|Content-Length: 3".split(b"|"),
    ids=repr,
)
def test_what_is_unusual_is_left_to_httptools(line: bytes) -> None:
    assert usual_post(USUAL.replace(b"Host: h", b"Host: h\r\n" + line), BOUNDS) is None


EMPTY = b"POST /wpush/v2/abc HTTP/1.1\r\nHost: h\r\nContent-Length: 0\r\nTTL: 60\r\n\r\n"


@pytest.mark.parametrize("whole", [USUAL, EMPTY], ids=["body", "empty"])
def test_a_request_that_is_not_whole_is_left_to_httptools(whole: bytes) -> None:
    """A line that is cut would say something else: `TTL: 6` for `TTL: 60`."""
    assert usual_post(whole, BOUNDS) is not None
    assert not any(usual_post(whole[:length], BOUNDS) for length in range(len(whole)))


def test_heads_and_lines_that_are_remembered_are_few() -> None:
    for number in range(2 * LINES_MAX):
        for _ in range(3):
            request = usual_post(USUAL.replace(b"Host: h", b"X-%d: 1" % number), BOUNDS)
            assert request is not None
            assert request.headers[b"x-%d" % number] == b"1"
        assert len(http_usual._lines) <= LINES_MAX
        assert len(http_usual._heads) <= HEADS_MAX


def test_paths_that_are_remembered_are_few_and_good(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_usual, "FIRSTS_MAX", 10)
    for number in range(50):
        for _ in range(2):
            path = b"/wpush/v2/%d" % number
            request = usual_post(USUAL.replace(b"/wpush/v2/abc", path), BOUNDS)
            assert request is not None
            assert request.path == path
            for bad in (path + b"\x80", path + b"?" + b"q", path + b"#", path + b" x", b"x"):
                assert usual_post(USUAL.replace(b"/wpush/v2/abc", bad), BOUNDS) is None
                assert bad not in [known.path for known in http_usual._firsts.values()]
            long = path + b"/" * 512
            request = usual_post(USUAL.replace(b"/wpush/v2/abc", long), BOUNDS)
            assert request is not None
            assert request.path == long
            assert long not in [known.path for known in http_usual._firsts.values()]
        assert len(http_usual._firsts) <= 10


@pytest.mark.usefixtures("every_mark_stays")
def test_a_path_whose_head_is_known_may_come_with_another() -> None:
    others = [
        USUAL.replace(b"TTL: 60", b"TTL: 61"),
        USUAL.replace(b"Host: h", b"Authorization: a"),
        USUAL.replace(b"Host: h", b"Authorization: b"),
    ]
    for _ in range(3):
        for data in (USUAL, USUAL, *others):
            request = usual_post(data, BOUNDS)
            assert request is not None
            lines = [line.lower().split(b": ") for line in data.split(b"\r\n")[1:-2]]
            assert request.headers == dict(lines)
            assert (request.path, request.body) == (b"/wpush/v2/abc", b"abc")
    assert usual_post(USUAL + b"d", BOUNDS) is None
    assert usual_post(USUAL[:-1], BOUNDS) is None
    assert usual_post(USUAL, Bounds(2, lambda _: BODY_MAX)) is None


def test_a_known_first_line_is_followed_by_a_line_end() -> None:
    for _ in range(3):
        assert usual_post(USUAL, BOUNDS) is not None
    for end in (b"\r", b"\n", b"\r\r", b"\n\n", b"\rX", b"", b"X"):
        assert usual_post(USUAL.replace(b"1.1\r\n", b"1.1" + end), BOUNDS) is None
    for length in range(len(USUAL)):
        assert usual_post(USUAL[:length], BOUNDS) is None


@pytest.mark.usefixtures("every_mark_stays")
def test_what_comes_again_is_read_once() -> None:
    first, second, third = (
        usual_post(USUAL.replace(b"abc HTTP", path + b" HTTP"), BOUNDS)
        for path in (b"a", b"b", b"c")
    )
    assert first is not None
    assert second is not None
    assert third is not None

    assert third.headers is second.headers
    assert third.path == b"/wpush/v2/c"


@pytest.mark.usefixtures("every_mark_stays")
def test_requests_that_differ_in_their_body_alone_are_familiar() -> None:
    post = USUAL.replace(b"Host: h", b"Host: familiar")
    for _ in range(2):
        usual_post(post, BOUNDS)
    first = usual_post(post, BOUNDS)
    second = usual_post(post[:-3] + b"xyz", BOUNDS)
    other = usual_post(post.replace(b"TTL: 60", b"TTL: 62"), BOUNDS)
    assert first is not None
    assert second is not None
    assert other is not None

    assert first.familiar is not None
    assert first.familiar is second.familiar
    assert (first.familiar.path, first.familiar.headers) == (first.path, first.headers)
    assert other.familiar is None


@pytest.mark.usefixtures("every_mark_stays")
def test_requests_that_differ_in_their_authorization_as_well_are_familiar() -> None:
    lines = b"TTL: 20\r\nAuthorization: ?\r\n"
    requests = [usual_post(signed(b"vapid %d" % n, lines), BOUNDS) for n in (0, 1, 2, 3, 3, 3, 2)]
    familiar = [request.familiar for request in requests if request is not None]
    headers = [request.headers for request in requests if request is not None]

    assert familiar[:2] == [None, None]
    assert familiar[2] is not None
    assert all(one is familiar[2] for one in familiar[2:])
    assert [one[b"authorization"] for one in headers] == [
        b"vapid %d" % n for n in (0, 1, 2, 3, 3, 3, 2)
    ]
    assert headers[5] is headers[4]
    assert headers[4] is not headers[3]
    assert all(request is not None and request.body == b"abc" for request in requests)


@pytest.mark.parametrize("cut", [b"", b"a", b"abcd"], ids=repr)
@pytest.mark.usefixtures("every_mark_stays")
def test_a_familiar_request_with_a_body_of_another_length_is_left_to_httptools(cut: bytes) -> None:
    lines = b"TTL: 21\r\nAuthorization: ?\r\n"
    for number in range(4):
        assert usual_post(signed(b"vapid %d" % number, lines), BOUNDS) is not None

    assert usual_post(signed(b"vapid 5", lines)[:-3] + cut, BOUNDS) is None
    assert usual_post(signed(b"vapid 3", lines)[:-3] + cut, BOUNDS) is None


@pytest.mark.usefixtures("every_mark_stays")
def test_an_authorization_that_is_too_long_to_be_remembered_does_not_speak_for_others() -> None:
    """Nothing is left of its head to compare with, and nothing begins with nothing."""
    lines = b"TTL: 24\r\nAuthorization: ?\r\n"
    for number in range(4):
        assert usual_post(signed(b"vapid %d" % number, lines), BOUNDS) is not None
    long = b"vapid " + b"x" * HEAD_BYTES_MAX
    for _ in range(3):
        request = usual_post(signed(long, lines), BOUNDS)
        assert request is not None
        assert request.headers[b"authorization"] == long

    assert usual_post(b"POST /wpush/v2/abc HTTP/1.1\r\nX", BOUNDS) is None
    assert usual_post(b"POST /wpush/v2/abc HTTP/1.1\r\n", BOUNDS) is None


@pytest.mark.usefixtures("every_mark_stays")
def test_senders_by_turns_are_known_each_by_its_own_head() -> None:
    lines = b"TTL: 25\r\nAuthorization: ?\r\n"
    order = (0, 1, 2, 2, 3, 3, 2, 3, 2)
    requests = [usual_post(signed(b"vapid %d" % n, lines), BOUNDS) for n in order]
    headers = [request.headers for request in requests if request is not None]

    assert [one[b"authorization"] for one in headers] == [b"vapid %d" % n for n in order]
    assert headers[3] is headers[6] is headers[8]
    assert headers[5] is headers[7]


@pytest.mark.usefixtures("every_mark_stays")
def test_a_further_authorization_behind_the_one_that_is_new_is_left_to_httptools() -> None:
    lines = b"TTL: 22\r\nAuthorization: ?\r\n"
    for number in range(4):
        assert usual_post(signed(b"vapid %d" % number, lines), BOUNDS) is not None

    for value in (b"a\r\nAuthorization: b", b"a\r\nX: b", b"a\rb", b"a\nb", b"\r\n", b"\r"):
        request = usual_post(signed(value, lines), BOUNDS)
        if value == b"a\r\nX: b":
            assert request is not None
            assert request.headers[b"x"] == b"b"
            assert request.headers[b"authorization"] == b"a"
        else:
            assert request is None


@pytest.mark.usefixtures("every_mark_stays")
def test_what_was_found_of_a_path_with_one_head_is_not_there_with_another() -> None:
    posts = [USUAL.replace(b"TTL: 60", b"TTL: 6%d" % n) for n in (3, 4)]
    for turn in range(4):
        for number, post in enumerate(posts):
            request = usual_post(post, BOUNDS)
            assert request is not None
            if turn > 1:
                assert request.familiar is not None
                assert request.familiar.found is None
                request.familiar.found = number


@pytest.mark.usefixtures("every_mark_stays")
def test_each_server_has_its_own_bounds_for_what_is_familiar_to_another() -> None:
    wide, few, short = (
        Bounds(HEADERS_MAX, lambda _: 3),
        Bounds(2, lambda _: 3),
        Bounds(HEADERS_MAX, lambda _: 2),
    )
    for _ in range(4):
        assert usual_post(USUAL, wide) is not None
        assert usual_post(USUAL, few) is None
        assert usual_post(USUAL, short) is None


def test_two_that_have_one_place_for_their_marks_do_not_push_each_other_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(http_usual, "_MARKS", 1)
    monkeypatch.setattr(http_usual, "_marks", [0, 0])
    asked = [http_usual._came_before(text) for text in (b"a", b"b", b"a", b"b", b"c", b"a")]

    assert asked == [False, False, True, True, False, False]


def test_what_comes_once_is_not_remembered() -> None:
    for _ in range(2):
        usual_post(USUAL, BOUNDS)  # its other lines are known from here on
    before = len(http_usual._lines), len(http_usual._heads)
    for number in range(100):
        line = b"Authorization: once %d" % number
        assert usual_post(USUAL.replace(b"Host: h", line), BOUNDS) is not None

    assert (len(http_usual._lines), len(http_usual._heads)) == before


def signed(authorization: bytes, lines: bytes) -> bytes:
    return (
        b"POST /wpush/v2/abc HTTP/1.1\r\n"
        + lines.replace(b"?", authorization)
        + b"Content-Length: 3\r\n\r\nabc"
    )


@pytest.mark.parametrize(
    "lines",
    [
        b"Authorization: ?\r\nTTL: 7\r\n",
        b"TTL: 8\r\nAuthorization: ?\r\nTopic: t\r\n",
        b"TTL: 9\r\nauthorization:  ? \r\n",
    ],
    ids=["first", "between", "odd"],
)
@pytest.mark.usefixtures("every_mark_stays")
def test_heads_that_differ_in_their_authorization_are_understood_once(lines: bytes) -> None:
    requests = [usual_post(signed(b"vapid %d" % n, lines), BOUNDS) for n in range(4)]
    headers = [request.headers for request in requests if request is not None]

    assert [one[b"authorization"] for one in headers] == [b"vapid %d" % n for n in range(4)]
    assert all(
        {**one, b"authorization": b""} == {**headers[0], b"authorization": b""} for one in headers
    )
    third, fourth = headers[2:]
    assert isinstance(third, SharedHeaders)
    assert isinstance(fourth, SharedHeaders)
    assert third.meaning is fourth.meaning
    assert third.body_bytes == 3


def test_what_looks_like_an_authorization_within_another_line_is_none() -> None:
    """Else somebody might teach us what the others' heads mean."""
    false = USUAL.replace(b"Host: h", b"X: uthorization: 1\r\nHost: h")
    for _ in range(4):
        assert usual_post(false, BOUNDS) is not None
    request = usual_post(USUAL.replace(b"Host: h", b"Authorization: 2\r\nX:Host: h"), BOUNDS)

    assert request is not None
    assert request.headers[b"x"] == b"Host: h"
    assert request.headers[b"authorization"] == b"2"


@pytest.mark.parametrize("value", [b"a\x01", b"a\xff", b"a\tb", b"a\rb", b"a\nb"], ids=repr)
@pytest.mark.usefixtures("every_mark_stays")
def test_an_unusual_authorization_is_left_to_httptools_where_the_rest_is_known(
    value: bytes,
) -> None:
    lines = b"TTL: 10\r\nAuthorization: ?\r\n"
    for number in range(4):
        assert usual_post(signed(b"vapid %d" % number, lines), BOUNDS) is not None

    assert usual_post(signed(value, lines), BOUNDS) is None


def test_a_known_head_with_a_body_of_another_length_is_left_to_httptools() -> None:
    for _ in range(4):
        assert usual_post(USUAL, BOUNDS) is not None

    assert usual_post(USUAL + b"d", BOUNDS) is None
    assert usual_post(USUAL[:-1], BOUNDS) is None


def test_a_head_that_ends_before_the_last_one_did_is_not_read_beyond_its_end() -> None:
    """Even if its body looks like the end of a head where the last one ended."""
    long = USUAL.replace(b"Host: h", b"Host: " + b"h" * 40)
    for cut in range(30, 60):
        body = b"x" * cut + b"\r\n\r\n" + b"x" * 30
        short = b"POST /wpush/v2/abc HTTP/1.1\r\nContent-Length: %d\r\n\r\n" % len(body) + body
        assert usual_post(long, BOUNDS) is not None
        request = usual_post(short, BOUNDS)

        assert request is None or (request.body, len(request.headers)) == (body, 1)


@pytest.mark.usefixtures("every_mark_stays")
def test_an_empty_line_after_an_authorization_at_the_end_is_not_taken_for_a_part_of_its_head() -> (
    None
):
    """Without that line the head would be known, and two bytes of the body would be gone."""
    whole = b"POST /a HTTP/1.1\r\nContent-Length: 4\r\nTTL: 11\r\nAuthorization: %b\r\n\r\n%b"
    for number in range(4):
        assert usual_post(whole % (b"vapid %d" % number, b"body"), BOUNDS) is not None
    # Two bytes longer, so that the head of `odd` seems to end where this one did.
    assert usual_post(whole % (b"vapid 44", b"body"), BOUNDS) is not None
    odd = whole % (b"vapid ", b"\r\nbody")

    assert usual_post(odd, BOUNDS) is None


@pytest.mark.usefixtures("every_mark_stays")
def test_requests_that_resemble_those_before_are_read_as_httptools_reads_them() -> None:
    """Heads that are known, with tokens of other lengths, and what looks like an end nearby: what
    was guessed from the last request must not change what the next one says."""
    chance = random.Random(7)
    heads = [
        [b"TTL: 12", b"Authorization: ?"],
        [b"Authorization: ?", b"TTL: 12"],
        [b"authorization: ?", b"Topic: t"],
    ]
    quickly = 0
    for _ in range(3_000):
        body = chance.choice([b"body", b"\r\nbody", b"\r\n\r\n", b"\r\n\r\nbody"])
        told_bytes = len(body) + chance.choice([0, 0, 0, -2, 2])
        token = chance.choice([b"", b"a", b"aa", b"aaa", b"aaaaa", b"a" * HEAD_BYTES_MAX])
        lines = [b"Content-Length: %d" % told_bytes, *chance.choice(heads)]
        head = b"\r\n".join(lines).replace(b"?", token)
        whole = b"POST /a HTTP/1.1\r\n" + head + b"\r\n\r\n" + body
        if not chance.randrange(20):
            whole = b"POST /a HTTP/1.1\r\n" + body  # nothing else, which may be of the length told
        quickly += usual_post(whole, BOUNDS) is not None

        assert told([whole], quick=True) == told([whole], quick=False), whole
    assert quickly > 1_000
