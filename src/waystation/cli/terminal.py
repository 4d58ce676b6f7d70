"""Terminal output of commands: results on stdout, errors on stderr, exit codes of sysexits."""

import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from waystation.app.roles import DEFAULT_ROLES, Role
from waystation.app.settings import Settings, load_settings
from waystation.base.settings import SettingsError

if TYPE_CHECKING:
    import ssl

EXIT_FAILED = 1
EXIT_USAGE = 2
EXIT_CONFIG = 78

# Control characters, which a terminal would execute.
_CONTROLS = {
    code: f"\\x{code:02x}" for code in (*range(32), *range(127, 160)) if chr(code) not in "\n\t"
}


class ReaderLeftError(SystemExit):
    """The reader of stdout has closed it (`| head`): unread messages stay unacknowledged."""

    def __init__(self) -> None:
        super().__init__(EXIT_FAILED)


def say(text: str) -> None:
    """Print to stdout and flush: a program may be waiting for the line."""
    try:
        print(text, flush=True)
    except BrokenPipeError:  # the reader has left (`| head`): go on in silence
        _fall_silent()


def pass_on(text: str) -> None:
    """Print received data to stdout; raises `ReaderLeftError` once the reader has closed it."""
    try:
        print(text, flush=True)
    except BrokenPipeError:
        _fall_silent()
        raise ReaderLeftError from None


def counted(number: int, one: str, many: str = "") -> str:
    """`1 session`, `2 sessions`."""
    return f"{number} {one if number == 1 else many or f'{one}s'}"


def harmless(text: str) -> str:
    """Foreign text without control characters on a terminal; unchanged for a program."""
    return text.translate(_CONTROLS) if sys.stdout.isatty() else text


def _fall_silent() -> None:
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def complain(text: str) -> None:
    for line in text.splitlines() or [""]:
        print(f"waystation: {line}", file=sys.stderr, flush=True)


def give_up(text: str, code: int = EXIT_FAILED) -> NoReturn:
    complain(text)
    raise SystemExit(code)


def trusting(ca: Path | None) -> "ssl.SSLContext | None":
    """What `--ca FILE` asks for; None is the system's own trust."""
    import ssl

    try:
        return None if ca is None else ssl.create_default_context(cafile=ca)
    except OSError as exc:  # errors of TLS, too
        give_up(f"--ca: {ca} holds no certificate that can be read: {exc.strerror or exc}")


def settings_or_exit(
    config: Path | None,
    flags: Mapping[str, Any] | None = None,
    roles: Sequence[Role] = DEFAULT_ROLES,
) -> Settings:
    """The settings in force for a command, or exit code 78 with every objection."""
    if config is None and (named := os.environ.get("WAYSTATION_CONFIG")):
        config = Path(named)
    try:
        return load_settings(config=config, env=os.environ, flags=flags, roles=roles)
    except SettingsError as exc:
        for problem in exc.problems:
            complain(problem)
        complain("`waystation config docs` lists every setting")
        raise SystemExit(EXIT_CONFIG) from None
