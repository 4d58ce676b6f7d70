"""run/serve.json is read back while its server runs, and only then."""

import os
from pathlib import Path

import pytest

from waystation.app.data_dir import DataDir
from waystation.app.server_info import ServerInfo, read_server_info, write_server_info

PID_OF_NOBODY = 2**22 + 1  # above the largest pid


@pytest.fixture
def data(tmp_path: Path) -> DataDir:
    data = DataDir(tmp_path / "data")
    data.make()
    return data


def info(pid: int) -> ServerInfo:
    return ServerInfo(
        pid=pid, version="1", roles=("connect",), workers=1, ports={"connect.port": 5}
    )


def test_the_info_of_a_running_server_is_read_back(data: DataDir) -> None:
    write_server_info(data, info(os.getpid()))

    assert read_server_info(data) == info(os.getpid())


def test_a_directory_without_serve_json_has_no_server(data: DataDir) -> None:
    assert read_server_info(data) is None


def test_the_info_of_an_ended_server_is_ignored(data: DataDir) -> None:
    write_server_info(data, info(PID_OF_NOBODY))

    assert read_server_info(data) is None


def test_a_broken_serve_json_is_ignored(data: DataDir) -> None:
    data.serve_file.write_text("{")

    assert read_server_info(data) is None
