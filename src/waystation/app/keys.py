"""Secrets of a data directory: created at the first start, read afterwards.

Each secret is a file under keys/ with mode 0600; a value in the settings wins over the file.
Creation is atomic and never replaces a file, so two daemons that start together on one directory
get the same secrets. Keys are texts here; `push.token` parses them.
"""

import os
import secrets
import tomllib
from collections.abc import Callable, Mapping
from pathlib import Path

import msgspec

from .data_dir import DataDir, DataDirError

SECRET_BYTES = 32


class KeyFormatError(ValueError):
    """The content of a secret file is malformed."""


class BroadcastTokens(msgspec.Struct, frozen=True):
    """Bearer tokens of the broadcasts API: one reader, and a publisher per broadcaster."""

    reader: str
    publishers: dict[str, str]  # broadcaster, or `*` for all of them -> token


class Secrets(msgspec.Struct, frozen=True, kw_only=True):
    """All secrets of a data directory."""

    crypto_keys: str  # a list in any spelling, as are the auth keys
    auth_keys: str
    cluster_secret: str
    event_key: bytes
    operator_token: str
    metrics_token: str
    broadcast_tokens: BroadcastTokens


def _new_crypto_key() -> str:
    from waystation.push.token import new_key  # noqa: PLC0415 slow to load, needed once in a life

    return new_key()


def _new_token() -> str:
    return secrets.token_urlsafe(SECRET_BYTES)


def _new_broadcast_tokens() -> str:
    return (
        "# Bearer tokens of the broadcasts API. `publishers` has one per broadcaster;\n"
        '# "*" may publish for all of them.\n'
        f'reader = "{_new_token()}"\n\n[publishers]\n"*" = "{_new_token()}"\n'
    )


_FILES: Mapping[str, Callable[[], str]] = {
    "crypto_keys": _new_crypto_key,
    "auth_keys": _new_token,
    "cluster_secret": _new_token,
    "event_key": lambda: secrets.token_hex(SECRET_BYTES),
    "operator_token": _new_token,
    "metrics_token": _new_token,
    "broadcast_tokens.toml": _new_broadcast_tokens,
}


def ensure_secrets(
    data: DataDir,
    *,
    crypto_keys: str = "",
    auth_keys: str = "",
    cluster_secret: str = "",
    operator_token: str = "",
    metrics_token: str = "",
) -> tuple[Secrets, list[Path]]:
    """The secrets in force, and the files that were created now."""
    texts: dict[str, str] = {}
    made: list[Path] = []
    for name, make in _FILES.items():
        path = data.keys / name
        given = {
            "crypto_keys": crypto_keys,
            "auth_keys": auth_keys,
            "cluster_secret": cluster_secret,
            "operator_token": operator_token,
            "metrics_token": metrics_token,
        }.get(name)
        if given:
            texts[name] = given
            continue
        text = _read(path)
        if text is None:
            text = make()
            if _create(path, text if text.endswith("\n") else text + "\n"):
                made.append(path)
            else:
                text = _read(path) or ""
        texts[name] = text
    return _parse(data, texts), made


def read_secret(data: DataDir, name: str) -> str | None:
    """The text of one secret file, or None; never creates it."""
    text = _read(data.keys / name)
    return None if text is None else text.strip()


def _parse(data: DataDir, texts: Mapping[str, str]) -> Secrets:
    event_path = data.keys / "event_key"
    try:
        event_key = bytes.fromhex(texts["event_key"])
    except ValueError:
        raise KeyFormatError(f"{event_path} is not hexadecimal") from None
    if len(event_key) < 16:
        raise KeyFormatError(f"{event_path} is shorter than 16 bytes")
    return Secrets(
        crypto_keys=texts["crypto_keys"].strip(),
        auth_keys=texts["auth_keys"].strip(),
        cluster_secret=texts["cluster_secret"].strip(),
        event_key=event_key,
        operator_token=texts["operator_token"].strip(),
        metrics_token=texts["metrics_token"].strip(),
        broadcast_tokens=_parse_broadcast_tokens(
            data.keys / "broadcast_tokens.toml", texts["broadcast_tokens.toml"]
        ),
    )


def _parse_broadcast_tokens(path: Path, text: str) -> BroadcastTokens:
    try:
        return msgspec.convert(tomllib.loads(text), BroadcastTokens)
    except (tomllib.TOMLDecodeError, msgspec.ValidationError) as exc:
        raise KeyFormatError(
            f'{path} must hold `reader = "..."` and a table [publishers]: {exc}'
        ) from exc


def _read(path: Path) -> str | None:
    try:
        mode = path.stat().st_mode & 0o777
        text = path.read_text()
    except FileNotFoundError:
        return None
    except (OSError, UnicodeDecodeError) as exc:
        raise DataDirError(f"cannot read {path}: {exc}") from exc
    if mode & 0o077:
        raise DataDirError(f"{path} can be read by others (mode {mode:04o}). Run: chmod 600 {path}")
    return text


def _create(path: Path, text: str) -> bool:
    """Whether this process created it: false if another one did at the same moment."""
    fresh = path.with_name(f".{path.name}.{os.getpid()}")
    fd = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    try:
        os.write(fd, text.encode())
        os.fsync(fd)
    finally:
        os.close(fd)
    try:
        os.link(fresh, path)  # unlike rename, a link never replaces
    except FileExistsError:
        return False
    finally:
        fresh.unlink()
    return True
