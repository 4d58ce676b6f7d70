import hashlib
import hmac

from waystation.base.ids import Tagger, period_key
from waystation.telemetry.hashes import MEMO_MAX, EventHashes, mid

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


def test_names_are_forgotten_with_the_last_event_of_a_message() -> None:
    hashes = EventHashes(MASTER)
    names = hashes.names(UAID, "v", NOW_MS, NOW_MS * 1000)

    assert hashes.last_names(UAID, "v", NOW_MS, NOW_MS * 1000 + 1) == names
    assert not hashes.known_names
    assert hashes.last_names(UAID, "v", NOW_MS, NOW_MS * 1000 + 2) == names
    assert not hashes.known_names


def test_the_names_of_a_first_event_are_those_of_the_later_ones() -> None:
    hashes, others = EventHashes(MASTER), EventHashes(MASTER)
    names, chh = hashes.first_names(UAID, b"c" * 16, "v", NOW_MS)

    assert names == others.names(UAID, "v", NOW_MS, NOW_MS * 1000)
    assert hashes.names(UAID, "v", NOW_MS, NOW_MS * 1000 + 1) is names
    assert chh == b'"chh":%d' % others.chh(b"c" * 16, NOW_MS)


def test_names_follow_the_quarter_of_their_event() -> None:
    """Whoever was met before midnight has another hash after it."""
    hashes = EventHashes(MASTER)
    before_ms = 1_790_812_799_000  # the last second of 2026Q3
    after_ms = before_ms + 1_000
    early = [hashes.first_names(UAID, b"c" * 16, f"e{n}", before_ms) for n in range(2)]
    late = [hashes.first_names(UAID, b"c" * 16, f"l{n}", after_ms) for n in range(2)]
    last = hashes.last_names(UAID, "e0", before_ms, after_ms * 1000)

    assert {chh for _, chh in early} == {b'"chh":%d' % hashes.chh(b"c" * 16, before_ms)}
    assert {chh for _, chh in late} == {b'"chh":%d' % hashes.chh(b"c" * 16, after_ms)}
    assert early[0][1] != late[0][1]
    assert all(names.endswith(b'"uah":%d' % hashes.uah(UAID, before_ms)) for names, _ in early)
    assert all(
        names.endswith(b'"uah":%d' % hashes.uah(UAID, after_ms))
        for names in (last, *(names for names, _ in late))
    )


def test_texts_that_are_remembered_are_few() -> None:
    hashes = EventHashes(MASTER)
    for number in range(MEMO_MAX + 10):
        raw = number.to_bytes(16)
        names, chh = hashes.first_names(raw, raw, "v", NOW_MS)
        if number % 1000 == 0:
            assert names.endswith(b'"uah":%d' % hashes.uah(raw, NOW_MS))
            assert chh == b'"chh":%d' % hashes.chh(raw, NOW_MS)

    assert len(hashes._uah_texts) <= MEMO_MAX
    assert len(hashes._chh_texts) <= MEMO_MAX
