"""VAPID tokens: foreign verification, reuse, and key files."""

import base64
import json
import stat
from pathlib import Path

import pytest
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.asymmetric.utils import encode_dss_signature
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from py_vapid import Vapid02

from waystation.client.encryption import BadKeyError
from waystation.client.vapid import VapidKey, VapidSigner, origin_of

KEY = VapidKey.generate()


def decoded(part: str) -> bytes:
    return base64.urlsafe_b64decode(part + "=" * (-len(part) % 4))


def claims_of(header: str) -> dict[str, object]:
    token = header.split("t=")[1].partition(",")[0]
    return json.loads(decoded(token.split(".")[1]))


def test_a_token_is_es256_over_header_and_claims() -> None:
    token = KEY.sign("https://push.example.org", expires_at_s=1_700_043_200, subject="mailto:a@b.c")
    header, claims, signature = token.split(".")

    assert json.loads(decoded(header)) == {"typ": "JWT", "alg": "ES256"}
    assert json.loads(decoded(claims)) == {
        "aud": "https://push.example.org",
        "exp": 1_700_043_200,
        "sub": "mailto:a@b.c",
    }
    raw = decoded(signature)
    assert len(raw) == 64
    der = encode_dss_signature(int.from_bytes(raw[:32]), int.from_bytes(raw[32:]))
    public = ec.EllipticCurvePublicKey.from_encoded_point(ec.SECP256R1(), KEY.public)
    public.verify(der, f"{header}.{claims}".encode(), ec.ECDSA(hashes.SHA256()))


def test_py_vapid_accepts_our_header() -> None:
    header = KEY.authorization("https://push.example.org", expires_at_s=2_000_000_000)

    assert Vapid02.verify(header.replace(", ", ","))


@pytest.mark.parametrize(
    "url, origin",
    [
        ("https://push.example.org/wpush/v2/x", "https://push.example.org"),
        ("https://push.example.org:443/x", "https://push.example.org"),
        ("http://127.0.0.1:8082/wpush/v1/x", "http://127.0.0.1:8082"),
        ("http://[::1]:80/x", "http://[::1]"),
        ("HTTPS://Push.Example.org:8443", "https://push.example.org:8443"),
    ],
)
def test_the_audience_is_the_origin(url: str, origin: str) -> None:
    assert origin_of(url) == origin


@pytest.mark.parametrize("url", ["", "push.example.org", "ws://push.example.org", "https:///x"])
def test_what_is_no_endpoint_has_no_origin(url: str) -> None:
    with pytest.raises(ValueError, match="push endpoint"):
        origin_of(url)


def test_a_token_is_reused_per_origin_until_shortly_before_it_expires() -> None:
    now = [1_700_000_000.0]
    signer = VapidSigner(KEY, lifetime_s=3600, renew_before_s=600, now_s=lambda: now[0])

    first = signer.authorization("https://a.example.org/wpush/v1/1")
    now[0] += 2999
    assert signer.authorization("https://a.example.org/wpush/v1/2") == first
    assert signer.authorization("https://b.example.org/wpush/v1/1") != first
    now[0] += 1
    renewed = signer.authorization("https://a.example.org/wpush/v1/3")
    assert claims_of(renewed)["exp"] == 1_700_000_000 + 3000 + 3600


def test_a_token_that_was_refused_is_signed_anew() -> None:
    now = [1_700_000_000.0]
    signer = VapidSigner(KEY, now_s=lambda: now[0])
    first = signer.authorization("https://a.example.org/x")
    now[0] += 1

    signer.forget("https://a.example.org/y")

    assert signer.authorization("https://a.example.org/x") != first


def test_a_key_file_is_private_and_comes_back(tmp_path: Path) -> None:
    path = tmp_path / "new" / "vapid.pem"

    made = VapidKey.load_or_create(path)

    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert VapidKey.load_or_create(path).public == made.public
    with pytest.raises(FileExistsError):
        KEY.save(path)


def test_a_file_that_holds_no_p256_key_is_refused_by_name(tmp_path: Path) -> None:
    path = tmp_path / "vapid.pem"
    pem = (Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    for content in (
        b"nonsense",
        Ed25519PrivateKey.generate().private_bytes(*pem),
        ec.generate_private_key(ec.SECP384R1()).private_bytes(*pem),
    ):
        path.write_bytes(content)
        with pytest.raises(BadKeyError):
            VapidKey.load(path)
