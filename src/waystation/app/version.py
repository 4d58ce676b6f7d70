"""Version and commit of this build, for `/__version__`, `--version` and log lines."""

import os
from functools import cache

import msgspec

SOURCE = "https://github.com/waystation/waystation"


class Build(msgspec.Struct, frozen=True):
    """The same keys as Autopush's `/__version__`."""

    source: str
    version: str
    commit: str
    build: str


@cache
def build() -> Build:
    # Imported late: the metadata reader is slower to load than most of what we start with.
    from importlib.metadata import PackageNotFoundError, version  # noqa: PLC0415

    try:
        number = version("waystation")
    except PackageNotFoundError:  # run from a tree that is not installed
        number = "0"
    return Build(
        source=SOURCE,
        version=number,
        commit=os.environ.get("WAYSTATION_COMMIT", ""),
        build=os.environ.get("WAYSTATION_BUILD", ""),
    )
