"""How commands speak to a person: facts on stdout, complaints on stderr, exit codes of sysexits."""

import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

from waystation.app.roles import DEFAULT_ROLES, Role
from waystation.app.settings import Settings, load_settings
from waystation.base.settings import SettingsError

EXIT_FAILED = 1
EXIT_USAGE = 2
EXIT_CONFIG = 78


def say(text: str) -> None:
    """To stdout, at once: others may be waiting for the line."""
    try:
        print(text, flush=True)
    except BrokenPipeError:  # the reader has left (`| head`): go on in silence
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def complain(text: str) -> None:
    print(f"waystation: {text}", file=sys.stderr, flush=True)


def give_up(text: str, code: int = EXIT_FAILED) -> NoReturn:
    complain(text)
    raise SystemExit(code)


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
