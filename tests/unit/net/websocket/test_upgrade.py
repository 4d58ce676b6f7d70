"""The opening request: what is accepted, what is refused and how."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from websockets.client import ClientProtocol
from websockets.typing import Subprotocol
from websockets.uri import parse_uri

from waystation.net.http1.limits import HttpLimits
from waystation.net.http1.message import Request, Response
from waystation.net.http1.message import Upgrade as SwitchProtocols
from waystation.net.http1.reader import Asked, RequestReader
from waystation.net.websocket.upgrade import TOKEN, Upgrade, accept_headers, read_upgrade

HEADERS = {
    "Host": "push.example",
    "Upgrade": "websocket",
    "Connection": "Upgrade",
    "Sec-WebSocket-Key": "dGhlIHNhbXBsZSBub25jZQ==",
    "Sec-WebSocket-Version": "13",
}


def request(line: str = "GET / HTTP/1.1", **changes: str | None) -> bytes:
    """The usual request; `None` removes a header. Underscores stand for dashes."""
    headers = dict(HEADERS)
    for name, value in changes.items():
        spelled = name.replace("_", "-")
        if value is None:
            headers.pop(spelled)
        else:
            headers[spelled] = value
    lines = [line, *(f"{name}: {value}" for name, value in headers.items()), "", ""]
    return "\r\n".join(lines).encode()


class Sink:
    """Of one request; refused by the reader, or read."""

    upgrades = frozenset({TOKEN})

    def __init__(self) -> None:
        self.ended = False
        self.request: Request | None = None
        self.status = 0

    def began(self) -> None: ...

    def expects(self) -> None: ...

    def accept(self, request: Request) -> None:
        self.request = self.request or request

    def cut_short(self, request: Request) -> None:
        self.accept(request)
        self.ended = True

    def refuse(self, status: int) -> None:
        self.status = status
        self.ended = True


def read(head: bytes) -> Upgrade | int | None:
    """An upgrade, the status of its refusal, or None for a plain request; 0 wants more bytes."""
    sink = Sink()
    reader = RequestReader(sink, HttpLimits(), lambda _request: 0)
    more = reader.feed(head)
    while isinstance(more, bytes) and not sink.ended:
        more = reader.feed(more)
    request = more.request if isinstance(more, Asked) else sink.request
    if request is None:
        return sink.status
    answer = read_upgrade(request)
    if isinstance(answer, Response):
        assert answer.close
        return answer.status
    return answer


def asked(head: bytes) -> Request:
    more = RequestReader(Sink(), HttpLimits(), lambda _request: 0).feed(head)
    assert isinstance(more, Asked)
    return more.request


def answer_to(upgrade: Upgrade) -> bytes:
    class Nothing: ...

    nothing: Any = Nothing()
    return SwitchProtocols.to(nothing, TOKEN, accept_headers(upgrade)).head + b"\r\n"


class TestUpgrades:
    def test_the_request_of_firefox_is_an_upgrade(self) -> None:
        """C-012: offers the sub-protocol and an extension, and lists two connection options."""
        parsed = read(
            request(
                User_Agent="Mozilla/5.0 Firefox/140.0",
                Origin="wss://push.example",
                Connection="keep-alive, Upgrade",
                Sec_WebSocket_Protocol="push-notification",
                Sec_WebSocket_Extensions="permessage-deflate",
            )
        )

        assert isinstance(parsed, Upgrade)
        assert parsed == Upgrade(
            path="/",
            query="",
            key=b"dGhlIHNhbXBsZSBub25jZQ==",
            subprotocol=True,
            user_agent="Mozilla/5.0 Firefox/140.0",
            origin="wss://push.example",
        )
        answer = answer_to(parsed)
        assert answer.startswith(b"HTTP/1.1 101 ")
        assert b"\r\nSec-WebSocket-Accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=\r\n" in answer
        assert b"\r\nSec-WebSocket-Protocol: push-notification\r\n" in answer
        assert b"xtensions" not in answer
        assert answer.endswith(b"\r\n\r\n")

    def test_a_subprotocol_is_not_echoed_unless_offered(self) -> None:
        """C-012."""
        for offer in ({}, {"Sec_WebSocket_Protocol": "chat, push-notification-2"}):
            parsed = read(request(**offer))
            assert isinstance(parsed, Upgrade)
            assert not parsed.subprotocol
            assert b"Protocol:" not in answer_to(parsed)

    def test_path_and_query_are_kept(self) -> None:
        parsed = read(request("GET /some/path?token=1&b=2 HTTP/1.1"))

        assert isinstance(parsed, Upgrade)
        assert (parsed.path, parsed.query) == ("/some/path", "token=1&b=2")

    def test_the_absolute_form_of_a_target_is_understood(self) -> None:
        parsed = read(request("GET http://push.example/a?b HTTP/1.1"))

        assert isinstance(parsed, Upgrade)
        assert (parsed.path, parsed.query) == ("/a", "b")

    def test_tokens_are_read_in_any_case_and_from_repeated_headers(self) -> None:
        head = request(Upgrade="WebSocket", Connection="keep-alive").replace(
            b"\r\n\r\n", b"\r\nconnection: UPGRADE\r\n\r\n"
        )

        assert isinstance(read(head), Upgrade)

    def test_websockets_client_is_content_with_our_answer(self) -> None:
        client = ClientProtocol(
            parse_uri("ws://push.example/x"), subprotocols=[Subprotocol("push-notification")]
        )
        client.send_request(client.connect())
        parsed = read(b"".join(client.data_to_send()))
        assert isinstance(parsed, Upgrade)

        client.receive_data(answer_to(parsed))

        assert client.handshake_exc is None
        assert client.subprotocol == "push-notification"


class TestRefusals:
    @pytest.mark.parametrize(
        "head",
        [
            request("POST / HTTP/1.1"),
            request("GET / HTTP/1.0"),
            request(Host=None),
            request(Connection=None),
            request(Connection="keep-alive"),
            request(Sec_WebSocket_Key=None),
            request(Sec_WebSocket_Key="c2hvcnQ="),
            request(Sec_WebSocket_Key="not base64 at all, is it?"),
            request(Sec_WebSocket_Version=None),
            request(Sec_WebSocket_Version="thirteen"),
            request(Content_Length="5"),
            request(Transfer_Encoding="chunked") + b"0\r\n\r\n",
            request("GET * HTTP/1.1"),
            request("GET http:// HTTP/1.1"),
            request("GET / HTTP/9.9"),
            request().replace(b"Host:", b"Ho st:"),
            request().replace(b"\r\n", b"\r\nHost: other\r\n", 1),
            b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n",
            b"SSH-2.0-OpenSSH_9.2\r\n\r\n",
        ],
    )
    def test_a_mistake_is_a_bad_request(self, head: bytes) -> None:
        assert read(head) == 400

    @pytest.mark.parametrize("version", ["8", "12", "14", "0"])
    def test_another_version_is_told_which_one_we_speak(self, version: str) -> None:
        """RFC 6455 section 4.2.2."""
        answer = read_upgrade(asked(request(Sec_WebSocket_Version=version)))

        assert isinstance(answer, Response)
        assert answer.status == 426
        assert b"\r\nSec-WebSocket-Version: 13\r\n" in answer.head

    @given(st.binary(max_size=300))
    def test_any_bytes_are_parsed_or_refused(self, head: bytes) -> None:
        assert read(head + b"\r\n\r\n") != 200

    @given(st.data())
    def test_a_damaged_request_is_parsed_or_refused(self, data: st.DataObject) -> None:
        head = bytearray(request(User_Agent="x"))
        for _ in range(data.draw(st.integers(1, 4))):
            head[data.draw(st.integers(0, len(head) - 1))] = data.draw(st.integers(0, 255))

        assert read(bytes(head)) != 200


class TestPlainRequests:
    def test_empty_lines_before_a_request_are_ignored(self) -> None:
        """RFC 9112 section 2.2."""
        assert read(b"\r\n\r\n") == 0
        assert isinstance(read(b"\r\n\r\n" + request()), Upgrade)

    def test_a_health_route_is_a_plain_request(self) -> None:
        assert read(b"GET /__heartbeat__?x=1 HTTP/1.1\r\nHost: a\r\n\r\n") is None

    def test_an_upgrade_to_something_else_is_a_plain_request(self) -> None:
        assert read(request(Upgrade="h2c")) is None
