"""Which roles become which processes, and what a person is told."""

import errno
import os
from pathlib import Path

import pytest

from waystation.app import ready_report
from waystation.app.addresses import listening, settle
from waystation.app.data_dir import DataDir
from waystation.app.ready_report import firefox_settings, render_table
from waystation.app.serve import RoleError, parse_roles, plan_jobs
from waystation.app.server_info import ServerInfo
from waystation.app.settings import Settings, replaced


def test_without_names_all_roles_of_this_version_start() -> None:
    assert parse_roles([]) == ("connect", "endpoint", "queue", "presence", "console")


def test_roles_are_taken_once_and_in_our_order() -> None:
    assert parse_roles(["endpoint", "connect", "endpoint"]) == ("connect", "endpoint")


def test_both_roles_that_speak_smp_get_their_own_openssl() -> None:
    for role in ("queue", "edge"):
        (job,) = plan_jobs(parse_roles([role]), 2)
        assert job.kind == role
        assert dict(job.environment).keys() == {"OPENSSL_CONF"}


def test_a_role_that_does_not_exist_is_refused_with_those_that_do() -> None:
    with pytest.raises(RoleError, match="connect, endpoint, queue, edge, presence, controller"):
        parse_roles(["conect"])


def test_a_retired_role_is_refused_with_its_new_name() -> None:
    with pytest.raises(RoleError, match="role 'proxy' was renamed: use 'edge'"):
        parse_roles(["proxy"])


def test_push_workers_share_their_roles_and_the_console_stands_alone() -> None:
    jobs = plan_jobs(("connect", "endpoint", "console"), 2)

    assert [job.name for job in jobs] == ["push.0", "push.1", "console.0"]
    assert jobs[1].roles == ("connect", "endpoint")
    assert jobs[2].roles == ("console",)
    assert [job.name for job in plan_jobs(("console",), 4)] == ["console.0"]


def test_the_queue_has_a_process_of_its_own_with_its_own_openssl_configuration() -> None:
    [job] = plan_jobs(("queue",), 4)

    assert job.name == "queue.0"
    assert Path(dict(job.environment)["OPENSSL_CONF"]).is_file()


def test_the_table_names_address_and_setting() -> None:
    table = render_table(listening(settle(Settings(), {}), ("connect", "endpoint", "console")))
    assert table.splitlines()[0] == "Listening"

    assert "ws://127.0.0.1:8080/" in table
    assert "endpoint.port" in table
    assert len(table.splitlines()) == 5


def test_firefox_is_told_to_allow_ws_only_where_it_is_ws() -> None:
    plain = firefox_settings(settle(Settings(), {}))
    secure = firefox_settings(
        settle(replaced(Settings(), {"connect": {"url": "wss://push.example.org/"}}), {})
    )

    assert "dom.push.serverURL" in plain
    assert "dom.push.testing.allowInsecureServerURL" in plain
    assert "wss://push.example.org/" in secure
    assert "allowInsecureServerURL" not in secure


def test_the_table_is_said_once_and_the_file_is_written_when_there_is_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data, said = DataDir(tmp_path / "data"), list[str]()
    data.make()
    written: list[ServerInfo] = []
    rooms = [False, True]

    def write(_data: DataDir, serving: ServerInfo) -> None:
        if not rooms.pop(0):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        written.append(serving)

    monkeypatch.setattr(ready_report, "write_server_info", write)
    settings = settle(Settings(), {})
    ready = ready_report.ReadyReport(data, settings, ("endpoint",), {}, say=said.append).ready
    with pytest.raises(OSError, match="No space left"):
        ready()
    ready()

    assert said.count("waystation is ready") == 1
    assert len(said) == 2
    assert [one.roles for one in written] == [("endpoint",)]
