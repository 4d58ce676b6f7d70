"""Secrets are made once, readable by the owner alone, and the same for everybody."""

import stat
from pathlib import Path

import pytest

from waystation.app.data_dir import DataDir, DataDirError
from waystation.app.keys import KeyFormatError, ensure_secrets
from waystation.push.token import parse_key_list


@pytest.fixture
def data(tmp_path: Path) -> DataDir:
    data = DataDir(tmp_path / "data")
    data.make()
    return data


def test_the_first_start_makes_all_secrets_and_says_which(data: DataDir) -> None:
    secrets, made = ensure_secrets(data)

    assert {path.name for path in made} == {
        "auth_keys",
        "broadcast_tokens.toml",
        "cluster_secret",
        "crypto_keys",
        "event_key",
        "metrics_token",
        "operator_token",
    }
    assert len(parse_key_list(secrets.crypto_keys)) == 1
    assert len(secrets.event_key) == 32
    assert len(secrets.operator_token) >= 32
    assert len(secrets.metrics_token) >= 32
    assert secrets.broadcast_tokens.reader != secrets.broadcast_tokens.publishers["*"]


def test_the_files_belong_to_the_owner_alone(data: DataDir) -> None:
    _, made = ensure_secrets(data)

    assert {stat.S_IMODE(path.stat().st_mode) for path in made} == {0o600}
    assert stat.S_IMODE(data.keys.stat().st_mode) == 0o700
    assert sorted(data.keys.iterdir()) == sorted(made)


def test_the_second_start_reads_them(data: DataDir) -> None:
    first, _ = ensure_secrets(data)
    second, made = ensure_secrets(data)

    assert second == first
    assert made == []


def test_what_is_set_wins_and_makes_no_file(data: DataDir) -> None:
    secrets, made = ensure_secrets(data, crypto_keys="given", cluster_secret="ours")

    assert (secrets.crypto_keys, secrets.cluster_secret) == ("given", "ours")
    assert not {path.name for path in made} & {"crypto_keys", "cluster_secret"}


def test_a_secret_that_others_can_read_is_refused(data: DataDir) -> None:
    _, made = ensure_secrets(data)
    made[0].chmod(0o644)
    with pytest.raises(DataDirError, match="chmod 600"):
        ensure_secrets(data)


@pytest.mark.parametrize(
    "name, text",
    [("event_key", "xyz"), ("event_key", "00ff"), ("broadcast_tokens.toml", "reader = 3")],
)
def test_a_file_that_is_damaged_is_named(data: DataDir, name: str, text: str) -> None:
    ensure_secrets(data)
    (data.keys / name).write_text(text)
    with pytest.raises(KeyFormatError, match=name):
        ensure_secrets(data)


def test_somebody_elses_secret_is_never_replaced(
    data: DataDir, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two daemons start together: whoever links first has made it, the other reads it."""
    import waystation.app.keys as module

    real = module._create

    def beaten(path: Path, text: str) -> bool:
        real(path, text.upper() if path.name == "cluster_secret" else text)
        return real(path, text)

    monkeypatch.setattr(module, "_create", beaten)
    secrets, made = ensure_secrets(data)

    assert made == []
    assert secrets.cluster_secret == (data.keys / "cluster_secret").read_text().strip()
