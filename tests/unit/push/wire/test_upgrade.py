"""The opening request: what is accepted, what is refused and how."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from websockets.client import ClientProtocol
from websockets.typing import Subprotocol
from websockets.uri import parse_uri

from waystation.push.wire.upgrade import (
    HttpHead,
    Refusal,
    Upgrade,
    accept_answer,
    head_length,
    http_answer,
    parse_head,
    unanswered,
)

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


def status_of(head: bytes) -> int:
    parsed = parse_head(head)
    assert isinstance(parsed, Refusal), parsed
    assert parsed.answer.startswith(b"HTTP/1.1 %d " % parsed.status)
    assert b"\r\nConnection: close\r\n" in parsed.answer
    return parsed.status


class TestUpgrades:
    def test_the_request_of_firefox_is_an_upgrade(self) -> None:
        """C-012: offers the sub-protocol and an extension, and lists two connection options."""
        parsed = parse_head(
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
        answer = accept_answer(parsed)
        assert answer.startswith(b"HTTP/1.1 101 ")
        assert b"\r\nSec-WebSocket-Accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=\r\n" in answer
        assert b"\r\nSec-WebSocket-Protocol: push-notification\r\n" in answer
        assert b"xtensions" not in answer
        assert answer.endswith(b"\r\n\r\n")

    def test_a_subprotocol_is_not_echoed_unless_offered(self) -> None:
        """C-012."""
        for offer in ({}, {"Sec_WebSocket_Protocol": "chat, push-notification-2"}):
            parsed = parse_head(request(**offer))
            assert isinstance(parsed, Upgrade)
            assert not parsed.subprotocol
            assert b"Protocol:" not in accept_answer(parsed)

    def test_path_and_query_are_kept(self) -> None:
        parsed = parse_head(request("GET /some/path?token=1&b=2 HTTP/1.1"))

        assert isinstance(parsed, Upgrade)
        assert (parsed.path, parsed.query) == ("/some/path", "token=1&b=2")

    def test_the_absolute_form_of_a_target_is_understood(self) -> None:
        parsed = parse_head(request("GET http://push.example/a?b HTTP/1.1"))

        assert isinstance(parsed, Upgrade)
        assert (parsed.path, parsed.query) == ("/a", "b")

    def test_tokens_are_read_in_any_case_and_from_repeated_headers(self) -> None:
        head = request(Upgrade="WebSocket", Connection="keep-alive").replace(
            b"\r\n\r\n", b"\r\nconnection: UPGRADE\r\n\r\n"
        )

        assert isinstance(parse_head(head), Upgrade)

    def test_websockets_client_is_content_with_our_answer(self) -> None:
        client = ClientProtocol(
            parse_uri("ws://push.example/x"), subprotocols=[Subprotocol("push-notification")]
        )
        client.send_request(client.connect())
        parsed = parse_head(b"".join(client.data_to_send()))
        assert isinstance(parsed, Upgrade)

        client.receive_data(accept_answer(parsed))

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
            request(Transfer_Encoding="chunked"),
            request("GET * HTTP/1.1"),
            request("GET http:// HTTP/1.1"),
            request("GET / HTTP/9.9"),
            request().replace(b"Host:", b"Ho st:"),
            request().replace(b"\r\n", b"\r\nHost: other\r\n", 1),
            b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n",
            b"SSH-2.0-OpenSSH_9.2\r\n\r\n",
            b"\r\n\r\n",
        ],
    )
    def test_a_mistake_is_a_bad_request(self, head: bytes) -> None:
        assert status_of(head) == 400

    @pytest.mark.parametrize("version", ["8", "12", "14", "0"])
    def test_another_version_is_told_which_one_we_speak(self, version: str) -> None:
        """RFC 6455 section 4.2.2."""
        parsed = parse_head(request(Sec_WebSocket_Version=version))

        assert isinstance(parsed, Refusal)
        assert parsed.status == 426
        assert b"\r\nSec-WebSocket-Version: 13\r\n" in parsed.answer

    @given(st.binary(max_size=300))
    def test_any_bytes_are_parsed_or_refused(self, head: bytes) -> None:
        assert isinstance(parse_head(head + b"\r\n\r\n"), Upgrade | HttpHead | Refusal)

    @given(st.data())
    def test_a_damaged_request_is_parsed_or_refused(self, data: st.DataObject) -> None:
        head = bytearray(request(User_Agent="x"))
        for _ in range(data.draw(st.integers(1, 4))):
            head[data.draw(st.integers(0, len(head) - 1))] = data.draw(st.integers(0, 255))

        assert isinstance(parse_head(bytes(head)), Upgrade | HttpHead | Refusal)


class TestPlainRequests:
    def test_a_health_route_is_a_plain_request(self) -> None:
        head = b"GET /__heartbeat__?x=1 HTTP/1.1\r\nHost: a\r\n\r\n"

        assert parse_head(head) == HttpHead(method="GET", path="/__heartbeat__", query="x=1")

    def test_an_upgrade_to_something_else_is_a_plain_request(self) -> None:
        assert isinstance(parse_head(request(Upgrade="h2c")), HttpHead)

    def test_the_root_without_upgrade_is_a_bad_request(self) -> None:
        assert unanswered(HttpHead(method="GET", path="/", query="")).status == 400

    def test_the_node_api_does_not_exist_here(self) -> None:
        head = parse_head(b"PUT /push/abc HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\n\r\n")

        assert isinstance(head, HttpHead)
        assert unanswered(head).status == 404


class TestHeads:
    def test_a_head_is_complete_with_its_blank_line(self) -> None:
        head = request()

        assert head_length(head[:-1]) == 0
        assert head_length(head) == len(head)
        assert head_length(head + b"\x81\x80") == len(head)

    def test_an_answer_tells_its_length(self) -> None:
        assert http_answer(200, b"{}", content_type=b"application/json") == (
            b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 2\r\n"
            b"Connection: close\r\n\r\n{}"
        )
