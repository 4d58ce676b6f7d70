import hashlib
import hmac

from waystation.base.ids import Tagger, period_key
from waystation.telemetry.hashes import EventHashes, mid

MASTER = b"m" * 32
UAID = bytes(range(16))
NOW_MS = 1_782_864_000_000  # the first moment of 2026Q3


def test_a_tracking_id_is_time_and_a_keyed_hash_of_the_version() -> None:
    key = b"k" * 32
    made = mid(Tagger(key), "gAAA-version", 1_700_000_000)

    assert len(made) == 32
    assert int(made[:12], 16) == 1_700_000_000_000
    assert made[12:] == hmac.new(key, b"gAAA-version", hashlib.sha256).hexdigest()[:20]


def test_two_nodes_with_one_master_key_compute_the_same_tracking_id() -> None:
    assert EventHashes(MASTER).mid("v", 1_700_000_000) == EventHashes(MASTER).mid(
        "v", 1_700_000_000
    )
    assert EventHashes(MASTER).mid("v", 1_700_000_000) != EventHashes(b"n" * 32).mid(
        "v", 1_700_000_000
    )


def test_hashes_of_different_purposes_cannot_be_compared() -> None:
    hashes = EventHashes(MASTER)

    values = {
        hashes.uah(UAID, NOW_MS),
        hashes.chh(UAID, NOW_MS),
        hashes.qh(UAID, NOW_MS),
        hashes.presence(UAID, NOW_MS),
        hashes.uah(UAID, NOW_MS - 1),
    }

    assert len(values) == 5
    assert hashes.uah(UAID, NOW_MS) == Tagger(period_key(MASTER, "uaid", "2026Q3")).hash64(UAID)


def test_addresses_are_hashed_by_their_network() -> None:
    hashes = EventHashes(MASTER)

    def iph(address: str) -> int:
        return hashes.iph(address, NOW_MS)

    assert iph("192.0.2.1") == iph("192.0.2.200") == iph("::ffff:192.0.2.9") != iph("192.0.3.1")
    assert iph("2001:db8:1::1") == iph("2001:db8:1:ffff::2") != iph("2001:db8:2::1")
    assert iph("fe80::1%eth0") == iph("fe80::2")
    assert iph("unix") != iph("")


def test_an_application_is_the_unkeyed_hash_of_its_public_key() -> None:
    key = b"\x04" + bytes(64)

    assert EventHashes.app(key) == int.from_bytes(
        hashlib.sha256(key).digest()[:8], "big", signed=True
    )
