"""The identity of a queue server: created once, loaded, and refused if its files do not fit."""

import stat
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric.ed448 import Ed448PrivateKey
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from waystation.base.settings import SettingsError
from waystation.queue.identity import ensure_identity, renew_leaf


def test_a_first_start_makes_an_offline_ca_and_an_online_leaf(tmp_path: Path) -> None:
    identity = ensure_identity(tmp_path / "queue", host="smp.example.org")
    names = {path.name for path in identity.made}
    leaf, ca = (x509.load_der_x509_certificate(der) for der in identity.chain)

    assert names == {"ca.key", "ca.key.move-it-away", "ca.crt", "server.key", "server.crt"}
    assert isinstance(identity.leaf_key, Ed448PrivateKey)
    assert leaf.issuer == ca.subject
    assert "smp.example.org" in leaf.subject.rfc4514_string()
    assert ca.extensions.get_extension_for_class(x509.BasicConstraints).value.ca
    assert not leaf.extensions.get_extension_for_class(x509.BasicConstraints).value.ca
    leaf.verify_directly_issued_by(ca)


def test_only_the_owner_can_read_the_files(tmp_path: Path) -> None:
    ensure_identity(tmp_path / "queue", host="localhost")

    assert stat.S_IMODE((tmp_path / "queue").stat().st_mode) == 0o700
    for path in (tmp_path / "queue").iterdir():
        assert stat.S_IMODE(path.stat().st_mode) == 0o600, path


def test_a_note_says_to_move_the_key_of_the_ca_away(tmp_path: Path) -> None:
    ensure_identity(tmp_path, host="localhost")

    assert "ca.key" in (tmp_path / "ca.key.move-it-away").read_text()


def test_a_second_start_finds_the_same_identity_without_the_ca_key(tmp_path: Path) -> None:
    first = ensure_identity(tmp_path, host="localhost", algorithm="ed25519")
    (tmp_path / "ca.key").unlink()
    second = ensure_identity(tmp_path, host="localhost")

    assert isinstance(second.leaf_key, Ed25519PrivateKey)
    assert second.fingerprint == first.fingerprint
    assert second.chain == first.chain
    assert second.made == ()


def test_a_new_leaf_keeps_the_address(tmp_path: Path) -> None:
    first = ensure_identity(tmp_path, host="old.example")
    renew_leaf(tmp_path, host="new.example")
    second = ensure_identity(tmp_path, host="new.example")

    assert second.fingerprint == first.fingerprint
    assert second.chain[0] != first.chain[0]


def test_a_leaf_beside_its_ca_is_completed_to_a_chain(tmp_path: Path) -> None:
    """As other servers keep them."""
    first = ensure_identity(tmp_path, host="localhost")
    leaf = (tmp_path / "server.crt").read_text().partition("-----END CERTIFICATE-----\n")
    (tmp_path / "server.crt").write_text(leaf[0] + leaf[1])
    second = ensure_identity(tmp_path, host="localhost")

    assert second.chain == first.chain
    assert second.chain_file.name == "chain.crt"


def test_another_identity_than_the_one_handed_out_is_refused(tmp_path: Path) -> None:
    ensure_identity(tmp_path, host="localhost")
    for name in ("ca.crt", "ca.key", "ca.key.move-it-away", "server.crt", "server.key"):
        (tmp_path / name).unlink()

    with pytest.raises(SettingsError, match="names another identity"):
        ensure_identity(tmp_path, host="localhost")


def test_a_key_that_others_can_read_is_refused(tmp_path: Path) -> None:
    ensure_identity(tmp_path, host="localhost")
    (tmp_path / "server.key").chmod(0o644)

    with pytest.raises(SettingsError, match="chmod 600"):
        ensure_identity(tmp_path, host="localhost")


def test_a_key_of_another_certificate_is_refused(tmp_path: Path) -> None:
    ensure_identity(tmp_path / "one", host="localhost")
    ensure_identity(tmp_path / "two", host="localhost")
    (tmp_path / "two" / "server.key").replace(tmp_path / "one" / "server.key")

    with pytest.raises(SettingsError, match="is not the key"):
        ensure_identity(tmp_path / "one", host="localhost")
