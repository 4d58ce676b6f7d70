"""Parses `embedded`, `embedded:./relative` and `embedded:///absolute`."""

from pathlib import Path

import msgspec

from waystation.base.settings import SettingsError

DEFAULT_PATH = "store"


class EmbeddedUrl(msgspec.Struct, frozen=True):
    """A directory on a local disk; relative paths are relative to the data directory."""

    path: str

    def directory(self, data_dir: Path) -> Path:
        return data_dir / self.path  # pathlib: an absolute path replaces `data_dir`


def parse_embedded_url(url: str, _db_settings: str = "") -> EmbeddedUrl:
    """Raises `SettingsError`."""
    rest = url.strip().partition(":")[2]
    if not rest:
        return EmbeddedUrl(DEFAULT_PATH)
    if "?" in rest or "#" in rest:
        raise SettingsError(
            [f"store.url: {url!r}: `embedded:` takes a path only, without `?` and `#`"]
        )
    if not rest.startswith("//"):
        return EmbeddedUrl(rest)
    if not rest.startswith("///"):
        raise SettingsError(
            [
                f"store.url: {url!r} names a host; the embedded store is a local directory:"
                f" embedded:./relative or embedded:///absolute"
            ]
        )
    return EmbeddedUrl(rest[2:])
