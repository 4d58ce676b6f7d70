"""The measured numbers of the documentation have one source, docs/figures.toml."""

from pathlib import Path

import pytest

from tools import figures


@pytest.mark.parametrize("page", figures.PAGES, ids=lambda path: path.name)
def test_the_tables_and_computed_values_of_a_page_are_current(page: Path) -> None:
    text = page.read_text(encoding="utf-8")

    assert "<!-- " in text
    assert figures.render(text, figures.load()) == text, "run `make docs`"


def test_a_computed_value_follows_from_the_figures() -> None:
    source = {"push": {"direct": {"name": "n", "value": 200, "unit": "µs", "commit": "c"}}}
    page = "<!-- = 1000000 / push.direct -->0<!-- end --> a second"

    assert figures.render(page, source) == (
        "<!-- = 1000000 / push.direct -->5,000<!-- end --> a second"
    )


@pytest.mark.parametrize("expression", ["open('x')", "push.direct ** 9", "push", "1 if 1 else 2"])
def test_an_expression_that_is_not_arithmetic_is_refused(expression: str) -> None:
    source = {"push": {"direct": {"value": 200}}}

    with pytest.raises(ValueError, match="arithmetic"):
        figures.evaluate(expression, source)


@pytest.mark.parametrize(
    "value,shown", [(4.14, "4.1"), (137.4, "140"), (5076.0, "5,100"), (873813.0, "870,000")]
)
def test_a_computed_value_has_two_significant_digits(value: float, shown: str) -> None:
    assert figures.two_digits(value) == shown
