from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from waystation.base.errors import WaystationError
from waystation.push.errors import (
    InvalidApiVersionError,
    InvalidEncryptionError,
    InvalidTopicError,
    NegativeTtlError,
    NoTtlError,
    PayloadTooLargeError,
)
from waystation.push.model import Urgency
from waystation.push.wire.webpush import (
    check_api_version,
    clean,
    find_item,
    parse_sections,
    read_body,
    read_encryption,
    read_post,
    read_topic,
    read_ttl,
    read_urgency,
)


class Read(NamedTuple):
    ttl_s: int
    topic: str | None
    urgency: Urgency
    data: str | None
    headers: dict[str, str] | None


def read(
    headers: dict[bytes, bytes],
    body: bytes = b"",
    *,
    oversize: bool = False,
    body_bytes_max: int = 5630,
    ttl_max_s: int = 2_592_000,
) -> Read:
    post = read_post(headers, body, oversize, body_bytes_max, ttl_max_s)
    return Read(post.ttl_s, post.topic, post.urgency, read_body(body), post.headers)


class TestTtl:
    @pytest.mark.parametrize(
        "value, ttl_s", [(b"0", 0), (b"60", 60), (b"+5", 5), (b"-0", 0), (b"-1", -1), (b"007", 7)]
    )
    def test_an_integer_is_a_ttl(self, value: bytes, ttl_s: int) -> None:
        assert read_ttl(value) == ttl_s

    @pytest.mark.parametrize(
        "value", [None, b"", b"abc", b"1.5", b" 5", b"5 ", b"1_0", b"+", b"--1", b"0x1", b"\xb2"]
    )
    def test_anything_else_counts_as_missing(self, value: bytes | None) -> None:
        """C-095"""
        with pytest.raises(NoTtlError, match="Missing TTL value"):
            read_ttl(value)

    @pytest.mark.parametrize("value", [b"2592001", b"5184000", b"9" * 19, b"9" * 5000])
    def test_a_long_ttl_is_lowered(self, value: bytes) -> None:
        """C-096"""
        assert read({b"ttl": value}).ttl_s == 2_592_000


class TestTopic:
    @pytest.mark.parametrize("value", [b"a", b"A-z_09", b"x" * 32, b"abc==", b"x" * 30 + b"=="])
    def test_base64url_is_a_topic(self, value: bytes) -> None:
        assert read_topic(value) == value.decode()

    def test_more_than_32_letters_are_too_many(self) -> None:
        """C-097"""
        with pytest.raises(InvalidTopicError, match="no greater than 32 characters"):
            read_topic(b"x" * 33)

    @pytest.mark.parametrize("value", [b"", b"=", b"a!", b"a b", b"a=b", b"a:b", b"\xe9", b"a\n"])
    def test_other_letters_are_not_a_topic(self, value: bytes) -> None:
        """C-097"""
        with pytest.raises(InvalidTopicError, match="URL and Filename safe Base64 alphabet"):
            read_topic(value)


def test_an_unknown_urgency_counts_as_normal() -> None:
    assert read_urgency(None) is Urgency.NORMAL
    assert read_urgency(b"very-low") is Urgency.VERY_LOW
    assert read_urgency(b"High") is Urgency.HIGH
    assert read_urgency(b"now!") is Urgency.NORMAL


class TestEncryption:
    def test_aes128gcm_needs_nothing_else(self) -> None:
        assert read_encryption({b"content-encoding": b"aes128gcm"}) == {"encoding": "aes128gcm"}

    def test_aesgcm_brings_its_headers_cleaned(self) -> None:
        """C-034, C-100"""
        headers = {
            b"content-encoding": b"aesgcm",
            b"encryption": b'keyid="p256dh";salt="S5tC+wX=="',
            b"crypto-key": b'dh=BDgpRKok2GZZDmS4=;p256ecdsa="BF92zdI_="',
        }
        with pytest.raises(InvalidEncryptionError, match="Invalid salt value in Encryption header"):
            read_encryption(headers)
        headers[b"encryption"] = b'keyid="p256dh";salt="S5tC_wX=="'

        assert read_encryption(headers) == {
            "encoding": "aesgcm",
            "encryption": "keyid=p256dh;salt=S5tC_wX",
            "crypto_key": "dh=BDgpRKok2GZZDmS4;p256ecdsa=BF92zdI_",
        }
        del headers[b"crypto-key"]
        assert "crypto_key" not in read_encryption(headers)

    @pytest.mark.parametrize(
        "headers, says",
        [
            ({}, "Missing Content-Encoding header"),
            ({b"content-encoding": b""}, "Unknown Content-Encoding header"),
            ({b"content-encoding": b"gzip"}, "Unknown Content-Encoding header"),
            ({b"content-encoding": b"AES128GCM"}, "Unknown Content-Encoding header"),
            ({b"content-encoding": b"aesgcm128"}, "Unknown Content-Encoding header"),
            (
                {b"content-encoding": b"aes128gcm", b"crypto-key": b"p256ecdsa=a,dh=b"},
                "Do not include 'dh' header in aes128gcm Crypto-Key header",
            ),
            (
                {b"content-encoding": b"aes128gcm", b"encryption": b"salt=b"},
                "Do not include 'salt' header in aes128gcm Encryption header",
            ),
            ({b"content-encoding": b"aes128gcm", b"crypto-key": b"a"}, "Invalid Crypto-Key header"),
            ({b"content-encoding": b"aes128gcm", b"crypto-key": b"\xff=1"}, "Invalid Crypto-Key"),
            ({b"content-encoding": b"aesgcm"}, "Missing Encryption header"),
            (
                {b"content-encoding": b"aesgcm", b"encryption": b"keyid=p"},
                "Missing salt value in Encryption header",
            ),
            (
                {b"content-encoding": b"aesgcm", b"encryption": b"keyid"},
                "Invalid Encryption header",
            ),
            (
                {b"content-encoding": b"aesgcm", b"encryption": b"salt="},
                "Invalid salt value in Encryption header",
            ),
            (
                {b"content-encoding": b"aesgcm", b"encryption": b"salt=a", b"crypto-key": b"k=1"},
                "Missing dh value in Crypto-Key header",
            ),
            (
                {
                    b"content-encoding": b"aesgcm",
                    b"encryption": b"salt=a",
                    b"crypto-key": b"dh=a+b",
                },
                "Invalid dh value in Crypto-Key header",
            ),
        ],
    )
    def test_what_is_wrong_is_named(self, headers: dict[bytes, bytes], says: str) -> None:
        """C-098, C-099, C-101, C-102"""
        with pytest.raises(InvalidEncryptionError, match=says):
            read_encryption(headers)

    def test_only_p256ecdsa_beside_aes128gcm_is_fine(self) -> None:
        """C-101"""
        headers = {b"content-encoding": b"aes128gcm", b"crypto-key": b'p256ecdsa="AA=="'}

        assert read_encryption(headers)["crypto_key"] == "p256ecdsa=AA"

    def test_an_item_is_taken_from_the_first_section_that_has_it(self) -> None:
        sections = parse_sections(b"a=1; b=2, b=3;c=4==")

        assert sections is not None
        assert [find_item(sections, key) for key in "abcd"] == ["1", "2", "4==", None]

    @given(st.text(alphabet='abc=",; \t', max_size=40))
    def test_cleaning_is_final(self, text: str) -> None:
        cleaned = clean(text.encode())

        assert '"' not in cleaned
        assert "=," not in cleaned
        assert not cleaned.endswith("=")
        assert clean(cleaned.encode()) == cleaned


class TestPost:
    def test_an_empty_body_drops_encryption_headers_unseen(self) -> None:
        """C-061"""
        post = read({b"ttl": b"1", b"content-encoding": b"nonsense", b"crypto-key": b"bad"})

        assert (post.data, post.headers) == (None, None)

    def test_a_body_becomes_base64url_without_padding(self) -> None:
        """C-035"""
        body = bytes.fromhex("c328a0a1e228a1")
        post = read({b"ttl": b"1", b"content-encoding": b"aes128gcm"}, body)

        assert (post.data, post.headers) == ("wyigoeIooQ", {"encoding": "aes128gcm"})

    def test_the_first_failure_wins_in_the_order_of_the_table(self) -> None:
        bad = {b"topic": b"!"}
        with pytest.raises(PayloadTooLargeError, match="5630"):
            read(bad, oversize=True)
        with pytest.raises(PayloadTooLargeError):
            read(bad, b"x" * 5631)
        with pytest.raises(NoTtlError):
            read(bad, b"x")
        bad[b"ttl"] = b"-1"
        with pytest.raises(InvalidEncryptionError):
            read(bad, b"x")
        bad[b"content-encoding"] = b"aes128gcm"
        with pytest.raises(NegativeTtlError, match="TTL must be greater than 0"):
            read(bad, b"x")
        bad[b"ttl"] = b"1"
        with pytest.raises(InvalidTopicError):
            read(bad, b"x")
        bad[b"topic"] = b"ok"

        assert read(bad, b"x").topic == "ok"

    @given(
        st.dictionaries(
            st.sampled_from([b"ttl", b"topic", b"content-encoding", b"encryption", b"crypto-key"]),
            st.one_of(
                st.binary(max_size=40), st.sampled_from([b"1", b"aesgcm", b"aes128gcm", b"salt=a"])
            ),
        ),
        st.binary(max_size=10),
    )
    def test_any_headers_give_a_post_or_one_of_our_errors(
        self, headers: dict[bytes, bytes], body: bytes
    ) -> None:
        try:
            post = read(headers, body)
        except WaystationError:
            return
        assert 0 <= post.ttl_s <= 2_592_000
        assert (post.data is None) == (not body)


def test_there_are_two_api_versions() -> None:
    assert (check_api_version(b"v1"), check_api_version(b"v2")) == ("v1", "v2")
    for version in (b"v9", b"V1", b"", b"v11"):
        with pytest.raises(InvalidApiVersionError, match="Invalid API version"):
            check_api_version(version)
