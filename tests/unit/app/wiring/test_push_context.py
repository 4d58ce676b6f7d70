"""What the roles of a worker are composed of: endpoint URLs, audiences, tracked keys."""

import base64
import hashlib

import pytest

from waystation.app.wiring.connect_role import link_name
from waystation.app.wiring.endpoint_role import tracked_hashes
from waystation.base.clock import ManualClock
from waystation.base.settings import SettingsError
from waystation.push.connect.endpoint_urls import EndpointUrls
from waystation.push.model import ChannelId, Uaid
from waystation.push.token import Keys, new_key
from waystation.push.vapid import audience_of

UAID, CHANNEL = Uaid(b"u" * 16), ChannelId(b"c" * 16)
POINT = b"\x04" + bytes(range(64))


@pytest.fixture
def keys() -> Keys:
    return Keys.parse(new_key(), ManualClock())


def test_without_a_key_the_endpoint_is_v1(keys: Keys) -> None:
    url = EndpointUrls(keys, "https://up.example.org/", "p").url(UAID, CHANNEL, None, False)
    base, _, token = url.rpartition("/")

    assert base == "https://up.example.org/wpush/v1"
    assert keys.open_endpoint("v1", token.encode()).uaid == UAID


def test_with_a_key_the_endpoint_is_bound_to_its_hash(keys: Keys) -> None:
    url = EndpointUrls(keys, "https://up.example.org", "p").url(UAID, CHANNEL, POINT, False)
    base, _, token = url.rpartition("/")
    opened = keys.open_endpoint("v2", token.encode())

    assert base == "https://up.example.org/wpush/v2"
    assert opened.key_hash == hashlib.sha256(POINT).digest()


@pytest.mark.parametrize("dialect, path", [("p", "/spush/v1/"), ("s", "/push/")])
def test_simplepush_has_paths_of_its_own(keys: Keys, dialect: str, path: str) -> None:
    url = EndpointUrls(keys, "http://h:1", dialect).url(UAID, CHANNEL, None, True)

    assert url.startswith("http://h:1" + path)


@pytest.mark.parametrize(
    "url, audience",
    [
        ("https://up.example.org", "https://up.example.org"),
        ("https://up.example.org:443/prefix", "https://up.example.org"),
        ("http://127.0.0.1:8082", "http://127.0.0.1:8082"),
        ("http://[::1]:8082/", "http://[::1]:8082"),
    ],
)
def test_the_audience_is_the_origin_of_the_endpoint_url(url: str, audience: str) -> None:
    assert audience_of(url) == audience


def test_tracked_keys_come_in_either_alphabet_and_with_or_without_padding() -> None:
    point = b"\x04" + b"\xff\xfe" * 32
    spellings = [
        base64.urlsafe_b64encode(point).decode(),
        base64.urlsafe_b64encode(point).decode().rstrip("="),
        base64.b64encode(point).decode(),
    ]

    assert tracked_hashes(f"[{', '.join(spellings)}]") == {hashlib.sha256(point).digest()}
    assert tracked_hashes("") == frozenset()


def test_a_tracked_key_that_is_no_key_is_refused() -> None:
    with pytest.raises(SettingsError, match="key 1 is not a VAPID public key"):
        tracked_hashes("abc")


def test_each_worker_has_a_socket_of_its_own() -> None:
    assert link_name(0) != link_name(1)
