import pytest

from waystation.push.connect.user_agent_header import Families, families

FIREFOX = "Mozilla/5.0 (X11; Linux x86_64; rv:140.0) Gecko/20100101 Firefox/140.0"


@pytest.mark.parametrize(
    "header, os, browser",
    [
        (FIREFOX, "Linux", "Firefox"),
        ("Mozilla/5.0 (Windows NT 10.0; Win64; x64; rv:1) Firefox/140.0", "Windows", "Firefox"),
        ("Mozilla/5.0 (Macintosh; Intel Mac OS X 10.15) Firefox/140.0", "Mac OSX", "Firefox"),
        ("Mozilla/5.0 (Mobile; rv:26.0) Gecko/26.0 Firefox/26.0", "Firefox OS", "Firefox"),
        ("Mozilla/5.0 (X11; Linux) Chrome/1 Safari/1 OPR/1", "Linux", "Opera"),
        ("Mozilla/5.0 (X11; Linux) Chrome/1 Safari/1", "Linux", "Chrome"),
        ("Mozilla/5.0 (Macintosh) Version/1 Safari/1", "Mac OSX", "Safari"),
        ("Sunup/1.0", "Other", "Other"),
        ("", "Other", "Other"),
    ],
)
def test_a_header_belongs_to_few_families(header: str, os: str, browser: str) -> None:
    assert families(header) == Families(os, browser)


def test_equal_families_are_one_object() -> None:
    assert families(FIREFOX) is families(FIREFOX + " (another build)")
