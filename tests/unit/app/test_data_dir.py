"""What lies where, and who may use it."""

import os
import socket
import stat
from pathlib import Path

import pytest

from waystation.app.data_dir import (
    SOCKET_PATH_MAX_BYTES,
    DataDir,
    DataDirError,
    Lock,
    Serving,
    lock_roles,
    read_serving,
    write_serving,
)


@pytest.fixture
def data(tmp_path: Path) -> DataDir:
    data = DataDir(tmp_path / "data")
    data.make()
    return data


def serving(pid: int) -> Serving:
    return Serving(pid=pid, version="1", roles=("connect",), workers=1, ports={"connect.port": 5})


def test_it_is_made_for_its_owner_alone(data: DataDir) -> None:
    assert stat.S_IMODE(data.root.stat().st_mode) == 0o700
    assert stat.S_IMODE(data.keys.stat().st_mode) == 0o700


def test_making_it_twice_changes_nothing(data: DataDir) -> None:
    (data.keys / "kept").touch()
    data.make()

    assert (data.keys / "kept").exists()


def test_one_that_others_may_write_to_is_refused(data: DataDir) -> None:
    data.root.chmod(0o777)
    with pytest.raises(DataDirError, match="chmod go-w"):
        data.make()


def test_a_file_in_its_place_is_refused(tmp_path: Path) -> None:
    (tmp_path / "data").write_text("a file")
    with pytest.raises(DataDirError, match="is not a directory"):
        DataDir(tmp_path / "data").make()


def test_journals_are_found_by_their_index(data: DataDir) -> None:
    for name in ("10.log", "2.log", "x.log", "3.new"):
        (data.inflight / name).touch()

    assert data.journals() == {2: data.journal(2), 10: data.journal(10)}


def test_a_role_is_locked_for_one_server(data: DataDir) -> None:
    held = lock_roles(data, ("connect", "endpoint"))
    with pytest.raises(DataDirError, match=f"process {os.getpid()} already runs the role endpoint"):
        lock_roles(data, ("console", "endpoint"), patience_s=0)
    for lock in held:
        lock.release()

    for lock in lock_roles(data, ("console", "connect", "endpoint"), patience_s=0):
        lock.release()


def test_daemons_of_different_roles_share_a_directory(data: DataDir) -> None:
    locks = [*lock_roles(data, ("connect",)), *lock_roles(data, ("endpoint",))]

    assert len(locks) == 2
    for lock in locks:
        lock.release()


def test_whoever_inherits_the_descriptor_holds_the_lock(data: DataDir) -> None:
    """So that a server's workers keep a newcomer out while they still put things away."""
    path = data.run / "x.lock"
    lock = Lock.take(path)
    assert lock is not None
    inherited = os.dup(lock.fileno())
    lock.release()

    assert Lock.take(path) is None
    os.close(inherited)
    again = Lock.take(path)
    assert again is not None
    again.release()


def test_a_deep_directory_still_has_room_for_sockets(tmp_path: Path) -> None:
    deep = tmp_path.joinpath(*["a-rather-long-name"] * 6)
    data = DataDir(deep)
    data.make()
    path = data.socket("w0.sock")
    with socket.socket(socket.AF_UNIX) as listener, socket.socket(socket.AF_UNIX) as client:
        listener.bind(path)
        listener.listen()
        client.connect(data.socket("w0.sock"))

        assert len(os.fsencode(deep)) > SOCKET_PATH_MAX_BYTES
        assert (data.run / "w0.sock").exists()


def test_a_short_path_is_used_as_it_is() -> None:
    assert DataDir(Path("/x")).socket("w0.sock") == "/x/run/w0.sock"


def test_what_is_served_is_written_for_tests_and_tools(data: DataDir) -> None:
    write_serving(data, serving(os.getpid()))

    assert read_serving(data) == serving(os.getpid())


def test_what_an_ended_server_left_behind_is_nothing(data: DataDir) -> None:
    assert read_serving(data) is None
    write_serving(data, serving(2**22 + 1))  # above the largest pid
    assert read_serving(data) is None
    data.serve_file.write_text("{")

    assert read_serving(data) is None
