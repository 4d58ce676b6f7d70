"""Finds the server that runs on this machine, by its data directory."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated
from urllib.parse import urlsplit

import typer

from .terminal import settings_or_exit

if TYPE_CHECKING:
    from waystation.app.server_info import ServerInfo

DataDirOption = Annotated[
    Path | None,
    typer.Option("--data-dir", help="Data directory of the server on this machine."),
]


def running_server(data_dir: Path | None = None) -> "ServerInfo | None":
    """What `waystation serve` wrote to `run/serve.json`; None if no server runs there."""
    from waystation.app.data_dir import DataDir
    from waystation.app.server_info import read_server_info

    flags = {"data_dir": None if data_dir is None else str(data_dir)}
    return read_server_info(DataDir(settings_or_exit(None, flags, ()).data_dir))


def endpoint_of(serving: "ServerInfo", setting: str) -> str | None:
    """HOST:PORT that leads to a port of that server, whichever address it listens on; None if it
    does not serve that port."""
    from waystation.app.addresses import reachable

    url = next((one.url for one in serving.listening if one.setting == setting), None)
    if url is None:
        return None
    where = urlsplit(url)
    return f"{reachable(where.hostname or '')}:{where.port}"
