"""Rows in LMDB: what goes in comes out, and keys sort as the rules need it."""

from hypothesis import given
from hypothesis import strategies as st

from waystation.push.model import (
    ChannelId,
    MessageId,
    MessageStatus,
    Milestone,
    Notification,
    Recipient,
    SortKey,
    Uaid,
    Update,
    Urgency,
    UserAgent,
)
from waystation.storage.embedded import layout

texts = st.text(max_size=20)
ids = st.binary(min_size=16, max_size=16)
optional_texts = st.none() | texts
times_ms = st.integers(0, 1 << 42)

notifications = st.builds(
    Notification,
    ids.map(ChannelId),
    st.text(min_size=1, max_size=300).map(MessageId),
    st.text(min_size=1, max_size=80).map(SortKey),
    times_ms,
    st.integers(0, 30 * 86_400),
    topic=optional_texts,
    data=optional_texts,
    headers=st.none() | st.dictionaries(texts, texts, max_size=3),
    urgency=st.sampled_from(Urgency),
    sender=st.none() | st.binary(min_size=32, max_size=32),
    reliability_id=optional_texts,
    reliable_state=optional_texts,
)


@given(ids.map(Uaid), notifications)
def test_a_payload_comes_back_whole_and_tells_key_and_age(
    uaid: Uaid, notification: Notification
) -> None:
    key = layout.notification_key(uaid, notification.sort_key)
    payload = layout.encode_payload(key, notification)

    assert layout.decode_payload(payload) == notification
    assert layout.key_of(payload) == key
    assert layout.age_of(payload) == (notification.accepted_at_ms, notification.message_id)


@given(ids.map(Uaid), times_ms, optional_texts, st.lists(ids, unique=True, max_size=5), times_ms)
def test_an_agents_row_comes_back_whole(
    uaid: Uaid, at_ms: int, node_id: str | None, channels: list[bytes], second: int
) -> None:
    record = UserAgent(uaid=uaid, connected_at_ms=at_ms, node_id=node_id, router_data={"a": [1]})
    row = layout.AgentRow(
        layout.encode_agent(
            record,
            channels=b"".join(channels),
            expires_at_ms=at_ms + 1,
            indexed_at_ms=second,
        )
    )

    assert row.record() == record
    assert layout.split_channels(row.channels) == channels
    assert (row.expires_at_ms, row.indexed_at_ms) == (at_ms + 1, second)


@given(st.lists(st.binary(min_size=16, max_size=16), max_size=6), st.data())
def test_a_channel_is_found_only_where_one_begins(
    channels: list[bytes], data: st.DataObject
) -> None:
    joined = b"".join(channels)
    at = data.draw(st.integers(0, max(0, len(joined) - 16)))
    wanted = ChannelId(joined[at : at + 16].ljust(16, b"\0"))

    found = layout.channel_at(joined, wanted)
    assert (found >= 0) == (wanted in channels)
    assert found < 0 or joined[found : found + 16] == wanted
    assert found % 16 == 0 or found == -1


def test_a_channel_is_found_behind_a_match_across_two_others() -> None:
    wanted = ChannelId(b"a" * 8 + b"b" * 8)
    joined = b"x" * 8 + b"a" * 8 + b"b" * 8 + b"y" * 8 + wanted

    assert layout.channel_at(joined, wanted) == 32


@given(
    st.tuples(times_ms, times_ms, st.integers(0, 1 << 24)),
    st.tuples(times_ms, times_ms, st.integers(0, 1 << 24)),
)
def test_places_sort_by_expiry_then_by_commit(
    one: tuple[int, int, int], other: tuple[int, int, int]
) -> None:
    one, other = ((s // 1000, t, n % (1 << 24)) for s, t, n in (one, other))
    first, second = layout.place_of(*one), layout.place_of(*other)

    assert (first < second) == (one < other)
    assert len(first) == layout.PLACE_BYTES
    assert layout.second_of(first) == one[0]


@given(st.sampled_from(b"NSTUA"), st.integers(0, (1 << 40) - 1), st.binary(max_size=90))
def test_an_expiry_entry_says_what_ends_and_when(kind: int, second: int, key: bytes) -> None:
    entry = layout.expiry_key(bytes([kind]), second, key)

    assert layout.split_expiry_key(entry) == (bytes([kind]), second, key)


@given(st.integers(0, 1 << 200))
def test_versions_of_any_size_come_back(version: int) -> None:
    assert layout.decode_version(layout.encode_version(version)) == version


def test_statuses_and_tracked_messages_come_back() -> None:
    status = MessageStatus(b"s" * 32, {"received": 1, "stored": 2}, 3)
    tracked = layout.TrackedRow(Milestone.STORED, 4)

    assert layout.decode_status(layout.encode_status(status)) == status
    assert layout.decode_tracked(layout.encode_tracked(tracked)) == tracked


@given(texts, texts)
def test_keys_made_of_foreign_ids_are_short_and_tell_them_apart(one: str, other: str) -> None:
    for key in (layout.tracked_key, lambda text: layout.status_key(MessageId(text))):
        assert (key(one * 50) == key(other * 50)) == (one * 50 == other * 50)
        assert 0 < len(key(one * 50)) <= 128


def test_messages_of_one_hour_lie_together() -> None:
    """The first nine bytes of a Fernet token are its version and its time."""
    early, late = MessageId("gAAAAABlU2AAxyz"), MessageId("gAAAAABlU3AAabc")

    assert layout.status_key(early) < layout.status_key(late)


@given(st.lists(ids, max_size=60, unique=True), ids, times_ms, times_ms)
def test_a_recipient_is_what_its_row_says_however_many_channels_it_has(
    channels: list[bytes], other: bytes, expires_at_ms: int, now_ms: int
) -> None:
    record = UserAgent(uaid=Uaid(bytes(16)), connected_at_ms=1, node_id="http://n")
    row = layout.encode_agent(
        record, channels=b"".join(channels), expires_at_ms=expires_at_ms, indexed_at_ms=0
    )
    for channel_id in (*channels[:1], *channels[-1:], other):
        for _ in range(2):
            found = layout.read_recipient(row, ChannelId(channel_id), now_ms)
            expected = Recipient(record, channel_id in channels)

            assert found == (expected if expires_at_ms > now_ms else None)


@given(ids, st.integers(0, 1 << 80), times_ms)
def test_an_update_is_read_as_it_was_written(raw: bytes, version: int, at_ms: int) -> None:
    channel_id = ChannelId(raw)
    update = Update(channel_id, version, accepted_at_ms=at_ms)

    assert layout.decode_update(channel_id, layout.encode_update(update)) == update


def test_an_update_of_an_impossible_time_is_one_of_unknown_time() -> None:
    row = layout.encode_update(Update(ChannelId(bytes(16)), 5, accepted_at_ms=1 << 53))

    assert row == layout.encode_version(5)
