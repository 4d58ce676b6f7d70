"""The ends of a call as another implementation reads them."""

from urllib.parse import unquote

from hpack import Decoder as OtherDecoder

from waystation.net.http2.port import GrpcStatus
from waystation.net.http2.response import RESPONSE_HEADERS, trailers


def _read(block: bytes) -> dict[str, str]:
    return {str(name): str(value) for name, value in OtherDecoder().decode(block)}


def test_an_answer_begins_with_status_and_type() -> None:
    assert _read(RESPONSE_HEADERS) == {":status": "200", "content-type": "application/grpc"}


def test_trailers_alone_begin_the_answer_as_well() -> None:
    assert _read(trailers(GrpcStatus.UNAUTHENTICATED, "UNAUTHENTICATED", alone=True)) == {
        ":status": "200",
        "content-type": "application/grpc",
        "grpc-status": "16",
        "grpc-message": "UNAUTHENTICATED",
    }


def test_a_status_message_is_percent_encoded() -> None:
    read = _read(trailers(GrpcStatus.INTERNAL, "50 % – no\n", alone=False))

    assert read["grpc-status"] == "13"
    assert unquote(read["grpc-message"]) == "50 % – no\n"
    assert read["grpc-message"].isascii()
