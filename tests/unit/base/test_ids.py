import hashlib
import hmac
import uuid

import pytest
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from hypothesis import given
from hypothesis import strategies as st

from waystation.base.ids import (
    PeriodTagger,
    Tagger,
    dashed,
    is_canonical_dashed,
    new_uuid4,
    parse_uuid,
    period_key,
    period_of,
    simple,
)

TEXT = "deadbeef-0000-4000-8abc-0123456789ab"
RAW = uuid.UUID(TEXT).bytes
KEY = b"k" * 32


@pytest.mark.parametrize(
    "text",
    [
        TEXT,
        TEXT.upper(),
        TEXT.replace("-", ""),
        "{" + TEXT + "}",
        "urn:uuid:" + TEXT,
        "{" + TEXT.replace("-", "").upper() + "}",
    ],
)
def test_every_usual_spelling_is_read(text: str) -> None:
    assert parse_uuid(text) == RAW == uuid.UUID(text).bytes


@pytest.mark.parametrize(
    "text",
    [
        "",
        "x",
        TEXT[:-1],
        TEXT + "0",
        TEXT[:-1] + "g",
        "0x" + TEXT.replace("-", "")[2:],
        "+" + TEXT.replace("-", "")[1:],
        "de_dbeef00004000" + "8abc0123456789ab",
        "  " + TEXT.replace("-", "")[2:],
        TEXT.replace("-", " "),
        "\u0660" * 32,
        "\ud800" * 36,
        "-" * 36,
        "\x00" * 32,
    ],
)
def test_what_is_no_uuid_gives_none_and_never_raises(text: str) -> None:
    assert parse_uuid(text) is None


@given(st.text())
def test_any_text_at_all_is_survived(text: str) -> None:
    raw = parse_uuid(text)

    assert raw is None or len(raw) == 16


@given(st.binary(min_size=16, max_size=16))
def test_both_renderings_read_back(raw: bytes) -> None:
    assert dashed(raw) == str(uuid.UUID(bytes=raw))
    assert simple(raw) == uuid.UUID(bytes=raw).hex
    assert parse_uuid(dashed(raw)) == parse_uuid(simple(raw)) == raw
    assert is_canonical_dashed(dashed(raw))


@pytest.mark.parametrize(
    "text", [TEXT.upper(), TEXT.replace("-", ""), "{" + TEXT + "}", TEXT + "\n", "", "-" * 36]
)
def test_only_lower_case_with_dashes_is_canonical(text: str) -> None:
    assert not is_canonical_dashed(text)


def test_a_new_id_is_a_version_4_uuid() -> None:
    for fill in (b"\x00", b"\xff", b"\x5a"):
        made = uuid.UUID(bytes=new_uuid4(lambda n, fill=fill: fill * n))
        assert made.version == 4
        assert made.variant == uuid.RFC_4122
    assert new_uuid4() != new_uuid4()


def test_a_tag_and_a_hash_are_the_first_eight_bytes_of_the_hmac() -> None:
    first8 = hmac.new(KEY, RAW, hashlib.sha256).digest()[:8]

    assert Tagger(KEY).tag(RAW) == first8.hex()
    assert Tagger(KEY).hash64(RAW) == int.from_bytes(first8, "big", signed=True)


@given(st.binary(min_size=16, max_size=80), st.binary(max_size=200))
def test_a_digest_is_what_the_standard_library_computes(key: bytes, raw: bytes) -> None:
    assert Tagger(key).digest(raw) == hmac.digest(key, raw, "sha256")


@given(st.binary(max_size=64))
def test_a_hash_fits_a_signed_64_bit_column_and_prints_as_its_tag(raw: bytes) -> None:
    value = Tagger(KEY).hash64(raw)

    assert -(2**63) <= value < 2**63
    assert f"{value & (2**64 - 1):016x}" == Tagger(KEY).tag(raw)


@pytest.mark.parametrize(
    "time_ms, period",
    [
        (0, "1970Q1"),
        (1_774_994_399_999, "2026Q1"),
        (1_775_001_600_000, "2026Q2"),
        (1_782_863_999_999, "2026Q2"),
        (1_782_864_000_000, "2026Q3"),
        (1_798_761_599_999, "2026Q4"),
    ],
)
def test_a_period_is_a_calendar_quarter_of_the_event_date(time_ms: int, period: str) -> None:
    assert period_of(time_ms) == period


def test_a_period_key_is_hkdf_of_purpose_and_period() -> None:
    theirs = HKDF(hashes.SHA256(), 32, None, b"uaid2026Q3").derive(KEY)

    assert period_key(KEY, "uaid", "2026Q3") == theirs


def test_purposes_and_quarters_do_not_share_keys() -> None:
    q2, q3 = 1_782_863_999_999, 1_782_864_000_000
    uaids, channels = PeriodTagger(KEY, "uaid"), PeriodTagger(KEY, "channel")

    tags = {
        uaids.at(q2).tag(RAW),
        uaids.at(q3).tag(RAW),
        channels.at(q2).tag(RAW),
        channels.at(q3).tag(RAW),
    }

    assert len(tags) == 4
    assert uaids.at(q2 - 1).tag(RAW) == uaids.at(q2).tag(RAW)
    assert uaids.at(q3).hash64(RAW) == Tagger(period_key(KEY, "uaid", "2026Q3")).hash64(RAW)
