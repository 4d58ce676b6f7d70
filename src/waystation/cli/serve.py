"""`waystation serve`: run the server."""

from pathlib import Path
from typing import Annotated

import typer

from .terminal import EXIT_USAGE, complain, give_up, say, settings_or_exit


def serve(
    roles: Annotated[
        list[str] | None,
        typer.Argument(help="connect, endpoint, console; all of them if none is named."),
    ] = None,
    *,
    data_dir: Annotated[
        Path | None, typer.Option(help="Where everything is kept. Default: ./waystation-data")
    ] = None,
    config: Annotated[Path | None, typer.Option(help="Settings file (TOML).")] = None,
    store: Annotated[
        str | None, typer.Option(help="Where state lives: embedded:PATH or memory:")
    ] = None,
    workers: Annotated[
        str | None, typer.Option(help="Push processes: a number, or auto for one per core.")
    ] = None,
    host: Annotated[
        str | None, typer.Option(help="Address to listen on. Default: 127.0.0.1")
    ] = None,
    port_base: Annotated[
        int | None, typer.Option(help="All ports at once: N, N+1, N+2, N+3.")
    ] = None,
    log_level: Annotated[str | None, typer.Option(help="debug, info, warning or error.")] = None,
) -> None:
    """Run the platform until SIGTERM or Ctrl-C.

    Prints what listens where and `waystation is ready`. The first start makes keys and the
    store in the data directory. Settings: defaults, then --config, then WAYSTATION_... in the
    environment, then these options.
    """
    from waystation.app.compose import LazyLog
    from waystation.app.serving import RoleError, parse_roles
    from waystation.app.serving import serve as run

    try:
        wanted = parse_roles(roles or ())
    except RoleError as exc:
        give_up(str(exc), EXIT_USAGE)
    settings = settings_or_exit(
        config,
        {
            "data_dir": None if data_dir is None else str(data_dir),
            "store.url": store,
            "workers": workers,
            "host": host,
            "port_base": port_base,
            "log.level": log_level,
        },
        wanted,
    )
    lines = LazyLog(settings, "supervisor")
    raise SystemExit(run(settings, wanted, lines=lines, say=say, complain=complain))
