"""run/serve.json: addresses, ports and roles of the running server, for tests and tools."""

import os

import msgspec

from waystation.base.decode_errors import DECODE_ERRORS

from .data_dir import DataDir


class ListenAddress(msgspec.Struct, frozen=True):
    """One line of the table that `serve` prints."""

    what: str
    url: str
    setting: str


class ServerInfo(msgspec.Struct, frozen=True, kw_only=True):
    """Content of run/serve.json: addresses and ports of the running server. Holds no secret."""

    pid: int
    version: str
    roles: tuple[str, ...]
    workers: int
    connect_url: str = ""
    endpoint_url: str = ""
    relay_url: str = ""
    console_url: str = ""
    queue_address: str = ""
    ports: dict[str, int] = {}
    listening: tuple[ListenAddress, ...] = ()


def write_server_info(data: DataDir, serving: ServerInfo) -> None:
    fresh = data.serve_file.with_suffix(".new")
    fresh.write_bytes(msgspec.json.format(msgspec.json.encode(serving), indent=2) + b"\n")
    fresh.replace(data.serve_file)


def read_server_info(data: DataDir) -> ServerInfo | None:
    """The server that runs on this directory; None if its process has ended."""
    try:
        serving = msgspec.json.decode(data.serve_file.read_bytes(), type=ServerInfo)
    except (OSError, *DECODE_ERRORS):
        return None
    try:
        os.kill(serving.pid, 0)
    except ProcessLookupError:
        return None
    except PermissionError:
        pass  # the process runs as another user
    return serving
