"""`waystation serve`: run the server.

Read with argparse, because loading typer and what it brings takes longer than starting a server.
"""

import argparse
from collections.abc import Sequence
from pathlib import Path

from .terminal import EXIT_USAGE, complain, give_up, say, settings_or_exit


def run(arguments: Sequence[str]) -> None:
    """Never returns: it ends with the server's exit code."""
    from waystation.app.process_log import LazyLog
    from waystation.app.serve import RoleError, parse_roles
    from waystation.app.serve import serve as serve_until_told
    from waystation.app.settings import (
        loopback_relay,
        open_node_api,
        presence_out_of_reach,
        relay_out_of_reach,
    )

    options = parser().parse_intermixed_args(arguments)
    try:
        roles = parse_roles(options.roles)
    except RoleError as exc:
        give_up(str(exc), EXIT_USAGE)
    settings = settings_or_exit(
        options.config,
        {
            "data_dir": options.data_dir,
            "store.url": options.store,
            "workers": options.workers,
            "host": options.host,
            "port_base": options.port_base,
            "log.level": options.log_level,
        },
        roles,
    )
    doubts = {
        "connect": (loopback_relay, relay_out_of_reach, open_node_api),
        "presence": (presence_out_of_reach,),
    }
    for role in roles:
        for doubt in doubts.get(role, ()):
            if (warning := doubt(settings)) is not None:
                complain(warning)
    lines = LazyLog(settings, "supervisor")
    raise SystemExit(serve_until_told(settings, roles, lines=lines, say=say, complain=complain))


def parser() -> argparse.ArgumentParser:
    """What it understands; the reference page is made from it too."""
    made = argparse.ArgumentParser(
        prog="waystation serve",
        description="Run the platform until SIGTERM or Ctrl-C. Prints what listens where and"
        " `waystation is ready`. The first start makes keys and the store in the data directory.",
        epilog="Settings: defaults, then --config, then WAYSTATION_... in the environment, then"
        " these options. `waystation config docs` lists them all.",
        allow_abbrev=False,
    )
    add = made.add_argument
    add(
        "roles",
        nargs="*",
        metavar="ROLE",
        help="connect, endpoint, queue, presence, console: all of them if none is named;"
        " edge, controller: for a queue cluster",
    )
    add("--data-dir", metavar="DIR", help="where everything is kept; default: ./waystation-data")
    add("--config", type=Path, metavar="FILE", help="settings file (TOML)")
    add(
        "--store",
        metavar="URL",
        help="where state lives: embedded:PATH, redis://… (docs/guides/stores)",
    )
    add("--workers", metavar="N", help="push processes: a number, or auto for one per core")
    add("--host", metavar="ADDRESS", help="address to listen on; default: 127.0.0.1")
    add("--port-base", metavar="N", help="all ports at once: N, N+1, … N+13")
    add("--log-level", metavar="LEVEL", help="debug, info, warning or error")
    return made
