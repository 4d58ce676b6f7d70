"""Which headers are a call of ours, which are somebody else's, and which are none at all."""

import pytest

from tests.unit.presence.transport.native.peers import REQUEST, changed
from waystation.presence.transport.native.request import (
    MalformedRequestError,
    NotServedError,
    RequestReader,
    read_request,
)
from waystation.presence.transport.port import RPC_PATH

PATHS = {RPC_PATH.encode()}


def test_the_token_comes_with_the_request() -> None:
    assert read_request(list(REQUEST), PATHS).authorization is None
    fields = changed(authorization=b"Bearer x")
    assert read_request(fields, PATHS).authorization == "Bearer x"


@pytest.mark.parametrize("kind", [b"application/grpc", b"application/grpc+proto"])
def test_both_ways_to_say_grpc_are_taken(kind: bytes) -> None:
    assert read_request(changed(content_type=kind), PATHS).authorization is None


@pytest.mark.parametrize(
    "fields",
    [
        pytest.param(changed(_method=b"GET"), id="method"),
        pytest.param(changed(_path=b"/Other/beginStream"), id="path"),
        pytest.param(changed(content_type=b"application/json"), id="content type"),
        pytest.param(changed(content_type=b"application/grpcish"), id="nearly the content type"),
        pytest.param(changed(content_type=None), id="no content type"),
    ],
)
def test_a_request_to_somebody_else_is_not_served(fields: list[tuple[bytes, bytes]]) -> None:
    with pytest.raises(NotServedError):
        read_request(fields, PATHS)


@pytest.mark.parametrize(
    "fields",
    [
        pytest.param(changed(_method=None), id="no method"),
        pytest.param(changed(_scheme=None), id="no scheme"),
        pytest.param(changed(_path=b""), id="empty path"),
        pytest.param([*REQUEST, (b":path", b"/")], id="pseudo after regular"),
        pytest.param([(b":path", b"/"), *REQUEST], id="pseudo twice"),
        pytest.param([(b":status", b"200"), *REQUEST], id="a response's"),
        pytest.param([(b":protocol", b"x"), *REQUEST], id="unknown pseudo"),
        pytest.param([*REQUEST, (b"X-Loud", b"1")], id="upper case"),
        pytest.param([*REQUEST, (b"", b"1")], id="empty name"),
        pytest.param([*REQUEST, (b"connection", b"close")], id="connection"),
        pytest.param([*REQUEST, (b"transfer-encoding", b"chunked")], id="transfer-encoding"),
        pytest.param(changed(te=b"gzip"), id="te"),
        pytest.param([*REQUEST, (b"x", b"a\r\nb")], id="line break"),
    ],
)
def test_headers_that_http2_forbids_are_malformed(fields: list[tuple[bytes, bytes]]) -> None:
    with pytest.raises(MalformedRequestError):
        read_request(fields, PATHS)


def test_the_same_fields_are_read_once() -> None:
    reader = RequestReader(PATHS)
    first, second = list(REQUEST), list(REQUEST)
    for fields in (first, second, second):
        assert reader.read(fields).authorization is None

    assert reader._fields is second
    other = reader.read([*REQUEST, (b"authorization", b"Bearer x")])
    assert other.authorization == "Bearer x"
    assert reader.read(second).authorization is None
    with pytest.raises(NotServedError):
        reader.read(changed(_path=b"/elsewhere"))
    assert reader.read(second).authorization is None
