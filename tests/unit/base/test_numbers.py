"""Numbers from peers, and numbers for people."""

import pytest

from waystation.base.numbers import parse_number, significant


@pytest.mark.parametrize("text", ["0", "7", "00099", "12345"])
def test_decimal_digits_within_the_limit_are_a_number(text: str) -> None:
    assert parse_number(text, 12345) == int(text)


@pytest.mark.parametrize(
    "text", ["", "-1", "+1", " 1", "1_0", "1.0", "x", "٣", "²", "12346", "100000", "9" * 5000]
)
def test_all_else_is_no_number(text: str) -> None:
    assert parse_number(text, 12345) is None


@pytest.mark.parametrize(
    "value, digits, text",
    [
        (60_000.0, 4, "60,000"),
        (59_999.7, 4, "60,000"),
        (999.9, 3, "1,000"),
        (12.345, 3, "12.3"),
        (0.25, 3, "0.25"),
        (-123_456, 3, "-123,000"),
        (0, 3, "0"),
    ],
)
def test_large_values_are_written_out(value: float, digits: int, text: str) -> None:
    assert significant(value, digits) == text
