import msgspec
import pytest

from waystation.base.decode_errors import DECODE_ERRORS


@pytest.mark.parametrize(
    "data", [b'{"a":', b'"a\x86"', b"[" * 100_000], ids=["cut off", "no UTF-8", "without end"]
)
def test_json_that_nobody_can_read_raises_one_of_these(data: bytes) -> None:
    with pytest.raises(DECODE_ERRORS):
        msgspec.json.decode(data)


@pytest.mark.parametrize(
    "data",
    [b"\x81\xa1a", b"\xa2a\x86", b"\x91" * 100_000],
    ids=["cut off", "no UTF-8", "without end"],
)
def test_messagepack_that_nobody_can_read_raises_one_of_these(data: bytes) -> None:
    with pytest.raises(DECODE_ERRORS):
        msgspec.msgpack.decode(data)
