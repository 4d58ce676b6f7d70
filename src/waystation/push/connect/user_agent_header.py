"""Maps a User-Agent header to browser and system families: few enough for metric labels."""

from functools import lru_cache

import msgspec

_BROWSERS = (
    ("Firefox/", "Firefox"),
    ("OPR/", "Opera"),
    ("Chrome/", "Chrome"),
    ("Safari/", "Safari"),
)
_SYSTEMS = (
    ("Windows", "Windows"),
    ("(Mobile;", "Firefox OS"),
    ("Macintosh", "Mac OSX"),
    ("Linux", "Linux"),
)


class Families(msgspec.Struct, frozen=True, gc=False):
    os: str = "Other"
    browser: str = "Other"


@lru_cache(maxsize=1024)
def families(user_agent: str) -> Families:
    """Equal families share one object, because every connection keeps a reference."""
    return _shared(
        next((name for mark, name in _SYSTEMS if mark in user_agent), "Other"),
        next((name for mark, name in _BROWSERS if mark in user_agent), "Other"),
    )


@lru_cache(maxsize=64)
def _shared(os: str, browser: str) -> Families:
    return Families(os, browser)
