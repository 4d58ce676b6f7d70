"""What lies where, and who may use it."""

import errno
import os
import socket
import stat
import subprocess
import threading
import time
from pathlib import Path

import pytest

from waystation.app.data_dir import (
    SOCKET_PATH_MAX_BYTES,
    TAKE_OVER_S,
    DataDir,
    DataDirError,
    Lock,
    lock_all,
    lock_roles,
    take_part,
)


@pytest.fixture
def data(tmp_path: Path) -> DataDir:
    data = DataDir(tmp_path / "data")
    data.make()
    return data


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
    for name in ("10.log", "2.log", "x.log", "3.new", "4.1.owed", "2.1.owed"):
        (data.inflight / name).touch()

    assert data.journals() == {index: data.journal(index) for index in (2, 4, 10)}


def test_a_role_is_locked_for_one_server(data: DataDir) -> None:
    held = lock_roles(data, ("connect", "endpoint"))
    with pytest.raises(DataDirError, match=f"process {os.getpid()} already runs the role endpoint"):
        lock_roles(data, ("console", "endpoint"))
    for lock in held:
        lock.release()

    for lock in lock_roles(data, ("console", "connect", "endpoint")):
        lock.release()


def test_a_server_that_runs_is_named_at_once(data: DataDir) -> None:
    held = lock_roles(data, ("connect",))
    began = time.monotonic()
    with pytest.raises(DataDirError, match=f"process {os.getpid()} "):
        lock_roles(data, ("connect",))

    assert time.monotonic() - began < TAKE_OVER_S / 2
    held[0].release()


def test_workers_that_a_killed_server_left_behind_are_waited_for(data: DataDir) -> None:
    """They hold its lock for another moment, while they put their things away."""
    (held,) = lock_roles(data, ("connect",))
    ended = subprocess.Popen(["true"])
    ended.wait()
    (data.run / "connect.lock").write_text(f"{ended.pid}\n")
    leaving = threading.Timer(0.2, held.release)
    leaving.start()
    (again,) = lock_roles(data, ("connect",))

    assert not leaving.is_alive()
    again.release()


def test_each_process_of_a_daemon_takes_a_part_of_its_own(tmp_path: Path) -> None:
    """And a journal finds a successor: whoever comes next takes the part that is free."""
    root = tmp_path / "data"
    parts = [take_part(root, ("connect",)) for _ in range(3)]
    endpoint, _ = locked_endpoint = take_part(root, ("endpoint",))
    assert [data.part for data, _ in parts] == [1, 2, 3]
    assert endpoint.part == 1
    assert {data.keys for data, _ in parts} == {root / "keys"}
    assert {data.events for data, _ in parts} == {root / "events"}
    assert len({data.journal(0) for data, _ in parts}) == 3
    parts[1][0].journal(0).touch()
    assert parts[0][0].journals_of_other_parts() == [parts[1][0].journal(0)]
    assert parts[1][0].journals_of_other_parts() == []
    with pytest.raises(DataDirError, match="already runs the role"):
        lock_all(DataDir(root), ("console", "connect"))
    parts[1][1][0].release()
    again, locks = take_part(root, ("connect",))

    assert again.part == 2
    for lock in (*locks, *parts[0][1], *parts[2][1], *locked_endpoint[1]):
        lock.release()
    for lock in lock_all(DataDir(root), ("console", "connect", "endpoint")):
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


def test_a_lock_holds_also_where_its_file_cannot_name_the_holder(
    data: DataDir, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "pwrite", full)
    lock = Lock.take(data.run / "connect.lock")

    assert lock is not None
    assert Lock.take(data.run / "connect.lock") is None
    lock.release()


def test_a_full_disk_keeps_nobody_from_a_directory_that_is_made(
    data: DataDir, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Some file systems need room for a new file or folder, even an empty one."""

    def full(path: Path, **_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))

    reports = data.reports("autoconnect")
    reports.mkdir()
    (reports / "push.0.json").write_text("{}")
    monkeypatch.setattr(Path, "touch", full)
    data.make()
    monkeypatch.setattr(Path, "mkdir", full)
    data.begin_reports("autoconnect")

    assert not reports.exists()
    with pytest.raises(DataDirError, match="No space left on device"):
        data.make()
