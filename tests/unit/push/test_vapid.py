from collections.abc import Callable
from typing import Any

import pybase64
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.push.vapid_tokens import AUDIENCE, AppServer, b64
from waystation.push import vapid as module
from waystation.push.errors import InvalidEncryptionError, VapidError
from waystation.push.vapid import Vapid, decode_public_key, read_authorization

NOW = 1_700_000_000
SERVER = AppServer()
NOT_A_POINT = b64(b"\x04" + bytes(range(64)))


@pytest.fixture
def vapid() -> Vapid:
    return Vapid(AUDIENCE)


def fails(vapid: Vapid, authorization: bytes | str, crypto_key: bytes | None = None) -> str:
    if isinstance(authorization, str):
        authorization = authorization.encode()
    with pytest.raises(VapidError) as raised:
        vapid.verify(authorization, crypto_key, NOW)
    return str(raised.value)


class TestHeaders:
    @pytest.mark.parametrize(
        "form",
        [
            "vapid t={t},k={k}",
            "vapid t={t}, k={k}",
            "vapid k={k},t={t}",
            "VAPID   k={k} , t={t}",
            "vapid t={t}, k={k}, foo=bar",
            "vapid t={t},k={k}==",
            'vapid t="{t}",k="{k}"',
        ],
    )
    def test_the_parameters_come_in_any_order_and_spacing(self, vapid: Vapid, form: str) -> None:
        """C-111, C-112"""
        token = SERVER.token({"aud": AUDIENCE, "exp": NOW + 60})
        sender = vapid.verify(form.format(t=token, k=SERVER.public_key).encode(), None, NOW)

        assert sender.key_hash == SERVER.key_hash
        assert sender.public_key == SERVER.point
        assert sender.draft == 2

    def test_a_key_in_the_standard_alphabet_is_accepted(self, vapid: Vapid) -> None:
        """C-111"""
        server = next(s for s in map(AppServer, range(1, 99)) if {"-", "_"} & set(s.public_key))
        key = server.public_key.replace("-", "+").replace("_", "/")
        token = server.token({"aud": AUDIENCE, "exp": NOW + 60})

        sender = vapid.verify(f"vapid t={token},k={key}".encode(), None, NOW)

        assert sender.public_key == server.point

    @pytest.mark.parametrize("scheme", ["WebPush", "Bearer", "webpush", "BEARER"])
    def test_the_older_schemes_take_the_key_from_crypto_key(
        self, vapid: Vapid, scheme: str
    ) -> None:
        """C-110"""
        token = SERVER.token({"aud": AUDIENCE, "exp": NOW + 60})
        header = f'dh="abc";p256ecdsa="{SERVER.public_key}"'.encode()
        sender = vapid.verify(f"{scheme} {token}".encode(), header, NOW)

        assert (sender.key_hash, sender.draft) == (SERVER.key_hash, 1)

    @pytest.mark.parametrize(
        "crypto_key, says",
        [
            (None, "Missing Crypto-Key header"),
            (b"dh", "Invalid Crypto-Key header"),
            (b"dh=abc", "Missing p256ecdsa in Crypto-Key header"),
        ],
    )
    def test_the_older_schemes_without_their_key_are_an_encryption_error(
        self, vapid: Vapid, crypto_key: bytes | None, says: str
    ) -> None:
        """C-110: 400/110, not 401."""
        token = SERVER.token({"aud": AUDIENCE, "exp": NOW + 60})
        with pytest.raises(InvalidEncryptionError, match=says):
            vapid.verify(f"WebPush {token}".encode(), crypto_key, NOW)

    @pytest.mark.parametrize(
        "header, says",
        [
            ("", "Missing VAPID token"),
            ("vapid", "Missing VAPID token"),
            ("vapid ", "Missing VAPID token"),
            ("nonsense", "Missing VAPID token"),
            ("Basic dXNlcjpwYXNz", "Unknown auth scheme"),
            ("vapid t=a.b.c", "Missing VAPID public key"),
            ("vapid foo=bar", "Missing VAPID public key"),
            (f"vapid k={SERVER.public_key}", "Missing VAPID token"),
            ("vapid t=a.b.c,k=****", "Invalid VAPID public key"),
            (f"vapid t=a.b.c,k={b64(SERVER.point[1:])}", "Invalid VAPID public key"),
            (f"vapid t=a.b.c,k={NOT_A_POINT}", "Invalid VAPID public key"),
            (f"vapid t=a.b,k={SERVER.public_key}", "Invalid VAPID token"),
            (f"vapid t=a.b.c.d,k={SERVER.public_key}", "Invalid VAPID token"),
        ],
    )
    def test_what_is_missing_or_wrong_is_named(self, vapid: Vapid, header: str, says: str) -> None:
        """C-104, C-109"""
        assert fails(vapid, header).startswith(says)

    @given(st.binary(max_size=300), st.one_of(st.none(), st.binary(max_size=100)))
    def test_any_other_bytes_are_refused_and_nothing_worse(
        self, authorization: bytes, crypto_key: bytes | None
    ) -> None:
        with pytest.raises((VapidError, InvalidEncryptionError)):
            Vapid(AUDIENCE).verify(authorization, crypto_key, NOW)

    @given(st.from_regex(rb"(vapid|webpush|bearer) [tk=,. a-z\"]{0,40}", fullmatch=True))
    def test_what_looks_like_vapid_is_parsed_without_surprises(self, authorization: bytes) -> None:
        try:
            draft, token, _ = read_authorization(authorization)
        except VapidError:
            return
        assert draft in (1, 2)
        assert token


class TestClaims:
    @pytest.mark.parametrize(
        "claims",
        [
            {},
            {"sub": "mailto:ops@example.org"},
            {"sub": None},
            {"sub": 5},
            {"exp": NOW + 86_400},
            {"exp": NOW - 60},
            {"exp": NOW + 60.5},
            {"iat": "whenever", "nbf": NOW + 10**6, "more": [1, {"a": 2}]},
        ],
    )
    def test_these_are_accepted(self, vapid: Vapid, claims: dict[str, Any]) -> None:
        """C-106, C-107"""
        assert vapid.verify(SERVER.authorization(NOW, **claims), None, NOW).aud == AUDIENCE

    @pytest.mark.parametrize(
        "claims, says",
        [
            ({"exp": NOW - 61}, "The VAPID token has expired"),
            ({"exp": NOW + 86_401}, "The VAPID token expiration is too long"),
            ({"exp": NOW + 25 * 3600}, "The VAPID token expiration is too long"),
            ({"exp": None}, "Missing required exp"),
            ({"exp": "@"}, "Invalid VAPID token: A value in the vapid claims is either missing or"),
            ({"exp": str(NOW)}, "Invalid VAPID token: A value in the vapid claims is either"),
            ({"exp": [NOW]}, "Invalid VAPID token: A value in the vapid claims is either"),
            ({"exp": True}, "Invalid VAPID token: A value in the vapid claims is either"),
            ({"exp": -1}, "Invalid VAPID token: A value in the vapid claims is either"),
            ({"aud": [AUDIENCE]}, "Invalid VAPID token: A value in the vapid claims is either"),
            ({"aud": None}, "Invalid VAPID audience"),
            ({"aud": "https://other.example.org"}, "Invalid VAPID audience"),
            ({"aud": AUDIENCE + "/"}, "Invalid VAPID audience"),
            ({"aud": AUDIENCE + "/wpush"}, "Invalid VAPID audience"),
            ({"aud": AUDIENCE + ":443"}, "Invalid VAPID audience"),
        ],
    )
    def test_these_are_refused(self, vapid: Vapid, claims: dict[str, Any], says: str) -> None:
        """C-107, C-108"""
        assert fails(vapid, SERVER.authorization(NOW, **claims)).startswith(says)

    def test_types_come_before_time_and_time_before_audience(self, vapid: Vapid) -> None:
        both = SERVER.authorization(NOW, exp=NOW - 61, aud="https://other.example.org")
        types = SERVER.authorization(NOW, exp=NOW - 61, aud=5)

        assert fails(vapid, both) == "The VAPID token has expired"
        assert fails(vapid, types).startswith("Invalid VAPID token: A value")

    @pytest.mark.parametrize("alg", ["none", "HS256", "RS256", "es256", ""])
    def test_only_es256_is_an_algorithm(self, vapid: Vapid, alg: str) -> None:
        """C-109"""
        token = SERVER.token({"aud": AUDIENCE, "exp": NOW + 60}, {"alg": alg})

        assert "ES256" in fails(vapid, f"vapid t={token},k={SERVER.public_key}")

    def test_a_signature_of_somebody_else_or_of_other_claims_is_refused(self, vapid: Vapid) -> None:
        """C-109; the signature is looked at before the claims are."""
        good = SERVER.token({"aud": AUDIENCE, "exp": NOW + 60})
        head, claims, signature = good.split(".")
        for token in (
            AppServer(8).token({"aud": AUDIENCE, "exp": NOW + 60}),
            AppServer(8).token("not even claims"),
            f"{head}.{claims[:-2]}AA.{signature}",
            f"{head}.{claims}.{signature[:-6]}",
            f"{head}.{claims}.{'A' * 86}",
            f"{head}.{claims}.",
        ):
            assert "InvalidSignature" in fails(vapid, f"vapid t={token},k={SERVER.public_key}")


class TestMemory:
    def test_a_token_is_verified_once_and_remembered(
        self, vapid: Vapid, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        calls = 0
        real = module._verified_claims

        def counting(*args: Any) -> Any:
            nonlocal calls
            calls += 1
            return real(*args)

        monkeypatch.setattr(module, "_verified_claims", counting)
        authorization = SERVER.authorization(NOW)
        senders = {vapid.verify(authorization, None, NOW + n) for n in (0, 1, 299)}

        assert (len(senders), calls) == (1, 1)
        vapid.verify(authorization, None, NOW + 300)
        assert calls == 2

    def test_a_remembered_token_still_expires(self, vapid: Vapid) -> None:
        authorization = SERVER.authorization(NOW, exp=NOW + 10)
        vapid.verify(authorization, None, NOW)
        vapid.verify(authorization, None, NOW + 70)

        with pytest.raises(VapidError, match="expired"):
            vapid.verify(authorization, None, NOW + 71)

    def test_without_authorization_there_is_no_sender(self, vapid: Vapid) -> None:
        assert vapid.sender_of({}, NOW) is None

    def test_what_failed_is_not_remembered(self, vapid: Vapid) -> None:
        authorization = SERVER.authorization(NOW, exp=NOW + 86_401)
        assert fails(vapid, authorization)

        vapid.verify(authorization, None, NOW + 2)

    def test_an_older_scheme_is_remembered_together_with_its_key(self, vapid: Vapid) -> None:
        """The same Authorization with another Crypto-Key is another claim to who sent it."""
        authorization = f"WebPush {SERVER.token({'aud': AUDIENCE, 'exp': NOW + 60})}".encode()
        vapid.verify(authorization, f"p256ecdsa={SERVER.public_key}".encode(), NOW)

        assert fails(vapid, authorization, f"p256ecdsa={AppServer(8).public_key}".encode())
        with pytest.raises(InvalidEncryptionError):
            vapid.verify(authorization, None, NOW)

    def test_the_memory_is_bounded_and_may_be_off(self) -> None:
        small, none = Vapid(AUDIENCE, cache_max=2), Vapid(AUDIENCE, cache_max=0)
        for n in range(5):
            for vapid in (small, none):
                vapid.verify(SERVER.authorization(NOW, exp=NOW + n), None, NOW)

        assert small._verified is not None
        assert len(small._verified) == 2
        assert none._verified is None


def test_a_public_key_is_65_bytes_in_any_base64() -> None:
    key = SERVER.public_key
    spellings = [key, key + "=", key.replace("-", "+").replace("_", "/") + "=", key.encode()]

    assert {decode_public_key(spelling) for spelling in spellings} == {SERVER.point}
    assert [decode_public_key(bad) for bad in ("é", "", "AAAA", b64(SERVER.point[1:]))] == [
        None
    ] * 4


@given(
    st.text("AZaz09-_.", min_size=1), st.text("AZaz09-_", min_size=1), st.sampled_from([",", ", "])
)
def test_the_usual_spelling_says_what_taking_it_apart_says(
    token: str, key: str, comma: str
) -> None:
    usual = read_authorization(f"vapid t={token}{comma}k={key}".encode())

    assert usual == read_authorization(f"VAPID  k={key} , t={token}".encode())
    assert usual == (2, token.encode(), key.encode())


PIECES = st.sampled_from(
    [b"a.b.c", b"k", b"t", b"=", b",", b", ", b" ", b"\t", b'"', b"\x0b", b"\xff", b"k=d", b"t=x"]
)


@given(st.text(st.sampled_from("AZaz09-_-_+/=. "), max_size=12))
def test_base64url_is_read_with_and_without_its_padding_and_in_its_own_alphabet(text: str) -> None:
    def read(decode: Callable[[], bytes]) -> bytes | None:
        try:
            return decode()
        except ValueError:
            return None

    raw = text.encode()
    bare = raw.rstrip(b"=")

    assert read(lambda: module._unpadded(raw)) == read(
        lambda: pybase64.b64decode(bare, b"-_", validate=True, padded=False)
    )
