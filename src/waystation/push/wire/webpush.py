"""The POST of an app server as typed values, and the answers to it (RFC 8030).

Rule 1: checks are pure functions, called in the order of the specification's table; the first
        failure wins.
Rule 2: an empty body is a tickle; its encryption headers are ignored, even invalid ones.
Rule 3: `Encryption` and `Crypto-Key` are sent to the user agent without quotes and padding.

Header names are lower-case bytes, as the HTTP server provides them.
"""

import re
from collections.abc import Mapping
from functools import lru_cache
from typing import Final

import msgspec
from pybase64 import b64encode_as_string

from waystation.push.errors import (
    InvalidApiVersionError,
    InvalidEncryptionError,
    InvalidTopicError,
    NegativeTtlError,
    NoTtlError,
    PayloadTooLargeError,
)
from waystation.push.model import Urgency

Headers = Mapping[bytes, bytes]
Sections = list[dict[str, str]]

TOPIC_LETTERS_MAX: Final = 32
_BASE64URL: Final = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"
_URGENCIES: Final = {urgency.value.encode(): urgency for urgency in Urgency}
_NORMAL: Final = Urgency.NORMAL
_TTL_DIGITS_MAX: Final = 19  # a longer number is above every limit and need not be parsed
_PADDING: Final = re.compile(r"=+(?=[,;]|$)")
AES128GCM_ONLY: Final = {"encoding": "aes128gcm"}  # shared by all notifications; never changed


class Post(msgspec.Struct, frozen=True, gc=False):
    """The headers of a valid POST."""

    ttl_s: int
    topic: str | None
    urgency: Urgency
    headers: dict[str, str] | None


def check_api_version(version: bytes) -> str:
    """Step 1."""
    if version == b"v2":
        return "v2"
    if version == b"v1":
        return "v1"
    raise InvalidApiVersionError("Invalid API version")


def read_post(
    headers: Headers, body: bytes, oversize: bool, body_bytes_max: int, ttl_max_s: int
) -> Post:
    """Steps 11 to 15. Only the length of the body matters."""
    if oversize or len(body) > body_bytes_max:
        raise PayloadTooLargeError(
            f"This message is intended for a constrained device and is limited to"
            f" {body_bytes_max} bytes"
        )
    ttl_s = read_ttl(headers.get(b"ttl"))
    encryption = read_encryption(headers) if body else None
    if ttl_s < 0:
        raise NegativeTtlError("TTL must be greater than 0")
    topic = headers.get(b"topic")
    return Post(
        min(ttl_s, ttl_max_s),
        None if topic is None else read_topic(topic),
        read_urgency(headers.get(b"urgency")),
        encryption,
    )


def read_body(body: bytes) -> str | None:
    """The body in base64url without padding; stripping it is faster than an encoder without it."""
    return b64encode_as_string(body, b"-_").rstrip("=") if body else None


@lru_cache(maxsize=256)  # senders use few different values
def read_ttl(value: bytes | None) -> int:
    """Step 12; the sign is checked in step 14."""
    if value is None:
        raise NoTtlError("Missing TTL value")
    if value.isdigit() and len(value) <= _TTL_DIGITS_MAX:
        return int(value)
    digits = value[1:] if value[:1] in (b"+", b"-") else value
    if not digits.isdigit():
        raise NoTtlError("Missing TTL value")
    ttl_s = int(digits[-_TTL_DIGITS_MAX:]) if len(digits) <= _TTL_DIGITS_MAX else 2**63
    return -ttl_s if value[:1] == b"-" else ttl_s


def read_topic(value: bytes) -> str:
    """Step 15."""
    if len(value) > TOPIC_LETTERS_MAX:
        raise InvalidTopicError("Topic must be no greater than 32 characters")
    letters = value.rstrip(b"=")
    if not letters or letters.translate(None, _BASE64URL):
        raise InvalidTopicError("Topic must be URL and Filename safe Base64 alphabet")
    return value.decode("ascii")


def read_urgency(value: bytes | None) -> Urgency:
    """Unknown values count as normal: other push services do not validate them, so senders do send
    invalid ones."""
    if value is None:
        return _NORMAL
    known = _URGENCIES.get(value)  # the exact spelling
    return known if known is not None else _URGENCIES.get(value.strip().lower(), _NORMAL)


def read_encryption(headers: Headers) -> dict[str, str]:
    """Step 13, for a body that is not empty."""
    encoding = headers.get(b"content-encoding")
    if encoding is None:
        raise InvalidEncryptionError("Missing Content-Encoding header")
    encryption, crypto_key = headers.get(b"encryption"), headers.get(b"crypto-key")
    if encoding == b"aes128gcm":
        if encryption is None and crypto_key is None:
            return AES128GCM_ONLY
        _forbid(encryption, "Encryption", "salt")
        _forbid(crypto_key, "Crypto-Key", "dh")
    elif encoding == b"aesgcm":
        if encryption is None:
            raise InvalidEncryptionError("Missing Encryption header")
        _require(encryption, "Encryption", "salt")
        if crypto_key is not None:
            _require(crypto_key, "Crypto-Key", "dh")
    else:
        raise InvalidEncryptionError("Unknown Content-Encoding header")
    cleaned = {"encoding": encoding.decode("ascii")}
    if encryption is not None:
        cleaned["encryption"] = clean(encryption)
    if crypto_key is not None:
        cleaned["crypto_key"] = clean(crypto_key)
    return cleaned


def _sections_of(value: bytes, name: str) -> Sections:
    sections = parse_sections(value)
    if sections is None:
        raise InvalidEncryptionError(f"Invalid {name} header")
    return sections


def _forbid(value: bytes | None, name: str, key: str) -> None:
    if value is not None and find_item(_sections_of(value, name), key) is not None:
        raise InvalidEncryptionError(f"Do not include '{key}' header in aes128gcm {name} header")


def _require(value: bytes, name: str, key: str) -> None:
    item = find_item(_sections_of(value, name), key)
    if item is None:
        raise InvalidEncryptionError(f"Missing {key} value in {name} header")
    letters = item.rstrip("=").encode()
    if not letters or letters.translate(None, _BASE64URL):
        raise InvalidEncryptionError(f"Invalid {key} value in {name} header")


def parse_sections(value: bytes) -> Sections | None:
    """`Encryption` and `Crypto-Key`: `,` between sections, `;` between items; or None."""
    try:
        text = value.decode("ascii")
    except UnicodeDecodeError:
        return None
    sections: Sections = []
    for section in text.split(","):
        items: dict[str, str] = {}
        for item in section.split(";"):
            key, equals, content = item.partition("=")
            if not equals:
                return None
            items.setdefault(key.strip(), content.strip(' \t"'))
        sections.append(items)
    return sections


def find_item(sections: Sections, key: str) -> str | None:
    """The item of the first section that has it."""
    for items in sections:
        if key in items:
            return items[key]
    return None


def clean(value: bytes) -> str:
    return _PADDING.sub("", value.decode("ascii").replace('"', ""))
