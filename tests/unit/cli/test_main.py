"""Commands: what they say, their exit codes, and that help is quick."""

import sys
from pathlib import Path

import pytest

from waystation.cli import main as cli
from waystation.push.token import Keys, new_key


def run(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, *arguments: str
) -> tuple[int, str, str]:
    monkeypatch.setattr(sys, "argv", ["waystation", *arguments])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    said = capsys.readouterr()
    code = ended.value.code
    return code if isinstance(code, int) else 0, said.out, said.err


Run = tuple[pytest.CaptureFixture[str], pytest.MonkeyPatch]


@pytest.fixture
def env(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Run:
    monkeypatch.chdir(tmp_path)
    return capsys, monkeypatch


def test_help_lists_every_command(env: Run) -> None:
    code, out, _ = run(*env, "--help")

    assert code == 0
    for name in (
        "serve",
        "listen",
        "send",
        "party",
        "demo",
        "doctor",
        "config",
        "keys",
        "store",
        "bench",
    ):
        assert f"\n  {name}" in out


def test_the_version_is_told(env: Run) -> None:
    code, out, _ = run(*env, "--version")

    assert code == 0
    assert out.startswith("waystation ")


def test_a_command_that_does_not_exist_is_a_usage_error(env: Run) -> None:
    code, _, err = run(*env, "srve")

    assert code == 2
    assert "serve" in err  # the nearest one


def test_a_role_that_does_not_exist_is_a_usage_error(env: Run) -> None:
    code, _, err = run(*env, "serve", "prxy")

    assert code == 2
    assert "unknown role 'prxy'" in err


def test_bad_settings_are_a_configuration_error_with_every_objection(env: Run) -> None:
    env[1].setenv("WAYSTATION_CONNECT__PROT", "1")
    env[1].setenv("WAYSTATION_ENDPOINT__PORT", "x")
    code, _, err = run(*env, "config", "check")

    assert code == 78
    assert "did you mean WAYSTATION_CONNECT__PORT" in err
    assert "endpoint.port" in err


def test_good_settings_are_fine(env: Run) -> None:
    code, out, _ = run(*env, "config", "check")

    assert code == 0
    assert "settings are fine" in out


def test_a_settings_file_can_be_named_in_the_environment(env: Run, tmp_path: Path) -> None:
    (tmp_path / "w.toml").write_text("[connect]\nport = 5\n")
    env[1].setenv("WAYSTATION_CONFIG", str(tmp_path / "w.toml"))
    code, out, _ = run(*env, "config", "show", "--changed")

    assert code == 0
    assert "port = 5" in out


def test_a_fernet_key_can_be_made(env: Run) -> None:
    from waystation.base.clock import ManualClock

    code, out, _ = run(*env, "keys", "fernet")

    assert code == 0
    assert Keys.parse(out, ManualClock()).open_token(
        Keys.parse(out, ManualClock()).seal(b"x").encode()
    )


def test_the_registration_secret_of_a_user_agent_can_be_made(env: Run) -> None:
    code, out, _ = run(*env, "keys", "auth-secret", "0" * 32, "--key", "k")
    bad = run(*env, "keys", "auth-secret", "nobody", "--key", "k")

    assert code == 0
    assert len(out.strip()) == 64
    assert bad[0] == 2


def test_an_endpoint_of_another_server_is_said_to_be_so(env: Run) -> None:
    from waystation.base.clock import ManualClock

    env[1].setenv("WAYSTATION_PUSH__CRYPTO_KEYS", new_key())
    token = Keys.parse(new_key(), ManualClock()).seal(b"x" * 32)
    code, _, err = run(*env, "keys", "endpoint", f"https://h/wpush/v1/{token}")

    assert code == 1
    assert "another server's" in err


def test_a_vapid_key_is_converted_for_tracking(env: Run, tmp_path: Path) -> None:
    from waystation.client.vapid import VapidKey

    key = VapidKey.generate()
    key.save(tmp_path / "vapid.pem")
    code, out, _ = run(*env, "keys", "vapid", str(tmp_path / "vapid.pem"))

    assert code == 0
    assert out.strip() == key.public_text


def test_a_store_that_is_not_there_is_not_made_by_looking(env: Run, tmp_path: Path) -> None:
    code, _, err = run(*env, "store", "check", "--data-dir", str(tmp_path / "none"))

    assert code == 1
    assert "there is no embedded store" in err
    assert not (tmp_path / "none").exists()


def test_a_store_can_be_made_checked_and_copied(env: Run, tmp_path: Path) -> None:
    data = ("--data-dir", str(tmp_path / "d"))
    made = run(*env, "store", "init", *data)
    checked = run(*env, "store", "check", *data)
    saved = run(*env, "store", "backup", str(tmp_path / "b"), *data)
    kept = run(*env, "store", "restore", str(tmp_path / "b"), *data)
    replaced = run(*env, "store", "restore", str(tmp_path / "b"), "--force", *data)

    assert [one[0] for one in (made, checked, saved, kept, replaced)] == [0, 0, 0, 1, 0]
    assert "--force" in kept[2]


def test_a_file_that_is_no_backup_makes_no_directory(env: Run, tmp_path: Path) -> None:
    (tmp_path / "b").write_bytes(b"something else")
    code, _, err = run(
        *env, "store", "restore", str(tmp_path / "b"), "--data-dir", str(tmp_path / "d")
    )

    assert code == 1
    assert "is not a backup" in err
    assert not (tmp_path / "d").exists()


def test_the_doctor_looks_without_a_server(env: Run) -> None:
    _, out, _ = run(*env, "doctor", "--data-dir", "nowhere")

    assert "does not exist yet" in out
    assert "self-test" in out
