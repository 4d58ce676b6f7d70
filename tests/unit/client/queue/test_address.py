"""Addresses as text."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from waystation.client.queue.address import (
    AddressError,
    LinkAddress,
    QueueAddress,
    ServerAddress,
    is_link,
)
from waystation.client.queue.commands import Mode
from waystation.client.queue.keys import PublicKey

PRINT = bytes(range(32))
TEXT = "AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8="
DH = PublicKey("x25519", b"d" * 32)
HOSTS = ("example.org", "10.0.0.1", "abc.onion", "[::1]")


@pytest.mark.parametrize(
    "text, expected",
    [
        (f"smp://{TEXT}@example.org", ServerAddress(PRINT, ("example.org",))),
        (f"smp://{TEXT.rstrip('=')}@example.org:443", ServerAddress(PRINT, ("example.org",), 443)),
        (f"smp://{TEXT}:pa$$@a,b.onion:9/", ServerAddress(PRINT, ("a", "b.onion"), 9, "pa$$")),
        (f" smp://{TEXT}@[::1]:5224 ", ServerAddress(PRINT, ("[::1]",), 5224)),
        (f"smp://{TEXT}@[::1]", ServerAddress(PRINT, ("[::1]",))),
        (f"smp://{TEXT}@::1", ServerAddress(PRINT, ("::1",))),
        (f"smp://{TEXT}@fe80::1:2", ServerAddress(PRINT, ("fe80::1:2",))),
    ],
)
def test_a_servers_address_is_read(text: str, expected: ServerAddress) -> None:
    assert ServerAddress.parse(text) == expected


@pytest.mark.parametrize(
    "text",
    [
        "",
        "https://example.org",
        f"smp://{TEXT}",
        f"smp://{TEXT}@",
        f"smp://{TEXT}@host:0",
        f"smp://{TEXT}@host:99999",
        f"smp://{TEXT}@host:x",
        f"smp://{TEXT}@host name",
        f"smp://{TEXT}@a,,b",
        f"smp://{TEXT}@host/senderid",
        "smp://AAEC@example.org",
        f"smp://{TEXT}:p@ss@example.org",
        "smp://ÄÖ@example.org",
    ],
)
def test_what_is_no_servers_address_is_refused(text: str) -> None:
    with pytest.raises(AddressError):
        ServerAddress.parse(text)


@given(
    st.binary(min_size=32, max_size=32),
    st.lists(st.sampled_from(HOSTS), min_size=1, max_size=3),
    st.integers(1, 65_535),
    st.sampled_from(["", "secret", "a+b!"]),
)
def test_a_servers_address_survives_being_written(
    fingerprint: bytes, hosts: list[str], port: int, password: str
) -> None:
    address = ServerAddress(fingerprint, tuple(hosts), port, password)

    assert ServerAddress.parse(str(address)) == address
    assert ServerAddress.parse(address.without_password).password == ""


@given(st.binary(min_size=1, max_size=40), st.sampled_from(["M", "C", None]))
def test_a_queues_address_survives_being_written(sender_id: bytes, mode: Mode | None) -> None:
    address = QueueAddress(ServerAddress(PRINT, ("example.org",), 443), sender_id, DH, mode)

    assert QueueAddress.parse(str(address)) == address


def test_a_queues_address_does_not_give_the_password_away() -> None:
    address = QueueAddress(ServerAddress(PRINT, ("h",), 5223, "secret"), b"s" * 24, DH, "M")

    assert "secret" not in str(address)


def test_an_address_from_before_there_were_modes_is_read() -> None:
    text = str(QueueAddress(ServerAddress(PRINT, ("h",)), b"s" * 24, DH))

    assert QueueAddress.parse(text).mode is None
    assert QueueAddress.parse(f"{text}&k=s").mode == "M"


@pytest.mark.parametrize("rest", ["", "/", "/abc", "/abc#/?v=1-4", "/#/?v=1&dh=AAAA", "/a#/?dh=A"])
def test_what_is_no_queues_address_is_refused(rest: str) -> None:
    with pytest.raises(AddressError):
        QueueAddress.parse(f"smp://{TEXT}@example.org{rest}")


@given(st.binary(min_size=32, max_size=32), st.sampled_from([b"", b"i" * 24]))
def test_a_short_link_survives_being_written(key: bytes, link_id: bytes) -> None:
    link = LinkAddress(ServerAddress(PRINT, ("example.org",)), key, link_id)

    assert LinkAddress.parse(str(link)) == link
    assert is_link(str(link))
    assert link.contact == (link_id == b"")


@pytest.mark.parametrize("rest", ["", "/i#", "/i#abc", "/c#AAAA", "/c#a/b", "/x#a", "/i#abc/AAAA"])
def test_what_is_no_short_link_is_refused(rest: str) -> None:
    with pytest.raises(AddressError):
        LinkAddress.parse(f"smp://{TEXT}@example.org{rest}")


def test_an_address_is_no_link() -> None:
    assert not is_link(str(QueueAddress(ServerAddress(PRINT, ("h",)), b"i" * 24, DH)))
