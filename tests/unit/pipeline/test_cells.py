"""Numbers in the report and in checks, as people read them."""

import pytest

from waystation.pipeline.quality import at_most
from waystation.pipeline.report import plots
from waystation.pipeline.report.cells import number, size


@pytest.mark.parametrize("value", [60_000.0, 99_999.6, 999_999.9, 12_345.678, 1e15])
def test_no_number_is_written_with_a_power_of_ten(value: float) -> None:
    check = at_most("freshness", "warn", value, value)
    texts = (number(value), size(value), plots.short(value), plots.duration(value), check.sentence)

    assert not [text for text in texts if "e+" in text]


def test_numbers_are_rounded_to_what_a_person_needs() -> None:
    assert number(60_000.0) == "60,000"
    assert number(1.23456) == "1.235"
    assert size(999_950) == "1,000 kB"
    assert plots.short(1_234_567) == "1.23 M"
    assert plots.duration(59_999) == "60 s"
