"""Which headers are a call, which are a request of plain HTTP, and which are none at all."""

import pytest

from tests.unit.net.http2.peers import REQUEST, changed
from waystation.net.http2.request import MalformedRequestError, read_request
from waystation.presence.transport.rpc import RPC_PATH


def test_the_token_comes_with_the_request() -> None:
    assert read_request(list(REQUEST)).authorization is None
    fields = changed(authorization=b"Bearer x")
    assert read_request(fields).authorization == "Bearer x"


def test_the_path_says_which_call_it_is() -> None:
    assert read_request(list(REQUEST)).path == RPC_PATH.encode()


@pytest.mark.parametrize("kind", [b"application/grpc", b"application/grpc+proto"])
def test_both_ways_to_say_grpc_are_taken(kind: bytes) -> None:
    assert read_request(changed(content_type=kind)).is_grpc


@pytest.mark.parametrize(
    "fields",
    [
        pytest.param(changed(_method=b"GET"), id="method"),
        pytest.param(changed(content_type=b"application/json"), id="content type"),
        pytest.param(changed(content_type=b"application/grpcish"), id="nearly the content type"),
        pytest.param(changed(content_type=None), id="no content type"),
    ],
)
def test_a_request_of_plain_http_is_no_call(fields: list[tuple[bytes, bytes]]) -> None:
    assert not read_request(fields).is_grpc


def test_the_announced_length_comes_with_the_request() -> None:
    assert read_request(list(REQUEST)).body_bytes is None
    assert read_request(changed(content_length=b"12")).body_bytes == 12


@pytest.mark.parametrize(
    "fields",
    [
        pytest.param(changed(_method=None), id="no method"),
        pytest.param(changed(_scheme=None), id="no scheme"),
        pytest.param(changed(_path=b""), id="empty path"),
        pytest.param([*REQUEST, (b":path", b"/")], id="pseudo after regular"),
        pytest.param([(b":path", b"/"), *REQUEST], id="pseudo twice"),
        pytest.param(
            [*REQUEST, (b"authorization", b"Bearer x"), (b"authorization", b"Bearer y")],
            id="authorization twice",
        ),
        pytest.param([(b":status", b"200"), *REQUEST], id="a response's"),
        pytest.param([(b":protocol", b"x"), *REQUEST], id="unknown pseudo"),
        pytest.param([*REQUEST, (b"X-Loud", b"1")], id="upper case"),
        pytest.param([*REQUEST, (b"", b"1")], id="empty name"),
        pytest.param([*REQUEST, (b"connection", b"close")], id="connection"),
        pytest.param([*REQUEST, (b"transfer-encoding", b"chunked")], id="transfer-encoding"),
        pytest.param(changed(te=b"gzip"), id="te"),
        pytest.param([*REQUEST, (b"x", b"a\r\nb")], id="line break"),
        pytest.param(changed(content_length=b"-1"), id="negative length"),
        pytest.param(changed(content_length=b"1" * 16), id="endless length"),
        pytest.param([*REQUEST, *[(b"content-length", b"1")] * 2], id="length twice"),
    ],
)
def test_headers_that_http2_forbids_are_malformed(fields: list[tuple[bytes, bytes]]) -> None:
    with pytest.raises(MalformedRequestError):
        read_request(fields)
