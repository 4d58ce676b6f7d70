"""`autoconnect` and `autoendpoint`: Autopush's two daemons under their own names.

They read Autopush's settings, log as Autopush does, and do not need a supervisor for one worker.
"""

import argparse
import os
import sys
from collections.abc import Mapping
from pathlib import Path

from waystation.app.autopush_settings import PREFIXES, Daemon, DaemonSettings, load_daemon_settings
from waystation.base.settings import SettingsError

from .terminal import EXIT_CONFIG

_PURPOSES: Mapping[Daemon, str] = {
    "autoconnect": "Holds the connections of user agents and delivers to them.",
    "autoendpoint": "Accepts notifications of app servers.",
}


def autoconnect() -> None:
    """The connection node."""
    run_daemon("autoconnect")


def autoendpoint() -> None:
    """The endpoint node."""
    run_daemon("autoendpoint")


def parser(daemon: Daemon) -> argparse.ArgumentParser:
    """Parser of the options; the reference page is generated from it."""
    made = argparse.ArgumentParser(
        prog=daemon,
        description=f"{_PURPOSES[daemon]} A drop-in for Autopush's daemon of that name.",
        epilog=f"Settings: {PREFIXES[daemon]}NAME in the environment, or NAME in the file of -c;"
        " the environment wins. `waystation config docs` lists them all.",
    )
    made.add_argument("-c", "--config", type=Path, metavar="FILE", help="settings file (TOML)")
    made.add_argument("--version", action="store_true", help="show the version and exit")
    return made


def run_daemon(daemon: Daemon) -> None:
    options = parser(daemon).parse_args()
    if options.version:
        from waystation.app.version import build

        print(f"{daemon} (waystation {build().version})")
        return
    try:
        loaded = load_daemon_settings(daemon, config=options.config, env=os.environ)
    except SettingsError as exc:
        for problem in exc.problems:
            print(f"{daemon}: {problem}", file=sys.stderr)
        raise SystemExit(EXIT_CONFIG) from None
    raise SystemExit(_run(daemon, loaded))


def _run(daemon: Daemon, loaded: DaemonSettings) -> int:
    import waystation.app.structlog_without_rich  # noqa: F401  # pyright: ignore[reportUnusedImport]
    from waystation.app.daemon import run

    def complain(text: str) -> None:
        print(f"{daemon}: {text}", file=sys.stderr, flush=True)

    return run(daemon, loaded, complain=complain)
