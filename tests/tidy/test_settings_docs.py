"""The reference of the settings is the one that the code gives."""

from tests.tidy.repository import ROOT
from waystation.app.settings_reference import render_markdown


def test_the_settings_page_is_current() -> None:
    written = (ROOT / "docs" / "reference" / "settings.md").read_text(encoding="utf-8")

    assert written == render_markdown(), "run `make docs`"
