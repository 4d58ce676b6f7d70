"""Rows in the form that two stores are compared by, and versions of rows."""

import msgspec
import pytest

from waystation.base.settings import SettingsError
from waystation.push.model import Uaid, Update, Urgency, UserAgent
from waystation.storage.bulk import StoreConfig, hex_range, hex_ranges
from waystation.storage.bulk_rows import (
    UserAgentSnapshot,
    canonical_notification,
    canonical_record,
    inside,
    version_of,
)
from waystation.storage.open import bulk_backend
from waystation.testing.conformance.push_samples import new_channel, timed_notification

CHANNELS = frozenset(new_channel() for _ in range(4))
RECORD = UserAgent(uaid=Uaid(bytes(16)), connected_at_ms=5, router_data={"a": 1, "b": 2})
WHOLE = UserAgentSnapshot(record=RECORD, channels=CHANNELS, updates=(Update(min(CHANNELS), 7),))


def test_where_a_user_agent_is_connected_does_not_count() -> None:
    elsewhere = msgspec.structs.replace(
        RECORD, node_id="http://a", row_version=b"x", current_timestamp_ms=9, behind=True
    )
    moved = msgspec.structs.replace(WHOLE, record=elsewhere, version=3, expires_at_ms=4)

    assert canonical_record(moved) == canonical_record(WHOLE)


def test_the_order_of_names_does_not_count() -> None:
    turned = msgspec.structs.replace(RECORD, router_data={"b": 2, "a": 1})

    assert canonical_record(msgspec.structs.replace(WHOLE, record=turned)) == (
        canonical_record(WHOLE)
    )


@pytest.mark.parametrize(
    "change",
    [
        {"record": msgspec.structs.replace(RECORD, connected_at_ms=6)},
        {"record": msgspec.structs.replace(RECORD, router_data={"a": 1, "b": 3})},
        {"channels": frozenset(list(CHANNELS)[1:])},
        {"updates": ()},
        {"updates": (Update(min(CHANNELS), 7, accepted_at_ms=5),)},
    ],
    ids=["connected", "data", "channels", "updates", "time of an update"],
)
def test_everything_else_of_a_record_counts(change: dict[str, object]) -> None:
    assert canonical_record(msgspec.structs.replace(WHOLE, **change)) != canonical_record(WHOLE)


def test_every_field_of_a_notification_counts() -> None:
    note = timed_notification(new_channel(), accepted_at_ms=1000)
    others = [
        msgspec.structs.replace(note, data="BB"),
        msgspec.structs.replace(note, ttl_s=note.ttl_s + 1),
        msgspec.structs.replace(note, urgency=Urgency.HIGH),
        msgspec.structs.replace(note, headers={"encoding": "x"}),
        msgspec.structs.replace(note, sender=b"s"),
    ]

    assert len({canonical_notification(one) for one in [note, *others]}) == 6


def test_a_version_tells_where_a_part_ends() -> None:
    assert version_of(b"ab", b"c") != version_of(b"a", b"bc")
    assert 0 <= version_of(b"ab") < 1 << 63


@pytest.mark.parametrize(
    "value, wanted", [(1, False), (2, True), (3, True), (4, False), (None, False)]
)  # fmt: skip
def test_bounds_hold_on_both_sides(value: int | None, wanted: bool) -> None:
    assert inside({"at": (2, 3)}, "at", value) is wanted
    assert inside({}, "at", value)


@pytest.mark.parametrize("count", [1, 3, 16, 100])
def test_ranges_of_digits_meet_without_a_gap(count: int) -> None:
    ranges = [hex_range(part) for part in hex_ranges(count)]

    assert len(ranges) == count
    assert ranges[0][0] == ""
    assert ranges[-1][1] == "g"
    assert [end for _, end in ranges[:-1]] == [first for first, _ in ranges[1:]]
    assert sorted(ranges) == ranges


@pytest.mark.parametrize("url", ["memory:", "dual:?primary=memory:&secondary=embedded"])
def test_no_job_works_on_a_store_without_rows_of_its_own(url: str) -> None:
    with pytest.raises(SettingsError, match="jobs cannot read"):
        bulk_backend(StoreConfig(url=url))
